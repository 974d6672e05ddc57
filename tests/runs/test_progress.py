"""The progress line, on a terminal and in a log file."""

import io

import pytest

from rl_jax.runs.progress import ProgressLine, format_seconds, format_status


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_plain_lines_name_step_metrics_and_eta():
    stream = io.StringIO()
    line = ProgressLine(4, interval_s=0.0, stream=stream)
    metrics = {"reward/mean": 0.5, "kl/k3": 0.0123, "entropy": 1.25, "eval/pass@1": 0.25}
    line.update(1, metrics, {"tokens_per_s": 5120.0})
    line.message("saved")
    line.update(4, {"reward/mean": 0.75}, {})
    first, message, last = stream.getvalue().splitlines()
    assert first.startswith("step 1/4  reward 0.5  pass@1 0.25  kl 0.0123  entropy 1.25  tok/s 5,120  ETA ")
    assert message == "saved"
    assert last == "step 4/4  reward 0.75  pass@1 0.25  ETA 0s"


def test_plain_lines_are_rare_but_the_last_step_is_always_shown():
    stream = io.StringIO()
    line = ProgressLine(50, interval_s=1000.0, stream=stream)
    for step in range(1, 51):
        line.update(step, {"loss": float(step)}, {})
    assert [text.split("  ")[0] for text in stream.getvalue().splitlines()] == ["step 1/50", "step 50/50"]


def test_eta_counts_the_steps_of_this_attempt_only(monkeypatch):
    clock = iter([100.0, 110.0, 120.0])
    monkeypatch.setattr("rl_jax.runs.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    line = ProgressLine(100, first_step=90, interval_s=0.0, stream=stream)
    line.update(91, {}, {})
    line.update(92, {}, {})
    assert [text.split("ETA ")[1] for text in stream.getvalue().splitlines()] == ["1m30s", "1m20s"]


def test_a_terminal_gets_one_live_line():
    stream = Terminal()
    line = ProgressLine(4, stream=stream)
    line.message("[not] markup")
    line.update(4, {"reward/mean": 0.75}, {})
    line.close()
    assert "reward 0.75" in stream.getvalue() and "[not] markup" in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0s"), (59.6, "1m00s"), (200, "3m20s"), (7500, "2h05m")])
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


def test_status_prefers_k3_and_skips_what_is_missing():
    assert format_status({"kl/k1": 1.0, "kl/k3": 2.0, "other": 3.0}) == "kl 2"
