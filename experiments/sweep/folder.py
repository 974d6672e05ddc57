"""A sweep's folder: sweep.json with its points, one ordinary run per point under points/NAME, state.json, the tables.

    SWEEP/sweep.json      {"name", "config", "program", "sweep", "points": [...], "command", "created"}
    SWEEP/state.json      {"points": {NAME: {"state", "attempts", "failures", "error"}}}
    SWEEP/points/NAME/    config.json, run.json, metrics.jsonl ..., log.txt (its output), final.json once complete
    SWEEP/table.md, SWEEP/table.json
"""

import contextlib
import datetime
import difflib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.parts.budgets import result_of
from experiments.sweep.points import Point
from rl_jax.runs import run_record
from rl_jax.runs.logging import METRICS_FILE, read_jsonl, write_atomically
from rl_jax.runs.run_record import is_complete, read_json


def write_json(path: pathlib.Path, content: Any) -> None:
    """Replaces a JSON file atomically."""
    write_atomically(path, (json.dumps(content, indent=2) + "\n").encode())


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Holds the sweep's lock, which the system releases when the process ends, however it ends.

    Raises:
      RuntimeError: if another process holds it; the message names the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RuntimeError(
                f"another sweep runs in {folder} (process {file.read().strip() or 'unknown'}): wait for it, stop it, "
                "or give another --workdir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def write_sweep(folder: pathlib.Path, points: Sequence[Point], **head: Any) -> dict[str, Any]:
    """Writes sweep.json with these points and those that it already had.

    Args:
      folder: the sweep's.
      points: to add.
      **head: name, config, program, sweep, command.

    Returns:
      The content of sweep.json.

    Raises:
      ValueError: if it has a point of the same name with other overrides.
    """
    path = folder / "sweep.json"
    record = {**head, "points": [], "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
    if path.exists():
        earlier = read_json(path)
        record |= {"created": earlier["created"], "points": earlier["points"]}
    before = {point["name"]: point for point in record["points"]}
    for point in points:
        new = json.loads(json.dumps(point.record()))
        if before.setdefault(point.name, new) != new:
            raise ValueError(
                f"{folder} already has a different point {point.name}, with {before[point.name]['overrides']} of "
                f"{before[point.name]['config']}: give another --workdir"
            )
    record["points"] = list(before.values())
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, record)
    return record


def state_of(workdir: pathlib.Path) -> tuple[str, str]:
    """(state, error) of a run's folder.

    The states are those of rl_jax.runs.run_record.run_state, "pending" if nothing has run, and "damaged" if the folder
    cannot be read.
    """
    try:
        return run_record.run_state(workdir)
    except FileNotFoundError:
        return ("complete", "") if is_complete(workdir) else ("pending", "")
    except (OSError, ValueError) as error:
        return "damaged", str(error)


def last_metrics(workdir: pathlib.Path) -> dict[str, float]:
    """The last value of every metric that a run has logged, {} if none.

    Raises:
      ValueError: if a row is damaged.
    """
    path, result = workdir / METRICS_FILE, {}
    for row in read_jsonl(path) if path.exists() else []:
        result |= {name: value for name, value in row.items() if name != "nonfinite"}
    return result


def table(folder: pathlib.Path, metric: str | None = None) -> dict[str, Any]:
    """The results of a sweep so far. The content does not depend on the time.

    An arm with a complete point that has no finite result gets no mean: a mean over the points that did not diverge
    would flatter the arm.

    Args:
      folder: the sweep's.
      metric: the result; None takes the first of experiments.parts.budgets.RESULTS that was logged.

    Returns:
      metric: its name.
      points: one dict per point with name, arm, seed, state, step and metrics (last values).
      arms: one dict per arm with arm, complete and points (counts), and mean, least and greatest result of its complete
        points.

    Raises:
      FileNotFoundError: if the folder is no sweep's.
      ValueError: if points have logged metrics, but none of them `metric`.
    """
    path, rows = folder / "sweep.json", []
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no sweep: it has no sweep.json, which a sweep writes when it starts")
    for point in read_json(path)["points"]:
        workdir = folder / point["workdir"]
        state = state_of(workdir)[0]
        try:
            metrics = last_metrics(workdir)
        except (OSError, ValueError):
            state, metrics = "damaged", {}
        rows.append(dict(name=point["name"], arm=point["arm"], seed=point["seed"], state=state,
                         step=metrics.pop("step", None), metrics=metrics))
    known = {name for row in rows for name in row["metrics"]}
    if metric is not None and known and metric not in known:
        near = difflib.get_close_matches(metric, known, n=3, cutoff=0.4) or sorted(known)[:8]
        raise ValueError(f"no point has logged {metric!r}; near it: {', '.join(near)}")
    complete = [row for row in rows if row["state"] == "complete"]
    metric = metric or next(filter(None, (result_of(row["metrics"]) for row in complete)), None)
    arms = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row["metrics"].get(metric) for row in complete if row["arm"] == arm]
        known = mine and None not in mine
        result = dict(mean=sum(mine) / len(mine), least=min(mine), greatest=max(mine)) if known else {}
        arms.append(dict(arm=arm, complete=len(mine), points=sum(row["arm"] == arm for row in rows), **result))
    return {"metric": metric, "points": rows, "arms": arms}


def markdown(result: Mapping[str, Any]) -> str:
    """A table's arms and points as two Markdown tables."""

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.4g}"

    metric = result["metric"] or "result"
    lines = [f"| arm | complete | mean {metric} | least | greatest |", "|---|---|---|---|---|"]
    for arm in result["arms"]:
        values = " | ".join(number(arm.get(name)) for name in ("mean", "least", "greatest"))
        lines.append(f"| {arm['arm']} | {arm['complete']} of {arm['points']} | {values} |")
    lines += ["", f"| point | state | step | {metric} |", "|---|---|---|---|"]
    for row in result["points"]:
        lines.append(f"| {row['name']} | {row['state']} | {row['step']} | {number(row['metrics'].get(metric))} |")
    return "\n".join(lines) + "\n"


def write_table(folder: pathlib.Path, metric: str | None = None) -> dict[str, Any]:
    """Writes table.md and table.json; returns the content of table.json."""
    result = table(folder, metric)
    write_json(folder / "table.json", result)
    write_atomically(folder / "table.md", markdown(result).encode())
    return result
