"""Verifier of a patch by a repository's own tests, run in the sandbox: Multi-SWE-bench (arXiv 2504.02605).

The patch is applied here, the tests' files are put back after it, and the command runs on a copy that is thrown away.
Unlike rewards/code.py the tests run in the same processes as the model's code, as they do in the benchmark's own
harness: a patch that prints what the tests would print is believed. Use it for honest models, or look at what passes.
"""

import pathlib
import re
from collections.abc import Mapping

from rl_jax.rewards import parsing
from rl_jax.rewards.sandbox import start
from rl_jax.rewards.sandbox.protocol import Limits

MAX_PATCH, MAX_PATH = 500_000, 1_000  # characters
PASSED = frozenset(("pass", "passed", "ok"))
# Lines that name a test and how it ended, of pytest -rA or -v, unittest -v, go test -v, cargo test, ctest and TAP.
FORMS = (
    r"(?P<state>PASSED|FAILED|ERROR) (?P<name>\S+)",
    r"(?P<name>\S+::\S+) (?P<state>PASSED|FAILED|ERROR)\b.*",
    r"(?P<name>\S+ \([\w.]+\))(?: \.\.\.|.* \.\.\.) (?P<state>ok|FAIL|ERROR)",
    r"\s*--- (?P<state>PASS|FAIL): (?P<name>\S+).*",
    r"test (?P<name>\S+) \.\.\. (?P<state>ok|FAILED)",
    r"(?P<state>ok|not ok) \d+ -? ?(?P<name>.+)",
)
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+\d+(?:,\d+)? @@")


class PatchError(ValueError):
    """A patch that is none, or that does not fit its files."""


def resolved(
    prompt: str,
    completion: str,
    info: Mapping,
    *,
    sandbox: str = "bubblewrap",
    cpu_s: float = 60.0,
    wall_s: float = 600.0,
    memory_mb: int = 2048,
    processes: int = 64,
    disk_mb: int = 256,
) -> dict[str, float]:
    """1 if every test of info["fail_to_pass"] and info["pass_to_pass"] passes after the patch, else 0.

    Args:
      prompt: not read.
      completion: a unified diff, in its last code block or <answer>, or alone.
      info: "files", path -> text of the repository; "test_files", the same, put over the patched ones; "command", a
        list of words; "fail_to_pass", "pass_to_pass", names of tests; rl_jax.tasks.issues makes it.
      sandbox: a backend of sandbox.start.make that runs commands.
      cpu_s: seconds of CPU, of one process.
      wall_s: seconds of the clock.
      memory_mb: MiB per process.
      processes: at once.
      disk_mb: MiB that the tests may write.

    Returns:
      reward; applied: 1 if the patch fits; fixed, kept: share of fail_to_pass and of pass_to_pass that pass.

    Raises:
      ValueError: if info names no command or no test.
      SandboxError: if there is no sandbox, or it failed.
    """
    broken, whole, command = info.get("fail_to_pass", []), info.get("pass_to_pass", []), info.get("command")
    if not command or isinstance(command, str) or not (broken or whole):
        raise ValueError('info needs "command", a list of words, and tests in "fail_to_pass" or "pass_to_pass"')
    parts = {"applied": 0.0, "fixed": 0.0, "kept": 0.0}
    try:
        files = patched(info["files"], diff_of(completion))
    except PatchError:
        return {"reward": 0.0, **parts}
    limits = Limits(cpu_s, wall_s, memory_mb, 4096, processes, 256, disk_mb)
    result = start.kept(sandbox).run(files | dict(info.get("test_files", {})), argv=command, limits=limits)
    states = read_log((result.stdout + b"\n" + result.stderr).decode("utf-8", "replace"))
    parts = {"applied": 1.0, "fixed": _share(broken, states), "kept": _share(whole, states)}
    return {"reward": float(parts["fixed"] == 1 and parts["kept"] == 1 and result.status in ("ok", "error")), **parts}


resolved.prepare = lambda sandbox="bubblewrap", **_: start.kept(sandbox)


def _share(names: list[str], states: Mapping[str, bool]) -> float:
    return sum(states.get(name, False) for name in names) / len(names) if names else 1.0


def diff_of(completion: str) -> str:
    """The diff of a completion: its last code block, its <answer>, or all of it."""
    text = parsing.answer(completion)
    found = parsing.blocks(text, "```", "```")
    return found[-1].partition("\n")[2] if found else text


def read_log(text: str) -> dict[str, bool]:
    """test -> whether it passed, of the lines that have one of FORMS; one that fails once has failed."""
    states: dict[str, bool] = {}
    for line in text.splitlines():
        for form in FORMS:
            if match := re.fullmatch(form, line[:2000].rstrip()):
                name, passed = match["name"].strip(), match["state"].lower() in PASSED
                states[name] = states.get(name, True) and passed
                break
    return states


def patched(files: Mapping[str, str], diff: str) -> dict[str, str]:
    """The files after a unified diff. Lines must be where it says, or at one other place that has them all.

    Raises:
      PatchError: if it is no diff, names a file that is not there, or does not fit.
    """
    if len(diff) > MAX_PATCH:
        raise PatchError(f"the patch has {len(diff)} characters, {MAX_PATCH} are allowed")
    result, lines, place, changes = dict(files), diff.splitlines(), 0, 0
    while place < len(lines):
        if not (lines[place].startswith("--- ") and place + 1 < len(lines) and lines[place + 1].startswith("+++ ")):
            place += 1
            continue
        old, new = _path(lines[place], "a/"), _path(lines[place + 1], "b/")
        place += 2
        if old is not None and old not in result:
            raise PatchError(f"there is no file {old}")
        content, shift = result[old].split("\n") if old is not None else [], 0
        while place < len(lines) and (hunk := _HUNK.match(lines[place])):
            before, after, place = _hunk(lines, place + 1, int(hunk[2] or 1))
            at = _find(content, before, max(0, int(hunk[1]) - 1) + shift) if before else int(hunk[1]) + shift
            at = min(at, len(content))
            content[at : at + len(before)] = after
            shift += len(after) - len(before)
            changes += 1
        if old is not None and old != new:
            del result[old]
        if new is not None:
            result[new] = "\n".join(content) + ("\n" if old is None and content else "")
    if not changes:
        raise PatchError("it is no unified diff")
    if both := sorted(set(result) & {str(above) for name in result for above in pathlib.PurePosixPath(name).parents}):
        raise PatchError(f"{both[0]} would be a file and a folder")
    return result


def _path(line: str, prefix: str) -> str | None:
    name = line[4:].split("\t")[0].strip()
    if name == "/dev/null":
        return None
    name = name.removeprefix(prefix)
    path = pathlib.PurePosixPath(name)
    wrong = path.is_absolute() or ".." in path.parts or not path.parts or not name.isprintable()
    if wrong or len(name) > MAX_PATH or any(len(part.encode()) > 255 for part in path.parts):
        raise PatchError(f"{name!r:.200} is no path of the repository")
    return str(path)


def _hunk(lines: list[str], place: int, count: int) -> tuple[list[str], list[str], int]:
    """(lines before, lines after, where the hunk ends)."""
    before, after = [], []
    while place < len(lines) and (lines[place][:1] in (" ", "+", "-", "\\") or not lines[place]):
        mark, text = lines[place][:1], lines[place][1:]
        if mark in (" ", "") and len(before) >= count or mark == "-" and lines[place].startswith("--- ") and not count:
            break
        if mark == "-" and len(before) >= count:
            break
        before += [text] if mark in (" ", "-", "") else []
        after += [text] if mark in (" ", "+", "") else []
        place += 1
    return before, after, place


def _find(content: list[str], before: list[str], expected: int) -> int:
    size = len(before)
    if content[expected : expected + size] == before:
        return expected
    found = [start_ for start_ in range(len(content) - size + 1) if content[start_ : start_ + size] == before]
    if len(found) != 1:
        raise PatchError(f"a hunk's {size} lines are at {len(found)} places of the file, not at line {expected + 1}")
    return found[0]
