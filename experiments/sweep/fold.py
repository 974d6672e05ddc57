"""Trains many points of a control sweep in one program (--vmap): points that differ only in seeds and float fields.

folded/HASH/ is an ordinary run directory of experiments.control.ppo with config.runs. Once it is complete, each of its
points gets a run directory of its own with its rows, as if it had run alone. A point that an ordinary run has begun
goes on alone.
"""

import collections
import hashlib
import json
import os
import pathlib
import shutil
from collections.abc import Sequence, Set
from typing import Any

from experiments.sweep.finished import check_run
from experiments.sweep.folder import write_json
from experiments.sweep.points import Point, load_config, set_fields
from experiments.sweep.runner import Task, is_held
from rl_jax.runs import disk
from rl_jax.runs.logging import METRICS_FILE, TIMING_FILE, encode_row, export_parquet, read_jsonl, write_atomically
from rl_jax.runs.run_record import is_complete, read_json

FOLDED = "folded"
MAX_ARGUMENT = 120_000  # bytes of --config.runs; Linux allows 131 072 per argument


def folded_tasks(folder: pathlib.Path, points: Sequence[Point], extra: Sequence[str] = ()) -> list[Task]:
    """One task per set of points that one program can train, and one per point that was begun alone.

    Sets begun by an earlier start are kept.

    Args:
      folder: the sweep's.
      points: of the sweep.
      extra: further arguments of the command.

    Raises:
      ValueError: if a point cannot be folded; the message gives the reason.
    """
    by_name = {point.name: point for point in points}
    waiting = {point.name for point in points if not is_complete(folder / "points" / point.name)}
    alone = [point for point in points if point.name in waiting and _alone(folder, point.name)]
    waiting -= {point.name for point in alone}
    places = [folder / "points" / point.name for point in alone]
    tasks = [Task(p.name, place, p.command(place, extra), [p.name]) for p, place in zip(alone, places, strict=True)]
    for path in sorted((folder / FOLDED).glob("*/fold.json")):
        begun = [by_name[name] for name in read_json(path)["points"] if name in by_name]
        names = {point.name for point in begun}
        if names & waiting and len(begun) == len(read_json(path)["points"]):
            waiting -= names
            tasks.append(_task(folder, begun, extra, {point.name for point in alone}))
    sets: dict[str, list[tuple[Point, int]]] = collections.defaultdict(list)
    for point in points:
        swept, rest = _parts(point)
        if point.name in waiting:
            length = len(repr((point.seed, tuple(swept.items())))) + 2
            sets[json.dumps([point.config, sorted(swept), rest], sort_keys=True)].append((point, length))
    return tasks + [_task(folder, part, extra) for members in sets.values() for part in _split(members)]


def check_no_fold(folder: pathlib.Path, points: Sequence[Point]) -> None:
    """Checks that no point, of those that are to run one by one, is trained in a fold or has been.

    Args:
      folder: the sweep's.
      points: of the sweep.

    Raises:
      ValueError: if an earlier start with --vmap was killed, and its program goes on or has come to its end.
    """
    left = {point.name for point in points if not is_complete(folder / "points" / point.name)}
    left = {name for name in left if not _alone(folder, name)}
    for path in sorted((folder / FOLDED).glob("*/fold.json")):
        count, run = len(left & set(read_json(path)["points"])), path.parent
        runs = is_held(folder, run.name)
        if count and (runs or is_complete(run)):
            said = "is training" if runs else "has trained"
            raise ValueError(
                f"{run}, of an earlier start with --vmap, {said} {count} of these points: add --vmap, which "
                f"{'waits for it and ' if runs else ''}takes its results if the sweep has all of its points"
                + ("" if runs else f", or remove {run} to train them again")
            )


def _alone(folder: pathlib.Path, name: str) -> bool:
    """Whether an ordinary run has begun a point, or is about to."""
    record = folder / "points" / name / "run.json"
    return (record.is_file() and "folded" not in read_json(record)) or is_held(folder, name)


def _split(points: Sequence[tuple[Point, int]]) -> list[list[Point]]:
    """Splits points, in order, into as few lists as fit one command-line argument each. points: (point, bytes)."""
    parts, size = [[]], 0
    for point, mine in points:
        if parts[-1] and size + mine > MAX_ARGUMENT:
            parts, size = [*parts, []], 0
        parts[-1].append(point)
        size += mine
    return parts


def _parts(point: Point) -> tuple[dict[str, float], dict[str, Any]]:
    """(numbers that may differ within one program, the other overrides without seeds)."""
    if point.program != "control.ppo":
        raise ValueError(f"--vmap: {point.program} cannot be vectorized; only control.ppo can")
    config = set_fields(load_config(point.config), point.overrides)
    if config.num_seeds != 1 or config.sweep or config.runs:
        raise ValueError(f"--vmap: {point.name} already has several runs (num_seeds): add seed to --sweep instead")
    swept, rest = {}, {}
    for name, value in point.overrides.items():
        if name.startswith(("algorithm.", "train.")) and type(value) is float:
            swept[name] = value
        elif name not in ("seed", "num_seeds", "config", "argument"):
            rest[name] = value
    return swept, rest


def _task(folder: pathlib.Path, points: Sequence[Point], extra: Sequence[str], alone: Set[str] = frozenset()) -> Task:
    """The task of a set. alone: names of points that ordinary runs have begun; the program trains them, too."""
    runs = tuple((point.seed, tuple(_parts(point)[0].items())) for point in points)
    overrides = _parts(points[0])[1] | {"runs": runs}
    name = f"{len(points)}_runs_{hashlib.sha256(json.dumps([p.record() for p in points]).encode()).hexdigest()[:8]}"
    workdir = folder / FOLDED / name
    workdir.mkdir(parents=True, exist_ok=True)
    write_json(workdir / "fold.json", {"points": [point.name for point in points]})
    one = points[0]._replace(overrides=overrides)
    check_run(workdir, one)
    command = one.command(workdir, extra)
    names = [point.name for point in points if point.name not in alone]
    return Task(name, workdir, command, names, lambda: unfold(folder, workdir, points))


def unfold(folder: pathlib.Path, workdir: pathlib.Path, points: Sequence[Point]) -> None:
    """Writes the run directory of each point of a complete fold, but those of points that have one of their own.

    Raises:
      disk.InUseError: if a run goes on in one.
    """
    rows = read_jsonl(workdir / "runs.jsonl")
    fold, timing = read_json(workdir / "run.json"), (workdir / TIMING_FILE).read_bytes()
    for index, point in enumerate(points):
        target = folder / "points" / point.name
        if is_complete(target) or _alone(folder, point.name):
            continue
        disk.lock(target)
        mine = [_row_of(row, index) for row in rows]
        config = set_fields(load_config(point.config), point.overrides).to_dict()
        command = point.command(f"{folder}/points/{point.name}")
        if fold.get("git_patch"):
            (target / fold["git_patch"]).unlink(missing_ok=True)
            try:
                os.link(workdir / fold["git_patch"], target / fold["git_patch"])  # one copy on disk for all points
            except OSError:  # not every file system has hard links
                shutil.copyfile(workdir / fold["git_patch"], target / fold["git_patch"])
        place = {"folded": str(workdir.relative_to(folder)), "index": index}
        write_json(target / "config.json", json.loads(encode_row(config)))
        write_json(target / "run.json", fold | {"command": command, "seed": point.seed} | place)
        write_atomically(target / METRICS_FILE, "".join(encode_row(row) + "\n" for row in mine).encode())
        write_atomically(target / TIMING_FILE, timing)
        export_parquet(target)
        write_atomically(target / "final.json", (encode_row(mine[-1] | place) + "\n").encode())
        disk.unlock(target)


def _row_of(row: dict[str, Any], index: int) -> dict[str, Any]:
    """The values of one run in a row of runs.jsonl."""
    lost = row.get("nonfinite", {})
    result = {name: values[index] for name, values in row.items() if isinstance(values, list)}
    result |= {name: float(lost[f"{name}[{index}]"]) for name in result if f"{name}[{index}]" in lost}
    return result | {"step": row["step"]}
