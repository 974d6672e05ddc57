"""WebRL's replay for PPO on episodes (arXiv 2411.02337): of successes of before what is neither known nor odd.

    a turn a of a recorded success is learned from again if  low <= exp(mean log pi(a)) <= high  under the policy now

The first success of each prompt is kept (THUDM/WebRL scripts/process_data.py), with R > above, of all earlier steps, as
recorded in WORKDIR/trajectories (agent.record). Each step draws up to as many as it has rows itself, `batches` times
(2 in the paper). They get values, advantages and a reference anew, as the step's own rows; turns out of the bounds
teach neither policy nor critic. Rows without any other turn are left out, and the rest is shuffled among the step's own
rows (`mixed`): alone, a few of them would be a minibatch that is nearly empty, and yet one whole update. Nothing is
carried but the files, so a resumed run draws what it would have drawn.
"""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from experiments.parts import episode_replay, policy
from experiments.parts.play_groups import judge_episodes, rows_of
from experiments.parts.run import Run
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup
from rl_jax import ppo
from rl_jax.core.types import TokenScores
from rl_jax.experience.trajectory import Trajectory
from rl_jax.preferences.episodes import FOLDER, of_step
from rl_jax.selection import evolving

ROOM = 2**22  # of the step's key
Assign = Callable[[Collected, jax.Array], tuple[ppo.PPOBatch, dict, TokenScores]]


class FamiliarEpisodes:
    """The buffer and the batches of a run.

    Args:
      setup: of the run.
      workdir: of the run.
      batches: of as many rows as a step has, per step.
      above: the reward that a success exceeds.
      low: least geometric mean of the probabilities of a turn's tokens.
      high: its most.
    """

    def __init__(self, setup: Setup, workdir: pathlib.Path, *, batches: int, above: float, low: float, high: float):
        self._setup, self._folder, self._batches, self._above = setup, workdir / FOLDER, batches, above
        self._low, self._high, self._read, self._first = low, high, 0, {}

    def known(self, newest: int) -> list[Trajectory]:
        """The first success of each prompt among the episodes of the steps up to `newest`.

        Raises:
          FileNotFoundError: if a step's file is gone: the run would go on with other episodes than it would have had.
        """
        for step in range(self._read + 1, newest + 1):
            for one in of_step(self._folder, step, "agent.replay"):
                if one.reward > self._above and one.status != "error":
                    self._first.setdefault(one.prompt_id, one)
            self._read = step
        return list(self._first.values())

    def __call__(
        self, collected: Collected, step: int, key: jax.Array, assign: Assign
    ) -> tuple[list[ppo.PPOBatch], dict[str, float]]:
        """The step's batches to learn from again, none before the first success; and replay/... metrics: successes so
        far, rows that are learned from again, and the share of the drawn turns that is.

        Args:
          collected: the step's own rows.
          step: its number.
          key: of its updates.
          assign: (collected, key) -> (batch, metrics, the policy's TokenScores), on the host.
        """
        pool, rows = self.known(step - 1), len(collected.judged.records)
        key = jax.random.fold_in(key, ROOM)
        order = np.random.default_rng(np.asarray(jax.random.key_data(key)).tolist()).permutation(len(pool))
        found, turns, kept, live = [], 0, 0, 0
        for number in range(self._batches):
            chosen = [pool[i] for i in order[number * rows : (number + 1) * rows]]
            if not chosen:
                break
            again = self._collected(collected, [chosen[i % len(chosen)] for i in range(rows)])
            batch, _, scores = assign(again, jax.random.fold_in(key, number))
            numbers, mask = again.judged.rollout.turns.numbers, np.asarray(batch.completion_mask).copy()
            mask[len(chosen) :] = False  # the rest fills the shape
            familiar = familiar_turns(np.asarray(scores.log_probs), numbers, mask, low=self._low, high=self._high)
            turns, kept = turns + _count(numbers, mask), kept + _count(numbers, familiar)
            live += int(familiar.any(axis=1).sum())
            if familiar.any():
                found.append(_only(batch, familiar))
        told = {"replay/successes": float(len(pool)), "replay/rows": float(live)}
        return found, told | {"replay/familiar": kept / max(turns, 1)}

    def _collected(self, like: Collected, episodes: Sequence[Trajectory]) -> Collected:
        """Recorded episodes as the rows of a step, each with what its turns have earned."""
        setup, size = self._setup, self._setup.config.sample.group_size
        records = [dict(prompt="", info="{}") for _ in range(len(episodes) // size)]
        judged = judge_episodes(setup, None, episodes, rows_of(setup, episodes), records, size)
        named = {name: np.zeros_like(column) for name, column in like.named.items()}  # nothing is known of prompts
        return like._replace(judged=judged, metrics={}, named=named)


def familiar_turns(
    log_probs: np.ndarray, numbers: np.ndarray, mask: np.ndarray, *, low: float, high: float
) -> np.ndarray:
    """The tokens of turns that the policy neither has by heart nor finds strange: evolving.familiar, turn by turn.

    Args:
      log_probs: float [B, C], of the policy now.
      numbers: int [B, C], number of the turn on its tokens, -1 elsewhere.
      mask: bool [B, C], tokens that count.
      low: least geometric mean of a turn's probabilities.
      high: its most.

    Returns:
      bool [B, C].
    """
    most = int(numbers.max(initial=-1)) + 1
    of_turn = mask[:, None, :] & (numbers[:, None, :] == np.arange(most)[None, :, None])
    flat = of_turn.reshape(-1, mask.shape[1])
    fits = evolving.familiar(np.repeat(log_probs, most, axis=0), flat, low=low, high=high)
    return (of_turn & fits.reshape(len(mask), most, 1)).any(axis=1)


def mixed(batch: ppo.PPOBatch, again: Sequence[ppo.PPOBatch], count: int) -> tuple[ppo.PPOBatch, int]:
    """(a step's batch with what is learned from again among its rows, how many minibatches it now has).

    Minibatches stay as large as they were, so some rows may have to fill the last of them: they teach nothing, and
    shuffling spreads them over all minibatches.

    Args:
      batch: of the step, B rows.
      again: batches to learn from again; their rows without a token are left out.
      count: minibatches of the step's own rows.

    Raises:
      ValueError: if count does not divide B.
    """
    if not again:
        return batch, count
    size = policy.rows_per_minibatch(batch, count)
    kept = [_at(one, np.flatnonzero(np.asarray(one.completion_mask).any(axis=1))) for one in again]
    if missing := -sum(len(one.completion_mask) for one in kept) % size:
        filler = _at(batch, np.zeros(missing, int))
        kept.append(_only(filler, np.zeros_like(filler.completion_mask)))
    parts = [batch, *kept]
    width = max(one.policy.batch.tokens.shape[1] for one in parts)
    whole = jax.tree.map(lambda *xs: np.concatenate(xs), *(_widened(one, width) for one in parts))
    return whole, len(whole.completion_mask) // size


def _at(batch: ppo.PPOBatch, rows: np.ndarray) -> ppo.PPOBatch:
    """Some rows of a batch."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], batch)


def _only(batch: ppo.PPOBatch, mask: np.ndarray) -> ppo.PPOBatch:
    """The batch of which neither policy nor critic learns anything off the mask, bool [B, C]."""
    learned = None if batch.learned is None else np.asarray(batch.learned) & mask
    return batch._replace(policy=batch.policy._replace(completion_mask=mask), learned=learned)


def _widened(batch: ppo.PPOBatch, width: int) -> ppo.PPOBatch:
    """The batch with its prompts padded on the left, to rows of `width` tokens: its bucket may be a smaller one."""
    now = batch.policy.batch.tokens.shape[1]

    def pad(x):  # what is of the completions alone stays
        sides = ((0, 0), (width - now, 0), *((0, 0),) * (x.ndim - 2))
        return np.pad(x, sides) if x.shape[1] == now else x

    return batch._replace(policy=batch.policy._replace(batch=jax.tree.map(pad, batch.policy.batch)))


def _count(numbers: np.ndarray, mask: np.ndarray) -> int:
    """How many turns have a token on the mask."""
    return sum(len(np.unique(row[on])) for row, on in zip(numbers, mask & (numbers >= 0), strict=True))


def again(
    loop: Run, setup: Setup, programs: Any, collected: Collected, key: jax.Array, assign: Assign
) -> tuple[list[ppo.PPOBatch], dict[str, float]]:
    """What FamiliarEpisodes gives, if config.agent.replay says so; else ([], {}).

    Args:
      loop: knows the step and the workdir.
      setup: of the run.
      programs: PPOPrograms, whose generate is a Player; it keeps what was read.
      collected: the step's own rows.
      key: of the step.
      assign: as in FamiliarEpisodes.
    """
    if not episode_replay.adds_rows(setup.config):
        return [], {}
    settings = episode_replay.settings_of(setup.config)
    del settings["fn"]
    kept = programs.generate.replayed
    if episode_replay.FAMILIAR not in kept:
        kept[episode_replay.FAMILIAR] = FamiliarEpisodes(setup, loop.workdir, **settings)
    return kept[episode_replay.FAMILIAR](collected, loop.step, key, assign)
