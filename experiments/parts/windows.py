"""rollout.window: so many tokens of an answer are sampled per step; one that is not over goes on in the next (T-PPO).

    --config.rollout.window=4

A step has one row per prompt. A row whose answer is over makes room for the next prompt; the others keep theirs, and
the next window is sampled after what they have. Rows are laid out over rollout.completion_length, with the version of
the policy that sampled each token. An answer that goes on has reward 0 and is neither finished nor truncated. What is
in flight is saved with the prompts, so that a resumed run goes on with it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import processes
from experiments.parts.encoding import encode_prompts
from experiments.parts.judging import Judged, judge
from experiments.parts.setup import Setup
from rl_jax.core.types import Params, TokenBatch
from rl_jax.selection import foreign_rows
from rl_jax.training import distributed


class InFlight:
    """Batches of prompts in which those keep their row whose answers are not over.

    Args:
      prompts: endless batches of records, one per row.

    Attributes:
      step: int. Batches given out so far.
      rows: per row dict(record, tokens, log_probs, versions) of the answer so far; None for a row that is free.
    """

    def __init__(self, prompts: Iterator[list[dict]]):
        self._prompts, self._waiting = prompts, []
        self.step, self.rows = 0, []

    def __iter__(self) -> "InFlight":
        return self

    def __next__(self) -> list[dict]:
        self.step += 1
        if not self.rows:
            self._waiting = next(self._prompts)
            self.rows = [None] * len(self._waiting)
        for place, row in enumerate(self.rows):
            if row is None:
                self._waiting = self._waiting or next(self._prompts)
                record, *self._waiting = self._waiting
                self.rows[place] = dict(record=record, tokens=[], log_probs=[], versions=[])
        return [row["record"] for row in self.rows]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prompts, name)

    def get_state(self) -> dict:
        """A JSON value."""
        rows = [row and dict(row) for row in self.rows]  # Windows writes into the rows
        own = {"step": self.step, "rows": rows, "waiting": list(self._waiting)}
        return {"prompts": self._prompts.get_state(), "in_flight": own}

    def set_state(self, state: dict) -> None:
        """Continues from a state."""
        self._prompts.set_state(state["prompts"])
        own = state["in_flight"]
        self.step, self._waiting = own["step"], list(own["waiting"])
        self.rows = [row and dict(row) for row in own["rows"]]


def carrying(config: ConfigDict, prompts: Iterator[list[dict]]) -> Iterator[list[dict]]:
    """The batches of prompts, InFlight if config.rollout.window is set."""
    if not config.rollout.window:
        return prompts
    processes.one_process(f"rollout.window={config.rollout.window}")
    return InFlight(prompts)


class Windows:
    """Samples the next window of every row and judges it.

    Args:
      setup: of the run.
      score: as experiments.parts.judging.judge takes it.
      prompts: InFlight.
    """

    def __init__(self, setup: Setup, score: Any, prompts: InFlight):
        self._setup, self._score, self._prompts = setup, score, prompts

    def __call__(self, generate: Callable, params: Params, key: jax.Array, clock) -> tuple[Judged, np.ndarray, dict]:
        """One step.

        Args:
          generate: compiled (params, tokens, prompt_mask, key) -> Rollout of one row per prompt, a window wide.
          params: of the policy.
          key: a typed key.
          clock: gets the laps rollout_s and reward_s.

        Returns:
          (Judged of the rows; bool [B], the answers that are over; metrics).
        """
        setup, prompts = self._setup, self._prompts
        length, pad_id = setup.config.rollout.completion_length, setup.task.tokenizer.pad_id
        records = next(prompts)
        tokens, mask = encode_prompts(setup, records)
        begun = [row["tokens"] for row in prompts.rows]
        wide = with_beginnings(tokens, mask, begun, length - setup.config.rollout.window, pad_id)
        rollout = generate(params, *processes.own_to_mesh(setup.mesh, wide), key)
        clock.lap("rollout_s", rollout)
        for row, ids, drawn in zip(
            prompts.rows, *foreign_rows.sampled_of(distributed.local_rows(rollout)), strict=True
        ):
            row["tokens"] = row["tokens"] + ids
            row["log_probs"] = row["log_probs"] + drawn
            row["versions"] = row["versions"] + [prompts.step] * len(ids)
        judged = judge(setup, self._score, self._laid_out(tokens, mask, length), records)
        clock.lap("reward_s")
        lengths = judged.rollout.completion_mask.sum(axis=1)
        over = judged.rollout.finished | (lengths == length)
        result = judged.result
        result = result._replace(
            rewards=np.where(over, result.rewards, np.float32(0.0)),
            components={name: np.where(over, x, np.zeros_like(x)) for name, x in result.components.items()},
        )
        rollout = judged.rollout._replace(truncated=~judged.rollout.finished & over)
        prompts.rows = [None if done else row for done, row in zip(over, prompts.rows, strict=True)]
        metrics = {"window/over": float(over.mean()), "window/tokens": float(lengths.mean())}
        if over.any():
            metrics["window/reward"] = float(result.rewards[over].mean())
        return judged._replace(rollout=rollout, result=result), over, metrics

    def _laid_out(self, tokens: np.ndarray, mask: np.ndarray, length: int):
        """The Rollout of all rows as they are now."""
        tokenizer, rows = self._setup.task.tokenizer, self._prompts.rows
        whole = foreign_rows.lay_out(
            TokenBatch(tokens, np.maximum(np.cumsum(mask, axis=1) - 1, 0).astype(np.int32), mask.astype(np.int32)),
            [row["tokens"] for row in rows],
            length,
            pad_id=tokenizer.pad_id,
            eos_ids=tokenizer.eos_ids,
            log_probs=[row["log_probs"] for row in rows],
        )
        versions = np.zeros(whole.completion_mask.shape, np.int32)
        for place, row in enumerate(rows):
            versions[place, : len(row["versions"])] = row["versions"]
        return whole._replace(versions=versions)


def with_beginnings(
    tokens: np.ndarray, mask: np.ndarray, begun: list[list[int]], room: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Prompts with the beginnings of their answers, left-padded to `room` more columns: one width for all steps.

    Args:
      tokens: int32 [B, P], left-padded.
      mask: bool [B, P].
      begun: B lists of ids, at most `room` each.
      room: columns to add.
      pad_id: fills the left.

    Returns:
      (int32 [B, P + room], bool [B, P + room]).
    """
    rows, width = tokens.shape
    wide, seen = np.full((rows, width + room), pad_id, np.int32), np.zeros((rows, width + room), bool)
    for row, ids in enumerate(begun):
        both = [*tokens[row, mask[row]].tolist(), *ids]
        wide[row, width + room - len(both) :], seen[row, width + room - len(both) :] = both, True
    return wide, seen


def kept(judged: Judged, rows: np.ndarray) -> Judged:
    """Some rows of a Judged. rows: bool [B]."""
    places, result = np.flatnonzero(rows), judged.result
    return Judged(
        jax.tree.map(lambda x: x[places], judged.rollout),
        [judged.records[i] for i in places],
        [judged.completions[i] for i in places],
        result._replace(
            rewards=result.rewards[places],
            components={name: x[places] for name, x in result.components.items()},
            failed=None if result.failed is None else result.failed[places],
        ),
    )
