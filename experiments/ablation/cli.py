"""Runs an ablation of configs/papers: every arm with every seed, then the table and a verdict on the paper's claim.

    python -m experiments.ablation rdpo_label_noise
    python -m experiments.ablation --list
    python -m experiments.ablation --all --smoke    # every one, small: does it run? (make ablations SMOKE=1)
    python -m experiments.ablation --all            # every one that has no result yet (make ablations)
    python -m experiments.ablation --table          # all results: those run here, and stored ones for the rest
    python -m experiments.ablation KEY --table      # one result: every arm and statement
    python -m experiments.ablation KEY --store      # the finished result to experiments/ablation/results

There are two kinds. A study is a function of experiments.studies that runs all seeds of all arms in this process. An
ablation of programs runs each arm and seed as a process of its own with its own workdir (runs/ablations/KEY/...). If
restarted, it skips finished runs and resumes the interrupted one; it refuses runs of other settings, which it names.
Further --config.x=y are passed on to each run.

The claim is a list of statements, each about the mean over seeds of a metric (`judgements`). A statement is reproduced
if its whole 95 % interval (rl_jax.stats.bootstrap_mean) lies on the claimed side, not reproduced if all of the interval
that is widened for the number of statements lies on the other side, and undecided otherwise; so it is if all seeds
agree on a number that has no known range. The claim is reproduced if all of its statements are. Two arms are compared
seed by seed. For an undecided statement the report estimates how many more seeds would decide it, by a power
calculation and by AdaStop (experiments.ablation.claims).
"""

import argparse
import collections
import concurrent.futures
import datetime
import difflib
import importlib
import json
import math
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from experiments.ablation.chart import curves_chart, interval_chart
from experiments.ablation.claims import Values, judgements, ranges, report, tables
from experiments.ablation.once import run_once
from experiments.ablation.store import store
from experiments.ablation.summary import by_claim, load_results, short_table
from experiments.parts import refusals, stops
from rl_jax import stats
from rl_jax.core.binding import bind
from rl_jax.runs.logging import read_jsonl, write_atomically

PAPERS = pathlib.Path(__file__).parents[2] / "configs" / "papers"
RUNS = pathlib.Path("runs")
RESULTS = pathlib.Path(__file__).parent / "results"  # stored results, in the repository
SMALL = "smoke"  # an empty file in an ablation's folder, if what is there was made by a smoke run
SPENT = "spent.jsonl"  # in an ablation's folder: the seconds of every start of a program, interrupted ones included


def keys() -> list[str]:
    """The keys of all ablations."""
    return sorted(path.stem for path in PAPERS.glob("*.py") if path.stem != "__init__")


def load(key: str, *, smoke: bool = False) -> ConfigDict:
    """The ablation of configs/papers/KEY.py; with `smoke`, the fields of its field `smoke` replace the others."""
    ablation = importlib.import_module(f"configs.papers.{key}").get_ablation()
    if smoke:
        ablation.update(ablation.smoke)
    return ablation


def evaluations(workdir: pathlib.Path, metric: str) -> list[float | None]:
    """The values of `metric` in a finished run; None for one that is not finite.

    Raises:
      ValueError: if the metric was evaluated less than twice.
    """
    values = [row[metric] for row in read_jsonl(workdir / "metrics.jsonl") if metric in row]
    if len(values) < 2:
        raise ValueError(f"{workdir}: {metric} was evaluated {len(values)} times, but a gain needs two")
    return values


def curve(workdir: pathlib.Path, metric: str) -> dict[str, float | None]:
    """A metric over the evaluations of a finished run: before, after, gain; peak, the best, and rise, to it; lost, what
    of it is gone at the end; mean, of all evaluations but the first. None where an evaluation that it needs has no
    value."""
    values = evaluations(workdir, metric)
    if None in values:
        known = dict(before=values[0], after=values[-1])
        gain = None if None in known.values() else values[-1] - values[0]
        return known | dict.fromkeys(("peak", "rise", "lost", "mean")) | dict(gain=gain)
    first, last, peak = values[0], values[-1], max(values)
    mean = sum(values[1:]) / len(values[1:])
    rest = dict(peak=peak, rise=peak - first, lost=peak - last, mean=mean)
    return dict(before=first, after=last, gain=last - first) | rest


def run_programs(ablation: ConfigDict, workdir: pathlib.Path, overrides: list[str]) -> Values:
    """Runs what is missing: `stages` (name, program, config, given) once, in folders of their names; then, seed by
    seed, `warm_start`, which all arms of a seed share, if there is one, and the arms. `program` may be arm -> program.
    given (arm -> one tuple of arguments per seed) and a stage's have the ablation's folder in place of "{folder}".

    Returns:
      arm -> what `curve` says of the metric `evaluated`; each name of `also` (name -> another evaluated metric), its
      last value, and NAME_gain -> one value per seed.
    """
    spent, given = workdir / SPENT, ablation.get("given", {})
    shared = isinstance(ablation.program, str)
    program_of = dict.fromkeys(ablation.arms, ablation.program) if shared else ablation.program
    for stage in ablation.get("stages", ()):
        arguments = [*_placed(stage["given"], workdir), *overrides]
        run_once(stage["program"], stage["config"], workdir / stage["name"], arguments, spent)
    values = {arm: collections.defaultdict(list) for arm in ablation.arms}
    for number, seed in enumerate(ablation.seeds):
        start = [f"--config.seed={seed}"]
        if "warm_start" in ablation:
            warm = workdir / f"seed{seed}" / "sft"
            run_once("sft", ablation.warm_start, warm, [*start, *overrides], spent)
            start.append(f"--config.init_from={warm}")
        for arm, config in ablation.arms.items():
            folder = workdir / f"seed{seed}" / arm
            own = _placed(given[arm][number], workdir) if arm in given else []
            run_once(program_of[arm], config, folder, [*start, *own, *overrides], spent)
            row = curve(folder, ablation.evaluated)
            for name, metric in ablation.get("also", {}).items():
                other = curve(folder, metric)
                row |= {name: other["after"], f"{name}_gain": other["gain"]}
            for metric, value in row.items():
                values[arm][metric].append(value)
    return {arm: dict(row) for arm, row in values.items()}


def _placed(arguments: Sequence[str], folder: pathlib.Path) -> list[str]:
    return [argument.replace("{folder}", str(folder)) for argument in arguments]


def run_study(ablation: ConfigDict) -> tuple[Values, Mapping, str]:
    """Runs the study.

    Returns:
      (values, curves, note). nan becomes None, no value.

    Raises:
      ValueError: if the study does not take one of the settings; the message lists those it takes.
    """
    from experiments import studies  # imports jax and the models, not needed by --list

    fn = bind({"fn": ablation.study, **ablation.settings.to_dict()}, studies)
    outcome = fn(tuple(ablation.seeds))
    values = {
        arm: {metric: [None if math.isnan(value) else float(value) for value in row] for metric, row in metrics.items()}
        for arm, metrics in outcome.values.items()
    }
    return values, outcome.curves, outcome.note


def run(key: str, workdir: pathlib.Path, overrides: list[str], *, smoke: bool = False) -> dict:
    """Runs what is missing; writes ablation.json, ablation.md and charts to workdir.

    Args:
      key: the ablation.
      workdir: its folder.
      overrides: --config.x=y for every run of a program.
      smoke: whether to run the small version.

    Returns:
      The content of ablation.json.

    Raises:
      ValueError: if overrides are given for a study: its settings are in its file. If `smoke`, and workdir has results
        of the full size.
    """
    ablation, start, curves, note = load(key, smoke=smoke), time.monotonic(), {}, ""
    if "study" in ablation and overrides:
        place = f"configs/papers/{key}.py"
        raise ValueError(f"{key} is a study and takes no {overrides[0]}: change its settings in {place}")
    if smoke and made_full(workdir):
        raise ValueError(f"{workdir} has results of the full size: delete it, or take another --workdir")
    workdir.mkdir(parents=True, exist_ok=True)
    if smoke:
        (workdir / SMALL).touch()
    else:
        (workdir / SMALL).unlink(missing_ok=True)
    if "study" in ablation:
        values, curves, note = run_study(ablation)
        seconds = time.monotonic() - start
    else:
        values = run_programs(ablation, workdir, overrides)
        seconds = sum(row["seconds"] for row in read_jsonl(workdir / SPENT))
    judged, within = judgements(values, ablation.expected), ranges(ablation.expected)
    said = [f"python -m experiments.ablation {key}", *(["--smoke"] if smoke else []), *map(shlex.quote, overrides)]
    outcome = {
        "key": key,
        "paper": ablation.paper,
        "claim": ablation.claim,
        "scaled_down": ablation.scaled_down,
        "note": note,
        "metric": ablation.metric,
        "seeds": list(ablation.seeds),
        "values": values,
        "ranges": within,
        "statements": judged,
        "verdict": stats.judge_all(row["verdict"] for row in judged),
        "table": tables(values, judged, within),
        "command": " ".join(said),
        "date": datetime.date.today().isoformat(),
        "wall_seconds": round(seconds, 1),
        "cores": len(os.sched_getaffinity(0)),
        "tried": ablation.tried.to_dict() if isinstance(ablation.tried, ConfigDict) else ablation.tried,
        "settings": settings_text(ablation, overrides),
    }
    write_atomically(workdir / "ablation.json", json.dumps(outcome, indent=2).encode())
    write_atomically(workdir / "ablation.md", report(outcome).encode())
    measured = {arm: [x for x in row[ablation.metric] if x is not None] for arm, row in values.items()}
    chart = interval_chart(measured, title=ablation.metric, within=within.get(ablation.metric))
    write_atomically(workdir / "ablation.svg", chart.encode())
    for name, lines in curves.items():
        write_atomically(workdir / f"{name}.svg", curves_chart(lines, title=name).encode())
    print(report(outcome))
    return outcome


def settings_text(ablation: ConfigDict, overrides: list[str]) -> str:
    """An ablation's settings except for its smoke size, and the overrides, as JSON.

    A stored result with another text is out of date. A change of the code is not detected: delete runs/ablations/KEY
    then.
    """
    fields = {name: value for name, value in ablation.to_dict().items() if name != "smoke"}
    return json.dumps([fields, overrides], sort_keys=True)


def finished(key: str, workdir: pathlib.Path) -> bool:
    """Whether workdir holds the result of the ablation's current settings."""
    path = workdir / "ablation.json"
    return path.exists() and json.loads(path.read_text()).get("settings") == settings_text(load(key), [])


def begun(workdir: pathlib.Path) -> bool:
    """Whether an ablation has left a result or runs in workdir."""
    return any((workdir / name).exists() for name in ("ablation.json", SPENT))


def made_full(workdir: pathlib.Path) -> bool:
    """Whether they may be of the full size: a smoke run says that its are not."""
    return begun(workdir) and not (workdir / SMALL).exists()


def run_all(folder: pathlib.Path, *, smoke: bool, jobs: int = 1) -> int:
    """Runs all ablations, each in a process of its own, so that a crash of one does not stop the others.

    Finished ablations are skipped. Smoke runs always start anew, but not in the place of full ones. An ablation whose
    files (`needs`) are missing is skipped.

    Args:
      folder: of all ablations' folders.
      smoke: whether to run the small versions.
      jobs: ablations at a time; with more than one, each one's output is printed once it has ended.

    Returns:
      The exit status.
    """
    start, living, stopped = time.monotonic(), [], threading.Event()

    def stop(*_) -> None:
        """Alone, the ablations would go on."""
        stopped.set()
        for process in list(living):
            process.terminate()

    def run_one(key: str) -> bool:
        """Whether it failed."""
        if stopped.is_set():
            return False
        workdir, began = folder / key, time.monotonic()
        if missing := [path for path in load(key).get("needs", ()) if not pathlib.Path(path).exists()]:
            print(f"{key}: skipped, because these files are missing: {', '.join(missing)}", flush=True)
            return False
        if smoke and made_full(workdir):
            print(f"{key}: {workdir} has results of the full size: delete it, or take another --workdir", flush=True)
            return True
        if smoke and begun(workdir):
            shutil.rmtree(workdir)
        elif not smoke and finished(key, workdir):
            print(f"{key}: already finished", flush=True)
            return False
        command = [sys.executable, "-m", "experiments.ablation", key, f"--workdir={workdir}", *["--smoke"] * smoke]
        print("+", " ".join(command), flush=True)
        kept = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) if jobs > 1 else {}
        process = subprocess.Popen(command, **kept)
        living.append(process)
        if stopped.is_set():  # since it began
            process.terminate()
        text, status = process.communicate()[0], process.wait()
        living.remove(process)
        said = "stopped" if stopped.is_set() else f"FAILED ({status})" if status else "done"
        print(f"{text or ''}{key}: {said}, {time.monotonic() - began:.0f} s\n", flush=True)
        return status != 0 and not stopped.is_set()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            failed = [key for key, bad in zip(keys(), pool.map(run_one, keys()), strict=True) if bad]
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{len(keys())} ablations, {time.monotonic() - start:.0f} s; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else stops.STOPPED if stopped.is_set() else 0


def listing(as_json: bool) -> str:
    """All ablations with their claims, as lines or as JSON."""
    result = {key: load(key) for key in keys()}
    if not as_json:
        return "\n".join(f"{key:24} {ablation.paper}: {ablation.claim}" for key, ablation in result.items())
    fields = ("paper", "claim", "scaled_down", "metric", "seeds", "tried")
    rows = [
        dict(key=key, kind="study" if "study" in ablation else "programs", **{name: ablation[name] for name in fields})
        for key, ablation in result.items()
    ]
    return json.dumps(rows, indent=2, default=dict)


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.ablation", description=__doc__, formatter_class=shown)
    parser.add_argument("key", nargs="?", metavar="KEY", help="an ablation; --list has all of them")
    parser.add_argument("--list", action="store_true", help="list the ablations and their claims")
    parser.add_argument("--json", action="store_true", help="with --list: as JSON")
    parser.add_argument("--all", action="store_true", help="run every ablation that has no result yet")
    parser.add_argument("--table", action="store_true", help="print a Markdown table of all results, or all of KEY's")
    parser.add_argument("--store", action="store_true", help="write KEY's finished result to the stored ones: no run")
    parser.add_argument("--smoke", action="store_true", help="the small sizes of the file's field `smoke`, as a check")
    parser.add_argument("--jobs", type=int, help="with --all: how many at a time; default: 1, with --smoke a core each")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/ablations/KEY; with --all, runs/ablations")
    options, overrides = parser.parse_known_args(arguments)
    if options.key is not None and options.key not in keys():
        near = difflib.get_close_matches(options.key, keys(), n=3, cutoff=0.5)
        parser.error(f"there is no ablation {options.key!r}; near it: {', '.join(near) or 'none'}; --list has all")
    if overrides and options.key is None and not options.all:
        parser.error(f"unknown argument {overrides[0]!r}; settings, --config.FIELD=VALUE, go with a KEY")
    folder = RUNS / ("ablations_smoke" if options.smoke else "ablations")
    if options.jobs is not None and (options.jobs < 1 or not options.all):
        parser.error(f"--jobs={options.jobs}: set it to 1 or more, with --all")
    others = [options.all, options.table, options.list, options.smoke, overrides]
    if options.store and (options.key is None or any(others)):
        parser.error("--store goes with a KEY alone: what is stored is a full run of the settings of its file")
    if options.all:
        if options.key or overrides:
            parser.error(f"--all uses the settings of the files: leave out {options.key or overrides[0]}")
        jobs = options.jobs or (len(os.sched_getaffinity(0)) if options.smoke else 1)
        sys.exit(run_all(options.workdir or folder, smoke=options.smoke, jobs=jobs))
    if options.table:
        named = [options.key] if options.key else keys()
        settings = {key: settings_text(load(key, smoke=options.smoke), []) for key in named}
        results = load_results(settings, options.workdir or folder, None if options.smoke else RESULTS)
        print(by_claim(results) if options.key and results else short_table(results))
    elif options.store:
        with refusals.refusing("experiments.ablation"):
            ablation, workdir = load(options.key), options.workdir or folder / options.key
            path = store(options.key, ablation, settings_text(ablation, []), workdir, RESULTS)
        print(f"{path}\npython docs/results.py writes the tables of the docs anew")
    elif options.list or options.key is None:
        print(listing(options.json))
    else:
        with refusals.refusing("experiments.ablation"):
            run(options.key, options.workdir or folder / options.key, overrides, smoke=options.smoke)
