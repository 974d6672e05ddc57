"""Every attempt to get out is stopped by every backend, as root and as nobody; with no sandbox they succeed."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from rl_jax.rewards.sandbox import landlock, places, prove
from tests.paths import REPO_ROOT
from tests.rewards.sandbox import drive

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux"),
]
ROOT = os.geteuid() == 0
NOBODY = 65534
USERS = ("root", "nobody") if ROOT else ("this user",)
# What a kernel or its settings may lack: the attempt then fails with no sandbox, too.
LACKING = {
    "sysrq",
    "x32",
    "int80",
    "userfaultfd",
    "page_faults",
    "io_uring",
    "vsock",
    "tcp_six",
    "kernel_memory",
    "bpf",
}
LACKING |= {"perf", "mounts", "sysfs"}
# What needs root without a sandbox already.
ROOTS = {"shadow", "core_pattern", "sysfs", "open_by_handle", "device_node", "home", "raw", "packet", "mount_namespace"}
ROOTS |= {
    "change_root",
    "pivot",
    "enter_namespace",
    "message_queue",
    "user_namespace",
    "clone_namespace",
    "clone_three",
}
ROOTS |= {"trace_caller", "parents_memory", "callers_descriptor", "read_callers_memory", "write_callers_memory"}


NO_NAMESPACES = ("No permissions to create", "setting up uid map", "Creating new namespace failed")


def verdicts(user, mode, *ended):
    """What drive.py prints, run by that user."""
    options = dict(user=NOBODY, group=NOBODY, extra_groups=[]) if user == "nobody" else {}
    python = places.interpreter(user == "nobody")
    if user == "nobody" and not all(os.stat(p).st_mode & 0o001 for p in (REPO_ROOT, *REPO_ROOT.parents)):
        pytest.skip(f"nobody cannot read the checkout {REPO_ROOT}")
    command = [python, "-B", str(pathlib.Path(drive.__file__)), mode, *ended]
    environment = {"PYTHONPATH": str(REPO_ROOT), "PATH": "/usr/bin:/bin", "TMPDIR": "/tmp", "RL_JAX_SECRET": "x"}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=600, **options)
    if mode == "bubblewrap" and (lacking := next((words for words in NO_NAMESPACES if words in done.stderr), None)):
        pytest.skip(f"bwrap: {lacking}: this machine gives {user} no user namespaces")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mode", ["landlock", "bubblewrap"])
def test_no_attempt_gets_out(mode, user):
    if mode == "landlock" and not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    if mode == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    every = mode == "landlock" and user != "nobody"  # each of the last three takes a second
    ended = prove.ENDED if every else prove.ENDED[:-3]
    found = verdicts(user, mode, *ended)
    assert len(found) == len(prove.QUICK) + len(ended) >= 62
    assert {name: verdict for name, verdict in found.items() if not verdict.startswith("blocked")} == {}


@pytest.mark.parametrize("user", USERS)
def test_the_canaries_sing_with_no_sandbox(user):
    found = verdicts(user, "bare")
    allowed = LACKING if user == "root" else LACKING | ROOTS
    assert {name: verdict for name, verdict in found.items() if not verdict.startswith("open")}.keys() <= allowed
    assert sum(verdict.startswith("open") for verdict in found.values()) >= 45
