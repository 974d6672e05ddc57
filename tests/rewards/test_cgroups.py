"""Control groups of reward workers: found and made where the kernel has them, and what is in one ends with it."""

import os
import pathlib
import secrets
import signal
import subprocess

import pytest

from rl_jax.rewards import cgroups, handles

MOUNTS = "proc /proc proc rw 0 0\ntmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 {root} cgroup2 rw 0 0\n"


def probe() -> bool:
    group = cgroups.make(secrets.token_hex(4))
    return bool(group and group.end())


needs_groups = pytest.mark.skipif(not probe(), reason="no control group of version 2 can be made here")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """A folder that shows control groups as a kernel does: a new one has its files, and goes although it has them."""
    made, removed = pathlib.Path.mkdir, pathlib.Path.rmdir

    def mkdir(self, *args, **more):
        made(self, *args, **more)
        if self.parent == tmp_path:
            for name in ("cgroup.procs", "cgroup.kill"):
                (self / name).touch()

    def rmdir(self):
        if (self / "cgroup.procs").exists():
            if (self / "cgroup.procs").read_text() and not (self / "cgroup.kill").read_text():
                raise OSError("busy")
            for name in ("cgroup.procs", "cgroup.kill"):
                (self / name).unlink()
        removed(self)

    monkeypatch.setattr(pathlib.Path, "mkdir", mkdir)
    monkeypatch.setattr(pathlib.Path, "rmdir", rmdir)
    return tmp_path


def test_the_own_group_is_read_from_proc(tmp_path):
    mounts, own, root = tmp_path / "mounts", tmp_path / "own", tmp_path / "root"
    (root / "user/session").mkdir(parents=True)
    mounts.write_text(MOUNTS.format(root=root))
    own.write_text("9:name=systemd:/x\n0::/user/session\n")
    assert cgroups.own_folder(mounts, own) == root / "user/session"
    own.write_text("0::/elsewhere\n")
    assert cgroups.own_folder(mounts, own) is None, "it is not there, or cannot be written to"
    own.write_text("9:name=systemd:/x\n")
    assert cgroups.own_folder(mounts, own) is None, "version 1 only"
    mounts.write_text("proc /proc proc rw 0 0\n")
    assert cgroups.own_folder(mounts, own) is None
    assert cgroups.own_folder(tmp_path / "none", own) is None


def test_a_group_is_made_killed_and_removed(kernel):
    group = cgroups.make("tag", kernel)
    assert group.folder.name == f"rl_jax-reward-{os.getpid()}-tag"
    assert group.take(123) and (group.folder / "cgroup.procs").read_text() == "123\n"
    assert group.end() and not group.folder.exists()
    assert group.end() and not group.take(5), "it is gone already"


def test_where_no_group_can_be_made_there_is_none(tmp_path):
    assert cgroups.make("tag", tmp_path) is None, "a folder without cgroup.kill: an older kernel"
    assert list(tmp_path.iterdir()) == []
    assert cgroups.make("tag", tmp_path / "none") is None


def test_what_a_killed_program_left_is_removed_and_what_lives_stays(kernel):
    ended = subprocess.Popen(["true"])
    ended.wait()
    for owner in (ended.pid, os.getpid()):
        (kernel / f"{cgroups.NAME}-{owner}-old").mkdir()
    cgroups.sweep(kernel)
    assert [path.name for path in kernel.iterdir()] == [f"{cgroups.NAME}-{os.getpid()}-old"]


@needs_groups
def test_a_stray_without_a_trace_ends_with_its_worker():
    """In a session of its own, with an empty environment, and its worker killed: only the group still knows it."""
    handle = handles.WorkerHandle(b"")
    stray = subprocess.Popen(["env", "-i", "sleep", "1000"], start_new_session=True)
    assert handle.group.take(stray.pid)
    os.kill(handle.process.pid, signal.SIGKILL)
    handle.process.wait()
    handle.stop()
    assert stray.wait() == -signal.SIGKILL and not handle.group.folder.exists()


@needs_groups
def test_a_worker_that_ends_by_itself_leaves_no_group():
    handle = handles.WorkerHandle(b"")
    folder = handle.group.folder
    assert str(handle.process.pid) in (folder / "cgroup.procs").read_text().split()
    handle.stop()
    assert not folder.exists()


def test_without_groups_the_tree_is_ended(monkeypatch):
    monkeypatch.setattr(cgroups, "make", lambda tag: None)
    handle = handles.WorkerHandle(b"")
    handle.stop()
    assert handle.group is None and handle.process.returncode is not None
