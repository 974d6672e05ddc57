"""The SAT task: SATURN's difficulty, formulas that their records solve, and an exact verifier."""

import itertools
import json
import math
import random

import pytest

from rl_jax import tasks
from rl_jax.rewards import sat as reward
from rl_jax.tasks import sat

LEVELS = ((2, 3, 3), (3, 5, 20))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("tfds"))
    return tasks.load("sat", levels=LEVELS, test_levels=(1,), num_train=50, num_test=10, data_dir=folder)


def records(task, split):
    source = task.data_source(split)
    return [source[i] | {"info": json.loads(source[i]["info"])} for i in range(len(source))]


def holds(prompt: str, digits: str) -> bool:
    """Whether the digits satisfy the prompt's text, by another route than the task's own."""
    values = dict(zip("abcdefghijklmnopqrstuvwxyz", (digit == "1" for digit in digits), strict=False))
    return all(any(values[x.lower()] == x.islower() for x in clause) for clause in prompt[:-1].split(" "))


def test_the_difficulty_is_saturns():
    assert round(sat.difficulty(3, 5, 20), 2) == 9.63  # the paper's example
    assert sat.difficulty(3, 5, 20) == math.log2(5) + 2 * math.log2(20) - 3 + 5 / 3
    by_clauses = [sat.difficulty(3, 5, l) for l in range(1, 30)]  # noqa: E741
    by_variables = [sat.difficulty(3, k, 20) for k in range(3, 12)]
    assert by_clauses == sorted(by_clauses) and by_variables == sorted(by_variables)
    assert sat.difficulty(4, 5, 20) < sat.difficulty(3, 5, 20)


@pytest.mark.parametrize("k", [3, 6, 10])
def test_formulas_are_satisfied_by_what_was_drawn_and_all_solutions_are_found(k):
    rng = random.Random(k)
    for _ in range(3):
        formula, assignment = sat.make_formula(rng, 3, k, 7)
        assert len(set(formula)) == 7 and all(len({abs(v) for v in clause}) == 3 for clause in formula)
        found, prompt = sat.solutions(formula, k), sat.render(formula)
        assert found == [d for d in map("".join, itertools.product("01", repeat=k)) if holds(prompt, d)]
        assert "".join("01"[value] for value in assignment) in found


def test_records_are_right_and_in_one_split(task):
    train, test = records(task, "train"), records(task, "test")
    assert len(train) == 100 and len(test) == 10
    for record in train + test:
        info, k = record["info"], record["info"]["variables"]
        assert holds(record["prompt"], record["completion"]) and len(record["completion"]) == k
        assert task.reward_fn(record["prompt"], record["completion"], info)["reward"] == 1.0
        wrong = [d for d in map("".join, itertools.product("01", repeat=k)) if not holds(record["prompt"], d)]
        assert all(task.reward_fn("", digits, info)["reward"] == 0.0 for digits in wrong[:4])
        ids = task.tokenizer.encode(record["prompt"] + record["completion"], bos=True)
        assert task.tokenizer.decode(ids[1:]) == record["prompt"] + record["completion"]
        assert info["source"] == "sat_{}_{}_{}".format(*LEVELS[info["level"]])
        assert info["difficulty"] == round(sat.difficulty(*LEVELS[info["level"]]), 4)
    assert {record["info"]["level"] for record in test} == {1}
    formulas = [{frozenset(map(tuple, r["info"]["clauses"])) for r in rows} for rows in (train, test)]
    assert len(formulas[0]) == 100 and not formulas[0] & formulas[1]


@pytest.mark.parametrize(("text", "expected"), [
    ("10", (1.0, 1.0, 1.0)),
    (" 10\n", (1.0, 1.0, 1.0)),
    ("11", (0.0, 1.0, 0.5)),
    ("01", (0.0, 1.0, 0.0)),
    ("", (-1.0, 0.0, 0.0)),
    ("1", (-1.0, 0.0, 0.0)),
    ("100", (-1.0, 0.0, 0.0)),
    ("1 0", (-1.0, 0.0, 0.0)),
    ("1o", (-1.0, 0.0, 0.0)),
    ("10 or 11", (-1.0, 0.0, 0.0)),
    ("١٠", (-1.0, 0.0, 0.0)),
    ("-1", (-1.0, 0.0, 0.0)),
])  # fmt: skip
def test_the_verifier_accepts_an_assignment_and_nothing_else(text, expected):
    info = {"clauses": [[1], [-2]], "variables": 2}
    found = reward.score("", text, info)
    assert (found["reward"], found["format"], found["satisfied"]) == expected
    assert found["correct"] == max(found["reward"], 0.0)


@pytest.mark.parametrize(("fields", "said"), [
    (dict(levels=((3, 2, 4),)), "a level is .* got \\(3, 2, 4\\)"),
    (dict(levels=((3, 3, 8),)), "l clauses that exist"),
    (dict(levels=()), "levels must not be empty"),
    (dict(test_levels=(5,)), "test_levels indices of levels"),
    (dict(levels=((3, 3, 7),)), "too few formulas"),
])  # fmt: skip
def test_bad_settings_are_refused(tmp_path, fields, said):
    with pytest.raises(ValueError, match=said):
        sat.load(**{"num_train": 20, "num_test": 5, "data_dir": str(tmp_path), **fields})
