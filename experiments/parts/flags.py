"""The flags that every program has, and how a program starts."""

import functools
import pathlib
import sys
from collections.abc import Callable

import jax
from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from experiments.parts import devices, origin, own_folder, processes, profiling, refusals, reward_spec, stops
from experiments.parts.help import parse_flags_helpfully, started
from rl_jax.training import compilation, distributed

FLAGS = flags.FLAGS
config_flags.DEFINE_config_file("config", None, "configs/FILE.py:arguments; override fields with --config.a.b=value")
flags.DEFINE_string("workdir", None, "folder of the run; the same command resumes it. Default: runs/NAME")
flags.DEFINE_string("fork", None, "folder of a new run, from the newest checkpoint of the one in --workdir")
flags.DEFINE_string(
    "compile_cache",
    "~/.cache/rl_jax/xla",
    "folder of compiled programs, for the next start; '' turns it off",
)
flags.DEFINE_string("profile", None, "FROM:TO: jax's profiler traces these steps into WORKDIR/profile")
flags.DEFINE_bool("skip_bad_records", False, "skip and report bad records instead of stopping at the first")


def main(run: Callable[[ConfigDict, pathlib.Path], None], *, several_processes: bool = False) -> None:
    """Parses the flags and calls run(config, workdir). Exits with stops.STOPPED if a signal ended the run.

    Args:
      run: of the program.
      several_processes: whether the program can run as several processes.
    """
    name = started()[0]
    flags.mark_flag_as_required("config")
    with refusals.refusing(name):
        own_folder.of_command_line(sys.argv)
        sys.argv[:] = reward_spec.expand_terms(sys.argv)
    app.run(
        lambda argv: start(run, several_processes=several_processes),
        flags_parser=functools.partial(parse_flags_helpfully, several_processes=several_processes),
    )


def start(run: Callable[[ConfigDict, pathlib.Path], None], *, several_processes: bool = False) -> int:
    """Calls run(config, workdir) with the parsed flags. What the program refuses ends it with a message.

    Returns the exit status: stops.STOPPED if a signal ended the run, 0 if not.

    Args:
      run: of the program.
      several_processes: whether the program can run as several processes.
    """
    if not any(argument.startswith(("--verbosity", "-v")) for argument in sys.argv):
        logging.set_verbosity(logging.WARNING)  # orbax logs a page per checkpoint
    config = FLAGS.config
    with refusals.refusing(started()[0]):
        processes.keep_memory()
        compilation.compile_seconds()  # counts from here on
        if FLAGS.compile_cache and not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(FLAGS.compile_cache)
        processes.start(supported=several_processes)
        devices.check()
        if FLAGS.skip_bad_records:
            if "data" not in config and "task" not in config:
                raise ValueError("--skip_bad_records: this program reads no records; leave the flag out")
            with config.unlocked():
                config["data" if "data" in config else "task"].skip_bad_records = True
        if FLAGS.profile:
            profiling.set_steps(config, FLAGS.profile, started()[0])
        workdir = pathlib.Path(FLAGS.workdir or f"runs/{config.name}")
        if FLAGS.fork:
            workdir = origin.fork(workdir, pathlib.Path(FLAGS.fork), first=distributed.is_first())
        try:
            run(config, workdir)
        except Exception as error:
            refusals.drop_note_of_jax(error)  # below the error: its end says why, not how jax shows it
            raise
    if stops.status():
        distributed.barrier("stopped")  # a cluster may kill the others as soon as one ends like this
    return stops.status()
