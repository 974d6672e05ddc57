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


def etas(monkeypatch, moments, updates, *, first_step=0, total=100) -> list[str]:
    """The ETA of each line. moments: the clock at each update. updates: (step, timings)."""
    clock = iter(moments)
    monkeypatch.setattr("rl_jax.runs.progress.time.monotonic", lambda: next(clock))
    stream = io.StringIO()
    line = ProgressLine(total, first_step=first_step, interval_s=0.0, stream=stream)
    for step, timings in updates:
        line.update(step, {"loss": 1.0}, timings)
    return [text.split("ETA ")[1] for text in stream.getvalue().splitlines()]


def test_eta_counts_the_steps_of_this_attempt_only(monkeypatch):
    updates = [(91, {}), (92, {}), (93, {})]
    assert etas(monkeypatch, [200.0, 210.0, 220.0], updates, first_step=90) == ["?", "1m20s", "1m10s"]


def test_eta_leaves_compilation_out(monkeypatch):
    """The first step compiles for five minutes, the third for one more: neither is counted."""
    seconds = [(1, 300.0), (2, 300.0), (3, 360.0), (100, 360.0)]
    updates = [(0, {}), *((step, {"compile_s": compiled}) for step, compiled in seconds)]
    moments = [30.0, 340.0, 350.0, 420.0, 1000.0]
    assert etas(monkeypatch, moments, updates) == ["?", "?", "16m20s", "16m10s", "0s"]


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"rewards/accuracy": 0.75, "rewards/margin": 0.5, "loss": 0.69}, "accuracy 0.75  margin 0.5  loss 0.69"),
        ({"eval/loss": 0.69, "eval/rewards/accuracy": 0.5}, "held-out accuracy 0.5  held-out loss 0.69"),  # at step 0
        ({"eval/accuracy": 0.5, "reward/margin": 0.1}, "margin 0.1  held-out accuracy 0.5"),  # of a reward model
        ({"eval/return": 12.5, "loss": 0.5, "env_steps_per_s": 12345.0}, "return 12.5  loss 0.5  env steps/s 12,345"),
        ({"episode/return": 9.0}, "return 9"),
        ({"mine": 1.0, "other": 2.0, "third": 3.0, "fourth": 4.0}, "mine 1  other 2  third 3"),
        ({}, ""),
    ],
)
def test_every_program_shows_its_own_numbers(metrics, shown):
    assert format_status(metrics) == shown


def test_held_out_numbers_stay_on_the_line(monkeypatch):
    stream = io.StringIO()
    line = ProgressLine(2, interval_s=0.0, stream=stream)
    line.update(0, {"eval/rewards/accuracy": 0.5}, {})
    line.update(1, {"loss": 0.5}, {})
    assert "step 1/2  held-out accuracy 0.5  loss 0.5" in stream.getvalue().splitlines()[1]


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
