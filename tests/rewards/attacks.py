"""What a reward function can do to the pool, the run and the other items, by name; for test_attacks.py.

An attack is chosen by the completion. `score` of any other completion looks for traces of the attacks.
"""

import atexit
import builtins
import contextlib
import ctypes
import gc
import json
import math
import mmap
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

MARK = "RL_JAX_ATTACK"  # an environment variable by which a test finds what was left behind
HOME = os.getcwd()
STATE: list = []  # an attack leaves something here
BIG = 2**38  # bytes
gc.enable()  # as in a worker of a user's: "gc off" leaves a trace (tests/started/sitecustomize.py turns it off)
CLEAN = (json.dumps, builtins.float, os.getpid, os.write, math.isfinite, sys.getrecursionlimit(), list(sys.path))


def score(prompt, completion, info, *, marks=""):
    """1.0 and a part, unless an item before left a trace; or the attack that the completion names."""
    if completion in ATTACKS:
        result = ATTACKS[completion][0]()
        return GOOD if result is None else result
    if completion in HANGS:
        if marks:
            with open(os.path.join(marks, completion.replace(" ", "_")), "w"):
                pass
        HANGS[completion]()
        return GOOD
    now = (json.dumps, builtins.float, os.getpid, os.write, math.isfinite, sys.getrecursionlimit(), list(sys.path))
    clean = not STATE and "ATTACKED" not in os.environ and os.getcwd() == HOME and now == CLEAN
    clean = clean and threading.active_count() == 1 and gc.isenabled() and signal.getsignal(signal.SIGTERM) == 0
    return {"reward": 1.0 if clean else 123.0, "extra": 2.0}


GOOD = {"reward": 1.0, "extra": 2.0}
FAILS, OWN = "fails", "own"  # the item fails; or it scores what it says itself, which is no harm


class _Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no message")


class _Lies(dict):
    def __contains__(self, name):
        return True

    def __len__(self):
        return 1

    def items(self):
        return [("reward", "x" * 100), ("mean", 1.0)]


class _Raises:
    def __float__(self):
        raise SystemExit(0)


def _raise(error):
    raise error


def _recurse():
    return _recurse()


def _sleeper():
    """What a leaked process does; it ends by itself after an hour, so that a failed test leaves none for good."""
    time.sleep(3600)
    os._exit(0)


def _forever():
    while True:
        time.sleep(3600)


# --- Ends and values -------------------------------------------------------------------------------------------------


def _value(value):
    return lambda: {"reward": value}


def _name(name):
    return lambda: {"reward": 1.0, name: 1.0}


# --- Pipes -----------------------------------------------------------------------------------------------------------


def _each_descriptor(action):
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.set_blocking(descriptor, False)
            action(descriptor)


def _writes(data):
    _each_descriptor(lambda descriptor: os.write(descriptor, data))
    return GOOD


def _endless():
    while True:
        _each_descriptor(lambda descriptor: os.write(descriptor, b"x" * 60_000))
        time.sleep(0.002)


def _null():
    null = os.open(os.devnull, os.O_RDWR)
    _each_descriptor(lambda descriptor: os.dup2(null, descriptor))


FORGED = b'[0, {"reward": 123.0}, null]\n[1, [{"reward": 123.0}, null], false]\n' * 4
GUESSED = b"0" * 32 + b' [{"reward": 123.0}, null]\n'


# --- State -----------------------------------------------------------------------------------------------------------


def _patches(owner, name, value):
    def patch():
        setattr(owner, name, value)

    return patch


def _patches_checked():
    def forged(*_):
        return {"reward": 123.0}

    for module in list(sys.modules.values()):
        if hasattr(module, "checked"):
            module.checked = forged


def _thread():
    threading.Thread(target=_forever).start()


def _limits():
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


def _environment():
    os.environ["ATTACKED"] = "1"


def _directory():
    os.chdir("/")


def _handler():
    signal.signal(signal.SIGTERM, lambda *_: None)


def _frames():
    """The locals of every frame above, changed in place where they can be."""
    frame = sys._getframe()
    while frame is not None:
        for value in list(frame.f_locals.values()):
            if isinstance(value, list):
                value.clear()
        frame = frame.f_back


# --- Processes -------------------------------------------------------------------------------------------------------


def _fork_returns():
    os.fork()


def _fork_and_exit():
    if os.fork():
        os._exit(0)
    _sleeper()


def _fork_forges():
    """A fork that has no idea of its pid, and answers as well."""
    here = os.getpid()
    os.getpid = lambda: here
    os.fork()
    return {"reward": 5.0}


def _left_behind(*, session=False, twice=False, stopped=False, deaf=False):
    def leave():
        if os.fork():
            return
        if session:
            os.setsid()
        if deaf:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        if twice and os.fork():
            os._exit(0)
        if stopped:
            os.kill(os.getpid(), signal.SIGSTOP)
        _sleeper()

    return leave


def _tree():
    for _ in range(4):
        os.fork()
    if os.getpid() != os.getsid(0):
        with contextlib.suppress(OSError):
            os.setsid()
        _sleeper()


def _program(*words, **keywords):
    def start():
        command = [sys.executable, "-c", "import time; time.sleep(3600)", os.environ.get(MARK, ""), *words]
        subprocess.Popen(command, **keywords)

    return start


def _pdeathsig():
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    _left_behind(session=True, twice=True)()


def _run():
    """The process of the run: the worker's parent."""
    with open(f"/proc/{os.getppid()}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def _opens(name):
    def open_it():
        with open(f"/proc/{os.getppid()}/{name}", "r+b", buffering=0):
            return GOOD

    return open_it


# --- Sizes -----------------------------------------------------------------------------------------------------------


def _file():
    with tempfile.TemporaryFile() as file:
        file.seek(2**31)
        file.write(b"x")


def _files():
    with contextlib.ExitStack() as stack:
        for _ in range(5000):
            stack.enter_context(open(os.devnull))


def _grows():
    kept = [0]
    while True:
        kept = kept * 8


# name -> (function, what becomes of its item)
ATTACKS = {
    "exit 0": (lambda: os._exit(0), FAILS),
    "exit 3": (lambda: os._exit(3), FAILS),
    "sys.exit": (lambda: sys.exit(0), FAILS),
    "segfault": (lambda: ctypes.string_at(0), FAILS),
    "abort": (os.abort, FAILS),
    "SIGKILL to itself": (lambda: os.kill(os.getpid(), signal.SIGKILL), FAILS),
    "SIGTERM to itself": (lambda: os.kill(os.getpid(), signal.SIGTERM), FAILS),
    "SIGINT to itself": (lambda: os.kill(os.getpid(), signal.SIGINT), OWN),
    "SIGKILL to its group": (lambda: os.killpg(0, signal.SIGKILL), FAILS),
    "exception": (lambda: _raise(KeyError("boom")), FAILS),
    "KeyboardInterrupt": (lambda: _raise(KeyboardInterrupt()), FAILS),
    "GeneratorExit": (lambda: _raise(GeneratorExit()), FAILS),
    "exception without a text": (lambda: _raise(_Unprintable()), FAILS),
    "exception of 10 MB": (lambda: _raise(ValueError("x" * 10**7)), FAILS),
    "exception with escapes": (lambda: _raise(ValueError("\x1b[2J\x1b]0;title\x07\ud800")), FAILS),
    "recursion": (_recurse, FAILS),
    "stdin": (lambda: input(), FAILS),
    "no value": (lambda: {}, FAILS),
    "list": (lambda: [1.0], FAILS),
    "bare nan": (lambda: math.nan, FAILS),
    "bare number that raises": (lambda: _Raises(), FAILS),
    "nan": (_value(math.nan), FAILS),
    "inf": (_value(math.inf), FAILS),
    "1e39": (_value(1e39), FAILS),
    "10**400": (_value(10**400), FAILS),
    "text": (_value("1.0"), FAILS),
    "bytes": (_value(b"1.0"), FAILS),
    "None": (_value(None), FAILS),
    "complex": (_value(1j), FAILS),
    "nested list": (_value([[1.0]]), FAILS),
    "number that raises": (_value(_Raises()), FAILS),
    "dict that lies": (lambda: _Lies(), FAILS),
    "nan component": (lambda: {"reward": 1.0, "extra": math.nan}, FAILS),
    "component mean": (_name("mean"), FAILS),
    "component std": (_name("std"), FAILS),
    "component timeouts": (_name("timeouts"), FAILS),
    "component errors": (_name("errors"), FAILS),
    "component source/a": (_name("source/a"), FAILS),
    "component with a line break": (_name("a\nb"), FAILS),
    "component with an escape": (_name("\x1b[2J"), FAILS),
    "component without a name": (_name(""), FAILS),
    "component 7": (_name(7), FAILS),
    "component of 10 MB": (_name("x" * 10**7), FAILS),
    "component of 65 letters": (_name("x" * 65), FAILS),
    "65 components": (lambda: {"reward": 1.0} | {f"c{i}": 1.0 for i in range(65)}, FAILS),
    "200,000 components": (lambda: {"reward": 1.0} | {f"c{i}": 1.0 for i in range(200_000)}, FAILS),
    "3 MB of print": (lambda: print("noise \x1b[2J\n" * 20_000 + "noise" * 600_000), OWN),
    "print without an end of line": (lambda: os.write(2, b"x" * 300_000) and None, OWN),
    "closed descriptors": (lambda: os.closerange(0, 100), FAILS),
    "closed stdout": (lambda: (os.close(1), os.close(2)) and None, OWN),
    "garbage on the pipes": (lambda: _writes(b"\x00\xff garbage\n"), FAILS),
    "forged reply": (lambda: _writes(FORGED), FAILS),
    "forged reply with a guessed nonce": (lambda: _writes(GUESSED), FAILS),
    "deep JSON on the pipes": (lambda: _writes(b"[" * 50_000 + b"\n"), FAILS),
    "line without an end on the pipes": (_endless, FAILS),
    "/dev/null over the pipes": (_null, FAILS),
    "pipes read": (lambda: _each_descriptor(lambda descriptor: os.read(descriptor, 10**6)), OWN),
    "changed globals": (lambda: STATE.append(1), OWN),
    "changed json": (_patches(json, "dumps", lambda *_: "[123, null]"), OWN),
    "changed float": (_patches(builtins, "float", lambda _: 123.0), OWN),
    "changed checks": (_patches_checked, OWN),
    "changed os.write": (_patches(os, "write", lambda *_: 0), OWN),
    "changed isfinite": (_patches(math, "isfinite", lambda _: True), OWN),
    "changed path": (sys.path.clear, OWN),
    "changed environment": (_environment, OWN),
    "changed directory": (_directory, OWN),
    "changed handler": (_handler, OWN),
    "changed recursion limit": (lambda: sys.setrecursionlimit(100), OWN),
    "changed frames": (_frames, OWN),
    "gc off": (gc.disable, OWN),
    "few descriptors": (_limits, OWN),
    "exit hook": (lambda: atexit.register(_forever) and None, OWN),
    "thread that stays": (_thread, OWN),
    "random seed": (lambda: random.seed(0), OWN),
    "fork, both return": (_fork_returns, OWN),
    "fork, both answer": (_fork_forges, OWN),
    "fork, the worker exits": (_fork_and_exit, FAILS),
    "fork that stays": (_left_behind(), OWN),
    "fork in a session of its own": (_left_behind(session=True), OWN),
    "daemon": (_left_behind(session=True, twice=True), OWN),
    "daemon that ignores signals": (_left_behind(session=True, twice=True, deaf=True), OWN),
    "daemon that is stopped": (_left_behind(session=True, twice=True, stopped=True), OWN),
    "daemon without the signal of its parent's death": (_pdeathsig, OWN),
    "sixteen processes": (_tree, OWN),
    "program that stays": (_program(), OWN),
    "program in a session of its own": (_program(start_new_session=True), OWN),
    "program without an environment": (_program(start_new_session=True, env={}), OWN),
    "memory": (lambda: bytearray(BIG), FAILS),
    "mapped memory": (lambda: mmap.mmap(-1, BIG), FAILS),
    "memory by and by": (_grows, FAILS),
    "file of 2 GB": (_file, FAILS),
    "5,000 files": (_files, FAILS),
}

# Contained where the kernel has Landlock's scopes (Linux 6.12); elsewhere a worker that dies is replaced.
FENCED = {
    "SIGKILL to the worker": (lambda: os.kill(os.getppid(), signal.SIGKILL), FAILS),
    "SIGSTOP to the worker": (lambda: os.kill(os.getppid(), signal.SIGSTOP), FAILS),
    "signal to the run": (lambda: os.kill(_run(), 0), FAILS),
    "memory of the worker": (_opens("mem"), FAILS),
    "pipes of the worker": (lambda: [_opens(f"fd/{number}")() for number in range(3, 12)] and GOOD, FAILS),
}
ATTACKS |= FENCED


def _swallows():
    while True:
        with contextlib.suppress(BaseException):
            _forever()


def _deaf():
    for number in range(1, 32):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    _forever()


def _pipe():
    os.read(os.pipe()[0], 1)


def _lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _prints():
    while True:
        print("noise" * 100)


def _forks_that_wait():
    os.fork()
    _forever()


def _daemon_and_wait():
    _left_behind(session=True, twice=True)()
    _forever()


def _trickle():
    """A byte now and then, on every pipe."""
    while True:
        _each_descriptor(lambda descriptor: os.write(descriptor, b"x"))
        time.sleep(0.01)


def _keeps_forking():
    while True:
        if not os.fork():
            with contextlib.suppress(OSError):
                os.setsid()
            _sleeper()
        time.sleep(0.02)


def _spins():
    while True:
        pass


HANGS = {
    "sleep": _forever,
    "loop": _spins,
    "regular expression": lambda: re.match(r"(a+)+$", "a" * 64 + "b"),
    "swallowed exceptions": _swallows,
    "ignored signals": _deaf,
    "SIGSTOP to itself": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "read of a pipe": _pipe,
    "dead lock": _lock,
    "wait for a program": lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"]),
    "endless print": _prints,
    "fork, both wait": _forks_that_wait,
    "daemon, then wait": _daemon_and_wait,
    "bytes on the pipes, one by one": _trickle,
    "endless forks": _keeps_forking,
}
