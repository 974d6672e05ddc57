"""Word problems: generated ones give their own answers, published files are read, and a bad record is named."""

import gzip
import json
import random

import pytest

from configs.tasks import gsm8k
from configs.tasks import math as math_config
from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.tasks import hold_out, made_problems
from tests.paths import shared_data

QUESTION = {"question": "3 and 4?", "answer": "3+4=<<3+4=7>>7\n#### 7"}


def rows(task, split):
    source = task.data_source(split)
    return [source[i] for i in range(len(source))]


def reward(task, row, completion):
    return task.reward_fn(row["prompt"], completion, json.loads(row["info"]), **task.reward_kwargs)["reward"]


def write(folder, kind, train, test):
    names = {"gsm8k": ("gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz"),
             "math": ("math_train_7474.json.gz", "math500_test.jsonl.gz")}[kind]  # fmt: skip
    for name, records in zip(names, (train, test), strict=True):
        text = json.dumps(records) if ".json." in name else "\n".join(map(json.dumps, records))
        (folder / name).write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize("config", [gsm8k, math_config], ids=["gsm8k", "math"])
def test_generated_problems_give_their_own_answers(tmp_path, config):
    fields = config.get_config().task.to_dict() | {"num_problems": 200, "data_dir": str(tmp_path)}
    task = tasks.load(**fields)
    train, test = rows(task, "train"), rows(task, "test")
    assert len(train) + len(test) == 200 and not {r["prompt"] for r in train} & {r["prompt"] for r in test}
    for row in train + test:
        assert reward(task, row, row["completion"]) == 1.0
        assert reward(task, row, row["completion"] + "\n#### 1234 \\boxed{1234}") == 0.0
        key = hold_out.unordered(row["prompt"]) if config is math_config else row["prompt"]
        assert hold_out.is_test(key) == (row in test)
        assert len(task.tokenizer.encode(row["prompt"], bos=True)) <= max(config.get_config().rollout.prompt_buckets)
        assert len(task.tokenizer.encode(row["completion"], eos=True)) <= config.get_config().rollout.completion_length
    assert rows(task, "sft_train") == train


def test_worked_answers_are_right_step_by_step():
    rng = random.Random(0)
    for _ in range(200):
        _, worked, answer = made_problems.word_problem(rng)
        first, second, last = worked.split("\n")
        for line in (first, second):
            left, right = line.split("=")
            sign = next(sign for sign in "+-*" if sign in left)
            a, b = map(int, left.split(sign))
            assert {"+": a + b, "-": a - b, "*": a * b}[sign] == int(right)
        assert second.startswith(first.split("=")[1]) and last == f"#### {answer}" and second.endswith("=" + answer)
    with pytest.raises(ValueError, match="found 1 distinct problems, not 5"):
        list(made_problems.distinct(lambda rng: ("same", "", ""), count=5, seed=0))


def test_bad_records_are_named_or_counted(tmp_path):
    write(tmp_path, "gsm8k", [QUESTION, {"question": "5?", "answer": "no mark"}], [QUESTION | {"question": "other?"}])
    with pytest.raises(readers.DataError, match=r"gsm8k_train\.jsonl\.gz, line 2.*'answer'.*#### ANSWER"):
        tasks.load("word_problems", path=str(tmp_path), data_dir=str(tmp_path / "d"))
    task = tasks.load("word_problems", path=str(tmp_path), data_dir=str(tmp_path / "d"), skip_bad_records=True)
    assert [row["completion"] for row in rows(task, "train")] == ["3+4=7\n#### 7"]
    assert task.data_source("train").num_skipped == 1
    with pytest.raises(ValueError, match="kind='aime' is none of gsm8k, math"):
        tasks.load("word_problems", kind="aime")


def test_math_records_without_an_answer_and_repeated_ones(tmp_path):
    good = {"problem": "1/2?", "answer": "\\frac{1}{2}"}
    for answer in (None, "", "{1"):
        write(tmp_path, "math", [good, {"problem": "x?", "answer": answer}], [good])
        with pytest.raises(readers.DataError, match=r"math_train_7474\.json\.gz.*'answer'"):
            tasks.load("word_problems", kind="math", path=str(tmp_path), data_dir=str(tmp_path / "d"))
    write(tmp_path, "math", [good], [good, good | {"problem": "2/4?", "solution": "half: $\\boxed{1/2}$"}])
    task = tasks.load("word_problems", kind="math", path=str(tmp_path), data_dir=str(tmp_path / "d"), instruction=True)
    (row,) = rows(task, "test")
    assert "within \\boxed{}" in row["prompt"] and reward(task, row, row["completion"]) == 1.0
    assert task.data_source("test").report["num_test_duplicates"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("config", "sizes"), [(gsm8k, (7_470, 1_319)), (math_config, (7_454, 500))])
def test_published_files(tmp_path, config, sizes):
    fields = config.get_config("real").task.to_dict()
    task = tasks.load(**fields | {"path": str(shared_data("math")), "data_dir": str(tmp_path)})
    train, test = rows(task, "train"), rows(task, "test")
    assert (len(train), len(test)) == sizes
    assert all(reward(task, row, row["completion"]) == 1.0 for row in train[::5] + test if row["completion"])
