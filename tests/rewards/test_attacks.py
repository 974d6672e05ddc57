"""Whatever a reward function does stays in its item: the others' scores, the pool and the machine are as they were.

All attacks that end run in one call, next to each other, and no time limit is near. Those that never end run in another
call, each until its limit. They share it with items that end at once; on a busy machine one of those can be late, too.
That is no influence, and it is asked again.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid

import numpy as np
import pytest

from rl_jax.rewards import containment, worker
from rl_jax.rewards.output import MAX_CALL, Output
from rl_jax.rewards.pool import RewardPool
from tests.paths import REPO_ROOT
from tests.rewards import attacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are held by Linux's means")


def run(pool, completions):
    return pool([""] * len(completions), completions, ["{}"] * len(completions))


def processes_with(mark):
    """pids that live and carry the mark in their environment or on their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ, open(f"/proc/{pid}/cmdline", "rb") as command:
                if mark in environ.read() + command.read():
                    found.append(int(pid))
        except OSError:  # it has ended, or is not ours
            continue
    return found


@pytest.fixture
def mark(monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(attacks.MARK, mark)
    yield mark.encode()
    assert not processes_with(mark.encode()), "processes are left"


def known_attacks():
    fenced = containment.signal_fence() is not None
    return [name for name in attacks.ATTACKS if fenced or name not in attacks.FENCED]


def test_the_table_is_as_long_as_that_of_the_review():
    assert len(attacks.ATTACKS) + len(attacks.HANGS) >= 70


@pytest.mark.slow
def test_attacks_stay_in_their_item(mark, capfd):
    names = known_attacks()
    completions = [text for name in names for text in (name, "fine")]
    with RewardPool(attacks.score, num_workers=2, time_limit_s=600.0, failure_reward=-1.0, memory_gb=0.5) as pool:
        result = run(pool, completions)
        assert run(pool, ["fine"] * 4).rewards.tolist() == [1.0] * 4
        assert len(processes_with(mark)) == 2, "only the workers live between two calls"
    found = dict(zip(names, result.rewards[::2].tolist(), strict=True))
    after = dict(zip(names, result.rewards[1::2].tolist(), strict=True))
    assert {name: value for name, value in after.items() if value != 1.0} == {}, "the item after was changed"
    wrong = {name: value for name, value in found.items() if attacks.ATTACKS[name][1] == attacks.FAILS and value != -1}
    assert wrong == {} and result.num_timeouts == 0
    assert list(result.components) == ["extra"]  # nobody made up a metric
    printed = capfd.readouterr().err
    assert len(printed) < 50_000 and "bytes of this call dropped" in printed and "\x1b" not in printed
    assert result.num_errors == int((result.rewards == -1).sum())


@pytest.mark.slow
def test_attacks_that_never_end_are_late_alone(mark):
    names = list(attacks.HANGS)
    with RewardPool(attacks.score, num_workers=4, time_limit_s=0.4, failure_reward=-1.0) as pool:
        result = run(pool, [text for name in names for text in (name, "fine")])
        assert result.rewards[::2].tolist() == [-1.0] * len(names)
        assert set(result.rewards[1::2].tolist()) <= {1.0, -1.0}
        assert result.num_timeouts == int((result.rewards == -1.0).sum()) and result.num_errors == 0
        while run(pool, ["fine"] * 4).rewards.tolist() != [1.0] * 4:
            pass
        assert len(processes_with(mark)) == 4, "only the workers live between two calls"


PROGRAM = """
import json, sys
from rl_jax.rewards.pool import RewardPool
from tests.rewards import attacks
names = json.loads(sys.argv[2])
pool = RewardPool(attacks.score, kwargs={"marks": sys.argv[1]}, num_workers=len(names), time_limit_s=3600.0)
print(json.dumps([worker.process.pid for worker in pool._workers]), flush=True)
pool([""] * len(names), names, ["{}"] * len(names))
"""
ORPHANS = ["regular expression", "SIGSTOP to itself", "daemon, then wait", "swallowed exceptions"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "its workers stopped, then SIGKILL"])
def test_nothing_outlives_a_run_that_is_killed(how, mark, tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(ORPHANS)]
    parent = subprocess.Popen(command, cwd=REPO_ROOT, stdout=subprocess.PIPE)
    try:
        pids = json.loads(parent.stdout.readline())
        until(lambda: len(os.listdir(tmp_path)) == len(ORPHANS))
        if "stopped" in how:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
    finally:
        parent.send_signal(signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    until(lambda: not processes_with(mark))


MISSED = """
import subprocess, sys
from rl_jax.rewards import containment, worker
child = subprocess.Popen(["sleep", "1000"])
look, missed = containment.children, [set()]
containment.children = lambda: missed.pop() if missed else look()
containment.end_children()
sys.exit(child.poll() is None)
"""


def test_a_child_that_one_look_at_the_processes_has_missed_is_ended():
    assert subprocess.run([sys.executable, "-c", MISSED], cwd=REPO_ROOT).returncode == 0


@pytest.mark.parametrize("first", ["receive", "send"])
def test_the_end_of_the_program_cuts_a_worker_short_once(first):
    """A program that ends closes the pipes and sends a signal. If both raised, the second could stop the end's work."""
    pipe, other = os.pipe()
    os.close(other if first == "receive" else pipe)
    setup = {"parent": -1, "kwargs": {}, "time_limit_s": 1.0, "memory_gb": 1.0}
    leaving = worker._Worker(pipe, other, setup, b"")
    with pytest.raises(worker._ParentIsGone):
        leaving.receive() if first == "receive" else leaving.send("a line")
    leaving.woken()  # the signal: nothing is raised any more
    os.close(pipe if first == "receive" else other)


def test_a_woken_worker_leaves():
    leaving = worker._Worker(-1, -1, {"parent": -1, "kwargs": {}, "time_limit_s": 1.0, "memory_gb": 1.0}, b"")
    with pytest.raises(worker._ParentIsGone):
        leaving.woken()


def until(moment):
    while not moment():  # the suite's own limit ends it
        time.sleep(0.02)


def test_output_is_tagged_bounded_and_cannot_steer_the_terminal(capfd):
    read, write = os.pipe()
    os.set_blocking(read, False)
    output = Output()
    os.write(write, b"one\x1b[2J\n\xff\xc2\x9b" + b"y" * 3000)
    output.drain(read, b"")
    os.write(write, b"two\n" * (MAX_CALL // 3))
    output.drain(read, b"")
    output.end_call()
    os.close(write)
    os.close(read)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == r"[reward] one\x1b[2J" and lines[1].startswith(r"[reward] \xff\x9by")
    assert re.fullmatch(r"\[reward\] \d+ more bytes of this call dropped", lines[-1])
    assert all(line.isprintable() and len(line) < 2600 for line in lines)


def test_a_worker_that_sends_garbage_is_replaced(monkeypatch):
    """As if an item had found the worker's own pipe: its item fails, the rest goes to another worker."""
    number_of_another, no_number = b'[7, [{"reward": 1.0}, null], false]', b'[0, [{"reward": NaN}, null], false]'
    with RewardPool(attacks.score, num_workers=1, time_limit_s=600.0, failure_reward=-1.0) as pool:
        for line in (b"\xff\xfe", b"{}", number_of_another, no_number, b"[" * 90_000):
            monkeypatch.setattr(pool._workers[0], "receive", lambda line=line: ([line], False))
            result = run(pool, ["fine", "fine"])
            assert result.rewards.tolist() == [-1.0, 1.0], line
            assert "no valid answer" in result.first_error


def test_names_that_items_make_up_do_not_crowd_out_those_of_others():
    def many(prompt, completion, info):
        return {"reward": 1.0, "good": 1.0} | {f"c{completion}_{i}": 1.0 for i in range(60)}

    with RewardPool(many, num_workers=0) as pool:
        result = run(pool, [str(i) for i in range(20)])
    assert len(result.components) == 256 and result.components["good"].tolist() == [1.0] * 20
    np.testing.assert_array_equal(result.rewards, 1.0)
