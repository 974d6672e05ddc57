"""Tunes each arm of a comparison with the same budget, then measures the chosen settings on seeds not used for tuning.

    pip install -e ".[tune]"                                                                 # Optuna
    python -m experiments.sweep.tune --config=configs/control/environments.py:cartpole --space=lr,entropy --trials=20
    python -m experiments.sweep.tune --config=configs/control/environments.py:cartpole --space=lr --sweep=method:ppo/a2c

The arms are the points of --sweep (without seeds). --space names functions space_NAME of the config file, {field:
(kind, bounds)} with the kinds uniform, log_uniform, int and choice. Each arm gets --trials configurations of Optuna's
TPE (arXiv 1907.10902), all run on the same --tuning_seeds (10000 and above). The configuration with the best mean
result is run on the --seeds (below 10000), as an ordinary sweep in the folder. Arms whose runs may use different
numbers of steps or tokens are refused. tuning.json records, for the report, how many configurations each arm has tried
and what they cost.

The same command continues an interrupted tuning: each trial is a function of the seed and the trials before it.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from configs import sweeps
from experiments.parts.budgets import budget_of, result_of
from experiments.sweep import cli as sweep_program
from experiments.sweep import display, folder, launchers, points, runner
from experiments.sweep.finished import check_finished
from rl_jax.runs.run_record import is_complete, read_json

KINDS = {"uniform": 2, "log_uniform": 2, "int": 2, "choice": 1}  # kind -> number of bounds


class Stopped(Exception):
    """A signal came; its argument is the exit status."""


def space_of(config: str, names: str) -> dict[str, tuple]:
    """{field: (kind, bounds...)} of some spaces of a config file and of those it builds on.

    Args:
      config: "configs/FILE.py:arguments".
      names: of the spaces, "lr,entropy".

    Raises:
      ValueError: if a name or a kind is unknown, if there are no names, or if two spaces have the same field.
    """
    known = points.functions_of(points.load_module(config.partition(":")[0]), "space_")
    result: dict[str, tuple] = {}
    for name in filter(None, names.split(",")):
        if name not in known:
            raise ValueError(f"{config} has no space {name!r}; it has: {', '.join(sorted(known)) or 'none'}")
        for field, (kind, *bounds) in known[name]().items():
            if KINDS.get(kind) != len(bounds):
                raise ValueError(
                    f"space {name}: ({kind!r}, {bounds}) must be one of {', '.join(KINDS)}, with its bounds"
                )
            if field in result:
                raise ValueError(f"two spaces have the field {field}")
            result[field] = (kind, *bounds)
    if not result:
        raise ValueError(f"--space is empty; {config} has: {', '.join(sorted(known)) or 'none'}")
    return result


def propose(space: Mapping[str, tuple], trials: Sequence[Mapping], *, seed: int, maximize: bool) -> dict[str, Any]:
    """The parameters of the next trial from Optuna's TPE, a function of the seed and the trials before.

    Args:
      space: {field: (kind, bounds...)}.
      trials: dicts with "params", {field: value}, and "value", the result or None if it failed.
      seed: of the sampler.
      maximize: whether higher is better.

    Raises:
      RuntimeError: if Optuna is not installed.
    """
    optuna = launchers.optional("optuna", 'pip install -e ".[tune]"')
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    make = optuna.distributions
    distributions = {}
    for field, (kind, *bounds) in space.items():
        if kind == "choice":
            distributions[field] = make.CategoricalDistribution(bounds[0])
        elif kind == "int":
            distributions[field] = make.IntDistribution(*bounds)
        else:
            distributions[field] = make.FloatDistribution(*bounds, log=kind == "log_uniform")
    sampler = optuna.samplers.TPESampler(seed=seed * 100_003 + len(trials))
    study = optuna.create_study(direction="maximize" if maximize else "minimize", sampler=sampler)
    for trial in trials:
        state = optuna.trial.TrialState.FAIL if trial["value"] is None else optuna.trial.TrialState.COMPLETE
        study.add_trial(
            optuna.trial.create_trial(
                state=state, value=trial["value"], params=trial["params"], distributions=distributions
            )
        )
    return study.ask(distributions).params


def budget(config: Mapping[str, Any], program: str, fields: str | None) -> dict[str, Any]:
    """What one run may use.

    Args:
      config: the run's.
      program: that runs it.
      fields: dotted names of the config fields to compare; None takes experiments.parts.budgets.

    Raises:
      ValueError: if the config lacks one of the fields.
    """
    if fields is None:
        return budget_of(config, program)
    result = {}
    for name in fields.split(","):
        place: Any = config
        for part in name.split("."):
            if part not in place:
                raise ValueError(f"--budget: the config has no field {name}")
            place = place[part]
        result[name] = place
    return result


def equal_budget(arms: Sequence[points.Point], fields: str | None) -> dict[str, Any]:
    """The budget that a run of every arm has.

    Raises:
      ValueError: if two arms have different budgets; the message names them.
    """
    result = {}
    for arm in arms:
        config = points.set_fields(points.load_config(arm.config), arm.overrides)
        result[arm.name] = budget(config, arm.program, fields)
    first = arms[0].name
    for name, mine in result.items():
        if mine != result[first]:
            raise ValueError(
                f"the arms have different budgets: {first} {result[first]}, {name} {mine}; "
                "set the same steps for both, "
                "or name with --budget the fields that must be equal"
            )
    return result[first]


def seed_overrides(config: str, seed: int) -> dict[str, Any]:
    """{"seed": seed} and the other fields that the config's own sweep_seed sets with a seed."""
    own = points.functions_of(points.load_module(config.partition(":")[0]), "sweep_").get("seed", sweeps.seeds)
    return next(iter(own("1"))) | {"seed": seed}


def seeded(arm: points.Point, params: Mapping[str, Any], seed: int, name: str) -> points.Point:
    """The arm with these parameters and this seed, as a point.

    Raises:
      ValueError: if the arm already sets one of the parameters.
    """
    twice = sorted(set(params) & set(arm.overrides))
    if twice:
        raise ValueError(f"{', '.join(twice)} is both tuned and set by the arm {arm.name}: leave one out")
    overrides = points.fields_of(arm.overrides) | dict(params) | seed_overrides(arm.config, seed)
    return points.make_point(arm.config, overrides, name=name, arm=arm.name, program=arm.program)


def runs_of_trial(arm: points.Point, params: Mapping[str, Any], number: int, seeds: Sequence[int]):
    """A trial's runs as a list of points, one per tuning seed."""
    return [seeded(arm, params, seed, f"trial={number:03d},seed={seed}") for seed in seeds]


def check_choice(sweep: pathlib.Path, arms: Sequence[points.Point], trials: int) -> None:
    """Checks, before a trial is run, that no final run depends on which of fewer trials was the best.

    Raises:
      ValueError: if an arm has final runs and fewer trials than asked for.
    """
    path = sweep / "sweep.json"
    measured = {point["arm"] for point in read_json(path)["points"]} if path.exists() else set()
    for arm in arms:
        record = sweep / "tuning" / arm.name / "trials.json"
        done = len(read_json(record)["trials"]) if record.exists() else 0
        if arm.name in measured and done < trials:
            raise ValueError(
                f"{path} has final runs of the arm {arm.name}, chosen from {done} trials: of {trials} another may be "
                f"the best. Remove {path} and {sweep / 'points'} to choose again (the trials stay), or give --trials="
                f"{done} or another --workdir"
            )


def value_of(places: Sequence[pathlib.Path], metric: str | None) -> tuple[float | None, str | None]:
    """(mean over the runs of the metric's last value, its name); None if a run is incomplete or lacks it."""
    rows = [folder.last_metrics(place) for place in places if is_complete(place)]
    if len(rows) < len(places):
        return None, metric
    metric = metric or result_of(rows[0])
    values = [row.get(metric) for row in rows]
    return (None if None in values else sum(values) / len(values)), metric


def tune_arm(place: pathlib.Path, arm: points.Point, space: Mapping, per_run: Mapping, slots, options) -> list[dict]:
    """Runs the missing trials of an arm.

    Args:
      place: the arm's folder.
      arm: its point.
      space: {field: (kind, bounds...)}.
      per_run: the budget of a run.
      slots: where to run.
      options: the command line's.

    Returns:
      All trials in order.

    Raises:
      ValueError: if the folder holds trials of other seeds, another space, another arm or other settings, if a trial
        would change the budget, or if a loss would be maximized.
      Stopped: on a signal.
    """
    place.mkdir(parents=True, exist_ok=True)
    said = {
        "space": {name: list(bounds) for name, bounds in space.items()},
        "seeds": options.tuning_seeds,
        "arm": arm.record(),
        "budget_per_run": per_run,
        "sampler_seed": options.seed,
        "tuned": [options.metric, "minimize" if options.minimize else "maximize"],
    }
    said = json.loads(json.dumps(said))  # in the form in which it is read again
    path, trials = place / "trials.json", []
    if path.exists():
        record = read_json(path)
        # "tuned" matters only once a trial has ended.
        other = [name for name in said if record.get(name) != said[name] and (record["trials"] or name != "tuned")]
        if other:
            raise ValueError(
                f"{path} has trials of another space, other seeds or another task ({', '.join(other)}): give "
                "another --workdir"
            )
        trials = record["trials"]
    for number, trial in enumerate(trials):
        check_finished(place, runs_of_trial(arm, trial["params"], number, options.tuning_seeds))
    while len(trials) < options.trials:
        params = propose(space, trials, seed=options.seed, maximize=not options.minimize)
        runs = runs_of_trial(arm, params, len(trials), options.tuning_seeds)
        check_finished(place, runs)
        resolved = points.set_fields(points.load_config(runs[0].config), runs[0].overrides)
        if budget(resolved, arm.program, options.budget) != per_run:
            raise ValueError(f"a trial of {arm.name} may not change the budget of a run: {params}")
        folder.write_json(path, said | {"trials": trials})  # an interrupted trial resumes only with these settings
        tasks = sweep_program.tasks_of(place, runs, vmap=False)
        shown = display.Display(tasks, jobs=len(slots))
        try:
            status = runner.Runner(place, tasks, slots, retries=options.retries, display=shown).run()
        finally:
            shown.close()
        if status >= 128:
            raise Stopped(status)
        value, metric = value_of([task.workdir for task in tasks], options.metric)
        if metric is not None and metric.endswith("loss") and not options.minimize:
            raise ValueError(f"lower is better for {metric}: give --minimize, or another --metric")
        trials.append({"number": len(trials), "params": params, "value": value, "metric": metric})
        folder.write_json(path, said | {"trials": trials})
        print(f"{arm.name} trial {len(trials)}/{options.trials}: {metric} {value} with {params}", flush=True)
    return trials[: options.trials]


def chosen(trials: Sequence[Mapping], minimize: bool) -> Mapping[str, Any]:
    """The trial with the best value, the first of equals.

    Raises:
      ValueError: if all trials failed.
    """
    complete = [trial for trial in trials if trial["value"] is not None]
    if not complete:
        raise ValueError("every trial has failed: see their log.txt")
    return (min if minimize else max)(complete, key=lambda trial: trial["value"])


def run(sweep: pathlib.Path, arms: Sequence[points.Point], space: Mapping, options, slots) -> int:
    """Tunes, writes tuning.json and sweep.json, runs the test seeds. Returns the exit status."""
    per_run = equal_budget(arms, options.budget)
    check_choice(sweep, arms, options.trials)
    tuning, final = {}, []
    for arm in arms:
        trials = tune_arm(sweep / "tuning" / arm.name, arm, space, per_run, slots, options)
        best, runs = chosen(trials, options.minimize), len(trials) * len(options.tuning_seeds)
        tuning[arm.name] = {
            "trials": len(trials),
            "failed": sum(trial["value"] is None for trial in trials),
            "seeds": options.tuning_seeds,
            "test_seeds": options.seeds,
            "budget_per_run": per_run,
            "budget": {name: runs * value for name, value in per_run.items()},
            "space": {name: list(bounds) for name, bounds in space.items()},
            "sampler": f"Optuna {launchers.optional('optuna', '').__version__} TPE, seed {options.seed}",
            **{name: best[name] for name in ("params", "value", "metric")},
        }
        final += [seeded(arm, best["params"], seed, f"{arm.name},seed={seed}") for seed in options.seeds]
    check_finished(sweep, final)
    head = dict(name=sweep.name, config=options.config, program=arms[0].program, sweep=options.sweep)
    folder.write_sweep(sweep, final, **head, command=points.shown(sys.argv))  # refuses others: before tuning.json
    folder.write_json(sweep / "tuning.json", tuning)
    options.metric = options.metric or next(iter(tuning.values()))["metric"]
    return sweep_program.run(sweep, sweep_program.tasks_of(sweep, final, vmap=False), slots, options)


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """(options, "field=value" for each further --config.field=value)."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", required=True, help="configs/FILE.py:arguments")
    parser.add_argument("--space", required=True, help="names of the config file's spaces: lr,entropy")
    parser.add_argument("--sweep", default="", help="sweeps whose points are the arms; default: one arm")
    parser.add_argument("--trials", type=int, default=20, help="configurations tried per arm")
    parser.add_argument("--tuning_seeds", default="3", help="tuning seeds: a number of them, or 10003/10004")
    parser.add_argument("--seeds", default="5", help="test seeds: a number of them, or 3/4")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampler")
    parser.add_argument("--program", help="default: that of the config's field `program`")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/tune/NAME, by config, arms and space")
    parser.add_argument("--metric", help="its mean over seeds is tuned; default: the program's evaluation metric")
    parser.add_argument("--minimize", action="store_true", help="lower is better")
    parser.add_argument("--budget", help="config fields that must be equal in all arms")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--retries", type=int, default=2, help="restarts of a failed run")
    options, rest = parser.parse_known_args(arguments)
    options.grace_s = runner.GRACE_S
    wrong = [text for text in rest if not text.startswith("--config.") or "=" not in text]
    if wrong:
        parser.error(f"unknown argument {wrong[0]}; fields of the config are set with --config.FIELD=VALUE")
    if min(options.trials, options.jobs) < 1 or options.retries < 0:
        parser.error("--trials and --jobs must be at least 1, --retries at least 0")
    return options, [text.removeprefix("--config.") for text in rest]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options, fixed = parse(arguments)
    name = sweep_program.default_folder(options.config, f"{options.sweep},{options.space}").name
    sweep = options.workdir or pathlib.Path("runs/tune") / name
    try:
        options.tuning_seeds = [point["seed"] for point in sweeps.tuning_seeds(options.tuning_seeds)]
        options.seeds = [point["seed"] for point in sweeps.seeds(options.seeds)]
        if any(part.partition(":")[0] == "seed" for part in options.sweep.split(",")):
            raise ValueError("--sweep may not set seeds here: give --tuning_seeds and --seeds")
        space = space_of(options.config, options.space)
        arms = points.expand(options.config, options.sweep, program=options.program, fixed=fixed)
        with folder.locked(sweep):
            return run(sweep, arms, space, options, runner.local_slots(options.jobs))
    except Stopped as stopped:
        return stopped.args[0]
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        print(f"experiments.sweep.tune: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
