"""tasks/code_problems.py: HumanEval and MBPP as calls and values; their own solutions pass, changed ones do not."""

import gzip
import json
import random
import sys

import pytest

from configs.tasks import code_tests
from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.rewards import code
from rl_jax.rewards.sandbox import landlock
from rl_jax.tasks import code_problems, toy_kinds
from tests.paths import shared_data


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("assert candidate(1, 'a') == 2", {"args": [1, "a"], "expected": 2}),
        ("assert f([1, -2]) == (1, [2])", {"args": [[1, -2]], "expected": {"__tuple__": [1, [2]]}}),
        ("assert f() is True", {"args": [], "expected": True}),
        ("assert f(1)", {"args": [1], "expected": True, "apply": "bool"}),
        ("assert not f(1)", {"args": [1], "expected": False, "apply": "bool"}),
        ("assert set(f(1)) == set((4, 5))", {"args": [1], "expected": {"__set__": [4, 5]}, "apply": "set"}),
        ("assert sorted(f(1)) == [1]", {"args": [1], "expected": [1], "apply": "sorted"}),
        ("assert abs(f(1) - 0.5) < 1e-6", {"args": [1], "expected": 0.5, "tolerance": 1e-6}),
        ("assert math.isclose(f(2), 8.0, rel_tol=0.5)", {"args": [2], "expected": 8.0, "tolerance": 4.0}),
        ("assert f({'a': 1}) == {1: 2}", {"args": [{"__dict__": [["a", 1]]}], "expected": {"__dict__": [[1, 2]]}}),
        ("assert f(10 - 3 * 2) == 1.0 / 4", {"args": [4], "expected": 0.25}),
    ],
)
def test_assertions_become_calls(line, expected):
    source = f"def check(candidate):\n    {line}\n    assert True, 'a remark'\n"
    assert code_problems.read_tests(source, "f") == [{"call": "f"} | expected]


@pytest.mark.parametrize(
    "line",
    [
        "for x in range(3): assert f(x) == x",
        "assert f(g(1)) == 1",
        "assert f(1) == g(1)",
        "assert g(1) == 1",
        "assert f(1) != 1",
        "assert f(x=1) == 1",
        "assert 1 < f(1) < 3",
        "x = 1",
        "pass",
    ],
)
def test_what_says_no_such_thing_is_left_out(line):
    with pytest.raises(code_problems._Unread):
        code_problems.read_tests(f"def check(candidate):\n    {line}\n", "f")


@pytest.mark.parametrize(("name", "count", "left_out"), [("humaneval", 155, 9), ("mbpp", 409, 18)])
def test_the_files_and_their_own_solutions(name, count, left_out):
    records, unread = code_problems.read(shared_data(f"code/{code_problems.FILES[name]}"), name)
    assert (len(records), len(unread)) == (count, left_out)
    if sys.platform != "linux" or not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    for record in records[:: len(records) // 10]:  # all of them were run once: docs/pages/sandbox.md
        info = json.loads(record["info"])
        assert code.score(record["prompt"], record["completion"], info)["reward"] == 1, info["task_id"]
        assert code.score(record["prompt"], f"```python\n{record['prompt']}    pass\n```", info)["reward"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("word", ["", "slow", "share"])
def test_the_generated_programs(word):
    if sys.platform != "linux" or not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    config, rng = code_tests.get_config(word), random.Random(0)
    score = {"code.score": code.score, "code.run_time": code.run_time}[config.reward.terms.tests.fn]
    for _ in range(6):
        toy = toy_kinds.KINDS[config.task.kinds[0]](rng)
        assert len(toy.prompt) < config.rollout.prompt_buckets[-1]
        assert max(map(len, (toy.right, *toy.wrong))) < config.rollout.completion_length
        right, *wrong = (score(toy.prompt, text, toy.info)["reward"] for text in (toy.right, *toy.wrong))
        assert right > max(wrong) and right > 0.5


def rows(path, *changes):
    row = dict(task_id="T/1", prompt="def f(x):\n", entry_point="f", canonical_solution="  return x\n")
    row["test"] = "def check(candidate):\n    assert candidate(1) == 1\n"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row | change) for change in changes).encode()))


def test_the_task(tmp_path):
    rows(tmp_path / code_problems.FILES["mbpp"], {}, *({"prompt": f"def f(x):\n    # {i}\n"} for i in range(30)))
    task = tasks.load("code_problems", path=str(tmp_path), names="mbpp", data_dir=str(tmp_path / "data"))
    train, test = task.data_source("train"), task.data_source("test")
    assert len(train) + len(test) == 31 and len(test) > 0 and task.reward_fn is code.score
    assert train[0]["completion"] == "  return x\n" and json.loads(train[0]["info"])["source"] == "mbpp"


def test_bad_files(tmp_path):
    with pytest.raises(ValueError, match="no file apps; the names are humaneval, mbpp"):
        code_problems.load(path=str(tmp_path), names=("apps",))
    with pytest.raises(readers.DataError, match="HumanEval.jsonl.gz is missing: task.path is the folder of"):
        code_problems.load(path=str(tmp_path))
    path = tmp_path / code_problems.FILES["mbpp"]
    path.write_bytes(b"x")
    with pytest.raises(readers.DataError, match="line 1: "):
        code_problems.read(path, "mbpp")
    path.write_bytes(gzip.compress(b"{}\n{"))
    with pytest.raises(readers.DataError, match="line 1, field 'task_id': missing"):
        code_problems.read(path, "mbpp")
    rows(path, {}, {"test": 3})
    with pytest.raises(readers.DataError, match="line 2, field 'test': expected str, found int"):
        code_problems.read(path, "mbpp")
