"""Runs the sweeps of a config: every point is an ordinary run, with --jobs runs at a time.

    python -m experiments.sweep --config=configs/control/environments.py:cartpole --sweep=lr,seed --list
    python -m experiments.sweep --config=configs/control/environments.py:cartpole --sweep=lr:1e-3/3e-3,seed:8 --jobs=2
    python -m experiments.sweep --config=configs/control/environments.py:cartpole --sweep=lr,seed:64 --vmap
    python -m experiments.sweep --config=configs/tasks/arithmetic.py --sweep=method,seed --config.train.steps=50

A sweep is a function sweep_NAME(arg) of the config file, or of a config file that it builds on. Several sweeps give
their product (see configs/sweeps.py). Further --config.x=y apply to every point. --vmap trains the points of a control
sweep in one program.

Complete points are skipped, interrupted ones resume, and failed ones are started again up to --retries times: the same
command continues a sweep after any interruption, kill -9 included. Points of other settings, as of before the config
file was edited, are refused.

--print prints a command for each point that is not complete. --submit hands these points to slurm (submitit), to the
machines of --hosts (by ssh; they share this folder) or to ray.
"""

import argparse
import pathlib
import re
import sys
from collections.abc import Sequence

from experiments.parts import check_config
from experiments.sweep import display, fold, folder, launchers, points, runner
from experiments.sweep.finished import check_finished
from rl_jax.runs.run_record import is_complete


def tasks_of(sweep: pathlib.Path, chosen: Sequence[points.Point], *, vmap: bool) -> list[runner.Task]:
    """One process per point, or with `vmap` one per set of points that one program can train. Raises ValueError."""
    if vmap:
        return fold.folded_tasks(sweep, chosen)
    fold.check_no_fold(sweep, chosen)
    places = [sweep / "points" / point.name for point in chosen]
    return [
        runner.Task(point.name, place, point.command(place), [point.name])
        for point, place in zip(chosen, places, strict=True)
    ]


def check(chosen: Sequence[points.Point]) -> None:
    """Checks the config of every point before one is started. Raises ValueError with the point's name."""
    for point in chosen:
        try:
            check_config.check(points.resolve(point))
        except ValueError as error:
            raise ValueError(f"point {point.name}: {error}") from None


def listing(sweep: pathlib.Path, chosen: Sequence[points.Point]) -> str:
    """One line per point: its state, name and overrides."""
    lines = []
    for point in chosen:
        state = folder.state_of(sweep / "points" / point.name)[0]
        fields = " ".join(f"{name}={value}" for name, value in point.overrides.items())
        lines.append(f"{state:12} {point.name:40} {fields}".rstrip())
    return "\n".join(lines)


def run(sweep: pathlib.Path, tasks: Sequence[runner.Task], slots: Sequence[runner.Slot], options) -> int:
    """Runs the tasks in the slots with the display, then prints the table. Returns the exit status."""
    shown = display.Display(tasks, jobs=len(slots))
    try:
        status = runner.Runner(
            sweep, tasks, slots, retries=options.retries, display=shown, grace_s=options.grace_s
        ).run()
    finally:
        shown.close()
    result = folder.write_table(sweep, options.metric)
    print(folder.markdown(result), end="")
    return status


def submit(sweep: pathlib.Path, tasks: Sequence[runner.Task], options) -> int:
    """Hands the tasks that are not complete to slurm or ray. Returns the exit status."""
    left = [task for task in tasks if not is_complete(task.workdir)]
    for task in tasks:
        if is_complete(task.workdir):  # if it ended on the cluster, finish() has not run yet
            task.finish()
    if not left:
        print("all points are complete")
        print(folder.markdown(folder.write_table(sweep, options.metric)), end="")
        return 0
    if options.submit == "slurm":
        parameters = dict(text.split("=", 1) for text in options.slurm)
        jobs = launchers.submit_slurm(sweep, left, jobs=options.jobs, parameters=parameters, cluster=options.cluster)
        print(f"submitted {len(left)} runs: {', '.join(jobs)}")
        return 0
    statuses = launchers.run_ray(left, retries=options.retries)
    for task in left:
        if is_complete(task.workdir):
            task.finish()
    print(folder.markdown(folder.write_table(sweep, options.metric)), end="")
    return int(any(statuses))


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """(options, "field=value" for each further --config.field=value). Exits if the arguments are invalid."""
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m experiments.sweep", description=__doc__, formatter_class=shown, allow_abbrev=False
    )
    parser.add_argument("--config", required=True, help="configs/FILE.py:arguments")
    parser.add_argument("--sweep", default="", help="names of sweeps, each with an optional :ARG, as in lr,seed:8")
    parser.add_argument("--program", help="default: that of the config's field `program`")
    parser.add_argument("--workdir", type=pathlib.Path, help="default: runs/sweeps/NAME, by config and sweep")
    parser.add_argument("--subsample", type=int, help="run this many of the points, a fixed random sample")
    parser.add_argument("--metric", help="metric of the table; default: the program's evaluation metric")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--list", action="store_true", help="list the points and their states")
    action.add_argument("--print", action="store_true", help="print a command for each point that is not complete")
    action.add_argument("--table", action="store_true", help="print the table of the results so far")
    action.add_argument("--submit", choices=("slurm", "hosts", "ray"))
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--no-pin", dest="pin", action="store_false", help="do not pin each run to its own cores")
    parser.add_argument("--vmap", action="store_true", help="train a control sweep's seeds and numbers in one program")
    parser.add_argument("--retries", type=int, default=2, help="restarts of a failed point")
    parser.add_argument("--grace_s", type=float, default=runner.GRACE_S, help="seconds that a stopped run gets to save")
    parser.add_argument("--hosts", help="a file with HOST or HOST COUNT per line")
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="for submitit: slurm_partition=gpu, timeout_min=600, cpus_per_task=8, gpus_per_node=1",
    )
    parser.add_argument("--cluster", default="slurm", choices=("slurm", "local"), help="local: with submitit, here")
    options, rest = parser.parse_known_args(arguments)
    for text in rest:
        if not re.match(r"--config\.[\w.]+=", text):
            parser.error(f"unknown argument {text}; fields of the config are set with --config.FIELD=VALUE")
    if options.jobs < 1 or options.retries < 0:
        parser.error("--jobs must be at least 1, --retries at least 0")
    if (options.submit == "hosts") != bool(options.hosts) and not options.print:
        parser.error("--submit=hosts needs --hosts=FILE, and --hosts needs --submit=hosts")
    wrong = [text for text in options.slurm if "=" not in text]
    if wrong:
        parser.error(f"--slurm={wrong[0]} must be NAME=VALUE")
    return options, [text.removeprefix("--config.") for text in rest]


def default_folder(config: str, sweep: str) -> pathlib.Path:
    """runs/sweeps/control_cartpole_lr_seed-64, named after the config and its sweeps."""
    path, _, argument = config.partition(":")
    words = [pathlib.Path(path).stem, *argument.split(","), *sweep.split(",")]
    return pathlib.Path("runs/sweeps") / "_".join(re.sub(r"[^\w.-]", "-", word) for word in words if word)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options, fixed = parse(arguments)
    sweep = options.workdir or default_folder(options.config, options.sweep)
    try:
        chosen = points.expand(
            options.config, options.sweep, program=options.program, subsample=options.subsample, fixed=fixed
        )
        if options.list:
            print(listing(sweep, chosen))
            return 0
        check_finished(sweep, chosen)
        if options.table:
            print(folder.markdown(folder.table(sweep, options.metric)), end="")
            return 0
        check(chosen)
        if options.print:
            slots = launchers.read_hosts(options.hosts) if options.hosts else [runner.Slot()]
            left = [point for point in chosen if not is_complete(sweep / "points" / point.name)]
            for index, point in enumerate(left):
                command, host = point.command(sweep / "points" / point.name), slots[index % len(slots)].host
                print(points.shown(runner.ssh_command(host, command) if host else command))
            return 0
        command = f"python -m experiments.sweep {points.shown(sys.argv[1:] if arguments is None else arguments)}"
        with folder.locked(sweep):
            head = dict(name=sweep.name, config=options.config, sweep=options.sweep, command=command)
            folder.write_sweep(sweep, chosen, program=chosen[0].program, **head)
            tasks = tasks_of(sweep, chosen, vmap=options.vmap)
            if options.submit in ("slurm", "ray"):
                return submit(sweep, tasks, options)
            hosts = launchers.read_hosts(options.hosts) if options.hosts else None
            return run(sweep, tasks, hosts or runner.local_slots(options.jobs, options.pin), options)
    except (ValueError, FileNotFoundError, RuntimeError) as error:
        print(f"experiments.sweep: {error}", file=sys.stderr)
        return 2
