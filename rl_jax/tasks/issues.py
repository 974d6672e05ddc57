"""Issues of repositories with the tests that a patch must pass: Multi-SWE-bench's records, and a folder of checkouts.

A line of the file is {"org", "repo", "number", "resolved_issues": [{"title", "body"}], "fix_patch", "test_patch",
"f2p_tests": {name: ...}, "p2p_tests": {name: ...}}, as in the benchmark; its checkout, at the base commit, is
FOLDER/ORG__REPO-NUMBER. The benchmark's own images are not used: the command runs with what the machine has. Without a
file, small generated repositories with a wrong operator.
"""

import json
import pathlib
import random
from collections.abc import Sequence

from rl_jax.data import readers
from rl_jax.rewards import issues
from rl_jax.tasks import base
from rl_jax.tokenizers import ByteTokenizer

FIELDS = {"org": str, "repo": str, "resolved_issues": list, "fix_patch": str, "test_patch": str, "f2p_tests": dict}
MAX_FILE = 200_000  # bytes; a larger file is left out of the copy
TEST_IN = 10


def load(
    *,
    path: str = "",
    folder: str = "",
    command: Sequence[str] = ("/usr/bin/python3", "-m", "unittest", "-v"),
    shown: Sequence[str] = (),
    max_files: int = 2_000,
    num_train: int = 200,
    num_test: int = 32,
    seed: int = 0,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task of issues.

    Args:
      path: JSON lines; "": generated issues, num_train and num_test of them.
      folder: of the checkouts.
      command: runs the tests, in the checkout's folder.
      shown: endings of files that the prompt shows besides those that the fix changes.
      max_files: an issue with a larger checkout is left out, and counted.
      num_train: generated issues.
      num_test: generated issues, which may be among the others.
      seed: of the generated issues.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task, whose reward is issues.resolved. A prompt is the issue and the files that its fix changes, the completion
      the fix; the first of every ten is held out.

    Raises:
      readers.DataError: if a line is not of this form, a checkout is missing, or the test patch does not fit.
    """
    source = pathlib.Path(path).expanduser()
    place, words, endings = pathlib.Path(folder).expanduser(), list(command), tuple(shown)

    def generated():
        rng = random.Random(seed)
        drawn = [make_record(*made(rng), words, endings) for _ in range(num_train + num_test)]
        return {"train": drawn[:num_train], "test": drawn[num_train:]}, {}

    def make():
        splits: dict[str, list[dict]] = {"train": [], "test": []}
        report = {"num_large": 0}
        for number, row in _rows(source):
            checkout = place / f"{row['org']}__{row['repo']}-{row['number']}"
            if not checkout.is_dir():
                raise readers.DataError(f"{source}:{number}: its checkout {checkout} is missing")
            files = read_files(checkout)
            if len(files) > max_files:
                report["num_large"] += 1
                continue
            try:
                record = make_record(row, files, words, endings)
            except issues.PatchError as error:
                raise readers.DataError(f"{source}:{number}: field test_patch or fix_patch: {error}") from error
            kept = sum(map(len, splits.values()))
            splits["train" if kept % TEST_IN else "test"].append(record)
        return splits, report

    arguments = {"folder": str(place.resolve()), "command": words, "shown": list(endings), "max_files": max_files}
    code = [__file__, issues.__file__]
    if path:
        options = {"sources": [source], "arguments": arguments}
    else:
        numbers = {"num_train": int(num_train), "num_test": int(num_test), "seed": int(seed)}
        options = {"arguments": {"command": words, "shown": list(endings)} | numbers}
    stored = base.record_splits("issues", make if path else generated, code=code, data_dir=data_dir, **options)
    return base.Task("issues", ByteTokenizer(), stored, issues.resolved)


def made(rng: random.Random) -> tuple[dict, dict[str, str]]:
    """A generated row of the benchmark's form, and the files of its repository."""
    name, sign = rng.choice([("add", "+"), ("sub", "-"), ("mul", "*")])
    wrong, file = rng.choice([other for other in "+-*" if other != sign]), rng.choice(("calc", "ops", "num"))
    expected = {"+": 9, "-": 5, "*": 14}[sign]
    start = f"--- a/{file}.py\n+++ b/{file}.py\n@@ -2 +2 @@\n"
    tests = ["import unittest", f"import {file}", "class T(unittest.TestCase):", "    def test_it(self):"]
    tests += [f"        self.assertEqual({file}.{name}(7, 2), {expected})", "    def test_there(self):"]
    tests += [f"        self.assertTrue({file}.{name})"]
    patch = "".join(f"+{line}\n" for line in tests)
    row = {
        "org": "made",
        "repo": file,
        "number": 1,
        "resolved_issues": [{"title": f"{name} is wrong", "body": ""}],
        "fix_patch": f"{start}-    return a {wrong} b\n+    return a {sign} b\n",
        "test_patch": f"--- /dev/null\n+++ b/test_it.py\n@@ -0,0 +1,{len(tests)} @@\n{patch}",
        "f2p_tests": {"test_it (test_it.T.test_it)": {}},
        "p2p_tests": {"test_there (test_it.T.test_there)": {}},
    }
    return row, {f"{file}.py": f"def {name}(a, b):\n    return a {wrong} b\n"}


def make_record(row: dict, files: dict[str, str], command: list[str], shown: tuple[str, ...] = ()) -> dict[str, str]:
    """One record.

    Raises:
      issues.PatchError: if a patch does not fit.
    """
    with_tests = issues.patched(files, row["test_patch"])
    tests = {name: text for name, text in with_tests.items() if files.get(name) != text}
    fixed = issues.patched(files, row["fix_patch"])
    changed = [name for name in sorted(files) if fixed.get(name) != files[name] or name.endswith(shown or ("\0",))]
    issue = "\n".join(f"{item.get('title') or ''}\n{item.get('body') or ''}".strip() for item in row["resolved_issues"])
    texts = "".join(f"\n=== {name}\n{files[name]}" for name in changed)
    info = {
        "files": files,
        "test_files": tests,
        "command": command,
        "fail_to_pass": sorted(row["f2p_tests"]),
        "pass_to_pass": sorted(row.get("p2p_tests") or {}),
        "source": f"{row['org']}/{row['repo']}",
    }
    prompt = f"{issue}\n{texts}\nWrite a unified diff that resolves the issue.\n"
    return {"prompt": prompt, "completion": row["fix_patch"], "info": json.dumps(info)}


def read_files(folder: pathlib.Path) -> dict[str, str]:
    """path -> text of a checkout's files that are UTF-8, not in .git, no links and not larger than MAX_FILE."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not path.is_symlink() and ".git" not in name.parts and path.stat().st_size <= MAX_FILE:
            try:
                files[name.as_posix()] = path.read_bytes().decode()
            except UnicodeDecodeError:
                continue
    return files


def _rows(path: pathlib.Path) -> list[tuple[int, dict]]:
    """(line number, row) for each line of the file."""
    if not path.is_file():
        raise readers.DataError(f"{path} is missing: task.path is a file of JSON lines, Multi-SWE-bench's")
    rows = []
    for number, row in readers.read_objects(path, readers.BadRecords()):
        wrong = [k for k, t in FIELDS.items() if not isinstance(row.get(k), t)]
        if wrong or not isinstance(row.get("number"), int):
            raise readers.DataError(f"{path}:{number}: no {', '.join(wrong) or 'number'} of the benchmark's form")
        rows.append((number, row))
    return rows
