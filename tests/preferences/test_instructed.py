"""preferences/instructed.py (MAPL): what an answer keeps, one answer under two prompts, their arrays and losses."""

import random

import jax.numpy as jnp
import numpy as np
import pytest

from configs.preferences import mapl
from experiments.parts import check_config, pair_scores
from experiments.tools import preference_strength, reward_consistency, reward_probe, split_pairs
from rl_jax import preferences
from rl_jax.losses.reward_model import rankings
from rl_jax.preferences import instructed, judge_task
from rl_jax.preferences.records import take_responses
from rl_jax.tokenizers import CharTokenizer


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("instructed"))
    source = preferences.load("instructed", num_prompts=40, data_dir=folder).data_source("train")
    return [source[i] for i in range(len(source))]


def asked(prompt):
    lines = prompt.split("\n")[0]
    return [line.strip() + "." for line in lines.split(".") if line.strip()]


def test_an_instruction_is_kept_or_not_as_was_asked():
    rng = random.Random(0)
    for numbers in ([4], [17, 4], [9, 8, 7, 6]):
        answer = " ".join(map(str, numbers))
        for function in instructed.FUNCTIONS.values():
            for kept in (True, False):
                assert all(instructed.keeps(answer, function(numbers, kept, rng)) == kept for _ in range(20))
    with pytest.raises(ValueError, match="'Sing.' is no instruction of Give, Start, End, Leave"):
        instructed.keeps("1", "Sing.")


def test_one_answer_keeps_more_under_the_better_prompt(records):
    pairs = [record for record in records if record["info"]["part"] == "intra"]
    kinds = set()
    for record in pairs:
        answer, again = record["responses"]
        better, worse = record["prompts"]
        assert answer == again and record["prompt"] == better and better.split("\n")[1] == worse.split("\n")[1]
        kept = [sum(instructed.keeps(answer, line) for line in asked(prompt)) for prompt in record["prompts"]]
        count = record["info"]["asked"]
        assert kept == record["info"]["kept"] and kept[0] > kept[1] and (kept[0] == count or kept[1] == 0)
        assert len(asked(better)) == len(asked(worse)) == count >= 2
        kinds.add((kept[0] == count, kept[1] == 0))
    assert len(kinds) == 3 and 3 * len(pairs) == len(records)


def test_two_answers_keep_differently_under_one_prompt(records):
    pairs = [record for record in records if record["info"]["part"] == "inter"]
    for record in pairs:
        lines = asked(record["prompt"])
        kept = [sum(instructed.keeps(answer, line) for line in lines) for answer in record["responses"]]
        assert kept == record["info"]["kept"] and kept[1] < kept[0] == len(lines) and "prompts" not in record


def test_orders_that_no_instruction_tells_apart_are_not_in_inter(tmp_path):
    """Red before: two orders with the same first and last number were drawn for without an end."""
    source = preferences.load("instructed", world="order", num_prompts=100, data_dir=str(tmp_path)).data_source("train")
    found = [source[i] for i in range(len(source))]
    of = {part: [record for record in found if record["info"]["part"] == part] for part in instructed.PARTS}
    alike = [record for record in of["original"] if not instructed.differ(*record["responses"])]
    assert alike and source.report["num_alike"] == len(alike) == len(of["original"]) - len(of["inter"])
    assert len(of["intra"]) == len(of["original"]) and all(
        r["info"]["kept"][1] < r["info"]["asked"] for r in of["inter"]
    )
    with pytest.raises(ValueError, match="no instruction tells '1 2 3 4' from '1 3 2 4': leave the pair out"):
        instructed.inter(dict(prompt="", responses=["1 2 3 4", "1 3 2 4"], info={}), random.Random(0), 3)


def test_each_response_stands_after_its_own_prompt(records):
    """Red before: both rows had the record's prompt, and a pair of equal responses was refused."""
    tokenizer = CharTokenizer("\n" + "".join(map(chr, range(32, 127))))
    pairs = [record for record in records if record["info"]["part"] == "intra"]
    options = dict(prompt_buckets=(96,), completion_length=16)
    arrays, counts = preferences.encode_preferences(tokenizer, pairs, **options)
    assert counts["num_kept"] == len(pairs) and arrays["tokens"].shape[:2] == (len(pairs), 2)
    for record, tokens, segments, mask in zip(
        pairs, arrays["tokens"], arrays["segment_ids"], arrays["completion_mask"], strict=True
    ):
        for k in (0, 1):
            text = tokenizer.decode(tokens[k][segments[k] != 0].tolist())
            assert text.replace("<bos>", "") == record["prompts"][k] + record["responses"][k]
        np.testing.assert_array_equal(tokens[0, -16:], tokens[1, -16:])
        np.testing.assert_array_equal(mask[0], mask[1])
    turned = take_responses(pairs[0], (1, 0))
    assert turned["prompts"] == pairs[0]["prompts"][::-1] and turned["info"]["kept"] == pairs[0]["info"]["kept"][::-1]
    assert turned["prompt"] == turned["prompts"][0] != pairs[0]["prompt"], "red before: it stayed"
    same = {**pairs[0], "prompts": [pairs[0]["prompt"]] * 2}
    with pytest.raises(ValueError, match="two of its responses are the same"):
        preferences.encode_preferences(tokenizer, [same], **options)
    short = options | dict(prompt_buckets=(len(pairs[0]["prompts"][0]) + 1,), truncate="drop")
    long = {**pairs[0], "prompts": [pairs[0]["prompt"], pairs[0]["prompt"] + "x"]}
    fits = {**pairs[0], "prompts": [pairs[0]["prompt"], pairs[0]["prompt"][1:]]}
    _, counts = preferences.encode_preferences(tokenizer, [long, fits], **short)
    assert counts["num_kept"] == 1 == counts["num_prompts_dropped"]


def test_tools_read_each_response_after_its_own_prompt(records):
    """Red before: both sides were read after the record's prompt, so that the gap of one answer with itself was 0."""

    class Lengths:
        def score_texts(self, prompts, responses):
            return np.array([len(p) + 1000.0 * len(r) for p, r in zip(prompts, responses, strict=True)])

    pairs = [record for record in records if record["info"]["part"] == "intra"]
    gaps = [len(record["prompts"][0]) - len(record["prompts"][1]) for record in pairs]
    assert pair_scores.gaps(Lengths(), pairs).tolist() == gaps and any(gaps)
    states = reward_probe.states_of(lambda prompts, _: np.array(prompts), pairs)
    assert states.tolist() == [prompt for record in pairs for prompt in record["prompts"]]
    plain = [record for record in records if record["info"]["part"] == "inter"]
    states = reward_probe.states_of(lambda prompts, _: np.array(prompts), plain)
    assert states.tolist() == [record["prompt"] for record in plain for _ in (0, 1)]


def test_what_writes_pairs_refuses_prompts_per_response(tmp_path, monkeypatch, capsys):
    """Red before: both responses were written after the better one's prompt."""
    data = preferences.load("instructed", parts=("intra",), num_prompts=10, data_dir=str(tmp_path))
    monkeypatch.setattr(preferences, "load", lambda *_, **__: data)
    monkeypatch.setattr(pair_scores, "load_scorer", lambda run: pytest.fail("a model was loaded"))
    out = str(tmp_path / "out.jsonl")
    for tool, more in (
        (split_pairs, ["--gamma=0", f"--easy={out}", f"--hard={out}"]),
        (preference_strength, [f"--out={out}"]),
        (reward_consistency, [f"--convex={out}"]),
    ):
        assert tool.main(["run", "--data=instructed", *more]) == 2
        assert "the responses of record 0 have prompts of their own (`prompts`)" in capsys.readouterr().err
    assert len(pair_scores.read_pairs("instructed", "", "train")) == len(data.data_source("train"))


def test_a_question_to_a_judge_has_one_prompt(tmp_path):
    """Red before: it asked which of two equal answers is better."""
    data = dict(name="instructed", parts=("intra",), num_prompts=10, data_dir=str(tmp_path))
    source = judge_task.load(data=data).data_source("train")
    with pytest.raises(ValueError, match="instructed, train, record 0: its responses have prompts of their own"):
        source[1]
    parts = judge_task.load(data=data | dict(parts=("original", "inter"))).data_source("train")
    assert all("Answer A" in parts[i]["prompt"] for i in range(len(parts)))


def test_a_reward_that_does_not_read_the_prompt_loses_log_2():
    blind = jnp.array([[0.7, 0.7]])
    loss, live = rankings.bradley_terry(blind, jnp.ones((1, 2), bool))
    assert bool(live.all()) and float(loss.sum()) == pytest.approx(np.log(2))


def test_what_is_not_there_is_refused():
    for bad, said in (
        (dict(parts=("outer",)), "parts=.'outer',. must be of original, intra, inter"),
        (dict(world="sums"), "world='sums' is none of length, order"),
        (dict(instructions=5), "instructions=5 must be 2..4"),
    ):
        with pytest.raises(ValueError, match=said):
            preferences.load("instructed", **bad)


@pytest.mark.parametrize("arg", [None, "dpo", "original,smoke"])
def test_its_config_can_run(arg):
    config = mapl.get_config(arg)
    check_config.check(config)
    assert config.program == ("dpo" if arg == "dpo" else "reward_model")
