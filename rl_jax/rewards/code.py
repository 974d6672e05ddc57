"""Verifier of programs by hidden tests: each runs in the sandbox, and is compared here, outside.

What comes out of the sandbox is data: what the program wrote, or the value of one call. No message about success is
believed, and expected outputs never go in, so the worst that a program can do is to give the right answer. A test is a
process of its own, in a directory of its own: nothing of one test is there in the next.
"""

import functools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.rewards import parsing
from rl_jax.rewards.sandbox import start
from rl_jax.rewards.sandbox.protocol import Limits, RunResult, Sandbox

MAX_CODE = 100_000  # characters
ENDED = ("cpu", "wall", "output", "killed")  # of such a program no further test is run
APPLIED = {"set": set, "sorted": sorted, "list": list, "tuple": tuple, "len": len, "bool": bool, "str": str}

# Runs in the sandbox: the arguments of one call come in, its value goes out. Prints of the program go to stderr.
HARNESS = """
import json, os, sys

def plain(value):
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < 2**53 else {"__int__": hex(value)}
    if kind is float:
        return value if value == value and abs(value) != float("inf") else {"__float__": str(value)}
    if kind is list:
        return [plain(item) for item in value]
    if kind in (tuple, set, frozenset):
        return {"__%s__" % kind.__name__: [plain(item) for item in value]}
    if kind is dict or kind.__module__ == "collections" and kind.__name__ in DICTS:
        return {"__dict__": [[plain(key), plain(item)] for key, item in value.items()]}
    if kind is complex:
        return {"__complex__": [value.real, value.imag]}
    if kind is bytes:
        return {"__bytes__": value.hex()}
    raise TypeError("the value is of type %s, which no test can compare" % kind.__name__)

DICTS = ("Counter", "OrderedDict", "defaultdict")

def value_of(data):
    if isinstance(data, list):
        return [value_of(item) for item in data]
    if isinstance(data, dict):
        for name, make in MAKE.items():
            if list(data) == [name]:
                return make(data[name])
        return {key: value_of(item) for key, item in data.items()}
    return data

MAKE = {
    "__int__": lambda text: int(text, 16),
    "__float__": float,
    "__tuple__": lambda items: tuple(map(value_of, items)),
    "__set__": lambda items: set(map(value_of, items)),
    "__frozenset__": lambda items: frozenset(map(value_of, items)),
    "__dict__": lambda items: {value_of(key): value_of(item) for key, item in items},
    "__complex__": lambda parts: complex(*parts),
    "__bytes__": bytes.fromhex,
}

def main():
    request = json.load(sys.stdin)
    answers = os.dup(1)
    os.dup2(2, 1)
    namespace = {"__name__": "solution"}
    with open("solution.py", encoding="utf-8", errors="surrogateescape") as file:
        code = compile(file.read(), "solution.py", "exec")
    exec(code, namespace)
    value = namespace[request["call"]](*[value_of(item) for item in request["args"]])
    data = json.dumps(plain(bool(value) if request["bool"] else value)).encode()
    while data:
        data = data[os.write(answers, data):]

main()
"""


def score(
    prompt: str,
    completion: str,
    info: Mapping,
    *,
    sandbox: str = "",
    cpu_s: float = 2.0,
    wall_s: float = 20.0,
    memory_mb: int = 512,
    reward: str = "all",
) -> dict[str, float]:
    """1 if the program passes every test of info["tests"], else 0; or the share that it passes.

    Args:
      prompt: not read.
      completion: the program is its last code block (of those that define what the tests call, if any does), else its
        <answer>, else all of it.
      info: "tests", a list of
          {"input": text, "output": text, "tolerance": number or none}      main program: what it prints, word by word
          {"call": name, "args": [...], "expected": value, ...}             a function of it: what it returns
        as `passes` compares them; "before", code to put before the program, such as imports or a prompt to complete.
      sandbox: a backend of sandbox.start.make; "": the first that holds.
      cpu_s: seconds of CPU per test.
      wall_s: seconds of the clock per test.
      memory_mb: MiB per test.
      reward: "all" or "share".

    Returns:
      reward; passed: 1 if all tests pass; share: of the tests that pass; ended: share of the tests in which the program
      ended by itself, without an error.

    Raises:
      ValueError: if info has no tests, one is of no known form, or `reward` is unknown.
      SandboxError: if there is no sandbox, or it failed.
    """
    if reward not in ("all", "share"):
        raise ValueError(f"reward={reward!r} must be 'all' or 'share'")
    limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
    found = run_tests(start.kept(sandbox), program(completion, info), info.get("tests"), limits)
    share = sum(right for right, _ in found) / len(found)
    values = {"passed": float(share == 1), "share": share}
    values["ended"] = sum(result is not None and result.status == "ok" for _, result in found) / len(found)
    return {"reward": values["passed"] if reward == "all" else share, **values}


score.prepare = lambda sandbox="", **_: start.kept(sandbox)


def program(completion: str, info: Mapping) -> str:
    """The code of a completion, after info["before"]; "" if it is too long. Unmarked text keeps its indentation."""
    marked = any(mark in completion for mark in ("```", "<answer>", "</think>"))
    code = _program_block(parsing.answer(completion), info.get("tests")) if marked else completion
    return f"{info.get('before', '')}\n{code}\n" if len(code) <= MAX_CODE else ""


def _program_block(text: str, tests: Any) -> str:
    """The last code block that defines the one name that the tests call; else the last one, else the text.

    A program is often followed by an example of its use.
    """
    called = [test.get("call") for test in tests if isinstance(test, Mapping)] if isinstance(tests, list) else []
    name = called[0] if called and isinstance(called[0], str) and len(set(map(str, called))) == 1 else None
    if name:
        defines = re.compile(rf"^(?:(?:async )?def|class) {re.escape(name)}\b|^{re.escape(name)} ?=", re.MULTILINE)
        found = [block for block in parsing.code_blocks(text) if defines.search(block)]
        if found:
            return found[-1]
    return parsing.fenced(text)


def run_tests(
    sandbox: Sandbox, code: str, tests: Sequence[Mapping], limits: Limits
) -> list[tuple[bool, RunResult | None]]:
    """(whether it passes, the result; None: not run) of each test.

    Args:
      sandbox: where programs run.
      code: the program.
      tests: as in `score`.
      limits: per test. After a test that a limit or a signal ended, the others are not run, and fail.

    Raises:
      ValueError: if there is no test, or one has no known form.
    """
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not tests:
        raise ValueError('info["tests"] must be a list of at least one test')
    for test in tests:
        if not isinstance(test, Mapping) or not ({"input", "output"} <= set(test) or {"call", "expected"} <= set(test)):
            raise ValueError(f'a test has "input" and "output", or "call", "args" and "expected"; got {test!r:.200}')
        if test.get("apply", "bool") not in APPLIED:
            raise ValueError(f'"apply" of a test is one of {", ".join(APPLIED)}; got {test["apply"]!r}')
    found: list[tuple[bool, RunResult | None]] = []
    for test in tests:
        if not code.strip() or found and found[-1][1] is not None and found[-1][1].status in ENDED:
            found += [(False, None)] * (len(tests) - len(found))
            break
        result = _run(sandbox, code, test, limits)
        found.append((passes(result, test), result))
    return found


def _run(sandbox: Sandbox, code: str, test: Mapping, limits: Limits) -> RunResult:
    if "call" not in test:
        stdin = str(test["input"]).encode("utf-8", "surrogatepass")
        return sandbox.run({"main.py": code}, stdin=stdin, limits=limits)
    truth = test.get("apply") == "bool"  # the one that makes a value comparable, such as a match
    stdin = json.dumps({"call": test["call"], "args": test.get("args", []), "bool": truth}).encode()
    return sandbox.run({"main.py": HARNESS, "solution.py": code}, stdin=stdin, limits=limits)


def passes(result: RunResult, test: Mapping) -> bool:
    """Whether a test's output is the expected one.

    Printed text is equal word by word, spaces and line ends aside; with "tolerance", words that are numbers may differ
    by so much. A value is equal by Python's ==, so [1] is not (1,), and True is 1. "apply" names what is done to it
    first (APPLIED); "tolerance": numbers in it may differ by so much; an "expected" with one key such as {"__tuple__":
    [...]} is what JSON has no word for (HARNESS).
    """
    if result.status != "ok" and ("call" not in test or result.status in ENDED):
        return False
    try:
        text = result.stdout.decode()
        if "call" not in test:
            return _same_words(text.split(), str(test["output"]).split(), test.get("tolerance"))
        value, expected = value_of(json.loads(text)), value_of(test["expected"])
        if "apply" in test:
            value = APPLIED[test["apply"]](value)
        tolerance = test.get("tolerance")
        return value == expected if tolerance is None else _is_close(value, expected, tolerance)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, AttributeError):
        return False


def _same_words(found: list[str], expected: list[str], tolerance: float | None) -> bool:
    if tolerance is None or len(found) != len(expected):
        return found == expected
    return all(a == b or _close_words(a, b, tolerance) for a, b in zip(found, expected, strict=True))


def _close_words(found: str, expected: str, tolerance: float) -> bool:
    try:
        return abs(float(found) - float(expected)) <= tolerance  # not for nan
    except ValueError:
        return False


def _is_close(value: Any, expected: Any, tolerance: float) -> bool:
    numbers = (int, float, complex)
    if isinstance(value, numbers) and isinstance(expected, numbers):
        return value == expected or abs(value - expected) <= tolerance
    if isinstance(value, list | tuple) and type(value) is type(expected):
        pairs = zip(value, expected, strict=False)
        return len(value) == len(expected) and all(_is_close(a, b, tolerance) for a, b in pairs)
    if isinstance(value, dict) and isinstance(expected, dict) and value.keys() == expected.keys():
        return all(_is_close(value[key], expected[key], tolerance) for key in expected)
    return value == expected


def outputs(
    program: str, inputs: Sequence[Any], *, sandbox: str = "", cpu_s: float = 1.0, wall_s: float = 20.0
) -> list[Any] | None:
    """What a program's function f returns for each input, in one process of the sandbox; None if it fails or ends.

    Args:
      program: defines f.
      inputs: literals of Python; a tuple holds several arguments.
      sandbox: as in `score`.
      cpu_s: seconds of CPU for all inputs.
      wall_s: seconds of the clock.

    Raises:
      SandboxError: if there is no sandbox, or it failed.
    """
    calls = [value if isinstance(value, tuple) else (value,) for value in inputs]
    source = f"{program}\ndef _outputs(): return [f(*call) for call in {calls!r}]\n"
    stdin = json.dumps({"call": "_outputs", "args": [], "bool": False}).encode()
    files = {"main.py": HARNESS, "solution.py": source}
    result = start.kept(sandbox).run(files, stdin=stdin, limits=Limits(cpu_s=cpu_s, wall_s=wall_s))
    try:
        found = value_of(json.loads(result.stdout.decode())) if result.status == "ok" else None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError, AttributeError):
        return None
    return found if isinstance(found, list) and len(found) == len(inputs) else None


def value_of(data: Any) -> Any:
    """The value of what HARNESS writes: JSON, and {"__tuple__": [...]} and the like.

    Raises:
      ValueError, TypeError: if it is none.
    """
    if isinstance(data, list):
        return [value_of(item) for item in data]
    if isinstance(data, dict):
        if len(data) == 1 and (make := _makers().get(next(iter(data)))):
            return make(*data.values())
        return {key: value_of(item) for key, item in data.items()}
    return data


@functools.cache
def _makers() -> dict:
    return {
        "__int__": lambda text: int(text, 16),
        "__float__": lambda text: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
        "__tuple__": lambda items: tuple(map(value_of, items)),
        "__set__": lambda items: set(map(value_of, items)),
        "__frozenset__": lambda items: frozenset(map(value_of, items)),
        "__dict__": lambda items: {value_of(key): value_of(item) for key, item in items},
        "__complex__": lambda parts: complex(*parts),
        "__bytes__": bytes.fromhex,
    }


# --- Run time --------------------------------------------------------------------------------------------------------


def run_time(
    prompt: str,
    completion: str,
    info: Mapping,
    *,
    sandbox: str = "",
    cpu_s: float = 2.0,
    wall_s: float = 20.0,
    memory_mb: int = 512,
    right: float = 0.5,
) -> dict[str, float]:
    """`faster` of a program's CPU seconds over all tests, measured from outside; 0 unless it passes all of them.

    Source: the reward of PerfRL (arXiv 2312.05657), unit tests and run time, as a number for RRHF.

    Args:
      prompt: not read.
      completion: as in `score`.
      info: as in `score`; "slow", the program to be made faster, whose own time is measured, too.
      sandbox: as in `score`.
      cpu_s: as in `score`.
      wall_s: as in `score`.
      memory_mb: as in `score`.
      right: reward of a right program that is no faster.

    Returns:
      reward; passed, share; speedup: seconds of the slow program over those of this one, 0 if it fails.
    """
    limits, box = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb), start.kept(sandbox)
    code = program(completion, info)
    found = run_tests(box, code, info.get("tests"), limits)
    share = sum(passed for passed, _ in found) / len(found)
    if share < 1:
        return {"reward": 0.0, "passed": 0.0, "share": share, "speedup": 0.0}
    slow = run_tests(box, f"{info.get('before', '')}\n{info['slow']}\n", info["tests"], limits)
    seconds, before = (sum(result.cpu_s for _, result in runs if result) for runs in (found, slow))
    return {
        "reward": faster(seconds, before, right=right),
        "passed": 1.0,
        "share": 1.0,
        "speedup": before / max(seconds, 1e-6),
    }


run_time.prepare = score.prepare


def faster(seconds: float, before: float, *, right: float = 0.5) -> float:
    """right + (1 - right) max(0, 1 - seconds / before): what a right program earns for its time."""
    return right + (1 - right) * max(0.0, 1 - seconds / max(before, 1e-9))
