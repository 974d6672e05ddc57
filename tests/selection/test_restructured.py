"""CLPO whose policy rewrites: the demonstrations, free places, and what a step asks, grades and places."""

import json
import random
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from configs.experience import clpo
from experiments.parts import foreign_restructured
from rl_jax import tasks
from rl_jax.selection import rewriting
from tests.selection.test_rewriting import SIZE, judged_of, value


def test_a_small_model_is_shown_how_to_rewrite(tmp_path):
    of = dict(name="arithmetic", num_operands=(4, 4), digits=1, num_train=20, num_test=5, data_dir=str(tmp_path))
    task = tasks.load("rl_jax.tasks.restructured:load", of=of)
    source = task.data_source("sft_train")
    assert len(source) == 60 and len(task.data_source("train")) == 20
    for i in range(0, 60, 3):
        own, simple, other = (source[i + place] for place in range(3))
        assert simple["prompt"] == "," + own["prompt"] and other["prompt"] == ":" + own["prompt"]
        answer = json.loads(own["info"])["answer"]
        assert value(simple["completion"]) == value(other["completion"]) == answer
        assert simple["completion"] == rewriting.simplify(own["prompt"], random.Random(0))
        assert task.tokenizer.decode(task.tokenizer.encode(other["prompt"])) == other["prompt"]


def test_what_is_a_rewritten_sum_and_where_rewritings_go():
    assert rewriting.a_sum(" 3+5=", "5+3=") == "3+5="
    assert [rewriting.a_sum(text, "3+5=") for text in ("3+5=", "3+5", "", "x+5=", "8")] == [None] * 5
    spread = np.array([1, 0, 0, 1, 0], bool)
    wanted = np.array([1, 1, 0, 0, 1], bool)
    assert rewriting.spare_slots(spread, [2], wanted) == [(1, 0), (4, 1)]
    assert rewriting.spare_slots(spread, [1, 2, 4], wanted) == []


def test_the_policys_rewritings_are_answered_graded_and_placed(monkeypatch):
    """Four groups: hard without a right answer, medium, easy, hard. What the policy writes and answers is given."""
    prompts = ["1+2+3=", "9-4+1=", "2+2+2=", "5+5+5="]
    plain = judged_of(prompts, [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]], 1)
    writes = [["3+3=", "1+2+3=", "what", "2+4="], ["1-4+9="] * 4, [""] * 4, ["?"] * 4]
    shares = {"3+3=": [0, 1], "2+4=": [1, 1], "1-4+9=": [1, 0]}  # right in the first and in the second round
    asked, rounds = [], []
    monkeypatch.setattr(foreign_restructured, "encode_prompts", lambda setup, records: (records, None))

    def draw(records, _, key):
        asked.append([record["prompt"] for record in records])
        return "groups"

    def draw_rows(records, _, key):
        rounds.append([record["prompt"] for record in records])
        return "rows"

    def judge(drawn, records):
        if drawn == "rows":
            of_round = [shares.get(prompt, [0, 0])[len(rounds) - 1] for prompt in rounds[-1]]
            return judged_of(prompts, of_round, 5)
        told = [record["prompt"] for record in records]
        if len(asked) == 1:
            found = judged_of(told, np.zeros((4, SIZE)), 3)
            return found._replace(completions=[text for row in writes for text in row])
        return judged_of(told, [[0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]], 7)

    tokenizer = SimpleNamespace(encode=lambda text, bos: list(text))
    setup = SimpleNamespace(
        task=SimpleNamespace(tokenizer=tokenizer),
        config=SimpleNamespace(rollout=SimpleNamespace(prompt_buckets=(7,))),
    )
    stage = SimpleNamespace(
        group_size=SIZE, above=0.0, key=jax.random.key(0), setup=setup, own_prompts=np.arange(4), ends={"pad_id": 0},
        records=lambda judged: judged.records[::SIZE], draw=draw, draw_rows=draw_rows, judge=judge,
    )  # fmt: skip
    found = foreign_restructured.restructured(stage, plain, np.ones(4, bool))
    assert asked[0] == [",1+2+3=", ":9-4+1=", "2+2+2=", ",5+5+5="]
    # Rewritings that are none are answered as the problem itself, and not counted.
    assert rounds[0] == rounds[1] and rounds[0][:5] == ["3+3=", "1+2+3=", "1+2+3=", "2+4=", "1-4+9="]
    # Of the first problem 3+3= is right half the time and is asked; the last one has no rewriting.
    assert asked[1] == ["3+3=", "1-4+9=", "2+2+2=", "5+5+5="]
    # x' of 0 goes to the easy group 2 (that of 1 has only right answers); the rewritings of 0 to group 0, which has no
    # spread. Those of 1 all gain 0, those of 3 are all unreadable: no spread either.
    np.testing.assert_array_equal(found.usable.all(axis=1), [True, False, True, False])
    groups = [found.judged.records[group * SIZE]["prompt"] for group in (0, 2)]
    assert groups == [",1+2+3=", "3+3="]
    rewards = found.judged.result.rewards.reshape(4, SIZE)
    np.testing.assert_array_equal(rewards[0], [0.5, -1.0, -1.0, 1.0])  # gains over 0 right
    np.testing.assert_array_equal(rewards[2], [0, 1, 1, 0])
    tokens = found.judged.rollout.batch.tokens.reshape(4, SIZE, -1)[:, 0, -1]
    assert tokens[0] == 3 and tokens[2] == 7
    assert not found.foreign and found.metrics == {
        "hard": 0.5, "medium": 0.25, "readable": pytest.approx(6 / 12), "kept": 1.0, "rewriting_groups": 1.0,
        "gain": pytest.approx((0.5 + 1.0 + 4 * 0.0) / 6),
    }  # fmt: skip
    asked.clear()
    rounds.clear()
    untrained = foreign_restructured.restructured(stage, plain, np.ones(4, bool), train_rewriting=False)
    np.testing.assert_array_equal(untrained.usable.all(axis=1), [False, False, True, False])
    assert foreign_restructured.restructured(stage, plain, np.zeros(4, bool)) is None
    with pytest.raises(ValueError, match="answers=0 must be at least 1"):
        foreign_restructured.restructured(stage, plain, np.ones(4, bool), answers=0)


def test_the_config_has_both():
    assert clpo.get_config("smoke").task.name == "rl_jax.tasks.restructured:load"
    rules = clpo.get_config("rules,smoke")
    assert rules.task.name == "arithmetic" and list(rules.foreign) == ["rewrites"]
    released = clpo.get_config("released,smoke")
    assert not released.foreign.restructured.train_rewriting and released.algorithm.kl_coef == 0.001
    with pytest.raises(ValueError, match="with rules there is no rewriting to train"):
        clpo.get_config("rules,released")
