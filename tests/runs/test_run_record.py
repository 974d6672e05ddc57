"""How a run ended is written down, or found out; the code that it ran is kept."""

import json
import math
import os
import platform
import signal
import subprocess
import sys
import textwrap

import pytest

from rl_jax.runs import run_record
from rl_jax.runs.run_record import read_json, run_state, write_run_record
from tests.paths import REPO_ROOT

RECORD = {"command": "x", "task": "t", "algorithm": "a"}


def run(workdir, body: str) -> subprocess.CompletedProcess:
    """A program that writes its record and then does what `body` says."""
    program = f"""
import os, pathlib, signal, sys
from rl_jax.runs.run_record import write_run_record
workdir = pathlib.Path({str(workdir)!r})
write_run_record(workdir, config={{"seed": 3}}, command="x", task="t", algorithm="a")
{textwrap.dedent(body)}
"""
    return subprocess.run([sys.executable, "-c", program], cwd=REPO_ROOT, timeout=600, capture_output=True, text=True)


def last_attempt(workdir) -> dict:
    return read_json(workdir / "run.json")["attempts"][-1]


def test_every_end_leaves_its_word(tmp_path):
    done = run(tmp_path, "def f():\n    raise FloatingPointError('the loss is nan')\nf()")
    assert done.returncode == 1
    state, error = run_state(tmp_path)
    assert state == "failed" and error.endswith("FloatingPointError: the loss is nan\n") and "in f" in error
    # Stopped in peace, before its end. A child that it has forked says nothing for it.
    run(tmp_path, "if os.fork() == 0: sys.exit()\nos.wait()\nassert 'running' in (workdir / 'run.json').read_text()")
    assert run_state(tmp_path) == ("preempted", "")
    run(tmp_path, "raise KeyboardInterrupt")
    assert run_state(tmp_path) == ("preempted", "")
    # No word can be left here: whoever looks finds nobody.
    assert run(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL
    assert last_attempt(tmp_path)["state"] == "running" and run_state(tmp_path) == ("interrupted", "")
    run(tmp_path, "(workdir / 'final.json').write_text('{}')")
    assert run_state(tmp_path) == ("complete", "")
    attempts = read_json(tmp_path / "run.json")["attempts"]
    states = ["failed", "preempted", "preempted", "interrupted", "complete"]
    assert [attempt["state"] for attempt in attempts] == states
    assert len({attempt["pid"] for attempt in attempts}) == 5 and all(a["host"] == platform.node() for a in attempts)
    assert len(read_json(tmp_path / "run.json")["resumed"]) == 4 and read_json(tmp_path / "run.json")["seed"] == 3


def test_who_still_runs(tmp_path):
    write_run_record(tmp_path, config={}, **RECORD)
    assert run_state(tmp_path) == ("running", "")
    record = read_json(tmp_path / "run.json")

    def with_attempt(**changes):
        changed = record | {"attempts": [record["attempts"][-1] | changes]}
        (tmp_path / "run.json").write_text(json.dumps(changed))
        return run_state(tmp_path)[0]

    assert with_attempt(process_started=1) == "interrupted", "another process has its number now"
    assert with_attempt(pid=2**22 + 1) == "interrupted"
    assert with_attempt(host="elsewhere") == "running"
    for path in tmp_path.iterdir():
        os.utime(path, (1e9, 1e9))
    elsewhere = {"host": "elsewhere"}
    (tmp_path / "run.json").write_text(json.dumps(record | {"attempts": [record["attempts"][-1] | elsewhere]}))
    os.utime(tmp_path / "run.json", (1e9, 1e9))
    assert run_state(tmp_path)[0] == "interrupted", "it has been silent for years"
    (tmp_path / "run.json").write_text(json.dumps({"started": "x", "resumed": []}))
    assert run_state(tmp_path) == ("interrupted", ""), "of a version that kept no attempts"
    (tmp_path / "run.json").write_text('{"attempts": 3}')
    with pytest.raises(ValueError, match="'attempts' is not a list of objects"):
        run_state(tmp_path)


def test_the_code_is_the_commit_and_what_was_not_committed(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    source = tmp_path / "package" / "code.py"
    source.parent.mkdir()
    source.write_text("a = 1\n")
    (tmp_path / "other.txt").write_text("one\n")
    (tmp_path / ".gitignore").write_text("ignored\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    clean = run_record._git_state(source)
    assert clean == {"git_commit": git("rev-parse", "HEAD").strip(), "git_dirty": False, "git_patch": None,
                     "git_untracked": [], "patch": b""}
    source.write_text("a = 2\n")
    (tmp_path / "other.txt").write_bytes(b"\x00\x01two")
    for name in ("new one.py", "ignored"):
        (tmp_path / name).write_text("x")
    found = run_record._git_state(source)
    assert found["git_dirty"] is True and found["git_untracked"] == ["new one.py"]
    changed = (source.read_bytes(), (tmp_path / "other.txt").read_bytes())
    git("checkout", "-q", "--", ".")
    (tmp_path / "p.patch").write_bytes(found["patch"])
    git("apply", "p.patch")  # the whole checkout's changes, binary ones too, come back
    assert (source.read_bytes(), (tmp_path / "other.txt").read_bytes()) == changed
    monkeypatch.setattr(run_record, "PATCH_BYTES", 50)
    monkeypatch.setattr(run_record, "MAX_UNTRACKED", 1)
    (tmp_path / "zzz").write_text("x")
    found = run_record._git_state(source)
    assert found["patch"][:50] == (tmp_path / "p.patch").read_bytes()[:50] and b"of which 50 are kept" in found["patch"]
    assert found["git_untracked"] == ["new one.py", "... and 2 more"]
    assert run_record._git_state(tmp_path / "zzz")["git_commit"] == "unknown", "not a file of the checkout"


def test_the_patch_lies_beside_the_record(tmp_path, monkeypatch):
    state = {"git_commit": "c", "git_dirty": True, "git_patch": None, "git_untracked": []}
    for patch in (b"first", b"second"):
        monkeypatch.setattr(run_record, "_git_state", lambda source, patch=patch: state | {"patch": patch})
        write_run_record(tmp_path, config={}, **RECORD)
    attempts = read_json(tmp_path / "run.json")["attempts"]
    assert [(tmp_path / attempt["git_patch"]).read_bytes() for attempt in attempts] == [b"first", b"second"]


def test_the_last_config_has_the_changes_of_the_last_attempt(tmp_path):
    """config.json stays that of the first start; what reads a run's settings wants those that it ended with."""
    options = dict(command=["x"], task="t", algorithm="a")
    run_record.write_run_record(tmp_path, config={"train": {"steps": 1, "lr": 0.1}, "old": 2}, **options)
    assert run_record.last_config(tmp_path) == {"train": {"steps": 1, "lr": 0.1}, "old": 2}
    run_record.write_run_record(tmp_path, config={"train": {"steps": 3, "lr": 0.1}, "new": {"a": 1}}, **options)
    assert run_record.last_config(tmp_path) == {"train": {"steps": 3, "lr": 0.1}, "new": {"a": 1}}
    assert run_record.read_json(tmp_path / "config.json")["train"]["steps"] == 1


def test_a_config_comes_back_with_what_is_not_finite(tmp_path, monkeypatch):
    """JSON has no inf and no nan: the record names them in a group of its own, which is no part of the config."""
    monkeypatch.setattr(run_record, "_open_attempts", {})  # without those of other tests
    config = {"train": {"max_grad_norm": math.inf, "lr": 0.1}, "bounds": (0.0, -math.inf), "gate": math.nan}
    run_record.write_run_record(tmp_path, config=config, **RECORD)
    found = run_record.last_config(tmp_path)
    groups = {"gate": math.nan, "train": {"lr": 0.1, "max_grad_norm": math.inf}}
    assert repr(found) == repr({"bounds": [0.0, -math.inf], **groups})
    assert run_record.config_changes(found, config) == {}
    assert run_record.config_changes(read_json(tmp_path / "config.json"), config) == {}
    later = config | {"train": {"max_grad_norm": 1.0, "lr": math.inf}}
    assert run_record.config_changes(found, later) == {
        "train.max_grad_norm": (math.inf, 1.0), "train.lr": (0.1, math.inf)
    }  # fmt: skip
    run_record.write_run_record(tmp_path, config=later, **RECORD)
    run_record.note("waits_for", "x")  # which writes the record again
    assert run_record.last_config(tmp_path)["train"] == {"max_grad_norm": 1.0, "lr": math.inf}
    (tmp_path / "config.json").write_text('{"nonfinite": {"a": "inf"}}')
    with pytest.raises(ValueError, match=r"config\.json: nonfinite: 'a' is 'inf', but the row has no such number"):
        run_record.last_config(tmp_path)


def test_a_refusal_after_the_start_is_a_failure(tmp_path):
    """SystemExit leaves nothing for the end of the process to record."""
    body = "from experiments.parts import refusals\nrefusals.refuse('grpo', 'no room')"
    done = run(tmp_path, body)
    assert done.returncode == 2 and done.stderr == "grpo: no room\n"
    assert run_state(tmp_path) == ("failed", "no room") and "ended" in last_attempt(tmp_path)
    run(tmp_path, "(workdir / 'final.json').write_text('{}')\n" + body)
    assert run_state(tmp_path) == ("complete", "") and "error" not in last_attempt(tmp_path)
