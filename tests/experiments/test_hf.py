"""A Hugging Face folder in, a run, a Hugging Face folder out."""

import json
import shutil

import jax
import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from configs.tasks import hf
from experiments import evaluate, grpo
from experiments.parts.check_config import check
from experiments.parts.encoding import encode_prompts
from experiments.parts.setup import load_params, make_setup, model_config
from experiments.plan import programs
from rl_jax.core.types import TokenBatch
from rl_jax.data import readers
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import even_length, kept_signals, reward  # noqa: F401  a fixture

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<a>{% endif %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random Qwen3 with a byte-level tokenizer and a chat template, saved by transformers."""
    import torch
    import transformers

    path = tmp_path_factory.mktemp("qwen3")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<pad>", "<eos>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["30+5-21=14=7"], trainer)
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "chat_template": TEMPLATE}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=320, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True, pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)
    return path


def small(folder, tmp_path):
    config = hf.get_config("smoke")
    config.model.path = str(folder)
    config.task.update(num_train=200, num_test=20, data_dir=str(tmp_path / "data"))
    config.rollout.completion_length = 6
    config.train.optimizer.update(learning_rate=1e-2, warmup_steps=0)
    config.reward.update(num_workers=0, function=reward(even_length))
    config.log.update(progress=False, tensorboard=False)
    return config


@pytest.fixture(scope="module")
def trained(folder, tmp_path_factory):
    """(config, workdir) of a run with a warm start."""
    path = tmp_path_factory.mktemp("trained")
    config = small(folder, path)
    config.sft.update(steps=2, eval_every=2, batch_size=8)
    grpo.run(config, path / "run")
    return config, path / "run"


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_folder_is_trained_and_transformers_generates_from_what_is_saved(folder, trained):
    import torch
    import transformers

    config, workdir = trained
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4] and all(row["grad_norm"] > 0 for row in rows[1:])
    assert rows[1]["ratio/first_max_dev"] < 1e-5 and rows[1]["sampler/gap_max"] < 1e-4
    saved, start = (transformers.AutoModelForCausalLM.from_pretrained(p) for p in (workdir / "hf", folder))
    moved = [(a - b).abs().max() for a, b in zip(saved.parameters(), start.parameters(), strict=True)]
    assert all(0 < change < 0.1 for change in moved)
    tokenizer = transformers.AutoTokenizer.from_pretrained(workdir / "hf")
    tokens = tokenizer("3+5=", return_tensors="pt").input_ids
    out = saved.generate(tokens, max_new_tokens=5, do_sample=False)[0]
    # And what it generates is what our own forward finds most likely, step by step.
    config = config.copy_and_resolve_references()
    config.model.path = str(workdir / "hf")
    setup = make_setup(config)
    params = setup.init_params()
    ids = np.asarray(out)[None].astype(np.int32)
    batch = TokenBatch(ids, np.arange(ids.size, dtype=np.int32)[None], np.ones_like(ids))
    logits = np.asarray(setup.model.unembed(params, setup.model.apply(params, batch)))[0]
    prompt = tokens.shape[1]
    np.testing.assert_array_equal(logits[prompt - 1 : -1].argmax(-1), ids[0, prompt:])
    with torch.no_grad():
        np.testing.assert_allclose(logits, saved(out[None]).logits[0].numpy(), atol=1e-5)


def assert_only_adapters_moved(config, workdir, folder):
    """What a run of two steps trained and saved, whose base model is in the folder: test_export.py."""
    import peft
    import torch
    import transformers

    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["sampler/gap_max"] < 1e-4 and rows[-1]["sampler/gap_max"] < 1e-4 and rows[-1]["kl/k3"] > 0
    setup = make_setup(config)
    start, end = setup.init_params(), load_params(setup, workdir)
    jax.tree.map(np.testing.assert_array_equal, end["base"], start["base"])
    moved = jax.tree.map(lambda x, y: np.abs(x - y).max(), end["adapters"], start["adapters"])
    assert min(jax.tree.leaves(moved)) > 1e-4
    # PEFT's model and the merged folder are the same.
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    adapted = peft.PeftModel.from_pretrained(base, workdir / "peft")
    merged = transformers.AutoModelForCausalLM.from_pretrained(workdir / "hf")
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        torch.testing.assert_close(adapted(tokens).logits, merged(tokens).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("kept_signals")
def test_a_run_on_a_folder_is_evaluated_from_its_checkpoint(trained, tmp_path):
    """Its warm start, too: the params of the SFT are those that RL begins with."""
    config, workdir = trained
    config = config.copy_and_resolve_references()
    config.init_from = str(workdir)
    assert set(evaluate.run(config, tmp_path / "evaluation")) >= {"eval/reward", "eval/completion_length"}
    setup = make_setup(config)
    ends = [load_params(setup, path) for path in (workdir / "sft", workdir)]
    changes = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, ends), strict=True)]
    assert 0 < max(changes) < 0.05


def test_prompts_go_through_the_chat_template(folder, tmp_path):
    config = small(folder, tmp_path)
    plain = make_setup(config)
    config.model.chat = True
    chat = make_setup(config)
    records = [{"prompt": "3+5="}]
    tokens, mask = encode_prompts(chat, records)
    assert chat.task.tokenizer.decode(tokens[0][mask[0]].tolist()) == "<user>3+5=<a>"
    tokens, mask = encode_prompts(plain, records)
    assert plain.task.tokenizer.decode(tokens[0][mask[0]].tolist()) == "3+5="


def test_the_weights_go_to_their_shards(folder, tmp_path):
    config = small(folder, tmp_path)
    whole = make_setup(config).init_params()
    config.mesh = "data:2,fsdp:2,tensor:2"
    sharded = make_setup(config).init_params()
    jax.tree.map(np.testing.assert_array_equal, whole, sharded)
    assert len(sharded["layers"]["q"]["kernel"].sharding.device_set) == 8
    assert sharded["layers"]["q"]["kernel"].addressable_shards[0].data.size == whole["layers"]["q"]["kernel"].size / 4


def test_a_field_that_is_not_known_can_be_named_as_harmless(folder, tmp_path):
    config, other = small(folder, tmp_path), shutil.copytree(folder, tmp_path / "other")
    raw = json.loads((folder / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(raw | {"made_by": "me"}))
    config.model.path = str(other)
    with pytest.raises(ValueError, match="made_by='me'.*--config.model.ignore_fields=\"\\('made_by',\\)\""):
        make_setup(config)
    config.model.ignore_fields = ("made_by",)
    check(config)
    setup = make_setup(config)
    jax.tree.map(np.testing.assert_array_equal, setup.init_params(), make_setup(small(folder, tmp_path)).init_params())
    assert model_config(setup).embed_dim == programs.model_config(config).embed_dim == 32
    config.model.ignore_fields = ("",)
    with pytest.raises(ValueError, match="model.ignore_fields=.*tuple of texts"):
        check(config)


def test_folders_that_do_not_fit_are_refused(folder, tmp_path):
    config = small(folder, tmp_path)
    config.model.path = str(tmp_path / "nowhere")
    with pytest.raises((OSError, ValueError), match="nowhere"):
        make_setup(config)
    broken = tmp_path / "broken"
    broken.mkdir()
    raw = json.loads((folder / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(raw | {"vocab_size": 100}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (broken / name).write_bytes((folder / name).read_bytes())
    config.model.path = str(broken)
    with pytest.raises((readers.DataError, ValueError), match="100"):
        make_setup(config)
    (broken / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="safetensors"):
        make_setup(config).init_params()
    weights = (folder / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(ValueError, match="model.safetensors"):
        make_setup(config).init_params()
