"""The output of a running sweep: a live table on a terminal, otherwise one line per event."""

import json
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.parts.budgets import result_of
from experiments.sweep.runner import Task
from rl_jax.runs.logging import METRICS_FILE
from rl_jax.runs.progress import format_seconds

TAIL_BYTES = 65_536
ROWS = 16  # most running, and most failed, points shown at once


class Display:
    """The display of some tasks.

    Args:
      tasks: all tasks of the sweep.
      jobs: how many run at a time, for the ETA.
      stream: None for standard output.
    """

    def __init__(self, tasks: Sequence[Task], *, jobs: int, stream=None):
        self._tasks, self._jobs = tasks, jobs
        self._stream = sys.stdout if stream is None else stream
        self._seconds: list[float] = []
        self._live, self._shown_at = None, -float("inf")
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            # No refresh thread: this process forks.
            self._live = Live(console=Console(file=self._stream), auto_refresh=False)
            self._live.start()

    def close(self) -> None:
        """Stops updating; leaves the table as it is."""
        if self._live is not None:
            self._live.stop()

    def message(self, text: str) -> None:
        """Prints a line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)

    def completed(self, task: Task, seconds: float) -> None:
        """Reports that a task is done, with its result."""
        self._seconds.append(seconds)
        result = last_result(task.workdir)
        self.message(f"complete {task.name}  {result}  in {format_seconds(seconds)}")

    def show(
        self, state: Mapping[str, Mapping[str, Any]], running: Sequence[tuple[Task, float]], *, last: bool = False
    ) -> None:
        """Redraws the table at most twice a second, and always if `last`; does nothing without a terminal."""
        now = time.monotonic()
        if self._live is None or (now - self._shown_at < 0.5 and not last):
            return
        self._shown_at = now
        self._live.update(self.table(state, running, now), refresh=True)

    def table(self, state: Mapping[str, Mapping[str, Any]], running: Sequence[tuple[Task, float]], now: float) -> Any:
        """The rich table: one line per running or failed task; its title has the counts of all states."""
        from rich.table import Table

        names = [name for task in self._tasks for name in task.points]
        states = [state.get(name, {}).get("state", "pending") for name in names]
        counts = "  ".join(f"{states.count(kind)} {kind}" for kind in dict.fromkeys(states))
        left = sum(state.get(task.points[0], {}).get("state") != "complete" for task in self._tasks)
        table = Table(title=f"{counts}  ETA {self.eta(left, running)}")
        for column in ("point", "state", "attempt", "time", "last"):
            table.add_column(column, overflow="fold")
        for task, started in running[:ROWS]:
            of = state[task.points[0]]
            time_ = format_seconds(now - started)
            table.add_row(task.name, "running", str(of["attempts"]), time_, last_result(task.workdir))
        for task in [task for task in self._tasks if state.get(task.points[0], {}).get("state") == "failed"][:ROWS]:
            of = state[task.points[0]]
            table.add_row(task.name, "failed", str(of["attempts"]), "", of["error"])
        return table

    def eta(self, left: int, running: Sequence[tuple[Task, float]]) -> str:
        """The time until `left` tasks are done, from the mean time of completed ones; "?" before the first."""
        if not self._seconds:
            return "?"
        mean, now = sum(self._seconds) / len(self._seconds), time.monotonic()
        spent = sum(min(now - started, mean) for _, started in running)
        return format_seconds(max(left * mean - spent, 0.0) / self._jobs)


def last_result(workdir: pathlib.Path) -> str:
    """"step 12  eval/return 401" from the last rows of a run, "" if it has none."""
    try:
        with open(workdir / METRICS_FILE, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")[:-1]
    except OSError:
        lines = []
    merged: dict[str, Any] = {}
    for line in lines[-20:]:
        try:
            merged |= json.loads(line)
        except (TypeError, ValueError):  # the first line may be the end of a row; damage is reported elsewhere
            continue
    name = result_of(merged)
    shown = f"  {name} {merged[name]:.4g}" if name and isinstance(merged[name], (int, float)) else ""
    return f"step {merged['step']}{shown}" if "step" in merged else ""
