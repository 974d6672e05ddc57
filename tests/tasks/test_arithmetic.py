"""The arithmetic task: right answers, disjoint splits by construction, knobs that do what they say."""
import json
import re
import time

import pytest

from rl_jax import tasks
from rl_jax.tasks import arithmetic


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return tasks.load("arithmetic", num_operands=(2, 4), num_train=3000, num_test=500,
                      data_dir=str(tmp_path_factory.mktemp("tfds")))


def records(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def key(prompt: str) -> tuple[int, ...]:
    """Signed operands in order of size, read from the prompt by another route than the task's own."""
    return tuple(sorted(int(term) for term in re.findall(r"[+-]?\d+", prompt)))


def test_every_record_is_right_and_every_step_of_it(task):
    for split, count in (("train", 3000), ("test", 500)):
        rows = records(task, split)
        assert len(rows) == count == len({row["prompt"] for row in rows})
        for row in rows:
            terms = [int(term) for term in re.findall(r"[+-]?\d+", row["prompt"])]
            info = json.loads(row["info"])
            assert len(terms) == info["num_operands"]
            assert row["completion"] == "=".join(str(sum(terms[:count])) for count in range(2, len(terms) + 1))
            assert info["answer"] == sum(terms)
            assert task.reward_fn(row["prompt"], row["completion"], info)["reward"] == 1.0
            assert task.reward_fn(row["prompt"], row["completion"] + "0x", info)["reward"] == 0.0
            assert task.tokenizer.decode(task.tokenizer.encode(row["prompt"] + row["completion"])) == (
                row["prompt"] + row["completion"])


def test_splits_share_no_problem_whatever_the_seed(task, tmp_path):
    train = {key(row["prompt"]) for row in records(task, "train")}
    for seed in (0, 1):
        other = arithmetic.make_problems(num_operands=(2, 4), digits=2, operators="+-", num_train=10, num_test=2000,
                                         seed=seed)
        test = {tuple(sorted(problem)) for problem in other["test"]}
        assert not train & test
    assert arithmetic.split_of((37, 58)) == arithmetic.split_of((58, 37))
    share = sum(arithmetic.split_of((a, b)) == "test" for a in range(100) for b in range(a, 100)) / 5050
    assert 0.15 < share < 0.25


@pytest.mark.parametrize("worked, completion", [(True, "95=83"), (False, "83")])
def test_render(worked, completion):
    assert arithmetic.render((37, 58, -12), worked=worked) == ("37+58-12=", completion)
    assert arithmetic.render((37, 58), worked=worked) == ("37+58=", "95")
    assert arithmetic.render((3, -5, 2), worked=True) == ("3-5+2=", "-2=0")


@pytest.mark.parametrize("operators, digits, pattern", [
    ("+", 1, r"\d\+\d="), ("-", 1, r"\d-\d="), ("+-", 3, r"\d{1,3}[+-]\d{1,3}=")])
def test_knobs(operators, digits, pattern):
    problems = arithmetic.make_problems(num_operands=(2, 2), digits=digits, operators=operators, num_train=40,
                                        num_test=10, seed=3)
    prompts = [arithmetic.render(problem, worked=True)[0] for problem in problems["train"] + problems["test"]]
    assert all(re.fullmatch(pattern, prompt) for prompt in prompts)
    assert {operator for operator in operators if any(operator in prompt for prompt in prompts)} == set(operators)
    assert digits == 1 or any(len(prompt) == 2 * digits + 2 for prompt in prompts)


def test_seeds_differ_and_repeat():
    draw = dict(num_operands=(2, 3), digits=2, operators="+-", num_train=100, num_test=10)
    assert arithmetic.make_problems(**draw, seed=0) == arithmetic.make_problems(**draw, seed=0)
    assert arithmetic.make_problems(**draw, seed=0) != arithmetic.make_problems(**draw, seed=1)


@pytest.mark.parametrize("kwargs, message", [
    ({"num_operands": (2, 2), "digits": 1, "num_train": 500}, "distinct problems"), ({"operators": "*"}, "operators"),
    ({"operators": ""}, "operators"), ({"num_operands": (1, 2)}, "num_operands"), ({"num_operands": (3, 2)}, "num_op"),
    ({"digits": 0}, "digits"), ({"num_test": 0}, "num_test"), ({"digts": 2}, "takes no digts; it takes .*digits")])
def test_bad_arguments(kwargs, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tasks.load("arithmetic", data_dir=str(tmp_path), **kwargs)


@pytest.mark.slow
def test_twenty_thousand_take_seconds(tmp_path):
    start = time.process_time()  # a busy machine changes the other clock
    tasks.load("arithmetic", data_dir=str(tmp_path))
    assert time.process_time() - start < 30  # about 3 s


def test_some_demonstrations_stop_early_and_prompts_and_rewards_are_the_same(tmp_path):
    knobs = dict(num_operands=(3, 4), digits=1, num_train=2000, num_test=20, data_dir=str(tmp_path))
    whole, mixed = tasks.load("arithmetic", **knobs), tasks.load("arithmetic", unfinished_share=0.6, **knobs)
    stopped = set()
    count = 0
    for index in range(2000):
        full, demo = whole.data_source("sft_train")[index], mixed.data_source("sft_train")[index]
        assert (full["prompt"], full["info"]) == (demo["prompt"], demo["info"])
        assert mixed.data_source("train")[index] == full  # RL's prompts know nothing of the mix
        totals, shown = full["completion"].split("="), demo["completion"].split("=")
        assert shown == totals[: len(shown)]
        count += shown != totals
        stopped |= {(len(shown), len(totals))} if shown != totals else set()
    assert 0.56 < count / 2000 < 0.64  # 0.6 with a standard deviation of 0.011
    assert stopped == {(1, 2), (1, 3), (2, 3)}


@pytest.mark.parametrize("knobs", [dict(unfinished_share=-0.1), dict(unfinished_share=1.1),
                                   dict(unfinished_share=0.5, num_operands=(2, 3)),
                                   dict(unfinished_share=0.5, num_operands=(3, 3), worked=False)])
def test_a_share_that_makes_no_sense_is_refused(knobs, tmp_path):
    with pytest.raises(ValueError, match="unfinished_share"):
        tasks.load("arithmetic", data_dir=str(tmp_path), **knobs)
