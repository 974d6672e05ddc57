"""Runs a program once: a run that is finished is not run again, but it must be the run that is asked for."""

import json
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from experiments.parts import hub, origin, reward_spec, stops
from experiments.sweep.points import load_config
from rl_jax.data.append_lines import append_lines
from rl_jax.runs.run_record import is_complete


def run_once(
    program: str,
    config: str,
    workdir: pathlib.Path,
    overrides: Sequence[str],
    spent: pathlib.Path,
    *,
    free: tuple[str, ...] = (),
) -> None:
    """Runs a program to its end, unless it is finished.

    Args:
      program: the module of experiments.
      config: path and argument of the config file.
      workdir: the run's folder.
      overrides: further arguments of the command.
      spent: the JSONL file to which the run's seconds are appended.
      free: of `check_same`.

    Raises:
      CalledProcessError: if the run fails.
      SystemExit: if a signal ended it early, with stops.STOPPED: the same command resumes it.
      ChangedError: if workdir has a run of other settings.
    """
    check_same(program, config, workdir, overrides, free=free)
    if is_complete(workdir):
        return
    command = [sys.executable, "-m", f"experiments.{program}", f"--config={config}", f"--workdir={workdir}", *overrides]
    print("+", " ".join(command), flush=True)
    start = time.monotonic()
    status = stops.wait(command)
    spent.parent.mkdir(parents=True, exist_ok=True)
    row = {"run": str(workdir), "seconds": round(time.monotonic() - start, 1)}
    append_lines(spent, [json.dumps(row)])
    if status in (stops.STOPPED, -signal.SIGTERM):
        print(f"{workdir} was stopped; the same command goes on", flush=True)
        sys.exit(stops.STOPPED)
    if status:
        raise subprocess.CalledProcessError(status, command)


def asked_for(config: str, overrides: Sequence[str]) -> ConfigDict:
    """The config of a program's command line, without starting the program.

    Args:
      config: path and argument of the config file.
      overrides: --config.FIELD=VALUE; other arguments are left out.

    Raises:
      ValueError: if the config has no such field, or the value is none of its type.
    """
    mine = reward_spec.expand_terms([argument for argument in overrides if argument.startswith("--config.")])
    found, result = flags.FlagValues(), load_config(config)
    try:
        config_flags.DEFINE_config_dict("config", result, flag_values=found, sys_argv=["program", *mine])
        found(["program", *mine])
    except (AttributeError, KeyError, TypeError, flags.Error) as error:
        raise ValueError(f"{config} with {' '.join(mine)}: {error}") from error
    return found.config


def check_same(
    program: str, config: str, workdir: pathlib.Path, overrides: Sequence[str], *, free: tuple[str, ...] = ()
) -> None:
    """Checks that the run in workdir, if there is one with a result or a checkpoint, is the one that is asked for.

    A finished run is not run again, so its results would pass for those of the new settings; an unfinished one would go
    on with them. Fields of origin.FREE may differ.

    Args:
      program: the module of experiments.
      config: path and argument of the config file.
      workdir: the run's folder.
      overrides: further arguments of the command.
      free: further fields, or groups of them, that change no result.

    Raises:
      ChangedError: if a field differs; names each, with the value of the run and the one that is asked for.
    """
    if origin.begun(workdir) and (workdir / "config.json").is_file():
        asked = asked_for(config, overrides)
        hub.settle(asked, workdir)  # a run's config names the commits of its paths of the Hub
        origin.check_result(asked, workdir, program, free=free)
