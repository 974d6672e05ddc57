"""Lists and filters runs from their folders, compares results and configs, exports them for pandas and DuckDB.

    python -m experiments.tools.runs runs                           # name, program, task, state, result, age
    python -m experiments.tools.runs runs --where='config.algorithm.kl_coef>0 and state=complete'
    python -m experiments.tools.runs --compare runs/a runs/b        # last metrics side by side
    python -m experiments.tools.runs --diff runs/a runs/b           # config fields, code and versions that differ
    python -m experiments.tools.runs runs --export                  # runs/runs.parquet: one row per run

A condition is FIELD OP VALUE, with = != < <= > >= or ~ (contains). FIELD is name, program, task, state, step, age_s,
error, config.a.b or metrics.eval/return (the last value). Conditions are joined by "and". A folder that cannot be read
is listed as damaged, with the reason. Each run's metrics.parquet and samples.parquet are written when it ends; --export
also writes them for runs that were killed:

    duckdb.sql("from read_parquet('runs/**/metrics.parquet', union_by_name=true, filename=true)")  # columns may differ
    pandas.read_parquet("runs/runs.parquet")
"""

import argparse
import json
import operator
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from experiments.parts.budgets import result_of
from experiments.sweep.folder import last_metrics, state_of
from rl_jax.core.visible import one_line, visible
from rl_jax.runs.logging import METRICS_FILE, export_parquet
from rl_jax.runs.parquet import write_parquet
from rl_jax.runs.progress import format_seconds
from rl_jax.runs.run_record import flatten, last_config, read_json

MARKS = ("run.json", "config.json", METRICS_FILE)  # a folder with one of them is a run
# The points of folded runs are elsewhere.
NOT_ENTERED = {"checkpoints", "tb", "wandb", "hf", "peft", "export", "folded", "locks"}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "~": lambda value, part: str(part) in str(value),
}
CONDITION = re.compile(r"\s*([\w./@:-]+?)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*?)\s*")


class Run(NamedTuple):
    """One run's folder as a row.

    Attributes:
      name: the folder below the given root.
      path: of the folder.
      state: of the run, or "damaged".
      error: the reason, if it failed or is damaged.
      age_s: seconds since it last wrote.
      record: run.json.
      config: config.json.
      metrics: last values.
    """

    name: str
    path: pathlib.Path
    state: str
    error: str
    age_s: float
    record: dict[str, Any]
    config: dict[str, Any]
    metrics: dict[str, Any]

    def fields(self) -> dict[str, Any]:
        """Every field that a condition can name."""
        head = {
            "name": self.name,
            "program": self.record.get("algorithm"),
            "task": self.record.get("task"),
            "state": self.state,
            "step": self.metrics.get("step"),
            "age_s": self.age_s,
            "error": self.error,
        }
        metrics = {f"metrics.{name}": value for name, value in self.metrics.items() if name != "step"}
        return head | flatten(self.config, "config.") | metrics


def find(roots: Iterable[str | os.PathLike]) -> Iterator[tuple[str, pathlib.Path]]:
    """(name, folder) of every run at or under the roots, sorted.

    Raises:
      FileNotFoundError: if a root is no folder.
    """
    roots = [pathlib.Path(root) for root in roots]
    seen = set()
    for root in roots:
        if not root.is_dir():
            raise FileNotFoundError(f"there is no folder {root}: give folders that hold runs")
        for place, folders, files in os.walk(root):
            folders[:] = sorted(set(folders) - NOT_ENTERED)
            path = pathlib.Path(place)
            if set(MARKS) & set(files) and path.resolve() not in seen:
                seen.add(path.resolve())
                inside = path.relative_to(root).as_posix()
                name = root.name or str(root.resolve().name) if inside == "." else inside
                yield (name if len(roots) == 1 or inside == "." else f"{root.name}/{name}"), path


def load(name: str, path: pathlib.Path) -> Run:
    """The run of a folder; one that cannot be read has the state "damaged", with the reason."""
    state, error = state_of(path)
    if state == "pending":
        state, error = "damaged", f"{path / 'run.json'}: missing"
    record, config, metrics = {}, {}, {}
    try:
        record = read_json(path / "run.json") if (path / "run.json").exists() else {}
        config = last_config(path)
        metrics = last_metrics(path)
    except (OSError, ValueError) as broken:
        state, error = "damaged", str(broken)
    try:
        newest = max((file.stat().st_mtime for file in path.iterdir() if file.is_file()), default=0.0)
    except OSError:
        newest = 0.0
    return Run(name, path, state, error, max(time.time() - newest, 0.0), record, config, metrics)


def parse_where(texts: Iterable[str]) -> list[tuple[str, str, Any]]:
    """[(field, operator, value)] of conditions joined by "and".

    Raises:
      ValueError: if a part is no condition; the message names it.
    """
    result = []
    for part in (part for text in texts for part in re.split(r"\s+and\s+", text.strip())):
        match = CONDITION.fullmatch(part)
        if match is None or not match[3]:
            raise ValueError(f"{part!r} is not a condition: write FIELD OP VALUE, with OP one of {' '.join(OPERATORS)}")
        text = match[3].strip("'\"") if match[3][:1] in "'\"" else match[3]
        try:
            value = json.loads(text) if text == match[3] else text
        except ValueError:
            value = {"True": True, "False": False, "None": None}.get(text, text)
        result.append((match[1], match[2], value))
    return result


def select(runs: Sequence[Run], conditions: Sequence[tuple[str, str, Any]]) -> list[Run]:
    """The runs that meet all conditions; a run that lacks a field does not.

    Raises:
      ValueError: if no run has a field.
    """
    rows = [run.fields() for run in runs]
    known = {name for row in rows for name in row}
    for name, _, _ in conditions:
        if runs and name not in known:
            near = ", ".join(get_close_matches(name, known, n=3, cutoff=0.4)) or ", ".join(sorted(known)[:8])
            raise ValueError(f"no run has a field {name!r}; near it: {near}")

    def meets(row: Mapping[str, Any]) -> bool:
        return all(name in row and _compare(row[name], text, value) for name, text, value in conditions)

    return [run for run, row in zip(runs, rows, strict=True) if meets(row)]


def _compare(left: Any, text: str, right: Any) -> bool:
    try:
        return bool(OPERATORS[text](left, right))
    except TypeError:  # a number has no order with text or None
        return False


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of equal width. What a run's files say moves no cursor."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def shown(value: Any) -> str:
    """A value in a cell."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def listing(runs: Sequence[Run], metric: str | None = None) -> str:
    """One line per run, with the reason below those that are damaged or failed."""
    rows = [["name", "program", "task", "state", "step", "result", "age"]]
    for run in runs:
        fields = run.fields()
        name = metric or result_of(run.metrics)
        result = f"{name} {shown(run.metrics[name])}" if name in run.metrics else "-"
        head = [shown(fields[key]) for key in ("name", "program", "task", "state", "step")]
        rows.append([*head, result, format_seconds(run.age_s)])
    lines = aligned(rows).splitlines()
    for run in runs:
        if run.error:
            lines.append(one_line(f"{run.state} {run.name}: {run.error.strip().splitlines()[-1]}"))
    return "\n".join(lines)


def check_metric(runs: Sequence[Run], metric: str | None) -> None:
    """Raises ValueError if no run has logged a metric; names the nearest ones."""
    known = {name for run in runs for name in run.metrics} - {"step"}
    if runs and metric is not None and metric not in known:
        near = get_close_matches(metric, known, n=3, cutoff=0.4) or sorted(known)[:8]
        raise ValueError(f"no run has logged {metric!r}; near it: {', '.join(near) or 'no metrics at all'}")


def compare(runs: Sequence[Run]) -> str:
    """The last value of every metric side by side; for two runs also the second minus the first."""
    names = sorted({name for run in runs for name in run.metrics})
    rows = [["metric", *(run.name for run in runs), *(["difference"] if len(runs) == 2 else [])]]
    for name in names:
        values = [run.metrics.get(name) for run in runs]
        row = [name, *map(shown, values)]
        if len(runs) == 2:
            row.append(shown(values[1] - values[0]) if None not in values else "-")
        rows.append(row)
    return aligned(rows)


def differences(runs: Sequence[Run]) -> str:
    """The config fields that differ between the runs, then commit, uncommitted changes and versions."""
    trees = [flatten(run.config) | flatten({"versions": run.record.get("versions", {})}, "run.") for run in runs]
    for tree, run in zip(trees, runs, strict=True):
        tree |= {f"run.{name}": run.record.get(name) for name in ("algorithm", "git_commit", "git_patch")}
    names = sorted({name for tree in trees for name in tree}, key=lambda name: (name.startswith("run."), name))
    missing = object()
    rows = [["field", *(run.name for run in runs)]]
    for name in names:
        values = [tree.get(name, missing) for tree in trees]
        if any(value != values[0] for value in values):
            rows.append([name, *("(none)" if value is missing else repr(value) for value in values)])
    return aligned(rows) if len(rows) > 1 else "no differences"


def export(runs: Sequence[Run], path: pathlib.Path) -> None:
    """Writes the Parquet copies of every run that is not running, and a table with one row per run to `path`.

    A run with damaged rows gets no copy, and a line on standard error.
    """
    for run in runs:
        if run.state not in ("running", "damaged"):
            try:
                export_parquet(run.path)
            except ValueError as error:
                print(one_line(f"{run.name} was not exported: {error}"), file=sys.stderr)
    write_parquet(path, [run.fields() | {"path": str(run.path)} for run in runs])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", default=["runs"], help="folders of runs; default: runs")
    parser.add_argument("--where", action="append", default=[], help="a condition, or several joined by `and`")
    parser.add_argument("--metric", help="metric to show as the result")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--compare", nargs="+", metavar="RUN", help="show the runs' last metrics side by side")
    action.add_argument("--diff", nargs="+", metavar="RUN", help="show the differences between the runs' configs")
    action.add_argument("--export", action="store_true", help="write Parquet copies of each run, and ROOT/runs.parquet")
    action.add_argument("--json", action="store_true", help="print the runs as JSON, with all fields")
    options = parser.parse_args(arguments)
    try:
        named = options.compare or options.diff
        if named:
            places = [pathlib.Path(path) for path in named]
            for place in places:
                if not place.is_dir():
                    raise FileNotFoundError(f"there is no run {place}")
            runs = [load(str(place), place) for place in places]
        else:
            runs = [load(name, path) for name, path in find(options.roots)]
        runs = select(runs, parse_where(options.where))
        if options.json:
            print(visible(json.dumps([run.fields() for run in runs], indent=2)))
        elif options.compare:
            print(compare(runs))
        elif options.diff:
            print(differences(runs))
        elif options.export:
            path = pathlib.Path(options.roots[0]) / "runs.parquet"
            if not runs:
                chosen = " that meets --where" if options.where else ""
                raise ValueError(f"{path} was not written: no run{chosen} in {', '.join(options.roots)}")
            export(runs, path)
            print(f"{len(runs)} runs: {path}")
        else:
            check_metric(runs, options.metric)
            print(listing(runs, options.metric))
    except (ValueError, OSError) as error:
        print(visible(f"experiments.tools.runs: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
