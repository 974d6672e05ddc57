"""Kills the loops of many programs, half of the time inside a save; each must end as if nothing had happened.

    python -m experiments.tools.kills --kills=70                       # ten of each of seven programs
    python -m experiments.tools.kills dpo grpo --kills=8 --minutes=5

Each program runs at its smallest size (flat_memory.tiny) once to its end, then in another folder, where it is killed by
SIGKILL at drawn moments (experiments.tools.chaos) and each time started again. Its logs and final.json must be equal in
every byte. The runs are forks of this process, which has imported everything and started nothing: so a start takes
about two seconds. The last line is JSON; the exit code is 1 if a program differs. After --minutes no further kill
begins; the table says how many there were.
"""

import argparse
import contextlib
import importlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable

import jax

from experiments.tools import chaos, flat_memory
from rl_jax.training import compilation

PROGRAMS = ("grpo", "ppo", "agents", "dpo", "online_dpo", "reward_model", "control.ppo")
IN_SAVE, IN_START = 0.5, 0.1  # shares of the kills
STEPS = 40  # of each run
SAVES = 20  # checkpoints of each run


class Fork:
    """A call in a forked process with its own session; as much of subprocess.Popen as chaos.Runs needs.

    Args:
      call: what it does.
      output: file for what it prints.
    """

    def __init__(self, call: Callable[[], None], output: pathlib.Path):
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jax warns of forks; nothing of it has been started here
            self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                os.setsid()
                stream = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                null = os.open(os.devnull, os.O_RDONLY)
                for source, end in ((null, 0), (stream, 1), (stream, 2)):
                    os.dup2(source, end)
                sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1, closefd=False)
                call()
                status = 0
            except BaseException:  # noqa: BLE001 - it must not go on as a second copy of this program
                traceback.print_exc()
            finally:
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                os._exit(status)

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        began = time.monotonic()
        while self.poll() is None:
            if timeout is not None and time.monotonic() - began > timeout:
                raise subprocess.TimeoutExpired("the run", timeout)
            time.sleep(chaos.POLL_S)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Forks(chaos.Runs):
    """Runs of one program at its smallest size, as forks.

    Args:
      program: of flat_memory.PROGRAMS.
      folder: of the runs, their data and their output.
      steps: of a run.
      saves: checkpoints of a run.
    """

    def __init__(self, program: str, folder: pathlib.Path, *, steps: int = STEPS, saves: int = SAVES):
        super().__init__([], folder, timeout_s=600.0)
        self._program, self._folder, self._steps, self._saves = program, folder, steps, saves

    def _start(self, workdir: pathlib.Path) -> Fork:
        return Fork(lambda: self._run(workdir), self._folder / "output.txt")

    def _run(self, workdir: pathlib.Path) -> None:
        config = flat_memory.tiny(self._program, self._folder, self._steps, workers=0, saves=self._saves)
        if self._program.startswith("control."):
            config.eval.num_episodes = 1
        else:
            config.eval.every = 0
        config.log.tensorboard = False
        importlib.import_module(f"experiments.{self._program}").run(config, workdir)


def check(program: str, kills: int, folder: pathlib.Path, *, seed: int, until: float, **sizes) -> dict:
    """Kills a program's run and compares it with one that was left alone.

    Args:
      program: of flat_memory.PROGRAMS.
      kills: how many.
      folder: of its own.
      seed: of the moments.
      until: time.monotonic() after which no further kill begins.
      sizes: of Forks.

    Returns:
      program, kills, in_save (those that left an unfinished save), restored (starts that found a checkpoint), equal,
      and the names of the files that differ.
    """
    folder.mkdir(parents=True)
    runs, undisturbed, killed = Forks(program, folder, **sizes), folder / "undisturbed", folder / "killed"
    runs.to_the_end(undisturbed)
    moments = chaos.draw_moments(kills, chaos.progress_of(undisturbed), in_save=IN_SAVE, in_start=IN_START, seed=seed)
    wheres, restored = [], 0
    for moment in moments:
        if time.monotonic() > until:
            break
        wheres.append(runs.kill_at(killed, moment))
        restored += chaos.newest_checkpoint(killed) != "the beginning"
    runs.to_the_end(killed)
    expected, actual = chaos.results_of(undisturbed), chaos.results_of(killed)
    differ = sorted(name for name in expected | actual if expected.get(name) != actual.get(name))
    inside = sum(where.startswith("inside") for where in wheres)
    same = not differ and "final.json" in expected
    found = dict(program=program, kills=len(wheres), in_save=inside, restored=restored, equal=same, differ=differ)
    return found | {"files": len(expected)}


def table(rows: list[dict]) -> str:
    """The results as Markdown."""
    lines = ["| program | kills | inside a save | starts from a checkpoint | files | result |", "|---" * 6 + "|"]
    for row in rows:
        verdict = "equal" if row["equal"] else "DIFFERS: " + (", ".join(row["differ"]) or "no final.json")
        numbers = " | ".join(str(row[name]) for name in ("kills", "in_save", "restored", "files"))
        lines.append(f"| {row['program']} | {numbers} | {verdict} |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="program", help=f"default: {' '.join(PROGRAMS)}")
    parser.add_argument("--kills", type=int, default=70, help="over all programs")
    parser.add_argument("--minutes", type=float, default=60.0, help="after so many no further kill begins")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args(arguments)
    programs = options.programs or list(PROGRAMS)
    if unknown := sorted(set(programs) - set(flat_memory.PROGRAMS)):
        parser.error(f"{', '.join(unknown)}: none of {', '.join(flat_memory.PROGRAMS)}")
    each = max(options.kills // len(programs), 1)
    for program in programs:
        importlib.import_module(f"experiments.{program}")
    rows, began = [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rl_jax-kills-") as folder:
        if not jax.config.jax_compilation_cache_dir:
            compilation.use_cache(pathlib.Path(folder) / "xla")
        for place, program in enumerate(programs):
            share = options.minutes * 60 * (place + 1) / len(programs)
            with contextlib.redirect_stdout(io.StringIO()):
                row = check(
                    program, each, pathlib.Path(folder) / program, seed=options.seed + place, until=began + share
                )
            rows.append(row)
            print(f"{program}: {row['kills']} kills, {'equal' if row['equal'] else 'DIFFERS'}", flush=True)
    print(table(rows))
    kills, inside = (sum(row[name] for row in rows) for name in ("kills", "in_save"))
    wrong = [row["program"] for row in rows if not row["equal"]]
    print(f"\n{kills} kills over {len(rows)} programs, {inside} inside a save, {time.monotonic() - began:.0f} s: "
          + (f"NOT EQUAL: {', '.join(wrong)}" if wrong else "all equal"))  # fmt: skip
    print(json.dumps({"tool": "kills", "options": vars(options), "rows": rows}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
