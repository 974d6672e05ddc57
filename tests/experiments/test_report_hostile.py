"""The report of a folder that lies: hidden characters, huge texts, damaged files, pipes; idle connections."""

import contextlib
import json
import os
import shutil
import socket
import threading

import pytest

from experiments.report import cli, reading, serve
from experiments.tools import runs
from rl_jax.core.visible import visible
from rl_jax.runs.logging import GROUP_VIEW_FILE, METRICS_FILE, SAMPLES_FILE, TIMING_FILE
from tests.experiments.synthetic_run import write_run

HIDDEN = "\x1b[31mred\x9b0m\u202eevil\u2066\u200b\x7f\x00"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("whole") / "run", steps=2)


@pytest.fixture
def run(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def rewrite(path, change):
    """change(value) of a JSON file, or of each line of a JSON-lines file."""
    if path.suffix == ".json":
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    else:
        path.write_text("".join(json.dumps(change(json.loads(line))) + "\n" for line in path.read_text().splitlines()))


def test_hidden_characters_are_written_out_wherever_they_are(run, capsys):
    rewrite(run / SAMPLES_FILE, lambda row: row | {"prompt": HIDDEN, "completion": HIDDEN})
    rewrite(run / METRICS_FILE, lambda row: row | {f"reward/{HIDDEN}": 1.0})
    rewrite(run / "run.json", lambda record: record | {"task": HIDDEN, "error": HIDDEN, "state": "failed"})
    rewrite(run / "config.json", lambda config: config | {f"x{HIDDEN}": HIDDEN, "\x7f": "\x7f"})
    rewrite(
        run / GROUP_VIEW_FILE,
        lambda row: row | {"rows": [part | {"tokens": [HIDDEN] * len(part["tokens"])} for part in row["rows"]]},
    )
    page = cli.page([run])
    assert visible(page) == page and r"\u202eevil\u2066\u200b\x7f" in page and r"\x1b[31mred\x9b" in page
    for action in ([str(run.parent)], ["--compare", str(run)], ["--diff", str(run), str(run)], [str(run), "--json"]):
        runs.main(action)
        said = "".join(capsys.readouterr())
        assert visible(said) == said
    runs.main([str(run.parent)])
    assert r"\x1b[31mred" in capsys.readouterr().out


def test_a_long_completion_is_cut_and_its_length_said(run):
    before = len(cli.page([run]))
    rewrite(run / SAMPLES_FILE, lambda row: row | {"completion": "a" + "b" * 1_000_000 + "END"})
    page = cli.page([run])
    assert "of 1000004 characters are not shown" in page and "END" in page
    assert len(page) < before + 15 * 17_000  # five prompts, before and after
    assert reading.shown("x" * 16_000) == "x" * 16_000


def every(**fields):
    return lambda row: row | fields


def without(*names):
    return lambda row: {name: value for name, value in row.items() if name not in names}


def in_rows(change):
    return lambda row: row | {"rows": [change(part) for part in row["rows"]]}


# (file, change): what a file may be damaged to.
DAMAGES = {
    "no step": (METRICS_FILE, without("step")),
    "step is a text": (METRICS_FILE, every(step="1")),
    "a metric is a text": (METRICS_FILE, every(**{"reward/mean": "high", "entropy": "x"})),
    "a metric is a list": (METRICS_FILE, every(loss=[1])),
    "a metric is an object": (METRICS_FILE, every(**{"eval/pass@1": {"a": 1}})),
    "timing is a text": (TIMING_FILE, every(step_s="1", rollout_s="x")),
    "timing is negative": (TIMING_FILE, every(step_s=-1.0)),
    "timing without a step": (TIMING_FILE, without("step")),
    "samples without a split": (SAMPLES_FILE, without("split")),
    "samples without a prompt": (SAMPLES_FILE, without("prompt", "completion")),
    "a reward is a text": (SAMPLES_FILE, every(reward="1")),
    "a completion is a number": (SAMPLES_FILE, every(completion=7)),
    "a step is a list": (SAMPLES_FILE, every(step=[1])),
    "a group without rows": (GROUP_VIEW_FILE, without("rows")),
    "tokens and mask differ": (GROUP_VIEW_FILE, in_rows(lambda row: row | {"mask": []})),
    "no log-probs": (GROUP_VIEW_FILE, in_rows(without("log_prob"))),
    "tokens are numbers": (GROUP_VIEW_FILE, in_rows(lambda row: row | {"tokens": [1] * len(row["tokens"])})),
    "an empty record": ("run.json", lambda record: {}),
    "a record without fields": ("run.json", lambda record: {"x": 1}),
    "a record of other kinds": ("run.json", lambda record: dict.fromkeys(record, 7)),
    "a config of another kind": ("config.json", lambda config: dict.fromkeys(config, [1])),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_run_gives_a_page_that_says_so(run, case):
    name, change = DAMAGES[case]
    rewrite(run / name, change)
    try:
        page = cli.page([run])
    except ValueError as error:  # or one line
        assert name == "config.json" and f"{run}: a file there is not as the programs write it" in str(error)
        return
    assert "</html>" in page
    if name not in ("run.json", "config.json") and case != "timing is negative":
        assert f"{name}: " in page and ("damaged, so that" in page or "left out" in page)


@pytest.mark.parametrize("content", [b"[1]", b"{", b"\xff\xfe", b"[" * 100_000, b""], ids=range(5))
@pytest.mark.parametrize("name", ["run.json", METRICS_FILE])
def test_a_file_that_cannot_be_read_is_one_line(run, name, content, capsys):
    (run / name).write_bytes(content + b"\n" if content else b"\n")
    with pytest.raises(SystemExit, match=f"^report: .*{name}"):
        cli.main([str(run)])


@pytest.mark.parametrize("change", [{"sweep": 3}, {"seed": [1]}, {"runs": "x"}], ids=str)
def test_runs_together_with_odd_configs_are_a_page_or_one_line(run, tmp_path, change):
    other = shutil.copytree(run, tmp_path / "other")
    rewrite(run / "config.json", lambda config: config | change)
    with contextlib.suppress(SystemExit):
        cli.main([str(run), str(other)])


@pytest.mark.parametrize("name", ["run.json", "config.json", METRICS_FILE, SAMPLES_FILE])
def test_a_pipe_is_not_opened(run, name):
    (run / name).unlink()
    os.mkfifo(run / name)
    with pytest.raises(SystemExit, match=f"report: .*{name}: is a named pipe, not a regular file"):
        cli.main([str(run)])
    runs.load("run", run)
    assert serve.version([run])  # looks at sizes only


def test_a_connection_that_says_nothing_ends():
    assert 0 < serve.Handler.timeout <= 60
    ours, theirs = socket.socketpair()
    short = type("Short", (serve.Handler,), {"timeout": 0.01})
    with ours, theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n")  # and never the rest
        short(ours, ("127.0.0.1", 1), None)  # returns: it would wait for good otherwise


def test_connections_beyond_the_limit_are_closed(run):
    with serve.Server([run]) as server:
        server._free, closed = threading.BoundedSemaphore(1), []
        server.shutdown_request = closed.append
        assert server._free.acquire(blocking=False)
        server.process_request("one more", ("127.0.0.1", 1))
        assert closed == ["one more"]
        server.finish_request = lambda request, address: None
        server.process_request_thread("the first", ("127.0.0.1", 1))
        assert closed == ["one more", "the first"] and server._free.acquire(blocking=False)
