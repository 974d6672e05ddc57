"""The pool survives everything a reward function can do, and what an item scores depends on the item alone."""
import functools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rl_jax.rewards.handles import WorkerHandle
from rl_jax.rewards.pool import RewardPool
from tests.paths import REPO_ROOT
from tests.rewards import broken_module, reward_functions

LIMIT_S = 1.0  # of tests in which an item is late
NO_LIMIT_S = 600.0
GIVE_UP_S = 600.0  # nothing waits for a time, all for a moment


def run(pool, completions):
    return pool([f"p{i}" for i in range(len(completions))], completions, ["{}"] * len(completions))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_rewards_components_and_kwargs(num_workers):
    with RewardPool(reward_functions.length, kwargs={"scale": 0.5}, num_workers=num_workers) as pool:
        result = pool(["a", "bb"], ["xyz", "né🙂\n\"'"], ['{"level": 4}', "{}"])
        empty = pool([], [], [])
    np.testing.assert_array_equal(result.rewards, np.array([1.5, 3.0], np.float32))
    assert result.rewards.dtype == np.float32 and sorted(result.components) == ["level", "prompt_length"]
    np.testing.assert_array_equal(result.components["prompt_length"], [1, 2])
    np.testing.assert_array_equal(result.components["level"], [4, 0])
    assert (result.num_timeouts, result.num_errors, result.first_error) == (0, 0, None)
    assert empty.rewards.shape == (0,) and empty.components == {}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_reward_function_may_return_a_number(num_workers):
    with RewardPool(reward_functions.bare, num_workers=num_workers) as pool:
        result = pool(["a", "b"], ["xyz", ""], ["{}", "{}"])
    assert result.rewards.tolist() == [3.0, 0.0] and result.num_errors == 0 and not result.components


@pytest.mark.parametrize("bad", sorted(reward_functions.BAD))
def test_one_bad_item_fails_alone(bad):
    completions = ["fine"] * 20
    completions[7] = bad
    late = bad in reward_functions.LATE
    limit_s = LIMIT_S if late else NO_LIMIT_S
    with RewardPool(reward_functions.moody, num_workers=2, time_limit_s=limit_s, failure_reward=-1.0) as pool:
        result, again = run(pool, completions), run(pool, ["fine"] * 4)
    np.testing.assert_array_equal(result.rewards, [-1.0 if i == 7 else 1.0 for i in range(20)])
    np.testing.assert_array_equal(result.components["extra"], [0.0 if i == 7 else 2.0 for i in range(20)])
    assert (result.num_timeouts, result.num_errors) == (int(late), int(not late)), result.first_error
    assert result.first_error
    np.testing.assert_array_equal(again.rewards, [1.0] * 4)


@pytest.mark.slow
def test_results_do_not_depend_on_workers_or_order():
    bad = ["exit", "segfault", "sleep", "raise", "nan", "none"]
    completions = (["fine"] * 6 + bad) * 2
    order = np.random.default_rng(0).permutation(len(completions))
    results = []
    for num_workers, permutation in ((1, np.arange(len(completions))), (3, order)):
        with RewardPool(reward_functions.moody, num_workers=num_workers, time_limit_s=LIMIT_S) as pool:
            result = run(pool, [completions[i] for i in permutation])
        assert (result.num_timeouts, result.num_errors) == (2, 10)
        results.append(result.rewards[np.argsort(permutation)])
    np.testing.assert_array_equal(*results)
    np.testing.assert_array_equal(results[0], ([1.0] * 6 + [0.0] * 6) * 2)


@pytest.mark.parametrize("bad", sorted(set(reward_functions.BAD) - reward_functions.LATE
                                       - {"exit", "segfault", "close", "interrupt", "sys.exit", "stdin"}))
def test_in_this_process(bad):
    with RewardPool(lambda *item: reward_functions.moody(*item), num_workers=0, failure_reward=-1.0) as pool:
        result = run(pool, ["fine", bad])
    np.testing.assert_array_equal(result.rewards, [1.0, -1.0])
    assert result.num_errors == 1 and result.num_timeouts == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_info_that_is_no_json_is_that_items_error(num_workers):
    with RewardPool(reward_functions.length, num_workers=num_workers) as pool:
        result = pool(["a", "b"], ["x", "y"], ["{", "{}"])
    assert result.num_errors == 1 and "JSON" in result.first_error
    np.testing.assert_array_equal(result.rewards, [0.0, 1.0])


def _local():
    def inner(prompt, completion, info):
        return {"reward": 0.0}
    return inner


def _from_notebook(prompt, completion, info):
    return {"reward": 0.0}


_from_notebook.__module__ = "__main__"


@pytest.mark.parametrize("function", [lambda p, c, i: {}, _local(), _from_notebook,
                                      functools.partial(reward_functions.length, scale=2.0)])
def test_a_function_without_an_importable_name_is_refused(function):
    with pytest.raises(ValueError, match="num_workers=0"):
        RewardPool(function, num_workers=1)


def test_other_refusals():
    with pytest.raises(ValueError, match="JSON values"):
        RewardPool(reward_functions.length, kwargs={"scale": object()})
    with pytest.raises(ValueError, match="num_workers"):
        RewardPool(reward_functions.length, num_workers=-1)
    with pytest.raises(RuntimeError, match="could not start .*only loads under pytest"):
        RewardPool(broken_module.reward, num_workers=2)
    with RewardPool(reward_functions.length, num_workers=1) as pool:
        with pytest.raises(ValueError, match="2, 1, 1"):
            pool(["a", "b"], ["x"], ["{}"])
    with pytest.raises(RuntimeError, match="closed"):
        pool(["a"], ["x"], ["{}"])


def test_workers_are_new_processes_without_jax_and_share_the_work():
    with RewardPool(reward_functions.loaded_modules, num_workers=2) as pool:
        result = run(pool, ["x"] * 64)
    assert result.rewards.min() == 1.0 and os.getpid() not in result.components["pid"]


def test_a_worker_that_died_between_calls_blames_no_item():
    with RewardPool(reward_functions.length, num_workers=2) as pool:
        for worker in pool._workers:
            os.kill(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        result = run(pool, ["x"] * 8)
    assert result.num_errors == 0 and result.rewards.sum() == 8


def test_a_worker_replaced_at_the_end_of_a_call_may_idle():
    with RewardPool(reward_functions.moody, num_workers=1) as pool:
        pool._workers.pop().stop()
        replacement = WorkerHandle(pool._setup)
        pool._workers.append(replacement)
        replacement.deadline = 0.0  # as if the next call came hours later
        assert run(pool, ["fine"]).num_errors == 0
        assert pool._workers[0] is replacement  # it was not taken for one that cannot start


@pytest.mark.slow
def test_children_of_a_late_item_end_with_it(tmp_path):
    with RewardPool(reward_functions.leaves_a_child, kwargs={"path": str(tmp_path / "pid")}, num_workers=1,
                    time_limit_s=LIMIT_S) as pool:
        assert run(pool, ["x"]).num_timeouts == 1
    pid = int((tmp_path / "pid").read_text())
    _until(lambda: not _alive(pid))


def test_large_items_do_not_block_the_pipes():
    completions = ["x" * 200_000] * 40
    with RewardPool(reward_functions.length, num_workers=2, time_limit_s=NO_LIMIT_S) as pool:
        result = run(pool, completions)
    assert result.num_errors == result.num_timeouts == 0 and result.rewards.min() == 200_000


def test_512_cheap_items_go_out_in_few_messages(monkeypatch):
    """A pool without chunks waits for each of 512."""
    send, messages = WorkerHandle.send, []

    def counted(worker):
        messages.extend(worker.outgoing.splitlines())
        send(worker)

    monkeypatch.setattr(WorkerHandle, "send", counted)
    with RewardPool(reward_functions.length, num_workers=2, time_limit_s=NO_LIMIT_S) as pool:
        messages.clear()
        assert run(pool, ["x"] * 512).rewards.sum() == 512
    assert 2 <= len(messages) <= 16


def test_workers_end_with_their_parent(tmp_path):
    """SIGKILL of the parent leaves no worker behind, also not one in the middle of an item."""
    program = """
import sys, threading, time
from rl_jax.rewards.pool import RewardPool
from tests.rewards import reward_functions
pool = RewardPool(reward_functions.begins, kwargs={"path": sys.argv[1]}, num_workers=2, time_limit_s=600)
print(*[w.process.pid for w in pool._workers], flush=True)
pool(["p"], ["x"], ["{}"])
"""
    begun = tmp_path / "begun"
    command = [sys.executable, "-c", program, str(begun)]
    parent = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.stdout.close()
    _until(begun.exists)
    parent.kill()
    parent.wait()
    assert len(pids) == 2
    _until(lambda: not any(_alive(pid) for pid in pids))


def _until(moment):
    give_up = time.monotonic() + GIVE_UP_S
    while not moment():
        assert time.monotonic() < give_up, "the moment never came"
        time.sleep(0.02)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_json_is_all_that_crosses():
    """Component values that are numpy or bool are numbers; the worker's replies are JSON."""
    with RewardPool(_numpy_values, num_workers=0) as pool:
        result = run(pool, ["x"])
    assert result.rewards[0] == 1.0 and result.components["flag"][0] == 1.0
    assert json.dumps(result.rewards.tolist()) == "[1.0]"


def _numpy_values(prompt, completion, info):
    return {"reward": np.float32(1.0), "flag": np.bool_(True)}
