"""rl_jax.preferences.outcomes: what is read of an episode, the verdict, its agreement with what is right, the data."""

import json

import numpy as np
import pytest

from rl_jax.data.readers import DataError
from rl_jax.envs.text.orders import Orders
from rl_jax.experience import trajectory as t
from rl_jax.preferences import outcomes
from rl_jax.tokenizers import CharTokenizer

TOKENIZER = CharTokenizer(Orders.ALPHABET)


def episode(prompt, *texts, rewards=(0.0,), status="done", group=0):
    """An episode: the prompt, what was said, what was read, what was said, ..."""
    spans = [t.prompt(TOKENIZER.encode(prompt, bos=True))]
    for place, text in enumerate(texts):
        ids = TOKENIZER.encode(text, eos=place % 2 == 0)
        spans.append(t.given("observation", ids) if place % 2 else t.sampled(ids, [-1.0] * len(ids)))
    count = len(texts[::2])
    turns = tuple(t.Turn(reward) for reward in (*(0.0,) * (count - len(rewards)), *rewards))
    return t.Trajectory(f"p{group}", group, 0, (tuple(spans),), turns, status)


def test_instruction_actions_and_the_newest_page_are_read_and_no_other_page():
    one = episode("cat top?0pets\n", "0", "0dog 1cat\n", "1\nb", "cat 7\n", "x7")
    seen = outcomes.seen_of(one, "cat top?", TOKENIZER.decode)
    assert seen == ("cat top?", ["0", "1\nb", "x7"], "cat 7\n")
    assert outcomes.question(seen) == (
        "The User Intent:\ncat top?\n\nAction History:\n0\n1; b\nx7\n\nThe Current Screenshot:\ncat 7"
    )
    at_once = outcomes.seen_of(episode("cat?0pets\n", "x7"), "cat?", TOKENIZER.decode)
    assert at_once == ("cat?", ["x7"], "0pets\n")  # the only page that was seen
    cut = outcomes.seen_of(episode("cat?0pets\n", "0", "0dog\n"), "cat?", TOKENIZER.decode)
    assert cut == ("cat?", ["0"], "0dog\n")  # a limit has ended it


def test_the_verdict_is_yes_if_it_is_more_probable_than_no():
    logits = np.random.default_rng(0).normal(size=(200, 9))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    yes, no = 3, 7
    log_probs = np.log(probs[:, [yes, no]])
    said = outcomes.verdicts(log_probs)
    assert said.tolist() == [bool(row[yes] > row[no]) for row in probs] and 60 < said.sum() < 140
    assert (said != (probs[:, yes] > 0.5)).any()  # not whether it is likely: other tokens take a share
    assert outcomes.verdicts(np.zeros((2, 2))).tolist() == [False, False]  # as likely is not more
    with pytest.raises(ValueError, match=r"\(3,\) must be \[N, 2\], of YES and of NO"):
        outcomes.verdicts(np.zeros(3))


def test_agreement_by_hand():
    said, right = np.array([1, 1, 1, 0, 0, 0, 0, 0], bool), np.array([1, 0, 1, 1, 0, 0, 1, 1], bool)
    assert outcomes.agreement(said, right) == pytest.approx(dict(accuracy=4 / 8, precision=2 / 3, recall=2 / 5))
    assert outcomes.agreement(~said & False, right) == dict(accuracy=3 / 8, recall=0.0)
    assert outcomes.agreement(said, right & False) == dict(accuracy=5 / 8, precision=0.0)
    assert outcomes.agreement(said[:0], right[:0]) == {}


def test_lines_are_prompts_with_their_answers_and_held_out_ones_are_not_trained_on(tmp_path):
    rows = [outcomes.record(outcomes.Seen("cat?", [said], "cat 7"), said == "x7", run="a") for said in ("x7", "x1")]
    assert [(row["completion"], row["answer"], row["right"]) for row in rows] == [("YES", "YES", 1), ("NO", "NO", 0)]
    assert rows[0]["actions"] == ["x7"] and rows[0]["run"] == "a" and rows[0]["prompt"].endswith("x7\n\nThe Current "
        "Screenshot:\ncat 7")  # fmt: skip
    assert outcomes.split([*rows, rows[0]], [False, True, True]) == {"train": rows[:1], "test": rows[1:]}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert outcomes.read(path) == rows
    path.write_text(json.dumps(rows[0]) + '\n{"prompt": "x"}\n')
    with pytest.raises(DataError, match="rows.jsonl, line 2, field 'right': missing"):
        outcomes.read(path)
    path.write_text("")
    with pytest.raises(DataError, match="is empty"):
        outcomes.read(path)
    with pytest.raises(DataError, match="is no file: make one with python -m experiments.tools.outcomes play"):
        outcomes.read(tmp_path / "none")
