"""Countdown, Sudoku and RandomCalculation: generators against brute force, verifiers against counts by hand."""

import itertools
import json
import random
import re
from fractions import Fraction

import pytest

from configs.tasks import backtrack_countdown_sudoku as backtrack
from configs.tasks import random_calculation as calculation_config
from rl_jax import tasks
from rl_jax.rewards import noise, puzzles
from rl_jax.rewards.algebra import as_fraction
from rl_jax.rewards.expressions import parse
from rl_jax.tasks import countdown, random_calculation, sudoku


def rows(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def reachable(numbers, target) -> bool:
    """Whether some expression of all the numbers is the target, with fractions on the way: brute force."""
    if len(numbers) == 1:
        return numbers[0] == target
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [x for place, x in enumerate(numbers) if place not in (i, j)]
        a, b = numbers[i], numbers[j]
        if any(reachable([*rest, x], target) for x in [a + b, a - b, a * b] + ([a / b] if b else [])):
            return True
    return False


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("countdown", dict(num_problems=1000)),
        ("random_calculation", dict(steps=(1,), largest=9, operands=("integer",), num_problems=300)),
        ("word_problems", dict(kind="math", num_problems=1000)),
    ],
)
def test_a_held_out_problem_is_no_training_problem_turned_round(tmp_path, name, settings):
    """Red before: 352 of 379 held-out puzzles of Countdown were training puzzles with their numbers permuted."""
    task = tasks.load(name, **settings, data_dir=str(tmp_path))
    train, test = ({turned(row["prompt"]) for row in rows(task, split)} for split in ("train", "test"))
    assert not train & test and 0.03 < len(test) / len(train | test) < 0.2


def turned(prompt):
    """The numbers of a prompt in order, fractions whole, and its other signs in theirs."""
    part = r"\\frac\{\d+\}\{\d+\}|\d+"
    return tuple(sorted(re.findall(part, prompt))), "".join(sorted(re.sub(part, "", prompt)))


# --- Countdown --------------------------------------------------------------------------------------------------------


def test_every_countdown_puzzle_has_a_solution_and_the_search_finds_it():
    rng = random.Random(0)
    for count, number in ((3, 60), (4, 6)):
        for _ in range(number):
            _, text, (numbers, target) = countdown.draw(rng, count, 9, (10, 100))
            info = {"numbers": numbers, "target": target}
            assert reachable([Fraction(n) for n in numbers], target)
            assert puzzles.countdown("", text, info)["reward"] == 1.0
            lines, found = countdown.search(numbers, target)
            assert puzzles.countdown("", "\n".join([*lines, found]), info)["reward"] == 1.0
            for line in lines:
                left, value = line.split("=")
                sign = next(sign for sign in "+-*/" if sign in left)
                a, b = map(int, left.split(sign))
                assert {"+": a + b, "-": a - b, "*": a * b, "/": Fraction(a, b or 1)}[sign] == int(value)
    assert countdown.search([1, 1, 1], 50)[1] == ""


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("(3+4)*5", 1.0), ("(3+4)*5=35", 1.0), ("3+4=7\n7*5=35\n5*(4+3)", 1.0), ("3+4*5", 0.1), ("3*4*5", 0.1),
        ("(3+4)*5=36", 0.0), ("35", 0.0), ("7*5", 0.0), ("3+4", 0.0), ("(3+4)*5*1", 0.0), ("", 0.0), ("5/(3-3)", 0.0),
        ("__import__('os')", 0.0), ("9**9**9", 0.0), ("(3+4)*5\n0", 0.0), ("(" * 1000, 0.0),
        # TinyZero's form; the last answer counts, and a thought does not.
        ("<answer>(3+4)*5</answer>", 1.0), ("<answer>\n(3+4)*5 = 35\n</answer> It is.", 1.0),
        (r"<answer>\boxed{(3+4)*5}</answer>", 1.0), (r"So it is \boxed{(3+4)*5}.", 1.0),
        ("<answer>3*4*5</answer> no: <answer>(3+4)*5</answer>", 1.0), ("<think>3*4*5</think>(3+4)*5", 1.0),
        ("<answer>(3+4)*5</answer><answer>3*4*5</answer>", 0.1), ("<answer>35</answer>", 0.0),
        ("<answer>3*4*5</answer>\n(3+4)*5", 0.1), (r"\boxed{(3+4)*5} \boxed{3*4*5}", 0.0), ("<answer></answer>", 0.0),
    ],
)  # fmt: skip
def test_countdown_pays_0_or_a_tenth_or_1(text, reward):
    """TinyZero's levels: no expression, a well-formed one of the numbers, a right one."""
    assert puzzles.countdown("", text, {"numbers": [3, 4, 5], "target": 35})["reward"] == reward


def test_a_countdown_record_needs_numbers_and_a_target():
    with pytest.raises(ValueError, match=r"info\['numbers'\] and info\['target'\] must be integers"):
        puzzles.countdown("", "", {"numbers": [3]})
    with pytest.raises(ValueError, match="count must be 2 to 4"):
        tasks.load("countdown", count=5)


# --- Sudoku -----------------------------------------------------------------------------------------------------------


def test_there_are_288_grids_of_4x4():
    full = list(sudoku.solve([[0] * 4 for _ in range(4)]))
    assert len({sudoku.text_of(grid) for grid in full}) == len(full) == 288
    assert all(puzzles.follows_rules(grid) for grid in full)


def test_every_sudoku_has_one_solution_by_brute_force():
    rng, full = random.Random(0), list(sudoku.solve([[0] * 4 for _ in range(4)]))
    for _ in range(50):
        prompt, solution = sudoku.draw(rng, full, (4, 9))
        clues = puzzles.read_grid(prompt.strip(), blanks=True)
        wanted = [c for row in clues for c in row]
        fitting = [grid for grid in full if all(c in (0, n) for c, n in zip(wanted, sum(grid, []), strict=True))]
        assert [sudoku.text_of(grid) for grid in fitting] == [solution]
        assert sum(row.count(0) for row in clues) >= 1


def test_sudoku_pays_for_the_whole_right_grid_only():
    info = {"grid": "12../3412/2143/4321"}
    assert puzzles.sudoku("", "1234/3412/2143/4321", info)["reward"] == 1.0
    assert puzzles.sudoku("", "a3=3\na4=4\n1234/3412/2143/4321\n", info)["reward"] == 1.0
    assert puzzles.sudoku("", "<answer>1234/3412/2143/4321</answer> Done.", info)["reward"] == 1.0
    other = puzzles.sudoku("", "1134/3412/2143/4321", info)  # not the clues, not the rules
    assert other["reward"] == 0.0 and other["formed"] == 1.0 and other["rules"] == 0.0
    full = "3412/1234/2143/4321"  # a grid of the rules with other clues
    assert puzzles.sudoku("", full, info) == {"reward": 0.0, "correct": 0.0, "formed": 1.0, "rules": 1.0}
    for text in ("", "1234", "12../3412/2143/4321", "1234/3412/2143/432x", "1" * 10_000, "/" * 10_000):
        assert puzzles.sudoku("", text, info)["formed"] == 0.0
    with pytest.raises(ValueError, match=r"info\['grid'\] must be a puzzle"):
        puzzles.sudoku("", "", {})


@pytest.mark.slow
@pytest.mark.parametrize("arg", ["direct", "search", "sudoku", "sudoku,search"])
def test_both_arms_fit_their_config_and_spend_the_same_tokens(tmp_path, arg):
    config = backtrack.get_config(arg)
    task = tasks.load(**config.task.to_dict() | {"num_problems": 200, "data_dir": str(tmp_path)})
    for row in rows(task, "sft_train"):
        assert task.reward_fn(row["prompt"], row["completion"], json.loads(row["info"]))["reward"] == 1.0
        assert len(task.tokenizer.encode(row["prompt"], bos=True)) <= config.rollout.prompt_buckets[0]
        assert len(task.tokenizer.encode(row["completion"], eos=True)) <= config.rollout.completion_length
    spent = config.eval.samples_per_prompt * config.rollout.completion_length
    other = backtrack.get_config("sudoku,search" if "sudoku" in arg else "search")
    assert 0.9 <= spent / other.rollout.completion_length <= 1.0


# --- RandomCalculation ------------------------------------------------------------------------------------------------


def test_calculations_are_exact():
    """Against the parser of mathematical answers, which knows nothing of how they were drawn."""
    rng = random.Random(0)
    for steps in (1, 2, 5, 10, 20):
        for _ in range(20):
            text, value = random_calculation.expression(rng, steps, 100, random_calculation.OPERANDS)
            assert as_fraction(parse(text).value) == value
            assert len(text) < 20 * (steps + 1)


def test_random_calculation_settings():
    with pytest.raises(ValueError, match="steps must be from 1 to 20"):
        tasks.load("random_calculation", steps=(0,))
    with pytest.raises(ValueError, match=r"operands=\['root'\] must be of integer"):
        tasks.load("random_calculation", operands=("root",))
    with pytest.raises(ValueError, match="choose one arm, not 2"):
        calculation_config.get_config("random,inverted")


@pytest.mark.slow
@pytest.mark.parametrize("arg", [None, "paper"])
def test_calculations_fit_their_config(tmp_path, arg):
    config = calculation_config.get_config(arg)
    task = tasks.load(**config.task.to_dict() | {"num_problems": 300, "data_dir": str(tmp_path)})
    for row in rows(task, "train") + rows(task, "test"):
        assert task.reward_fn(row["prompt"], row["completion"], json.loads(row["info"]))["reward"] == 1.0
        assert len(task.tokenizer.encode(row["prompt"], bos=True)) <= max(config.rollout.prompt_buckets)
        assert len(task.tokenizer.encode(row["completion"], eos=True)) <= config.rollout.completion_length


# --- Noise arms -------------------------------------------------------------------------------------------------------

GROUP = [r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{3}", "nothing"]
TERMS = {"graded": [0.25, 0.5, 0.5, 1.0, 0.0], "right": [0.0, 0.0, 0.0, 1.0, 0.0]}


def test_noise_arms():
    assert noise.inverted(GROUP, terms=TERMS, of="graded") == [0.75, 0.5, 0.5, 0.0, 1.0]
    assert noise.majority_wrong(GROUP, terms=TERMS, of="right") == [0.0, 1.0, 1.0, 0.0, 0.0]
    assert noise.majority_wrong(GROUP[3:], terms={"right": [1.0, 0.0]}, of="right") == [0.0, 0.0]
    for fn in (noise.inverted, noise.majority_wrong):
        with pytest.raises(ValueError, match="of='other' is no term; the terms are graded, right"):
            fn(GROUP, terms=TERMS, of="other")


def test_the_random_reward_is_random_and_the_same_in_a_resumed_run():
    texts, prompts = [f"text {n}" for n in range(4000)], ["prompt"] * 4000
    drawn = noise.bernoulli(texts, prompts=prompts, prob=0.3)
    assert drawn == noise.bernoulli(texts, prompts=prompts, prob=0.3) and set(drawn) == {0.0, 1.0}
    assert abs(sum(drawn) / 4000 - 0.3) < 4 * (0.3 * 0.7 / 4000) ** 0.5
    assert drawn != noise.bernoulli(texts, prompts=prompts, prob=0.3, seed=1)
    assert len(set(noise.bernoulli(["same"] * 50, prompts=["p"] * 50))) == 2  # equal texts of a group differ
    assert sum(noise.bernoulli(texts, prompts=prompts, prob=1.0)) == 4000
    assert sum(noise.bernoulli(texts, prompts=prompts, prob=0.0)) == 0
    with pytest.raises(ValueError, match="prob must lie in"):
        noise.bernoulli(texts, prompts=prompts, prob=2.0)
