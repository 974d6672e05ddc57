"""experiments.dpo on a file of pairs: it trains, resumes bit for bit, and no split of a batch changes what it does."""

import json
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

from configs.preferences import given as base
from experiments import dpo
from experiments.parts import origin, preference_steps, setup
from experiments.parts.origin import ChangedError
from experiments.parts.preference_data import SCORED, Best, Encoder, records_of
from rl_jax import preferences
from rl_jax.runs.logging import read_jsonl
from rl_jax.tokenizers import CharTokenizer, ChatPrompts
from tests.experiments import small, tiny_folder
from tests.experiments.shared_programs import share_programs, sharing  # noqa: F401  fixtures
from tests.experiments.small import kept_signals  # noqa: F401

pytestmark = pytest.mark.usefixtures("kept_signals")

KTO = dict(responses=1, compare=dict(fn="anchored"), link=dict(fn="saturating"), batch_stats=dict(fn="kto_anchor"))
BCO = dict(compare=dict(fn="anchored"), batch_stats=dict(fn="bco_anchor"), micro_batches=2)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def texts(letters: str, number: int = 100):
    """Prompts of a, b, c, and for each letter a response of 2 to 4 of it."""
    rng = np.random.default_rng(0)
    for _ in range(number):
        yield "".join(rng.choice(list("abc"), 4)), [letter * int(rng.integers(2, 5)) for letter in letters]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pairs, rankings, and where they are prepared."""
    data = tmp_path_factory.mktemp("data")
    pairs = [dict(prompt=p, chosen=x, rejected=y) for p, (x, y) in texts("xy")]
    rankings = [dict(prompt=p, responses=r, rewards=[1.0, 0.5, 0.0]) for p, r in texts("xyz")]
    return dict(
        pairs=dict(path=write(data / "pairs.jsonl", pairs), kind="pairs", data_dir=str(data / "tfds")),
        rankings=dict(path=write(data / "rankings.jsonl", rankings), kind="rankings", data_dir=str(data / "tfds")),
    )


def config(files, kind="pairs", /, **slots):
    """A model from scratch with two layers of 16 and a handful of steps. slots: fields of config.algorithm or
    config.train."""
    found = base.get_config("smoke")
    found.data.update(files[kind], name="jsonl")
    found.task.alphabet = "abcxyz"
    found.model.update(embed_dim=16, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=8, mlp_dim=16)
    found.rollout.update(completion_length=5, prompt_buckets=(6,))
    found.sft.steps = 0
    found.train.update(steps=6, batch_size=16)
    found.train.optimizer.learning_rate = 1e-2
    found.eval.update(every=3, batch_size=8, num_prompts=32)
    found.checkpoint.every = 6  # the end: a checkpoint costs more than a step
    found.log.update(progress=False, tensorboard=False)
    for name, value in slots.items():
        group = found.train if name in found.train else found.algorithm
        assert name in group
        group[name] = value
    return found


def losses(workdir) -> np.ndarray:
    return np.array([row["loss"] for row in read_jsonl(workdir / "metrics.jsonl")[1:]])


@pytest.fixture(scope="module")
def plain(files, tmp_path_factory):
    """The workdir of DPO after a warm start on the chosen responses."""
    workdir = tmp_path_factory.mktemp("plain") / "run"
    found = config(files)
    found.sft.steps = 2
    dpo.run(found, workdir)
    return workdir


@pytest.mark.slow
def test_it_learns_to_prefer(plain):
    rows = read_jsonl(plain / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(7))
    np.testing.assert_allclose(rows[1]["loss"], np.log(2), rtol=1e-5)  # the policy is the reference
    assert abs(rows[0]["eval/rewards/margin"]) < 1e-5
    assert rows[-1]["eval/rewards/accuracy"] > 0.9
    assert rows[-1]["loss"] < 0.6 and rows[-1]["eval/loss"] < 0.6
    assert rows[-1]["eval/rewards/margin"] > 0.2
    assert rows[-1]["eval/log_probs/chosen"] > rows[-1]["eval/log_probs/rejected"]
    assert -1 <= rows[-1]["eval/length_correlation"] <= 1
    assert rows[0]["data/num_kept"] > 80 and rows[0]["data/num_responses_cut"] == 0
    assert json.loads((plain / "final.json").read_text())["step"] == 6
    assert json.loads((plain / "sft" / "final.json").read_text())["step"] == 2
    timing = read_jsonl(plain / "timing.jsonl")[-1]
    assert timing["compile_count"] <= 4, "shapes are leaking"
    counted = {"tokens_per_s_per_device", "train_tokens_per_s_per_device", "train_flops_per_s_per_device"}
    assert counted <= set(timing) and "mfu" not in timing, "nobody states a CPU's peak"
    assert counted <= set(read_jsonl(plain / "sft" / "timing.jsonl")[-1])


@pytest.mark.slow
def test_the_reference_is_scored_once(plain, files):
    """A second run, as after a crash before the first checkpoint, reads it from disk."""
    made = []
    cache = dpo.ReferenceCache
    found = config(files, reference_cache=str(plain / "reference"))
    found.init_from = str(plain / "sft")
    # Not by `monkeypatch`, which ends the sharing of programs: no program reads this.
    with mock.patch.object(dpo, "ReferenceCache", lambda *args, **kw: made.append(cache(*args, **kw)) or made[-1]):
        dpo.run(found, plain.parent / "again")
        assert [x.made for x in made] == [0, 0]
        np.testing.assert_array_equal(losses(plain.parent / "again"), losses(plain))
        # A fork has the warm start, and so the reference; its own settings are trained with.
        del made[:]
        found = config(files, reference_cache=str(plain / "reference"), steps=7, beta=0.5)
        found.sft.steps = 2
        dpo.run(found, origin.fork(plain, plain.parent / "fork"))
    assert [x.made for x in made] == [0, 0] and len(losses(plain.parent / "fork")) == 7
    origins = [json.loads((run / "run.json").read_text())["origin"] for run in (plain, plain.parent / "fork")]
    assert origins[0][origin.REFERENCE] == origins[1][origin.REFERENCE]


def test_sft_is_on_the_best_responses():
    records = [dict(prompt="aa", responses=["xx", "y"])]
    # Labelled ones: the desirable one alone is learned.
    records += [dict(prompt="a", responses=[text], rewards=[label]) for text, label in (("y", 0.0), ("x", 1.0))]
    best = Best(records, CharTokenizer("axy"))
    found = [{name: best[i][name] for name in ("prompt", "completion")} for i in range(len(best))]
    assert found == [dict(prompt="aa", completion="xx"), dict(prompt="a", completion="x")]
    assert best.place_of(1) == "record 2"


def test_a_number_of_prompts_is_cut_before_pairs_are_split(files):
    """All desirable ones stand first: a cut behind them would leave no other."""
    found = preferences.load(**config(files).data.to_dict())
    records = records_of(found, "train", 1, limit=10)
    assert [record["rewards"] for record in records] == [[1.0]] * 10 + [[0.0]] * 10
    assert len({record["prompt"] for record in records}) <= 10
    assert len(records_of(found, "train", 2, limit=10)) == 10
    assert len(records_of(found, "train", 2, limit=1000)) == len(records_of(found, "train", 2))


def encoder(files, needed):
    task = SimpleNamespace(tokenizer=CharTokenizer("abcxyz"))
    return Encoder(SimpleNamespace(config=config(files), task=task), needed)


def test_the_mean_of_tokens_is_over_the_prompts_that_are_there(files):
    """CPO's likelihood term in a batch of 8 with 3 prompts: the mean over their tokens."""
    records = [dict(prompt="a", responses=["x" * n, "y"], rewards=[1, 0], info={}) for n in (1, 2, 3)]
    encode = encoder(files, {"mean_tokens"})
    arrays, _ = encode(records)
    batch = encode.batch(arrays, np.arange(3), 8)
    np.testing.assert_allclose(batch.extras["mean_tokens"], np.full(8, (2 + 3 + 4) / 3))  # each with its EOS
    np.testing.assert_array_equal(batch.present.any(axis=1), np.arange(8) < 3)


def test_columns_of_marks_stay_marks(files):
    """SLiC-HF's targets are true and false, and select; numbers become float32."""
    info = dict(targets=[False, True], other_rewards=[1, 2])
    records = [dict(prompt="a", responses=["x", "y"], rewards=[1, 0], info=info)]
    arrays, _ = encoder(files, {"targets", "other_rewards"})(records)
    assert arrays["targets"].dtype == bool and arrays["other_rewards"].dtype == np.float32


def test_a_reference_with_other_positions_or_dtypes_is_scored_anew(files, tmp_path, monkeypatch):
    """Its params are the same, and what it says is not; model.dtype="auto" is float32 on a CPU, bfloat16 elsewhere."""
    arrays, _ = encoder(files, set())([dict(prompt="a", responses=["x", "y"], rewards=[1, 0], info={})])
    asked = []

    def score(params, tokens):
        asked.append(tokens.tokens.shape)
        return SimpleNamespace(log_probs=np.zeros((len(tokens.tokens), 5), np.float32))

    found = config(files, batch_size=1)
    for theta in (1e4, 1e4, 5e5):
        found.model.rope_theta = theta
        dpo.with_reference(found, tmp_path, score, {"w": np.ones(2)}, arrays)
    assert len(asked) == 2
    found.model.dtype = "auto"
    for backend, count in (("cpu", 2), ("tpu", 3)):
        monkeypatch.setattr(setup.jax, "default_backend", lambda backend=backend: backend)
        dpo.with_reference(found, tmp_path, score, {"w": np.ones(2)}, arrays)
        assert len(asked) == count


def test_rewards_of_tokens_do_not_overflow(files, tmp_path, monkeypatch):
    """Log-probs that are far apart: sigma(x) - 1/2 is +-1/2. A warning is an error here."""
    answers = iter(np.float32([[[[0, -500, -1]]], [[[-500, 0, -2]]]]))
    monkeypatch.setattr(dpo, "with_reference", lambda *args: {"ref_log_probs": next(answers)})
    found = config(files)
    rows = dict.fromkeys([f"{side}_{name}" for side in ("better", "worse") for name in SCORED])
    rewards = dpo.with_token_rewards(found, tmp_path, None, None, {"completion_mask": None, **rows})["token_rewards"]
    np.testing.assert_allclose(rewards, [[[0.5, -0.5, 1 / (1 + np.exp(-1)) - 0.5]]], rtol=1e-5)


class WithoutBos(CharTokenizer):
    """Names a BOS and puts it before no text, as SmolLM2's; chats begin with a mark."""

    def encode(self, text, *, bos=False, eos=False):
        return super().encode(text, eos=eos)

    def encode_messages(self, messages):
        return super().encode("".join(f"<{message['content'] or ''}>" for message in messages))


def with_template(alphabet):
    """A tokenizer whose texts are chats of one message."""
    own = WithoutBos(alphabet)

    def start(messages):
        return SimpleNamespace(ids=own.encode_messages(messages))

    ends = dict(turn_end=lambda: own.eos_id, turn_start=lambda: "")
    return ChatPrompts(SimpleNamespace(tokenizer=own, start=start, **ends))


@pytest.mark.parametrize(
    "tokenizer, prompt, found",
    [
        (CharTokenizer, "ab", "^zzab"),
        (WithoutBos, "ab", "zzab"),
        (WithoutBos, [dict(role="system", content="a"), dict(role="user", content="b")], "<zza><b>"),
        (WithoutBos, [dict(role="user", content=None)], "<zz>"),
        (with_template, "ab", "<zzab>"),
        (WithoutBos, [dict(role="user", content="abcabc")], "zzbcabc>"),  # cut: its beginning is gone
    ],
)
def test_an_instruction_begins_the_prompt(files, tokenizer, prompt, found):
    """T-REG: after BOS if there is one, in the first message of a chat."""
    own, plain = tokenizer("abcxyz<>"), CharTokenizer("abcxyz<>")
    settings = config(files)
    settings.algorithm.contrast.update(better="zz", worse="z")
    settings.encode.truncate = "left"
    encode = Encoder(SimpleNamespace(config=settings, task=SimpleNamespace(tokenizer=own)), {"token_rewards"})
    arrays, _ = encode([dict(prompt=prompt, responses=["x", "yy"], rewards=[1, 0], info={})])
    for side, text in (("better", found), ("worse", found.replace("zz", "z"))):
        tokens, segments = arrays[f"{side}_tokens"][0], arrays[f"{side}_segment_ids"][0] > 0
        for k, response in enumerate(("x", "yy")):
            ids = plain.encode(text.strip("^") + response, bos=text[0] == "^", eos=True)
            assert tokens[k, segments[k]].tolist() == ids
            assert arrays[f"{side}_positions"][0, k, segments[k]].tolist() == list(range(len(ids)))
        assert segments[:, :-5].sum() == 2 * len(text)  # a response begins where it did


def test_empty_instructions_are_refused_at_the_start(files):
    with pytest.raises(ValueError, match="algorithm.contrast.better is empty"):
        encoder(files, {"token_rewards"})


def test_mismatched_pairs_of_a_part_of_a_batch(files, monkeypatch):
    """3 prompts in a batch of 4: what is counted is each of them with the response before it, around the three."""
    monkeypatch.setattr(preference_steps, "to_mesh", lambda setup, rows: rows)
    encode = encoder(files, set())
    records = [dict(prompt="abc"[n], responses=["x" * (n + 1)], rewards=[1], info={}) for n in range(3)]
    encode._settings["responses"] = 1
    batch = encode.batch(encode(records)[0], np.arange(3), 4)

    def score(params, tokens):  # what a row says is its prompt's letter
        return SimpleNamespace(log_probs=params * np.tile(tokens.tokens[:, 5:6], (1, 5)).astype(np.float32))

    ratios, there = preference_steps.mismatched_log_ratios(None, SimpleNamespace(on_host=score), batch, 2.0, 1.0)
    np.testing.assert_array_equal(there, [True, True, True, False])
    letters = np.asarray(batch.batch.tokens)[:3, 0, 5]
    # Prompt a with c's three x and EOS, b with a's one, c with b's two.
    np.testing.assert_allclose(np.asarray(ratios)[:3], [4 * letters[0], 2 * letters[1], 3 * letters[2]])


@pytest.mark.parametrize("group", ["train", "eval"])
def test_batches_of_one_prompt_are_refused_at_the_start(files, group):
    """KTO takes another prompt's response."""
    found = config(files, **KTO)
    found[group].batch_size = 1
    with pytest.raises(ValueError, match=f"{group}.batch_size=1: .*kto_anchor takes the response of another prompt"):
        dpo.check(found)
    dpo.check(config(files, **KTO))
    found.algorithm.batch_stats = dict(fn="bco_anchor")
    dpo.check(found)


@pytest.mark.slow
def test_a_stopped_run_ends_where_an_undisturbed_one_does(files, tmp_path, capsys):
    """With labels in packed rows, a running mean that is carried from batch to batch, and adapters beside a frozen
    model."""

    def bco():
        found = config(files, **BCO)
        found.model.lora.rank = 2
        found.packing.mode = "packed"
        found.checkpoint.every = 4
        found.log.progress = True
        return found

    whole, part = tmp_path / "whole", tmp_path / "part"
    dpo.run(bco(), whole)
    assert small.cut_off(whole, part) == 4
    # The warm start has become another one since: its params are the reference, which no checkpoint has.
    record = json.loads((part / "run.json").read_text())
    reference = record["origin"]["reference_sha256"]
    record["origin"]["reference_sha256"] = "0"
    (part / "run.json").write_text(json.dumps(record))
    with pytest.raises(ChangedError, match="was started with another reference than it would have now"):
        dpo.run(bco(), part)
    record["origin"]["reference_sha256"] = reference
    (part / "run.json").write_text(json.dumps(record))
    dpo.run(bco(), part)
    assert "this run resumes from step 4" in capsys.readouterr().out
    assert len(set(losses(whole))) == 6 and losses(whole)[-1] < losses(whole)[0] - 1e-3
    last = read_jsonl(whole / "metrics.jsonl")[-1]
    assert last["eval/rewards/chosen"] > last["eval/rewards/rejected"] + 0.01 and (whole / "reference").exists()
    for name in ("metrics.jsonl", "final.json"):
        assert (part / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_no_split_changes_the_losses(plain, files, tmp_path):
    """Of the rows over devices, into micro-batches and by packing, of the weights over devices: all in one run."""
    found = config(files, micro_batches=2)
    found.init_from = str(plain / "sft")
    found.mesh, found.packing.mode = "data:2,fsdp:2,tensor:2", "shared_prefix"
    dpo.run(found, tmp_path / "run")
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(plain), rtol=2e-4)


# One of each kind: all of a vocabulary with weights, lists without a reference. (The stopped run has labels.)
# tests/step_checks/test_dpo_step.py has one step of the program by hand, tests/recipes/test_dpo.py every loss.
LIPO = dict(responses=3, compare=dict(fn="lambda_pairs"), reference={})
RUNS = {
    "tdpo": ("pairs", dict(score_map=dict(fn="token_level"), weight=dict(fn="policy_likelihood"))),
    "lipo": ("rankings", LIPO | dict(regularizer=dict(fn="chosen_token_nll"), regularizer_coef=0.1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_methods_of_other_kinds_learn(name, files, tmp_path):
    kind, slots = RUNS[name]
    found = config(files, kind, **slots)
    found.eval.every = 6
    dpo.run(found, tmp_path / "run")
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    good, bad = rows[-1]["eval/rewards/chosen"], rows[-1]["eval/rewards/rejected"]
    assert good > bad + 0.05
    assert (tmp_path / "run" / "reference").exists() == (name != "lipo")


@pytest.mark.slow
def test_a_folder_with_a_chat_template_goes_in_and_comes_out(files, tmp_path):
    found = config(files)
    found.model.update(path=str(tiny_folder.qwen3(tmp_path / "qwen3")), chat=True)
    found.rollout.update(prompt_buckets=(48,))
    found.eval.every = 6
    found.sft.update(steps=1, batch_size=8)
    dpo.run(found, tmp_path / "run")
    assert losses(tmp_path / "run")[-1] < np.log(2) - 0.01
    assert (tmp_path / "run" / "hf" / "tokenizer.json").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(link=dict(fn="logistik")), "no function 'logistik'; it has: .*hinge"),
        (dict(link=dict(fn="hinge", slope=1.0)), "hinge takes no keyword 'slope'; it takes: margin"),
        (dict(batch_stats=dict(fn="kto")), "no function 'kto'; it has: .*kto_anchor"),
        (dict(reference=dict(prev=1.0)), "only experiments.online_dpo supports"),
        (dict(reference=dict(refs=1.0)), "'refs', which the batch lacks.*has: ref"),
        (dict(responses=1, regularizer_coef=0.0), "K|axis|dimension|shape"),
        (dict(offset=dict(fn="other_objectives")), "other_rewards in each record's info, or algorithm.brevity"),
        (dict(compare=dict(fn="anchored")), "anchored needs anchor.*rewards"),
        (dict(micro_batches=3), "16 rows do not divide"),
    ],
    ids=lambda x: "" if isinstance(x, str) else "-".join(x),
)
def test_what_cannot_be_done_is_said(change, said, files, tmp_path):
    with pytest.raises((ValueError, AssertionError), match=said):
        dpo.run(config(files, **change), tmp_path / "run")


def test_data_of_another_kind_are_refused(files, tmp_path):
    with pytest.raises(ValueError, match="rankings; algorithm.responses=1 needs labels or pairs"):
        dpo.run(config(files, "rankings", **KTO), tmp_path / "run")
    found = config(files, score_map=dict(fn="token_level"))
    found.packing.mode = "packed"
    with pytest.raises(ValueError, match="terms of the whole vocabulary need 'padded' rows"):
        dpo.run(found, tmp_path / "run")
    found.packing.mode = "pack"
    with pytest.raises(ValueError, match="'pack' is none of padded, packed, shared_prefix"):
        dpo.run(found, tmp_path / "run")
