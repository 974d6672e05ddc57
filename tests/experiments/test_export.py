"""experiments.export: a run as a folder that transformers and PEFT open, and as a repository of a loopback Hub."""

import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

from experiments import grpo, sft
from experiments.export import card, cli, tokenizer_files
from experiments.parts import hub
from experiments.parts.setup import load_params, make_setup, model_config
from rl_jax import tokenizers
from rl_jax.core.types import TokenBatch
from rl_jax.models.hf import families
from tests.experiments import hub_server, small
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401  a fixture
from tests.experiments.test_hf import TEMPLATE, assert_only_adapters_moved, folder  # noqa: F401  a fixture
from tests.experiments.test_hf import small as small_hf
from tests.experiments.test_hub import redirect


def logits_of(config, folder_or_run, tokens):
    """Ours, of a run's newest checkpoint."""
    setup = make_setup(config)
    params = load_params(setup, folder_or_run)
    params = setup.merged(params) if setup.merged else params
    batch = TokenBatch(tokens, np.arange(tokens.shape[1], dtype=np.int32)[None], np.ones_like(tokens))
    return np.asarray(setup.model.unembed(params, setup.model.apply(params, batch)))


def logits_of_transformers(model, tokens):
    import torch

    with torch.no_grad():
        return model(torch.asarray(tokens)).logits.numpy()


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft still asks for it
def test_a_run_on_a_model_of_the_hub_goes_back_to_the_hub(folder, tmp_path, monkeypatch, capsys):  # noqa: F811
    import peft
    import transformers

    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    run = tmp_path / "run"
    with hub_server.serving() as server:
        redirect(monkeypatch, server, tmp_path / "home")
        repository = server.add("org/tiny", files | {"pytorch_model.bin": b"a pickle"})
        commit = repository.branches["main"]
        config = small_hf(folder, tmp_path)
        config.model.path = "hf://org/tiny@main"
        config.model.lora.update(rank=2, targets="layers/(q|v)")
        config.rollout.engine.name = "continuous"
        config.train.steps = config.checkpoint.every = 1
        config.eval.every = 2
        grpo.run(config, run)
        # The run stays at its commit, also when the branch has moved on to something that it could not read.
        repository.push("main", {"config.json": b"{}"})
        config.model.path, config.train.steps = "hf://org/tiny@main", 2
        (run / "final.json").unlink()
        grpo.run(config, run)
        assert config.model.path == f"hf://org/tiny@{commit}"
        assert json.loads((run / "config.json").read_text())["model"]["path"] == config.model.path
        adapter = json.loads((run / "peft" / "adapter_config.json").read_text())
        assert (adapter["base_model_name_or_path"], adapter["revision"]) == ("org/tiny", commit)
        assert_only_adapters_moved(config, run, folder)

        assert cli.main([str(run), "--to=hf://org/made"]) == 2 and "hf auth login" in capsys.readouterr().err
        assert not (run / "export").exists()
        assert not [method for method, _, _ in server.seen if method == "POST"]
        (tmp_path / "home" / "token").write_text(server.token)
        assert cli.main([str(run), "--to=hf://org/made"]) == 0
        assert f"uploaded to {server.url}/org/made/commit/" in capsys.readouterr().out
        assert [wanted["visibility"] if "visibility" in wanted else wanted["private"] for wanted in server.created] in (
            [True], ["private"],
        )  # fmt: skip
        made = server.repositories["models", "org/made"]
        back = pathlib.Path(hub.local_folder("hf://org/made"))
        assert (back / "model.safetensors").is_file()
        assert cli.main([str(run), "--to=hf://org/made", "--license=mit"]) == 0
        assert len(made.commits) == 3, "created, uploaded, uploaded again"
    uploaded = made.commits[made.branches["main"]]
    to = tmp_path / "made"
    for name, content in uploaded.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_bytes(content)
    assert {"model.safetensors", "tokenizer.json", "README.md", "generation_config.json"} < set(uploaded)
    tokens = np.array([[5, 9, 30, 2, 17]], np.int32)
    expected = logits_of(config, run, tokens)
    model = transformers.AutoModelForCausalLM.from_pretrained(to)
    np.testing.assert_allclose(logits_of_transformers(model, tokens), expected, atol=1e-5)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    adapted = peft.PeftModel.from_pretrained(base, to, subfolder=cli.ADAPTERS)
    np.testing.assert_allclose(logits_of_transformers(adapted, tokens), expected, atol=1e-4)
    read = transformers.AutoTokenizer.from_pretrained(to)
    messages = [{"role": "user", "content": "3+5="}]
    assert read.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == "<user>3+5=<a>"
    text = (to / "README.md").read_text()
    assert 'base_model: "org/tiny"' in text and 'license: "mit"' in text and "- steps: 2" in text
    for said in ('- "grpo"', "eval/reward", "after step 2", "- commit: `", commit, "adapters/", "group_relative"):
        assert said in text, said


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_model_from_scratch_opens_in_transformers_with_its_characters(tmp_path):
    import transformers

    config = small.config(tmp_path, sft__steps=2, sft__batch_size=8, sft__eval_every=2, checkpoint__every=1)
    sft.run(config, tmp_path / "run")
    to = tmp_path / "out" / "model"
    assert cli.write_folder(tmp_path / "run", to) == []
    setup = make_setup(config)
    tokens = np.array([setup.task.tokenizer.encode("3+5=", bos=True)], np.int32)
    model = transformers.AutoModelForCausalLM.from_pretrained(to)
    expected = logits_of(config, tmp_path / "run", tokens)
    np.testing.assert_allclose(logits_of_transformers(model, tokens), expected, atol=1e-5)
    read = transformers.AutoTokenizer.from_pretrained(to)
    assert read("3+5=").input_ids == setup.task.tokenizer.encode("3+5=", bos=True)  # as in training
    assert read.decode(tokens[0], skip_special_tokens=True) == "3+5="
    generation = json.loads((to / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2] and generation["pad_token_id"] == 0
    assert model.generation_config.max_new_tokens == config.rollout.completion_length
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        cli.write_folder(tmp_path / "run", to)
    first = tmp_path / "first"
    cli.write_folder(tmp_path / "run" / "checkpoints" / "1", first, dtype="bfloat16")
    stored = transformers.AutoModelForCausalLM.from_pretrained(first)
    assert "bfloat16" in str(stored.dtype) and "- steps: 1" in (first / "README.md").read_text()
    assert not [path for path in to.parent.iterdir() if path != to], "nothing half-written is left"
    # And a run goes on from it.
    config = small.config(tmp_path, model__path=str(to), train__steps=1)
    again = make_setup(config)
    assert again.task.tokenizer.encode("3+5=", bos=True) == setup.task.tokenizer.encode("3+5=", bos=True)
    jax.tree.map(
        np.testing.assert_array_equal, again.init_params(), load_params(setup, tmp_path / "run"),
    )  # fmt: skip
    # A run that was stopped at step 1, with an evaluation since: neither it nor the configured steps are the card's.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "2")
    cli.write_folder(tmp_path / "run", tmp_path / "stopped")
    card_text = (tmp_path / "stopped" / "README.md").read_text()
    assert "- steps: 1" in card_text and "after step 2" not in card_text


def test_a_mixture_from_scratch_is_a_qwen3_if_it_has_its_norms(tmp_path):
    """No family has experts and no norms of queries and keys."""
    experts = dict(model__num_experts=4, model__experts_per_token=2)
    model = model_config(make_setup(small.config(tmp_path, model__qk_norm=True, **experts)))
    assert families.write_config(model)["model_type"] == "qwen3_moe"
    with pytest.raises(ValueError, match="qwen3_moe does not support qk_norm=False"):
        families.write_config(model_config(make_setup(small.config(tmp_path, **experts))))


WRITTEN = {
    "characters": tokenizers.CharTokenizer('0123456789+-= \né\u2603"\\<>pad'),
    "bytes": tokenizers.PlainPrompts(tokenizers.ByteTokenizer()),
}
TEXTS = ("", " 1 +\n2", 'é\u2603"\\', "dap < > pp", "<pad>1<pad>")  # the last spells out a special token
OF_BYTES = ("\x00\x7f\r\n\t\u6f22\N{GRINNING FACE}", "it's  a\u0301 \ufeff1234<bos><eos><|im_end|>", "\u00a0\u00ad x ")


@pytest.mark.parametrize("kind", list(WRITTEN))
def test_a_written_tokenizer_json_has_the_ids_of_training(tmp_path, kind):
    ours = WRITTEN[kind]
    assert tokenizer_files.write(ours, tmp_path) == []
    read = tokenizers.load_tokenizer(tmp_path)
    assert (read.vocab_size, read.pad_id, read.bos_id, read.eos_ids) == (ours.vocab_size, 0, 1, (2,))
    for text in (*TEXTS, *(OF_BYTES * (kind == "bytes"))):
        ids = ours.encode(text, bos=True, eos=True)
        assert read.encode(text, bos=True, eos=True) == ids and read.decode(ids) == text
        assert read.encode_continuation(text) == ours.encode_continuation(text)
    every = list(range(ours.vocab_size))  # of bytes most are no UTF-8
    assert read.decode(every) == ours.decode(every) and read.decode(every[::-1]) == ours.decode(every[::-1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(WRITTEN))
def test_transformers_reads_the_same_ids(tmp_path, kind):
    import transformers

    ours = WRITTEN[kind]
    tokenizer_files.write(ours, tmp_path)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert (len(read), read.pad_token_id, read.bos_token_id, read.eos_token_id) == (ours.vocab_size, 0, 1, 2)
    for text in (*TEXTS, *(OF_BYTES * (kind == "bytes"))):
        assert read(text).input_ids == ours.encode(text, bos=True)
        assert read(text, add_special_tokens=False).input_ids == ours.encode(text)
        assert read.decode(ours.encode(text, bos=True, eos=True), skip_special_tokens=True) == text


def test_what_has_no_tokenizer_json_is_said(tmp_path):
    assert "object has no form as tokenizer.json" in tokenizer_files.write(object(), tmp_path)[0]
    assert list(tmp_path.iterdir()) == []


def recorded(path, algorithm="grpo", rows=()):
    """A run's folder with the files that an export reads first."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"model": {"path": ""}, "reward": {}}))
    (path / "run.json").write_text(json.dumps({"algorithm": algorithm}))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_cannot_be_exported_is_said(tmp_path, capsys):
    reward_model = recorded(tmp_path / "reward", "reward_model")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, said in [
        ([str(tmp_path / "nowhere"), "--to=x"], "no config.json: give the --workdir of a run"),
        ([str(reward_model), f"--to={tmp_path / 'x'}"], "a run of experiments.reward_model; language models"),
        ([str(reward_model), f"--to={tmp_path / 'full'}"], "exists and is not empty"),
        ([str(reward_model), "--to=hf://datasets/org/x"], "a model is not a data set"),
        ([str(reward_model), "--to=hf://x"], "hf://ORG/NAME"),
    ]:
        assert cli.main(arguments) == 2 and said in capsys.readouterr().err, said
    assert not (tmp_path / "x").exists()


def test_the_evaluation_is_that_of_the_exported_step(tmp_path):
    rows = [{"step": 0, "eval/reward": 0.1}, {"step": 2, "eval/reward": 0.2, "loss": 1.0}, {"step": 3, "loss": 1.0}]
    run = recorded(tmp_path / "run", rows=[*rows, {"step": 4, "eval/reward": 0.4}])
    assert cli.last_evaluation(run, 4) == {"step": 4, "eval/reward": 0.4}
    assert cli.last_evaluation(run, 3) == {"step": 2, "eval/reward": 0.2}
    assert cli.last_evaluation(recorded(tmp_path / "none"), 4) == {}


def test_the_best_of_the_kept_checkpoints(tmp_path):
    rows = [{"step": step, "eval/reward": value} for step, value in ((0, 9.0), (2, 0.3), (4, 0.7), (6, 0.7), (8, 0.9))]
    run = recorded(tmp_path / "run", rows=[*rows, {"step": 10, "loss": 1.0}])
    for step in (2, 4, 6, 10):  # 8 was not kept
        (run / "checkpoints" / str(step)).mkdir(parents=True)

    def best(mode, metric="eval/reward"):
        settings = {"best_metric": metric, "best_mode": mode}
        (run / "config.json").write_text(json.dumps({"checkpoint": settings}))
        return cli.best_checkpoint(run)

    assert best("max") == run / "checkpoints" / "6" and best("min") == run / "checkpoints" / "2"
    assert best("max", "") == run / "checkpoints" / "6", "a reward of one's own has no pass@1"
    said = "no step has the metric eval/pass@1 of checkpoint.best_metric. Metrics of its evaluations: eval/reward. Run"
    with pytest.raises(cli.ExportError, match=said):
        best("max", "eval/pass@1")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(cli.ExportError, match="no kept checkpoint has the metric 'eval/reward': checkpoint.every and"):
        best("max")


@pytest.mark.parametrize(
    ("text", "shown"), [("a", "`a`"), ("a`b", "``a`b``"), ("`a`", "`` `a` ``"), ("a\n```\nb", "````a ``` b````")]
)
def test_text_in_a_card_stays_code(text, shown):
    assert card._code(text) == shown


def test_the_card_says_what_the_folder_has_not():
    config = {"model": {"path": "", "lora": {"rank": 0}}, "sft": {"steps": 1, "optimizer": {"learning_rate": 1.0}}}
    record = dict(algorithm="sft", command="", git_commit="", started="", hardware={}, versions={})
    made = dict(config=config | {"seed": 0}, record=record, step=1, evaluation={}, adapters=False, license="")
    assert "\nWithout a tokenizer: X has none.\n" in card.card("m", **made, lacks=["a tokenizer: X has none"])
    assert "Without" not in card.card("m", **made)
