"""A progress line: live on a terminal, a plain line every few seconds in a log file."""

import collections
import sys
import time
from collections.abc import Mapping

# (label in the line, names under which a run may log it: the first one present is shown): each program's main numbers
_SHOWN = (
    ("return", ("eval/return", "episode/return")),
    ("reward", ("reward/mean",)),
    ("pass@1", ("eval/pass@1",)),
    ("eval", ("eval/reward",)),
    ("accuracy", ("rewards/accuracy", "reward/accuracy", "steps/accuracy")),
    ("margin", ("rewards/margin", "reward/margin")),
    ("held-out accuracy", ("eval/rewards/accuracy", "eval/accuracy")),
    ("held-out loss", ("eval/loss",)),
    ("kl", ("kl/k3", "kl/k1")),
    ("entropy", ("entropy",)),
    ("loss", ("loss",)),
    ("env steps/s", ("env_steps_per_s",)),
    ("tok/s", ("tokens_per_s",)),
    ("mfu", ("mfu",)),
)
_RATES = ("env steps/s", "tok/s")
_FEW = 3  # metrics that are shown of a program that logs none of these
# Logged only occasionally: the last value stays on the line.
_KEPT = tuple(name for _, names in _SHOWN for name in names if name.startswith("eval/"))


def format_seconds(seconds: float) -> str:
    """A duration in its two largest units: 8s, 3m20s, 2h05m. seconds: float, not negative."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def format_status(values: Mapping[str, float]) -> str:
    """The known metrics of a step as `reward 0.412  kl 0.003`, in a fixed order; missing ones are left out.

    If it has none of the known ones, its first few are shown by their names.
    """
    parts = []
    for label, names in _SHOWN:
        name = next((name for name in names if name in values), None)
        if name is not None:
            value = values[name]
            parts.append(f"{label} {value:,.0f}" if label in _RATES else f"{label} {value:.3g}")
    return "  ".join(parts or [f"{name} {value:.3g}" for name, value in list(values.items())[:_FEW]])


class ProgressLine:
    """Shows `step 12/200  reward 0.41  kl 0.002  entropy 1.3  tok/s 5,120  ETA 3m20s`."""

    def __init__(self, total_steps: int, *, first_step: int = 0, interval_s: float = 5.0, stream=None):
        """Starts the line.

        Args:
          total_steps: the last step.
          first_step: the step from which a resumed run starts.
          interval_s: minimum seconds between plain lines, if the output is not a terminal.
          stream: output; None is standard output.
        """
        self._stream = sys.stdout if stream is None else stream
        self._total_steps = total_steps
        self._interval_s = interval_s
        self._last_printed = -float("inf")
        self._kept: dict[str, float] = {}
        # (step, time of its end, seconds spent on compiling by then, or None), from the first step's end on.
        self._ends = collections.deque(maxlen=20)
        self._first_step = first_step
        self._bar = _live_bar(self._stream, total_steps, first_step) if self._stream.isatty() else None

    def update(self, step: int, metrics: Mapping[str, float], timings: Mapping[str, float]) -> None:
        """Shows a finished step. metrics, timings: name -> number, as they were logged."""
        now = time.monotonic()
        if step > self._first_step:
            self._ends.append((step, now, timings.get("compile_s")))
        self._kept.update({name: metrics[name] for name in _KEPT if name in metrics})
        status = format_status({**self._kept, **metrics, **timings})
        left, eta = self._total_steps - step, self._eta()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=step, status=status, eta=eta)
        elif now - self._last_printed >= self._interval_s or left <= 0:
            self._last_printed = now
            parts = (f"step {step}/{self._total_steps}", status, f"ETA {eta}")
            print("  ".join(filter(None, parts)), file=self._stream, flush=True)

    def _eta(self) -> str:
        """The time left, at the pace of the recent steps without compilation; "?" before a second step has ended."""
        if not self._ends:
            return "?"
        (old_step, start, compiled_before), (step, end, compiled) = self._ends[0], self._ends[-1]
        if step >= self._total_steps:
            return format_seconds(0)
        if step == old_step:
            return "?"
        compiling = 0.0 if None in (compiled_before, compiled) else compiled - compiled_before
        pace = max(end - start - compiling, 0.0) / (step - old_step)
        return format_seconds(pace * (self._total_steps - step))

    def message(self, text: str) -> None:
        """Prints a separate line, above the live line if there is one."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def close(self) -> None:
        """Keeps the line on the screen and releases the terminal."""
        if self._bar is not None:
            self._bar.stop()


def _live_bar(stream, total_steps: int, first_step: int):
    """A started rich progress bar of one task whose fields are `status` and `eta`."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[status]}", markup=False),
        TextColumn("ETA {task.fields[eta]}"),
        console=Console(file=stream),
    )
    bar.add_task("steps", total=total_steps, completed=first_step, status="", eta="?")
    bar.start()
    return bar
