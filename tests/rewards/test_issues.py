"""rewards/issues.py and tasks/issues.py: patches, logs of test runners, generated issues, checkouts and bad files."""

import json
import random
import shutil

import pytest

from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.rewards import issues
from rl_jax.tasks import issues as task

FILES = {"a.py": "one\ntwo\nthree\nfour\nfive\n", "d/b.py": "x\n"}
CHANGE = "--- a/a.py\n+++ b/a.py\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"


@pytest.mark.parametrize(
    ("diff", "expected"),
    [
        (CHANGE, {"a.py": "one\nTWO\nthree\nfour\nfive\n"}),
        ("diff --git a/a.py b/a.py\nindex 1..2 100644\n" + CHANGE, {"a.py": "one\nTWO\nthree\nfour\nfive\n"}),
        (CHANGE.replace("-1,3", "-3,3"), {"a.py": "one\nTWO\nthree\nfour\nfive\n"}),  # another line, but one place only
        (CHANGE + "@@ -5 +5 @@\n-five\n+5\n", {"a.py": "one\nTWO\nthree\nfour\n5\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -1,0 +2,2 @@\n+a\n+b\n", {"a.py": "one\na\nb\ntwo\nthree\nfour\nfive\n"}),
        ("--- a/a.py\n+++ b/a.py\n@@ -2,2 +2,0 @@\n-two\n-three\n", {"a.py": "one\nfour\nfive\n"}),
        ("--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+x\n+y\n", {"new.py": "x\ny\n"}),
        ("--- a/d/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n", {"d/b.py": None}),
        (CHANGE + "--- a/d/b.py\n+++ b/d/b.py\n@@ -1 +1 @@\n-x\n+y\n", {"d/b.py": "y\n"}),
    ],
)
def test_patches(diff, expected):
    found = issues.patched(FILES, diff)
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    "diff",
    [
        "",
        "no diff",
        CHANGE.replace("a.py", "c.py"),
        CHANGE.replace("two", "zwei"),
        CHANGE.replace("a/a.py", "a/../a.py"),
        "--- /dev/null\n+++ b//etc/passwd\n@@ -0,0 +1 @@\n+x\n",
        "--- a/a.py\n+++ b/a.py\n",
        "x" * 600_000,
        "--- /dev/null\n+++ b/a.py/new.py\n@@ -0,0 +1 @@\n+x\n",  # no system takes these three names
        "--- /dev/null\n+++ b/a\0.py\n@@ -0,0 +1 @@\n+x\n",
        "--- /dev/null\n+++ b/" + "x" * 300 + "\n@@ -0,0 +1 @@\n+x\n",
        CHANGE.replace("-1,3", "-" + "1" * 5_000),
    ],
)
def test_patches_that_do_not_fit(diff):
    with pytest.raises(issues.PatchError):
        issues.patched(FILES, diff)


def test_logs():
    log = """PASSED t/a.py::one
t/b.py::two FAILED [ 50%]
FAILED t/a.py::three - AssertionError: PASSED t/a.py::four
test_x (t.T.test_x) ... ok
test_y (t.T.test_y) ... FAIL
--- PASS: TestGo (0.00s)
    --- FAIL: TestGo/sub (0.00s)
test mod::rust ... ok
not ok 3 - tap
ok 4 - other tap
PASSED t/c.py::flaky
FAILED t/c.py::flaky"""
    found = issues.read_log(log)
    assert {name for name, passed in found.items() if passed} == {
        "t/a.py::one", "test_x (t.T.test_x)", "TestGo", "mod::rust", "other tap",
    }  # fmt: skip
    assert {name for name, passed in found.items() if not passed} >= {"t/b.py::two", "TestGo/sub", "t/c.py::flaky"}


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_generated_issues_are_resolved_by_their_fix_alone():
    rng = random.Random(0)
    record = task.make_record(*task.made(rng), ["/usr/bin/python3", "-m", "unittest", "-v"])
    info = json.loads(record["info"])
    file = next(name for name in info["files"])
    assert file in record["prompt"] and "fail" not in record["prompt"]
    right = issues.resolved("", f"```diff\n{record['completion']}```", info)
    assert right == {"reward": 1.0, "applied": 1.0, "fixed": 1.0, "kept": 1.0}
    nothing = f"--- a/{file}\n+++ b/{file}\n@@ -1 +1,2 @@\n+# remark\n {info['files'][file].splitlines()[0]}\n"
    assert issues.resolved("", nothing, info) == {"reward": 0.0, "applied": 1.0, "fixed": 0.0, "kept": 1.0}
    assert issues.resolved("", "no patch", info)["applied"] == 0
    # The tests are put back after the patch.
    easy = "--- /dev/null\n+++ b/test_it.py\n@@ -0,0 +1 @@\n+print('ok')\n"
    assert issues.resolved("", easy, info)["fixed"] == 0
    with pytest.raises(ValueError, match='needs "command"'):
        issues.resolved("", "", info | {"command": "pytest"})


def test_the_task(tmp_path):
    made = tasks.load("issues", num_train=4, num_test=2, data_dir=str(tmp_path / "data"))
    assert len(made.data_source("train")) == 4 and len(made.data_source("test")) == 2
    row, files = task.made(random.Random(1))
    checkout = tmp_path / "checkouts" / f"made__{row['repo']}-1"
    (checkout / ".git").mkdir(parents=True)
    (checkout / ".git" / "config").write_text("x")
    (checkout / "picture.png").write_bytes(b"\xff\x00")
    for name, text in files.items():
        (checkout / name).write_text(text)
    assert task.read_files(checkout) == files
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 3))
    options = dict(path=str(path), folder=str(tmp_path / "checkouts"), data_dir=str(tmp_path / "data"))
    loaded = tasks.load("issues", **options)
    records = [record for split in ("train", "test") for record in loaded.data_source(split)]
    assert len(records) == 3 and json.loads(records[0]["info"])["fail_to_pass"] == list(row["f2p_tests"])
    for change, error in (
        ({"number": 2}, r"rows.jsonl:1: its checkout .*-2 is missing"),
        ({"test_patch": "x"}, "rows.jsonl:1: field test_patch or fix_patch: it is no unified diff"),
        ({"fix_patch": 3}, "rows.jsonl:1: no fix_patch of the benchmark's form"),
    ):
        path.write_text(json.dumps(row | change))
        with pytest.raises(readers.DataError, match=error):
            tasks.load("issues", **options).data_source("train")
