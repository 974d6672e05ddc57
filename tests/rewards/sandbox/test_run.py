"""sandbox/: what a program gets, what comes out, what its limits do, and what is refused."""

import os
import shutil
import subprocess
import sys
import time

import pytest

from rl_jax.rewards.sandbox import client, landlock, prove, start
from rl_jax.rewards.sandbox.protocol import Limits, SandboxError
from tests.paths import REPO_ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")
needs_bwrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


@pytest.fixture(scope="module")
def box():
    with client.ProcessSandbox("landlock") as sandbox:
        yield sandbox


def run(box, text, stdin=b"", **limits):
    return box.run({"main.py": text}, stdin=stdin, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("text", "status", "code", "stdout", "stderr"),
    [
        ("print(input())", "ok", 0, b"in\n", b""),
        ("print('é', end='')", "ok", 0, "é".encode(), b""),
        ("import sys; sys.exit(3)", "error", 3, b"", b""),
        ("import sys; sys.exit('no')", "error", 1, b"", b"no\n"),
        ("import sys; sys.exit()", "ok", 0, b"", b""),
        ("import os; os._exit(7)", "error", 7, b"", b""),
        ("import os; os.kill(os.getpid(), 9)", "killed", -9, b"", b""),
        ("import ctypes; ctypes.string_at(0)", "killed", -11, b"", b""),
        ("import atexit; atexit.register(print, 'bye'); print('hi')", "ok", 0, b"hi\nbye\n", b""),
        ("import threading; threading.Thread(target=print, args=('t',)).start()", "ok", 0, b"t\n", b""),
        ("import asyncio; asyncio.run(asyncio.sleep(0)); print(1)", "ok", 0, b"1\n", b""),
        ("print(__name__, __file__)", "ok", 0, b"__main__ main.py\n", b""),
        ("import sys; print([n for n in sys.modules if 'rl_jax' in n], sys.argv)", "ok", 0, b"[] ['main.py']\n", b""),
        ("print(hash('a') == hash('a'), {'b', 'a'})", "ok", 0, None, b""),
        ("print(sum(range(10**5)))", "ok", 0, b"4999950000\n", b""),
    ],
)
def test_programs(box, text, status, code, stdout, stderr):
    result = run(box, text, b"in\n")
    assert (result.status, result.exit, result.stderr) == (status, code, stderr)
    assert stdout is None or result.stdout == stdout


def test_errors_show_the_program_s_own_lines(box):
    result = run(box, "def f():\n    return 1 / 0\n\nf()\n")
    text = result.stderr.decode()
    assert result.status == "error" and text.startswith("Traceback") and text.endswith("division by zero\n")
    assert 'File "main.py", line 4' in text and "return 1 / 0" in text and "zygote" not in text
    assert "SyntaxError" in run(box, "def f(:\n").stderr.decode()


def test_several_files_and_none_from_outside(box):
    result = box.run({"main.py": "import part.one; print(part.one.x)", "part/one.py": "x = 5"})
    assert result.stdout == b"5\n"
    for name in ("../x.py", "/x.py", ""):
        with pytest.raises(ValueError, match="relative path"):
            box.run({"main.py": "", name: ""})
    with pytest.raises(ValueError, match="no main.py among other.py"):
        box.run({"other.py": ""})


def test_items_share_nothing(box):
    seen = set()
    for _ in range(2):
        text = "import os, sys, math; print(os.getcwd(), os.listdir('.'), hasattr(math, 'left')); math.left = 1"
        result = run(box, text)
        place, rest = result.stdout.decode().split(" ", 1)
        seen.add(place)
        assert rest == "['main.py'] False\n" and not os.path.exists(place)
    assert len(seen) == 2
    first, second = (run(box, "import random; print(random.random())").stdout for _ in range(2))
    assert first != second  # forks of one interpreter do not share its random state
    assert run(box, "print({'a', 'b', 'c'})").stdout == run(box, "print({'a', 'b', 'c'})").stdout  # a fixed hash seed


@pytest.mark.slow
def test_limits(box):
    assert run(box, "while True: pass", cpu_s=0.5).status == "cpu"
    assert run(box, "import time; time.sleep(60)", wall_s=0.1).status == "wall"
    assert "MemoryError" in run(box, "x = bytearray(200 << 20)", memory_mb=100).stderr.decode()
    flooded = run(box, "while True: print('x' * 1000)", output_kb=16)
    assert flooded.status == "output" and len(flooded.stdout) == 16 * 1024
    assert run(box, "import sys; sys.stderr.write('x' * 20000)", output_kb=16).status == "output"
    exact = run(box, "print('x' * (16 * 1024 - 1))", output_kb=16)
    assert exact.status == "ok" and len(exact.stdout) == 16 * 1024
    assert run(box, "pass", b"x" * 2**20).status == "ok"  # stdin that nobody reads
    assert run(box, "import sys; print(len(sys.stdin.read()))", b"x" * 2**20).stdout == b"1048576\n"
    assert run(box, "print(1)").stdout == b"1\n"  # and the next one is as ever


def test_no_process_is_root(box):
    ids = run(box, "import os; print(*os.getresuid(), *os.getresgid(), os.getgroups())").stdout.split()
    assert b"0" not in ids
    if os.geteuid() == 0:
        assert ids[0] == str(box.uid).encode() and ids[-1] == b"[]"


def test_a_death_of_the_sandbox_is_its_own_error_and_it_starts_again(box):
    box._process.kill()
    box._process.wait()
    with pytest.raises(SandboxError, match="ended"):
        run(box, "print(1)")
    assert run(box, "print(1)").stdout == b"1\n"


def test_no_descriptor_is_closed_twice(box, monkeypatch):
    """Between the two another thread may have opened a file of that number."""
    close, failed, before = os.close, [], os.listdir("/proc/self/fd")

    def closing(end):
        try:
            close(end)
        except OSError:
            failed.append(end)
            raise

    monkeypatch.setattr(os, "close", closing)
    assert run(box, "print(1)").stdout == b"1\n"
    box._process.kill()
    box._process.wait()
    with pytest.raises(SandboxError, match="ended"):
        run(box, "print(1)")
    assert failed == [] and len(os.listdir("/proc/self/fd")) == len(before)


def test_nothing_is_left(box):
    folder = box._folder
    assert os.listdir(folder) == []
    with client.ProcessSandbox("none") as other:
        text = "import os, time\nif not os.fork():\n    os.setsid()\n    time.sleep(600)\nprint('parent')"
        assert run(other, text).stdout == b"parent\n"  # returns after its child has ended
        pid, place = other._process.pid, other._folder
        assert not os.listdir(place)
    assert not os.path.exists(place) and not os.path.exists(f"/proc/{pid}/exe")
    with pytest.raises(SandboxError, match="closed"):
        run(other, "")


CALLER = """
import os, sys, threading
from rl_jax.rewards.sandbox import client
box = client.ProcessSandbox("landlock")
print(box._folder, box._process.pid, flush=True)
run = lambda: box.run({"main.py": "import time; time.sleep(600)"})
threading.Thread(target=run, daemon=True).start()
children = f"/proc/{box._process.pid}/task/{box._process.pid}/children"
while not open(children).read():  # the program runs
    pass
print("runs", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(
    not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"), reason="this kernel does not list children"
)
def test_nothing_is_left_if_the_caller_is_killed():
    command = [sys.executable, "-c", CALLER]
    caller = subprocess.Popen(command, cwd=REPO_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with caller:
        folder, pid = caller.stdout.readline().split()
        assert caller.stdout.readline() == "runs\n"
        caller.kill()
    assert pid.isdigit()
    while os.path.exists(folder):  # the last thing that its process does
        time.sleep(0.01)


@needs_bwrap
def test_bubblewrap_runs_commands_with_a_disk():
    with client.ProcessSandbox("bubblewrap") as box:
        limits = Limits(processes=16, disk_mb=8)
        text = "mkdir d && echo hi > d/f && cat d/f run.sh | wc -l; (setsid sleep 600 &) ; exit 4"
        result = box.run({"run.sh": text}, argv=["/bin/sh", "run.sh"], limits=limits)
        assert (result.stdout.strip(), result.exit, result.status) == (b"1", 4, "error"), result
        full = "import os\nfor i in range(99): open(str(i), 'wb').write(bytes(1 << 20))"
        assert b"No space left" in box.run({"main.py": full}, limits=limits).stderr
        assert box.run({"main.py": "import os; print(os.listdir())"}, limits=limits).stdout == b"['main.py']\n"
        crashed = run(box, "import os; os.kill(os.getpid(), 11)")
        assert (crashed.status, crashed.exit) == ("killed", -11)


@pytest.mark.parametrize("more", [{"processes": 2}, {"disk_mb": 1}])
def test_landlock_refuses_what_it_cannot_hold(box, more):
    with pytest.raises(ValueError, match="need the bubblewrap sandbox"):
        run(box, "", **more)
    with pytest.raises(ValueError, match="need the bubblewrap sandbox"):
        box.run({}, argv=["/bin/true"])


@pytest.mark.slow
def test_a_sandbox_that_leaks_is_refused_by_name():
    """The backend "none" under the name of another: the proof finds what is open, and says so."""
    with client.ProcessSandbox("none") as box, pytest.raises(SandboxError) as error:
        box.name = "landlock"
        prove.prove(box)
    text = str(error.value)
    assert "does not hold here" in text and "secret (" in text and "tcp (" in text and "user_namespace (" in text


def test_never_weaker_in_silence(monkeypatch):
    with pytest.raises(SandboxError, match="no sandbox 'docker'; the sandboxes are landlock, bubblewrap, none"):
        start.make("docker")
    monkeypatch.setattr(client.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="no bwrap on PATH"):
        start.make("bubblewrap")

    def leaks(sandbox):
        raise SandboxError("tcp was open")

    monkeypatch.setattr(prove, "prove", leaks)
    with pytest.raises(SandboxError, match="holds here: landlock: tcp was open; bubblewrap: .*backend='none'"):
        start.make("")
    with start.make("none") as box:  # only when it is written out
        assert run(box, "print(1)").stdout == b"1\n"


def test_what_is_reported_is_measured(box):
    before = time.monotonic()
    result = run(box, "import time; t = time.process_time()\nwhile time.process_time() < t + 0.05: pass")
    assert 0.05 <= result.cpu_s <= result.wall_s + 0.05 and result.wall_s <= time.monotonic() - before
