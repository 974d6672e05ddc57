"""Several runs of a report as arms: a sweep's points, or runs that differ only in their seed.

This module reads the runs, groups them into arms, and finds the config fields in which the arms differ.
"""

import collections
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.report.run_page import Run, load_run, run_labels
from rl_jax.runs.run_record import flatten, read_json

SWEEP_FILE, TUNING_FILE, STATE_FILE = "sweep.json", "tuning.json", "state.json"
MAX_NAME = 60  # characters; an arm whose name would be longer is named after its first run


class Member(NamedTuple):
    """One seed of an arm.

    Attributes:
      arm: the arm's name.
      seed: None if unknown.
      name: unique in the report.
      run: the run that trained this seed.
      metrics: this seed's rows. If the program trains several seeds at once, only what it logged per seed.
    """

    arm: str
    seed: int | None
    name: str
    run: Run
    metrics: list[dict[str, Any]]


class Study(NamedTuple):
    """The content of a report of arms.

    Attributes:
      title: of the page.
      arms: name -> its members, in the order of the sweep.
      waiting: names of points without a run so far.
      failed: names of points that failed too often.
      tuning: arm -> {"trials", "seeds"}, for arms with a tuning.json.
      sweeps: the content of each sweep's sweep.json.
    """

    title: str
    arms: dict[str, list[Member]]
    waiting: list[str]
    failed: list[str]
    tuning: dict[str, dict[str, Any]]
    sweeps: list[dict[str, Any]]


def is_sweep(path: Path) -> bool:
    """Whether a folder is a sweep's, not a run's."""
    return (path / SWEEP_FILE).exists()


def load_study(paths: Sequence[Path]) -> Study:
    """Reads sweeps and runs.

    Raises:
      FileNotFoundError: if a folder is missing.
      ValueError: if a file is damaged; the message names it.
    """
    folders = [path for path in paths if is_sweep(path)]
    runs = [path for path in paths if not is_sweep(path)]
    names = [folder.resolve().name for folder in folders]
    names = names if len(set(names)) == len(names) else run_labels(folders)  # two sweeps with the same name
    members: list[Member] = []
    waiting: list[str] = []
    failed: list[str] = []
    tuning: dict[str, dict[str, Any]] = {}
    sweeps = []
    for folder, name in zip(folders, names, strict=True):
        sweep, result, missing, tried = _load_sweep(folder)
        prefix = f"{name}: " if len(paths) > 1 else ""
        sweeps.append(sweep)
        members += [m._replace(arm=prefix + m.arm, name=prefix + m.name) for m in result]
        waiting += [prefix + point for point in missing]
        failed += [prefix + point for point in given_up(folder)]
        tuning |= {prefix + arm: row for arm, row in tried.items()}
    loaded = [load_run(path, label) for path, label in zip(runs, run_labels(runs), strict=True)]
    members += group(loaded)
    arms: dict[str, list[Member]] = {}
    for member in members:
        arms.setdefault(member.arm, []).append(member)
    titles = [str(sweep.get("name") or name) for sweep, name in zip(sweeps, names, strict=True)]
    title = ", ".join(titles) if titles else f"{len(members)} runs in {len(arms)} arms"
    return Study(title, arms, waiting, failed, tuning, sweeps)


def _load_sweep(folder: Path):
    """(sweep.json, members, names of points without a run, tuning) of a sweep's folder."""
    path = folder / SWEEP_FILE
    sweep = read_json(path)
    points = sweep.get("points")
    if not isinstance(points, list) or not points:
        raise ValueError(f"{path}: 'points' is not a list of points: is this the folder of an experiments.sweep?")
    tuning = read_json(folder / TUNING_FILE) if (folder / TUNING_FILE).exists() else {}
    members, waiting = [], []
    for index, point in enumerate(points):
        fields = point if isinstance(point, dict) else {}
        lacks = [field for field in ("name", "workdir") if not isinstance(fields.get(field), str)]
        if lacks:
            raise ValueError(f"{path}: point {index} has no {' and no '.join(lacks)}")
        workdir = folder / point["workdir"]
        if not workdir.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{path}: the workdir of point {point['name']!r} is outside of the sweep's folder")
        if not (workdir / "run.json").exists():
            waiting.append(point["name"])
            continue
        run = load_run(workdir, point["name"])
        arm = point.get("arm") or sweep.get("name") or folder.resolve().name
        members += [m._replace(arm=_joined(arm, m.arm)) for m in expand(run, "", point.get("seed"))]
    return sweep, members, waiting, tuning


def given_up(folder: Path) -> list[str]:
    """The names of a sweep's points that failed too often."""
    state = read_json(folder / STATE_FILE) if (folder / STATE_FILE).exists() else {}
    return [name for name, row in state.get("points", {}).items() if row.get("state") == "failed"]


def settings(run: Run) -> dict[str, Any]:
    """What defines a run's arm: its flat config without the seed, the number of seeds and the run's name."""
    return {name: value for name, value in flatten(run.config).items() if name not in ("seed", "num_seeds", "name")}


def group(runs: Sequence[Run]) -> list[Member]:
    """Groups runs into arms by equal config apart from the seed; an arm is named by the fields in which it differs.

    A repeated seed starts another arm: one run made twice, perhaps by different code, is not two seeds. A run without a
    config is an arm of its own. Arms whose fields look the same, such as None and "none", are named by their first run.
    """
    kinds: dict[tuple[str, int], list[Run]] = {}
    made: collections.Counter[tuple[str, int]] = collections.Counter()
    for run in runs:
        kind = json.dumps(settings(run), sort_keys=True) if run.config else run.label
        place = kind, run.config.get("seed")
        kinds.setdefault((kind, 0 if place[1] is None else made[place]), []).append(run)
        made[place] += 1
    alike = [settings(members[0]) for members in kinds.values()]
    differing = differences(alike)
    short_names = [name.rsplit(".", 1)[-1] for name in differing]
    texts = [
        ", ".join(f"{word}={show(choice.get(name))}" for word, name in zip(short_names, differing, strict=True))
        for choice in alike
    ]
    count = collections.Counter(text for (_, number), text in zip(kinds, texts, strict=True) if not number)
    members: list[Member] = []
    for (kind, _), name, of_kind in zip(kinds, texts, kinds.values(), strict=True):
        if not name or len(name) > MAX_NAME or not of_kind[0].config or (kind, 1) in kinds or count[name] > 1:
            name = of_kind[0].label
        for run in of_kind:
            members += expand(run, name, run.config.get("seed"))
    return members


def one_arm_each(runs: Sequence[Run]) -> bool:
    """Whether every run is an arm of its own, so that their curves can share one chart.

    False if two runs are seeds of one arm, or if one of several runs has several arms or seeds within. A single run may
    have several seeds.
    """
    members = group(runs)
    arms = {member.arm for member in members}
    return len(arms) == len(runs) and (len(runs) == 1 or len(members) == len(runs))


def differences(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The dotted names whose values differ between some flat configs, in the order of the first."""
    names = dict.fromkeys(itertools.chain(*configs))
    return [name for name in names if len({json.dumps(c.get(name), sort_keys=True) for c in configs}) > 1]


def show(value: Any) -> str:
    """A config's value as short text: 0.001, clip_higher, [1, 2]; "none" for a missing field."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


def expand(run: Run, arm: str, seed: int | None) -> list[Member]:
    """The seeds of a run: the run itself, or each run within a program of many runs (experiments.control.ppo).

    The runs of such a program are those of config.runs, or else every seed with every combination of the values in
    config.sweep. It logs the return of the first 64.

    Args:
      run: the run.
      arm: name of its arm.
      seed: used if the run is a single seed.
    """
    count = sum(name.removeprefix("runs/").isdecimal() for name in (run.metrics[-1] if run.metrics else ()))
    if not count:
        return [Member(arm, seed, run.label, run, run.metrics)]
    swept = [(short(name), values) for name, values in run.config.get("sweep") or ()]
    combinations = [list(zip((n for n, _ in swept), v, strict=True)) for v in itertools.product(*(v for _, v in swept))]
    listed = run.config.get("runs") or list(itertools.product(range(-(-count // len(combinations))), combinations))
    members = []
    for index, (number, fields) in enumerate(listed[:count]):
        inner = ", ".join(f"{short(name)}={show(value)}" for name, value in fields)
        rows = [_row_of(row, f"runs/{index}") for row in run.metrics if f"runs/{index}" in row]
        members.append(Member(_joined(arm, inner), number, f"{run.label}#{index}", run, rows))
    return members


def left_out(run: Run) -> int:
    """The runs within a program of many that a report does not have, as it logs the return of the first 64 only."""
    shown = sum(name.removeprefix("runs/").isdecimal() for name in (run.metrics[-1] if run.metrics else ()))
    if not shown:
        return 0
    swept = math.prod(len(values) for _, values in run.config.get("sweep") or ())
    return max(len(run.config.get("runs") or ()) or run.config.get("num_seeds", 1) * swept, shown) - shown


def short(name: str) -> str:
    """The name of a swept field without its group."""
    return name.removeprefix("algorithm.").removeprefix("train.")


def _row_of(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    shown = "eval/return" if "eval/return" in row else "episode/return"
    kept = {field: row[field] for field in ("step", "env_steps") if field in row}
    return {**kept, shown: row[name]}


def _joined(*names: str) -> str:
    return ", ".join(filter(None, names))


def runs_of(members: Sequence[Member]) -> list[Run]:
    """The runs of some members, each once."""
    return list({id(member.run): member.run for member in members}.values())


def config_table(study: Study) -> dict[str, Any]:
    """The fields in which the arms differ: {"arms", "rows": [(field, [value per arm])], "shared": JSON of the rest}."""
    firsts = {arm: settings(members[0].run) for arm, members in study.arms.items()}
    names = differences(list(firsts.values()))
    rows = [(name, [show(config.get(name)) for config in firsts.values()]) for name in names]
    first = next(iter(firsts.values()), {})
    shared = {name: value for name, value in first.items() if name not in names}
    return {"arms": list(firsts), "rows": rows, "shared": json.dumps(shared, indent=2, sort_keys=True)}
