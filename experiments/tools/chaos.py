r"""Kills a run with SIGKILL at random moments, also during saves; compares its results with an undisturbed run's.

    python -m experiments.tools.chaos --kills=20 -- python -m experiments.grpo \
        --config=configs/tasks/arithmetic.py:smoke \
        --config.train.steps=60

The command after -- is started with a --workdir added: once to its end, then repeatedly in another workdir, where it is
killed at moments sampled with --seed and at last runs to its end. Each kill prints a line: where it hit, and the
checkpoint from which the next start resumes. final.json and every .jsonl except timing.jsonl are compared by their
SHA-256. Exits with 1 if one differs. The run needs many more steps than --kills, and a checkpoint every few steps.
"""

import contextlib
import hashlib
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from absl import app, flags

from experiments.parts import refusals
from experiments.parts.help import parse_plain_flags

flags.DEFINE_integer("kills", 20, "number of kills", lower_bound=1)
flags.DEFINE_integer("seed", 0, "seed of the moments of the kills")
flags.DEFINE_string("folder", "runs/chaos", "folder of both runs and their output; it must not exist")
flags.DEFINE_float("in_save", 0.4, "share of the kills that wait until a save has begun")
flags.DEFINE_float("in_start", 0.2, "share of the kills while the process starts")
flags.DEFINE_float("timeout_s", 1800.0, "time limit per process, in seconds")
FLAGS = flags.FLAGS
POLL_S = 0.001
START_S, STEP_S = 6.0, 0.2  # approximate seconds of a start and of a step; kills fall within


class Moment(NamedTuple):
    """When to kill.

    Attributes:
      kind: "save", "start" or "step".
      progress: rows that the run has logged by then.
      share: fraction of a start, or of a step, that has passed, in [0, 1).
    """

    kind: str
    progress: int
    share: float


def draw_moments(kills: int, total: int, *, in_save: float, in_start: float, seed: int) -> list[Moment]:
    """Samples the moments of the kills, by rising progress: each is reached though every kill sets the run back.

    Args:
      kills: how many.
      total: rows that the run logs.
      in_save: fraction of kills during a save.
      in_start: fraction of kills during a start. The order of the kinds is random.
      seed: of the sampling.

    Raises:
      ValueError: if the run is too short for so many kills, or the fractions are invalid.
    """
    if not 0 <= in_save <= in_save + in_start <= 1:
        raise ValueError(f"in_save={in_save} and in_start={in_start} must be 0 or more and sum to at most 1")
    if total < kills + 2:
        raise ValueError(f"a run that logs {total} rows is too short for {kills} kills: give it more steps")
    draws = np.random.default_rng(seed)
    saves, starts = round(kills * in_save), round(kills * in_start)
    kinds = ["save"] * saves + ["start"] * starts + ["step"] * (kills - saves - starts)
    # None in the last tenth: a kill during a save needs another save to come.
    progress = np.sort(draws.integers(0, max(int(total * 0.9), 1), kills))
    return [Moment(str(kind), int(at), float(share)) for kind, at, share in
            zip(draws.permutation(kinds), progress, draws.random(kills), strict=True)]  # fmt: skip


def parts_of(workdir: pathlib.Path) -> list[pathlib.Path]:
    """The folders that a run logs and saves in: its own and its warm start's. (Files in them come and go.)"""
    return [workdir, workdir / "sft"]


def progress_of(workdir: pathlib.Path) -> int:
    """Number of metrics rows that the run has logged, those of its warm start included."""
    files = [part / "metrics.jsonl" for part in parts_of(workdir)]
    return sum(path.read_bytes().count(b"\n") for path in files if path.exists())


def results_of(workdir: pathlib.Path) -> dict[str, str]:
    """{file: SHA-256} of everything that must not depend on kills: all logs except times, and the final checksums."""
    files = [path for path in workdir.rglob("*.jsonl") if path.name != "timing.jsonl"] + [*workdir.rglob("final.json")]
    return {str(p.relative_to(workdir)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(files)}


def newest_checkpoint(workdir: pathlib.Path) -> str:
    """The newest complete step, in words."""
    for part in parts_of(workdir):
        steps = [int(path.name) for path in (part / "checkpoints").glob("*") if path.name.isdecimal()]
        if steps:
            return f"step {max(steps)}" + ("" if part == workdir else f" of {part.name}")
    return "the beginning"


def unfinished(workdir: pathlib.Path) -> set[tuple]:
    """The folders of unfinished saves, each with what distinguishes it from an earlier one of the same name."""
    result = set()
    for path in (path for part in parts_of(workdir) for path in (part / "checkpoints").glob("*.orbax-checkpoint-tmp*")):
        with contextlib.suppress(FileNotFoundError):  # complete by now, and renamed
            status = path.stat()
            result.add((path.name.split(".")[0], status.st_ino, status.st_ctime_ns))
    return result


class Runs:
    """Starts one command in workdirs of a folder; its output goes to folder/output.txt."""

    def __init__(self, command: list[str], folder: pathlib.Path, timeout_s: float):
        self._command, self._output, self._timeout_s = command, folder / "output.txt", timeout_s

    def _start(self, workdir: pathlib.Path) -> subprocess.Popen:
        with open(self._output, "ab") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            return subprocess.Popen([*self._command, f"--workdir={workdir}"], **streams)

    def _failed(self, what: str) -> RuntimeError:
        tail = self._output.read_text(errors="replace")[-2000:]
        return RuntimeError(f"{what}; {self._output} ends with:\n{tail}")

    def _wait(self, process: subprocess.Popen, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + self._timeout_s
        while not condition():
            if process.poll() is not None:
                raise self._failed(f"the run ended with status {process.returncode} before the moment to kill it came")
            if time.monotonic() > give_up:
                raise self._failed(f"the moment to kill it did not come within {self._timeout_s} s")
            time.sleep(POLL_S)

    def to_the_end(self, workdir: pathlib.Path) -> float:
        """Starts it and waits. Returns the seconds it took.

        Raises:
          RuntimeError: if it fails.
        """
        began = time.monotonic()
        process = self._start(workdir)
        try:
            status = process.wait(self._timeout_s)
        finally:
            process.kill()
            process.wait()
        if status:
            raise self._failed(f"the run ended with status {status}")
        return time.monotonic() - began

    def kill_at(self, workdir: pathlib.Path, moment: Moment) -> str:
        """Starts it, kills it at the moment, and returns in words where that was."""
        before, lowest = unfinished(workdir), progress_of(workdir)
        began = time.monotonic()

        def logging() -> bool:  # a start first truncates the files to its checkpoint, then appends
            nonlocal lowest
            now = progress_of(workdir)
            lowest = min(lowest, now)
            return now > lowest

        def come() -> bool:
            if moment.kind == "start":
                return logging() or time.monotonic() - began > moment.share * START_S
            return logging() and progress_of(workdir) >= moment.progress

        process = self._start(workdir)
        try:
            self._wait(process, come)
            if moment.kind == "save":
                self._wait(process, lambda: bool(unfinished(workdir) - before))
            elif moment.kind == "step":
                time.sleep(moment.share * STEP_S)
            if process.poll() is not None:
                raise self._failed("the run ended before it was killed: give it more steps")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        cut_off = {step for step, *_ in unfinished(workdir) - before}
        where = "while starting" if not logging() else "between saves"
        return f"inside the save of step {', '.join(sorted(cut_off))}" if cut_off else where


def compare(undisturbed: pathlib.Path, killed: pathlib.Path) -> bool:
    """Prints each result's checksum and whether the two runs agree; returns whether all do."""
    expected, actual = results_of(undisturbed), results_of(killed)
    for name in sorted(expected | actual):
        ends = [results.get(name, "missing")[:16] for results in (expected, actual)]
        print(f"{name:24} {ends[0]} {'equal' if len(set(ends)) == 1 else f'DIFFERS: {ends[1]}'}")
    return expected == actual and "final.json" in expected


def main(argv: list[str]) -> None:
    """Parses the flags and runs everything."""
    command = argv[1:]
    if not command or any(part.startswith("--workdir") for part in command):
        refusals.refuse("experiments.tools.chaos", "give the command after --, without --workdir")
    folder = pathlib.Path(FLAGS.folder)
    if folder.exists():
        refusals.refuse("experiments.tools.chaos", f"{folder} is there already: name another --folder, or remove it")
    folder.mkdir(parents=True)
    command = [sys.executable if part == "python" else part for part in command]
    runs, undisturbed, killed = Runs(command, folder, FLAGS.timeout_s), folder / "undisturbed", folder / "killed"
    seconds = runs.to_the_end(undisturbed)
    total = progress_of(undisturbed)
    print(f"undisturbed: {total} rows of metrics in {seconds:.0f} s", flush=True)
    moments = draw_moments(FLAGS.kills, total, in_save=FLAGS.in_save, in_start=FLAGS.in_start, seed=FLAGS.seed)
    messages = []
    for number, moment in enumerate(moments, 1):
        messages.append(runs.kill_at(killed, moment))
        at = f"{messages[-1]}, {progress_of(killed)} rows logged"
        print(f"kill {number:2}/{len(moments)}: {at}; resumes from {newest_checkpoint(killed)}", flush=True)
    runs.to_the_end(killed)
    same = compare(undisturbed, killed)
    inside = sum(text.startswith("inside") for text in messages)
    verdict, count = "all equal" if same else "NOT EQUAL", len(messages)
    print(f"{count} kills, {inside} inside a save; {count} resumes: {verdict}")
    sys.exit(not same)


if __name__ == "__main__":
    app.run(main, flags_parser=parse_plain_flags)
