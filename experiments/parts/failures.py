"""Rewards that fail: the first is shown and recorded, and a run whose reward only fails stops."""

import sys
from typing import NamedTuple

import numpy as np

from rl_jax.rewards.output import shown
from rl_jax.rewards.pool import RewardResult
from rl_jax.runs import run_record
from rl_jax.training import distributed

FEW = 8  # completions that may all fail by chance: a last batch of an evaluation, greedy samples of few prompts
BATCHES = 4  # of so few in a row
SHOWN = 400  # characters of a prompt, of a completion and of a message


class Failure(NamedTuple):
    """The first failed completion of some rows: its message, prompt and completion."""

    reason: str
    prompt: str
    completion: str

    def __str__(self) -> str:
        """Three lines, control characters as escapes."""
        return (
            f"{shown(self.reason, SHOWN)}\n  prompt: {shown(self.prompt, SHOWN)}\n"
            f"  completion: {shown(self.completion, SHOWN)}"
        )


def first_failure(result: RewardResult, prompts: list[str], completions: list[str]) -> Failure | None:
    """The first failure of a RewardResult; None if nothing failed or it is not known what did."""
    if result.first_error is None or result.failed is None or not np.any(result.failed):
        return None
    index = int(np.argmax(result.failed))
    return Failure(result.first_error, prompts[index], completions[index])


class Failures:
    """What failed in a run so far. One for all batches of a run, its evaluations included."""

    def __init__(self):
        self._told, self._batches, self._rows = False, 0, 0

    def see(self, result: RewardResult, first: Failure | None, settings) -> None:
        """Shows the first failure of the run: on stderr, and in run.json for the report.

        Args:
          result: of a batch, of all processes.
          first: its first failure.
          settings: config.reward.

        Raises:
          RuntimeError: if nothing could be scored, in one batch or in several small ones, and all_failed is "stop".
        """
        count, failed = len(result.rewards), result.num_timeouts + result.num_errors
        if first is not None and not self._told and distributed.is_main():
            self._told = True
            run_record.note("first_reward_error", str(first))
            print(
                f"The first completion that could not be scored ({failed} of {count} in this batch; each gets "
                f"reward.failure_reward={settings.failure_reward}): {first}",
                file=sys.stderr,
                flush=True,
            )
        all_failed = 0 < count == failed
        self._batches, self._rows = (self._batches + 1, self._rows + count) if all_failed else (0, 0)
        enough = count >= FEW or (self._batches >= BATCHES and self._rows >= FEW)
        if all_failed and enough and settings.all_failed == "stop":
            batches = "" if count >= FEW else f" of the last {self._batches} batches"
            raise RuntimeError(
                f"the reward failed on all {self._rows if batches else count} completions{batches} "
                f"({result.num_timeouts} of {count} took over reward.time_limit_s={settings.time_limit_s} s). "
                f"The first: {first or result.first_error}\n"
                'reward.all_failed="count" goes on, with reward.failure_reward for each'
            )
