"""A trace of some steps by jax's profiler: config.log.profile_steps, or --profile=FROM:TO of every training program.

    python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/a --profile=3:5

The trace is in WORKDIR/profile; `xprof --logdir=WORKDIR/profile` or TensorBoard's profile page shows it.
"""

import contextlib
import pathlib
import re

import jax
from ml_collections import ConfigDict

NO_STEPS = ("evaluate", "best_of_n", "frontier")  # programs that train nothing


def set_steps(config: ConfigDict, text: str, program: str) -> None:
    """Writes a flag's "FROM:TO" into config.log.profile_steps.

    Args:
      config: of the run.
      text: "3:5", or "3" for one step.
      program: the module that was started.

    Raises:
      ValueError: if the text is no range of steps, or the program takes none.
    """
    if program.removeprefix("experiments.").removesuffix(".cli") in NO_STEPS or "log" not in config:
        raise ValueError(f"--profile={text}: {program} has no training steps; profile a training program")
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(f"--profile={text}: give the first and the last step, counted from 1, as in --profile=3:5")
    with config.unlocked():
        config.log.profile_steps = (first, last)


class Trace:
    """Starts the profiler before the first of `steps`, and stops it after the last or when the run ends."""

    def __init__(self, steps: tuple[int, ...], folder: pathlib.Path, stack: contextlib.ExitStack):
        """A trace that has not begun.

        Args:
          steps: first and last; () traces nothing.
          folder: where it is written.
          stack: of the run, which ends the trace if the run ends before.
        """
        self._steps, self._folder, self._stack, self._open = steps, folder, stack, None

    def check(self, begun: int, total: int) -> str:
        """A sentence for a run that resumes after the first step, and so writes no trace; "" otherwise.

        Args:
          begun: the last step done.
          total: the run's last step.

        Raises:
          ValueError: if the run ends before the first step.
        """
        if self._steps and self._steps[0] > total:
            raise ValueError(
                f"log.profile_steps={tuple(self._steps)}: the run ends at step {total}; name earlier steps"
            )
        late = self._steps and begun >= self._steps[0]
        return f"no trace: step {self._steps[0]} of log.profile_steps is done already" if late else ""

    def before(self, previous: int, step: int) -> None:
        """Begins with the step that reaches the first one. previous: the step before; control counts many as one."""
        if self._steps and previous < self._steps[0] <= step:
            jax.profiler.start_trace(str(self._folder))
            self._open = self._stack.enter_context(contextlib.ExitStack())
            self._open.callback(jax.profiler.stop_trace)  # also if the run ends before

    def after(self, step: int) -> None:
        """Ends with the step that reaches the last one."""
        if self._open is not None and step >= self._steps[-1]:
            self._open.close()
            self._open = None
