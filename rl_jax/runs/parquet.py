"""Parquet copies of a run's JSON lines, for pandas, DuckDB and other column readers. pyarrow comes with tfds.

A run writes JSON lines and resumes from them: they can be appended to, survive kill -9 and can be cut back to a
checkpoint. A Parquet file supports none of this (its index is at its end), so it is a copy, made when a run ends.
experiments.tools.runs --export makes it from the lines of a run that was killed.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_jax.data.checks import utf8
from rl_jax.data.writing import named


def metric_columns(
    metrics: Sequence[Mapping[str, Any]], timings: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row per logged step: step, samples and wall_s, then every metric, then timing/NAME.

    Args:
      metrics: rows of metrics.jsonl.
      timings: rows of timing.jsonl.

    Returns:
      The rows. A number stored as null in JSON is nan or inf again; values that a step did not log are None.
    """
    clock = {row["step"]: row for row in timings if "step" in row}
    axes = ("samples", "wall_s")
    rows = []
    for row in metrics:
        values = {name: value for name, value in row.items() if name != "nonfinite"}
        values |= {name: float(text) for name, text in row.get("nonfinite", {}).items() if name in values}
        timing = clock.get(row.get("step"), {})
        shown = {"step": row.get("step")} | {name: timing.get(name) for name in axes} | values
        more = {f"timing/{name}": value for name, value in timing.items() if name not in (*axes, "step", "nonfinite")}
        rows.append(shown | more)
    return rows


def write_parquet(path: str | os.PathLike, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces a Parquet file by `rows` atomically. Writes nothing if there are no rows.

    A column is int64, float64, bool or else text. Columns of lists, dicts or mixed types are stored as JSON.
    """
    import pyarrow  # slow to import, so only when a run ends
    import pyarrow.parquet

    if not rows:
        return
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with named(path):
        pyarrow.parquet.write_table(pyarrow.table(columns), partial)
        os.replace(partial, path)


def _column(values: list) -> Any:
    """A pyarrow array of one type."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return _array(values, pyarrow.bool_(), lambda bits: [np.packbits(np.array(bits, bool), bitorder="little")])
    if kinds == {int} and all(value is None or abs(value) < 2**63 for value in values):
        return _array(values, pyarrow.int64(), lambda numbers: [np.array(numbers, np.int64)])
    if kinds <= {int, float}:
        return _array(values, pyarrow.float64(), lambda numbers: [np.array(numbers, np.float64)])
    texts = [None if value is None else _text(value).encode("utf-8") for value in values]
    if sum(map(len, filter(None, texts))) >= 2**31:  # more than an array's offsets reach
        return pyarrow.array(texts, pyarrow.string())
    return _array(texts, pyarrow.string(), _text_buffers)


def _array(values: list, kind: Any, buffers: Callable[[list], list]) -> Any:
    """A pyarrow array of `kind`; None is null. buffers: of values without None, as Arrow lays them out.

    pyarrow.array(values) would import pandas, which costs every run half a second.
    """
    import pyarrow

    known = np.array([value is not None for value in values], bool)
    blank = b"" if kind == pyarrow.string() else 0
    parts = [np.packbits(known, bitorder="little"), *buffers([blank if x is None else x for x in values])]
    return pyarrow.Array.from_buffers(kind, len(values), [pyarrow.py_buffer(part.tobytes()) for part in parts])


def _text_buffers(texts: list[bytes]) -> list:
    return [np.cumsum([0, *map(len, texts)], dtype=np.int32), np.frombuffer(b"".join(texts), np.uint8)]


def _text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return utf8(value if isinstance(value, str) else json.dumps(value))
