"""The folder link, killed before each of its writes, by an exception and by SIGKILL."""

import functools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow
import pytest

from rl_jax.flow import files
from rl_jax.flow.folder import Folder
from rl_jax.flow.protocol import Group
from tests.paths import REPO_ROOT

GROUPS, PER_STEP = 8, 2


class Killed(BaseException):
    """Instead of SIGKILL."""


class Trainer:
    """Trains by remembering numbers; its checkpoint is a file. Saves every second step, settles at the one before."""

    def __init__(self, folder):
        self.checkpoint = folder / "checkpoint.json"
        saved = json.loads(self.checkpoint.read_text()) if self.checkpoint.exists() else {"step": 0, "used": []}
        self.step, self.used, self.saved = saved["step"], saved["used"], saved["step"]
        self.link = Folder(folder / "link", role="trainer")
        self.link.resume(self.step)
        self.link.publish(self.step, {"w": np.full(2, self.step, np.float32)})

    def turn(self):
        groups = self.link.take(PER_STEP)
        if not groups:
            return
        self.step += 1
        self.used += [[group.number, group.table["value"][0].as_py()] for group in groups]
        self.link.acknowledge(self.step, [group.number for group in groups])
        self.link.publish(self.step, {"w": np.full(2, self.step, np.float32)})
        if self.step % 2 == 0:
            files.write(self.checkpoint, json.dumps({"step": self.step, "used": self.used}))
            self.link.settle(self.saved)
            self.saved = self.step

    def has_ended(self):
        return self.saved == GROUPS // PER_STEP


class Sampler:
    """Puts groups one by one; after its death it asks which it had put."""

    def __init__(self, folder):
        self.link = Folder(folder / "link", role="sampler")
        known = self.link.known(range(GROUPS))
        self.left = [number for number in range(GROUPS) if number not in known]

    def turn(self):
        version, params = self.link.newest() or (0, {"w": np.zeros(2, np.float32)})
        assert (params["w"] == version).all()
        if self.left:
            number = self.left[0]
            assert self.link.put([Group(number, number // 3, pyarrow.table({"value": [number * 0.1]}))])
            self.left = self.left[1:]

    def has_ended(self):
        return False


def run(folder):
    """To the end, with both sides started again when they die; returns what the last checkpoint holds."""
    sides = {}
    for turn in range(400):
        kind = (Trainer, Sampler)[turn % 2]
        try:
            if kind not in sides:
                sides[kind] = kind(folder)
            sides[kind].turn()
            if sides[kind].has_ended():
                return json.loads((folder / "checkpoint.json").read_text())["used"]
        except Killed:
            sides.pop(kind, None)
    raise AssertionError("it did not end")


@pytest.fixture
def no_sync(monkeypatch):
    monkeypatch.setattr(files, "_sync", lambda path: None)


def test_nothing_lost_and_nothing_twice_wherever_it_is_killed(tmp_path, monkeypatch, no_sync):
    """Each write and each removal of a whole run is, once, the one that is not reached; every third run dies twice."""
    wanted = [[number, number * 0.1] for number in range(GROUPS)]
    calls, deaths = [0], set()
    for name in ("rename", "remove"):

        def mutation(*args, real):
            calls[0] += 1
            if calls[0] in deaths:
                raise Killed
            return real(*args)

        monkeypatch.setattr(files, name, functools.partial(mutation, real=getattr(files, name)))
    (tmp_path / "whole").mkdir()
    assert run(tmp_path / "whole") == wanted
    total = calls[0]
    assert total > 30
    for death in range(1, total + 1):
        folder = tmp_path / str(death)
        folder.mkdir()
        calls[0], deaths = 0, {death, death + 2} if death % 3 == 0 else {death}
        assert sorted(run(folder)) == wanted, f"killed before mutation {death}"
        left = os.listdir(folder / "link" / "groups")
        assert len([name for name in left if name.endswith(".arrow")]) <= 4 * PER_STEP, left


PROCESS = """
import os, signal, sys
from pathlib import Path
from tests.flow.test_folder import Sampler, Trainer
from rl_jax.flow import files
kind, folder, at = {"trainer": Trainer, "sampler": Sampler}[sys.argv[1]], Path(sys.argv[2]), int(sys.argv[3])
calls, real = [0], files.rename
def rename(*args):
    calls[0] += 1
    if calls[0] == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
files.rename = rename
side = kind(folder)
while not side.has_ended() and getattr(side, "left", True):
    side.turn()
"""


@pytest.mark.slow
def test_real_processes_killed_with_9(tmp_path):
    """The sampler dies once, then the trainer twice; each goes on from the files."""
    for role, deaths in (("sampler", (3,)), ("trainer", (6, 4))):
        for at in (*deaths, 0):
            command = [sys.executable, "-c", PROCESS, role, str(tmp_path), str(at)]
            done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True, timeout=120)
            assert done.returncode == (-signal.SIGKILL if at else 0), done.stderr
    used = json.loads((tmp_path / "checkpoint.json").read_text())["used"]
    assert sorted(used) == [[number, number * 0.1] for number in range(GROUPS)]


def test_an_older_trainer_stops_where_locks_do_not_hold_it(tmp_path):
    """In one process the lock is shared, as it is nobody's on a bucket."""
    older = Folder(tmp_path, role="trainer")
    newer = Folder(tmp_path, role="trainer")
    newer.resume(0)
    with pytest.raises(RuntimeError, match="another trainer since"):
        older.publish(1, {"w": np.ones(1)})
    newer.close()


def test_wrong_sides_and_orders(tmp_path):
    with pytest.raises(ValueError, match="role 'boss'"):
        Folder(tmp_path, role="boss")
    sampler, trainer = Folder(tmp_path, role="sampler"), Folder(tmp_path, role="trainer")
    with pytest.raises(RuntimeError, match="publish is for the trainer"):
        sampler.publish(0, {"w": np.ones(1)})
    with pytest.raises(RuntimeError, match="call resume"):
        trainer.take(1)
    trainer.close()


@pytest.mark.parametrize("content", [b"", b"ARROW1\0\0", b"\xff" * 4096])
def test_damaged_files_are_named(tmp_path, content):
    trainer = Folder(tmp_path, role="trainer")
    trainer.resume(0)
    (tmp_path / "groups" / f"{1:012}-{2:012}.arrow").write_bytes(content)
    with pytest.raises(ValueError, match="000002.arrow: truncated or not a group"):
        trainer.take(1)
    (tmp_path / "weights" / f"{3:012}.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="000003.safetensors: truncated or not weights"):
        trainer.newest()
    (tmp_path / "words" / "end.json").write_bytes(content)
    with pytest.raises(ValueError, match="end.json: damaged"):
        trainer.hear("end")
    trainer.close()


@pytest.mark.parametrize("role", ["trainer", "both"])
def test_leftovers_are_removed_where_nobody_else_writes(tmp_path, role):
    """A sampler beside may be at its group. Over the network, "both", the trainer's process writes groups, too."""
    left = {part: tmp_path / part / ".000000000001.ab.partial" for part in ("weights", "ledger", "groups", "words")}
    for path in left.values():
        path.parent.mkdir()
        path.write_bytes(b"x")
    Folder(tmp_path, role=role).close()
    assert [part for part, path in left.items() if path.exists()] == ([] if role == "both" else ["groups", "words"])


def test_a_ledger_with_dropped_numbers_is_read_again(tmp_path):
    """And one of before, which had none; what a lost step dropped is told of again."""
    trainer = Folder(tmp_path, role="both")
    trainer.resume(0)
    for step, (number, dropped) in enumerate([(0, []), (2, [1]), (4, [3])], 1):
        trainer.put([Group(number, number, pyarrow.table({"value": [1]}))])
        trainer.take(1), trainer.acknowledge(step, [number], dropped)
    assert json.loads((tmp_path / "ledger" / f"{1:012}.json").read_text()) == [0]
    trainer = Folder(tmp_path, role="both")
    trainer.resume(2)
    assert trainer.waiting() == [(4, 4)] and Folder(tmp_path, role="sampler", max_waiting=1).has_room() is False
    trainer.settle(2)
    assert json.loads((tmp_path / "settled.json").read_text()) == {"step": 2, "below": 3, "others": []}
    trainer.close()
    (tmp_path / "settled.json").write_text(json.dumps({"step": 2, "below": 1, "others": [2]}))  # without the dropped 1
    trainer = Folder(tmp_path, role="both")
    assert trainer.known(range(5)) == {0, 2, 4}
    trainer.close()


def test_a_ledger_without_its_groups_is_said(tmp_path):
    trainer = Folder(tmp_path, role="both")
    trainer.resume(0)
    trainer.put([Group(0, 0, pyarrow.table({"value": [1]}))])
    trainer.take(1), trainer.acknowledge(1, [0])
    for path in (tmp_path / "groups").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match=r"names groups \[0\], whose files are gone"):
        Folder(tmp_path, role="trainer")
    trainer.close()
