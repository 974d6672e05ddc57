"""disk.py: a folder belongs to one living process; what cannot be written is named."""

import errno
import json
import os
import platform
import subprocess
import sys

import pytest

from rl_jax.runs import disk
from rl_jax.runs.logging import RunLogger
from tests.paths import REPO_ROOT

HOLDER = """
import sys
from rl_jax.runs import disk
disk.lock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_and_a_dead_one_s_lock_is_free(tmp_path):
    folder = tmp_path / "new" / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO_ROOT) as first:
        assert first.stdout.readline() == "locked\n"
        said = f"{folder} belongs to a run that is going on, process {first.pid} on {platform.node()}: "
        with pytest.raises(disk.InUseError, match=said):
            disk.lock(folder)
        first.kill()
    disk.lock(folder)
    disk.lock(folder)  # the same process again
    again = subprocess.run(command, capture_output=True, text=True, cwd=REPO_ROOT, timeout=600, input="")
    assert again.returncode == 1 and f"process {os.getpid()} on" in again.stderr
    disk.unlock(folder)
    disk.unlock(folder)
    assert subprocess.run(command, capture_output=True, cwd=REPO_ROOT, timeout=600, input=b"").returncode == 0


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    program = (
        "import os, sys\nfrom rl_jax.runs import disk\ndisk.lock(sys.argv[1])\n"
        "if os.fork() == 0:\n    print('forked', flush=True)\n    sys.stdin.read()\n    os._exit(0)\n"
        "os._exit(0)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPO_ROOT) as parent:
        assert parent.stdout.readline() == "forked\n"
        assert parent.wait(600) == 0
        disk.lock(tmp_path)  # although the child is still there
        disk.unlock(tmp_path)
        parent.stdin.close()


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch, capsys):
    def refuse(place, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(disk.fcntl, "flock", refuse)
    disk.lock(tmp_path)
    assert f"{tmp_path}: this file system has no locks" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full: free some space and run the same command again"),
        (errno.EROFS, "the disk can only be read: give a folder on a disk that can be written"),
        (errno.EACCES, "this user may not write there"),
    ],
)
def test_what_cannot_be_written_is_named_with_what_to_do(tmp_path, number, said, monkeypatch):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.os, "open", refuse)
    with pytest.raises(OSError, match=f"{tmp_path} cannot be written: {said}"):
        disk.lock(tmp_path)
    monkeypatch.undo()
    with pytest.raises(OSError, match=f"{tmp_path} cannot be written: {said}"), disk.named(tmp_path):
        refuse()
    with pytest.raises(OSError, match="^mine$"), disk.named(tmp_path):
        raise OSError("mine")


def test_a_process_that_met_a_full_disk_may_lock_again(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(OSError, match="the disk is full"):
        patch.setattr(disk.os, "pwrite", refuse)
        disk.lock(tmp_path)
    disk.lock(tmp_path)
    assert json.loads((tmp_path / disk.LOCK_FILE).read_text())["pid"] == os.getpid()
    disk.unlock(tmp_path)


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(OSError, match="file/run cannot be written: a file is where a folder is needed"):
        disk.lock(tmp_path / "file" / "run")


def test_rows_on_a_full_disk_are_said_with_their_file(tmp_path):
    with RunLogger(tmp_path, total_steps=2, progress=False, tensorboard=False) as log:
        log.log(0, {"x": 1.0})
        log._files["metrics.jsonl"].close()
        log._files["metrics.jsonl"] = open("/dev/full", "ab")  # noqa: SIM115  every write to it fails
        with pytest.raises(OSError, match=r"metrics\.jsonl cannot be written: the disk is full"):
            log.log(1, {"x": 1.0})


@pytest.mark.parametrize("number", [errno.EROFS, errno.ENOSPC])
def test_a_folder_is_tried_before_long_work(tmp_path, monkeypatch, number):
    disk.try_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []

    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    with pytest.raises(OSError, match=f"{tmp_path} cannot be written: the disk "):
        disk.try_folder(tmp_path)
