"""The run directory: metrics, timings, samples and group views as JSON lines, TensorBoard and a progress line.

Rows are written whole and flushed at once, so a run killed with -9 loses nothing it had logged. A resumed run cuts its
files back to the restored step, so an interrupted run's metrics.jsonl ends byte-equal to an uninterrupted one's. This
requires that a step is logged before its checkpoint is saved, and that nothing that depends on the clock goes into
`metrics` (it belongs into `timings`). When a run ends, metrics and samples are copied to Parquet (rl_jax.runs.parquet).
Nothing here imports jax.
"""

import contextlib
import copy
import functools
import json
import math
import numbers
import operator
import os
import platform
import re
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_jax.data.plain_files import check_regular
from rl_jax.runs import disk
from rl_jax.runs.completions import completions_table
from rl_jax.runs.parquet import metric_columns, write_parquet
from rl_jax.runs.progress import ProgressLine

METRICS_FILE = "metrics.jsonl"
TIMING_FILE = "timing.jsonl"
SAMPLES_FILE = "samples.jsonl"
GROUP_VIEW_FILE = "group_view.jsonl"
LOG_FILES = (METRICS_FILE, TIMING_FILE, SAMPLES_FILE, GROUP_VIEW_FILE)
PARQUET_FILES = ("metrics.parquet", "samples.parquet")
FLUSH_S = 120.0  # from flush to flush of TensorBoard's events
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")  # of a name in "nonfinite": "norm.g[1]"


def encode_row(row: Mapping[str, Any]) -> str:
    """One JSON object on one line with sorted keys; equal values always give equal bytes.

    JSON has no nan: a number that is not finite becomes null, and the field "nonfinite" says which it was
    ({"nonfinite": {"loss": "nan"}}).

    Args:
      row: str keys; numbers (including numpy's and 0-d arrays), strings, bools, None, and lists, arrays and dicts of
        these.

    Raises:
      ValueError: for anything else; names the field.
    """
    nonfinite: dict[str, str] = {}
    cleaned = {str(key): _clean(row[key], str(key), nonfinite) for key in row}
    if nonfinite:
        cleaned["nonfinite"] = nonfinite
    return json.dumps(cleaned, sort_keys=True, allow_nan=False)


def decode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row that `encode_row` wrote: numbers that are not finite are back in their places, "nonfinite" is gone.

    Args:
      row: as read from JSON; it is not changed.

    Raises:
      ValueError: if "nonfinite" names a place that the row does not have.
    """
    result = copy.deepcopy({name: value for name, value in row.items() if name != "nonfinite"})
    for where, text in row.get("nonfinite", {}).items():
        *path, last = [int(index) if index else name for index, name in _PART.findall(where)]
        try:
            place = functools.reduce(operator.getitem, path, result)
            if place[last] is not None:
                raise ValueError(f"{place[last]!r} is there")
            place[last] = float(text)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ValueError(f"nonfinite: {where!r} is {text!r}, but the row has no such number") from error
    return result


def read_jsonl(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file, in order. A last line without a newline (from a killed writer) is left out.

    Raises:
      FileNotFoundError: if there is no file.
      ValueError: if a line is not a JSON object; names file and line.
    """
    return [row for row, _ in _parse_lines(Path(path))]


def cut_back(path: str | os.PathLike, step: int) -> None:
    """Removes rows with a "step" greater than `step` from a JSON-lines file, atomically.

    A half-written last line is removed, too. Rows without a step stay. Nothing happens if there is no file.

    Raises:
      ValueError: if a line other than the last is damaged; names file and line.
    """
    path = Path(path)
    if path.exists():
        kept = b"".join(line for row, line in _parse_lines(path) if row.get("step", step) <= step)
        if path.stat().st_size != len(kept):
            write_atomically(path, kept)


def write_atomically(path: str | os.PathLike, content: bytes) -> None:
    """Replaces a file in one move: readers, and runs killed here, see the old content or the new, never a part."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with disk.named(path):
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)


def export_parquet(workdir: str | os.PathLike) -> None:
    """Copies a run's metrics (with samples, wall time and timings) and samples to Parquet.

    Raises:
      ValueError: if a row is damaged; names file and line.
    """
    workdir = Path(workdir)
    metrics, timings, samples = (
        read_jsonl(workdir / name) if (workdir / name).exists() else []
        for name in (METRICS_FILE, TIMING_FILE, SAMPLES_FILE)
    )
    for name, rows in zip(PARQUET_FILES, (metric_columns(metrics, timings), samples), strict=True):
        write_parquet(workdir / name, rows)


class RunLogger:
    """Writes the rows of one run. Use it as a context manager, so that TensorBoard's last events are not lost."""

    def __init__(
        self,
        workdir: str | os.PathLike,
        *,
        total_steps: int,
        progress: bool = True,
        tensorboard: bool = True,
        resume_step: int | None = None,
        samples_per_step: int | None = None,
        print_completions: int = 0,
        wandb: Mapping[str, Any] | None = None,
    ):
        """Opens the run directory and cuts its files back to resume_step.

        Only files that the logger writes are cut: its own at once, NAME.jsonl of `rows` before the first row.

        Args:
          workdir: created if missing.
          total_steps: the last step of the run, for the progress line's ETA.
          progress: whether to show the progress line.
          tensorboard: whether to write event files under workdir/tb.
          resume_step: the step of the restored checkpoint; rows of later steps are removed. None: the run starts from
            nothing, and rows of an attempt that died before its first checkpoint are removed.
          samples_per_step: rows that a step trains on, for the axis "samples" of timing.jsonl. None leaves it out.
          print_completions: completions per split to print whenever samples are logged.
          wandb: keywords of wandb_board.WandbBoard; None does without.
        """
        self._workdir = Path(workdir)
        self._last_step = self._resumed = -1 if resume_step is None else resume_step
        with disk.named(self._workdir):
            self._workdir.mkdir(parents=True, exist_ok=True)
            for name in LOG_FILES:
                cut_back(self._workdir / name, self._last_step)
            for name in PARQUET_FILES:  # outdated copies; close() makes new ones
                (self._workdir / name).unlink(missing_ok=True)
        self._closed = False
        self._samples_per_step = samples_per_step
        self._started = time.monotonic() - _wall_seconds(self._workdir / TIMING_FILE)
        self._files: dict[str, Any] = {}
        self._progress = ProgressLine(total_steps, first_step=max(self._last_step, 0)) if progress else None
        self._tensorboard = _EventFile(self._workdir / "tb", self._last_step + 1) if tensorboard else None
        self._print_completions = print_completions
        self._wandb = _wandb_board(self._workdir, wandb) if wandb else None

    def __enter__(self) -> "RunLogger":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def log(self, step: int, metrics: Mapping[str, Any], timings: Mapping[str, Any] | None = None) -> None:
        """Writes one row of metrics.jsonl and, if `timings` is given, one of timing.jsonl; shows both.

        Args:
          step: greater than every step logged before.
          metrics: name -> number, only reproducible values.
          timings: name -> number, values that depend on the clock. wall_s, the seconds since the logger was created
            plus those of earlier attempts, and samples are added.

        Raises:
          ValueError: if a step is logged twice, or a metric is not a single number; names it.
        """
        if step <= self._last_step:
            raise ValueError(f"step {step} was logged after step {self._last_step}: log each step once, in order")
        metrics, timings = _scalars(metrics), _scalars(timings or {})
        self._append(METRICS_FILE, [{**metrics, "step": step}])
        if timings:
            axes = {"wall_s": time.monotonic() - self._started}
            if self._samples_per_step is not None:
                axes["samples"] = step * self._samples_per_step
            self._append(TIMING_FILE, [{**timings, **axes, "step": step}])
        self._last_step = step
        shown = metrics | {f"timing/{name}": value for name, value in timings.items()}
        if self._tensorboard is not None:
            self._tensorboard.log(step, shown)
        if self._wandb is not None:
            self._wandb.log(step, shown)
        if self._progress is not None:
            self._progress.update(step, metrics, timings)

    def samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends completions to samples.jsonl.

        Args:
          step: of the samples.
          rows: {"split": "train" | "eval", "prompt", "completion", "reward", "finished", "truncated"} each.
        """
        rows = list(rows)
        self._append(SAMPLES_FILE, [{**row, "step": step} for row in rows])
        if self._print_completions and rows:
            table = completions_table(step, rows, self._print_completions)
            self._progress.message(table) if self._progress is not None else print(table, flush=True)

    def group_view(self, step: int, row: Mapping[str, Any]) -> None:
        """Appends one group, token by token, to group_view.jsonl.

        Args:
          step: of the group.
          row: {"prompt", "rows": [{"tokens": [str], "mask": [bool], "log_prob", "log_ratio", "advantage", "entropy":
            [float] each, "reward": float}]}. One entry of "rows" per completion, with lists of equal length.

        Raises:
          ValueError: if a list has another length; names it.
        """
        for index, completion in enumerate(row["rows"]):
            for name, values in completion.items():
                if name != "reward" and len(values) != len(completion["tokens"]):
                    raise ValueError(
                        f"group view of step {step}, completion {index}: {name!r} has {len(values)} entries for "
                        f"{len(completion['tokens'])} tokens"
                    )
        self._append(GROUP_VIEW_FILE, [{**row, "step": step}])

    def rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends a program's own rows to NAME.jsonl.

        When a resumed run first does so, the rows of later steps that are there are removed.
        """
        self._append(f"{name}.jsonl", list(rows))

    def message(self, text: str) -> None:
        """Prints a line above the progress line; prints nothing if progress is off."""
        if self._progress is not None:
            self._progress.message(text)

    def close(self) -> None:
        """Flushes and closes everything; a second call does nothing."""
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a last flush: every row was flushed, or its error was raised
                file.close()
        self._files.clear()
        if not self._closed:
            self._closed = True
            try:
                export_parquet(self._workdir)
            except Exception as error:  # a full disk, a damaged line: must not fail a run whose lines are written
                warnings.warn(f"{self._workdir}: the Parquet copy could not be written ({error})", stacklevel=2)
        if self._tensorboard is not None:
            try:
                self._tensorboard.close()
            except OSError as error:  # as above
                warnings.warn(f"{self._workdir / 'tb'}: the last curves could not be written ({error})", stacklevel=2)
        if self._wandb is not None:
            self._wandb.close()
        if self._progress is not None:
            self._progress.close()
        self._tensorboard = self._wandb = self._progress = None

    def _append(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        lines = "".join(encode_row(row) + "\n" for row in rows)
        with disk.named(self._workdir / name):
            if name not in self._files:
                if name not in LOG_FILES:  # a program's own: until now it might have been somebody else's
                    cut_back(self._workdir / name, self._resumed)
                self._files[name] = open(self._workdir / name, "ab")  # noqa: SIM115  closed by close()
            self._files[name].write(lines.encode())
            self._files[name].flush()


def _wall_seconds(path: Path) -> float:
    """The wall_s of the last row of a timing.jsonl; 0.0 if there is none."""
    rows = read_jsonl(path) if path.exists() else []
    return max((row["wall_s"] for row in rows if isinstance(row.get("wall_s"), float)), default=0.0)


def _parse_lines(path: Path) -> list[tuple[dict[str, Any], bytes]]:
    """(row, its bytes) for each whole line of a JSON-lines file."""
    check_regular(path)
    parsed = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):  # only the last line can lack it: its writer was killed
            break
        try:
            row = json.loads(line)
        except RecursionError as error:
            raise ValueError(f"{path}:{number}: damaged line (nested too deep); remove it") from error
        except ValueError as error:
            raise ValueError(f"{path}:{number}: damaged line ({error}); remove it or restore the file") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: expected a JSON object, found {type(row).__name__}")
        parsed.append((row, line))
    return parsed


def _scalars(values: Mapping[str, Any]) -> dict[str, float | int]:
    """Python numbers from a mapping of numbers and 0-d arrays. Raises ValueError naming an entry that is neither."""
    converted = {}
    for name, value in values.items():
        if isinstance(value, numbers.Integral):
            converted[name] = int(value)
            continue
        try:
            converted[name] = float(value)
        except (TypeError, ValueError) as error:
            raise ValueError(f"metric {name!r} must be one number, found {value!r}") from error
    return converted


def _clean(value: Any, where: str, nonfinite: dict[str, str]) -> Any:
    """`value` as plain JSON types; non-finite numbers become None and are noted in `nonfinite`."""
    if hasattr(value, "tolist"):  # numpy and jax arrays and scalars
        value = value.tolist()
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        if math.isfinite(value):
            return float(value)
        nonfinite[where] = str(float(value))
        return None
    if isinstance(value, Mapping):
        return {str(key): _clean(item, f"{where}.{key}", nonfinite) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_clean(item, f"{where}[{index}]", nonfinite) for index, item in enumerate(value)]
    raise ValueError(f"field {where!r} holds a {type(value).__name__}, which JSON cannot write: {value!r}")


class _EventFile:
    """TensorBoard's events, written by the thread that logs: tensorboardX's own thread dies of a full disk, and who
    logs then waits for it for ever.

    Events of earlier attempts are hidden from `purge_step` on.
    """

    def __init__(self, folder: Path, purge_step: int):
        from tensorboardX import record_writer, summary  # slow to import, so only for runs that use it
        from tensorboardX.proto import event_pb2

        self._folder, self._event, self._scalar, self._flush_at = folder, event_pb2.Event, summary.scalar, 0.0
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        with disk.named(folder):
            folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{int(time.time())}.{platform.node()}"
            self._file = record_writer.RecordWriter(str(folder / name))
            self._write(file_version="brain.Event:2")
            self._write(step=purge_step, session_log=start)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Writes those values of a step that are finite. Raises OSError if the file cannot be written; names it."""
        shown = self._event().summary
        for name, value in values.items():
            if math.isfinite(value):
                shown.MergeFrom(self._scalar(name, value))
        with disk.named(self._folder):
            self._write(step=step, summary=shown)
            if time.monotonic() >= self._flush_at:
                self._file.flush()
                self._flush_at = time.monotonic() + FLUSH_S

    def close(self) -> None:
        with disk.named(self._folder):
            self._file.close()

    def _write(self, **fields: Any) -> None:
        self._file.write(self._event(wall_time=time.time(), **fields).SerializeToString())


def _wandb_board(workdir: Path, keywords: Mapping[str, Any]):
    """A WandbBoard."""
    from rl_jax.runs.wandb_board import WandbBoard  # which imports this module

    return WandbBoard(workdir, **keywords)
