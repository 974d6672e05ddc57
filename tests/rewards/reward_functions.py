"""Reward functions that the pool's tests run in worker processes: well-behaved, and bad in every way we know of."""
import ctypes
import json
import os
import subprocess
import sys
import time


def length(prompt, completion, info, *, scale=1.0):
    """The length of the completion, and of the prompt as a component."""
    return {"reward": scale * len(completion), "prompt_length": len(prompt), "level": info.get("level", 0)}


def bare(prompt, completion, info):
    """The length of the completion, as a number."""
    return len(completion)


class _Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no message")


def _spin():
    while True:
        pass


def _exec(code):
    subprocess.run([sys.executable, "-c", code], check=True)


def _close_everything():
    os.closerange(0, 100)


def _raise(error):
    raise error


BAD = {  # the completion names what happens
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "close": _close_everything,
    "spin": _spin,
    "sleep": lambda: time.sleep(3600),
    "child": lambda: _exec("import time; time.sleep(3600)"),
    "raise": lambda: _raise(KeyError("boom")),
    "unprintable": lambda: _raise(_Unprintable()),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "recurse": lambda: _recurse(),
    "stdin": lambda: input(),
    "none": lambda: None,
    "list": lambda: [1.0],
    "nan alone": lambda: float("nan"),
    "text alone": lambda: "1.0",
    "missing": lambda: {"score": 1.0},
    "nan": lambda: {"reward": float("nan")},
    "inf": lambda: {"reward": float("inf")},
    "overflow": lambda: {"reward": 1e300},
    "text": lambda: {"reward": "1.0"},
    "none_value": lambda: {"reward": None},
    "nan_component": lambda: {"reward": 1.0, "extra": float("nan")},
}
LATE = {"spin", "sleep", "child"}


def _recurse():
    return _recurse()


def moody(prompt, completion, info):
    """Does what the completion names; otherwise 1.0, after printing noise onto stdout."""
    if completion in BAD:
        return BAD[completion]()
    print("noise on stdout", json.dumps([0, {"reward": 5.0}, None]))
    return {"reward": 1.0, "extra": 2.0}


def loaded_modules(prompt, completion, info):
    """1.0 where jax is not loaded in this process, and the process id."""
    return {"reward": float("jax" not in sys.modules), "pid": os.getpid()}


def begins(prompt, completion, info, *, path):
    """Writes an empty file at `path`, and is late."""
    with open(path, "w"):
        pass
    time.sleep(3600)


def leaves_a_child(prompt, completion, info, *, path):
    """Starts a child that outlives the time limit, and writes its process id to `path`."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(path, "w") as file:
        file.write(str(child.pid))
    child.wait()
