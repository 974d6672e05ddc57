"""Judges that are trained during the run, on the step's own rows: the task's own reward is their label.

A judge with `retrain_every` has a Learner: its params with the state of their optimizer, which are in every checkpoint.
"""

from collections.abc import Callable
from typing import Any, Protocol

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.parts.judges.base import Rows, Verdict, groups_of
from experiments.parts.processes import replicate, to_host
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Params, TokenBatch
from rl_jax.losses.reward_model import rankings
from rl_jax.training import sharding
from rl_jax.training.step import TrainState, init_state, make_train_step


class Learner:
    """The params of a judge, with the state of their optimizer.

    Args:
      setup: the judge's.
      params: to start from.
      loss: (params, batch) -> (Mean, metrics).
      learning_rate: of Adam.
      every: train in every so many steps.

    Attributes:
      state: TrainState.
      seen: steps so far.
      needs_labels: whether the judge's `learn` reads the task's own reward.
    """

    needs_labels = True

    def __init__(self, setup: Setup, params: Params, loss: Callable, *, learning_rate: float, every: int):
        """Makes the optimizer; nothing is compiled before the first update."""
        optimizer = optax.adam(learning_rate)
        key = jax.random.key(setup.config.seed)
        self._setup, self._every, self.seen = setup, every, 0
        self.state: TrainState = jax.jit(lambda p: init_state(p, optimizer, key))(params)
        self._update = jax.jit(make_train_step(loss, optimizer, max_grad_norm=1.0))

    @property
    def params(self) -> Params:
        """The newest params."""
        return self.state.params

    def due(self) -> bool:
        """Counts a step. Returns whether it is one to train in."""
        self.seen += 1
        return self.seen % self._every == 0

    def carried(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        return {"state": self.state, "seen": replicate(self._setup.mesh, jnp.int32(self.seen))}

    def set_carried(self, items: dict[str, Any]) -> None:
        """Puts back what `carried` gave."""
        self.state, self.seen = items["state"], int(items["seen"])

    def update(self, batch: Any) -> dict[str, float]:
        """One update on host rows that every process holds. Returns its metrics."""
        self.state, metrics = self._update(self.state, to_mesh(self._setup, batch))
        return {name: float(value) for name, value in to_host(metrics).items()}


class Learning(Protocol):
    """A judge that can be trained; `learner` is None if it is not.

    A learner of another class says `needs_labels`, too (True by default). If it needs none, `learn` may be given None.
    """

    learner: Learner | None

    def __call__(self, judged: Rows, /) -> Verdict:
        """The verdict on all rows."""

    def learn(self, judged: Rows, labels: np.ndarray | None) -> dict[str, float]:
        """One update. labels: float [B], the task's own rewards, nan where a term failed. Returns metrics."""


def padded_pairs(pairs: np.ndarray, live: np.ndarray, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs repeated until their number divides by `shards`; repeated ones, and those that are not live, are absent.

    Args:
      pairs: int [N, 2].
      live: bool [N].
      shards: devices that rows are split over.

    Returns:
      (int [M, 2], present bool [M, 2]).
    """
    size = -(-len(pairs) // shards) * shards
    live = np.resize(live, size) & (np.arange(size) < len(pairs))
    return np.resize(pairs, (size, 2)), np.repeat(live[:, None], 2, axis=1)


def best_and_worst(judged: Rows, labels: np.ndarray, shards: int) -> tuple[np.ndarray, np.ndarray]:
    """The best and the worst row of each prompt.

    Args:
      judged: rows; those of a prompt are neighbours.
      labels: float [B]; nan for a row that is neither.
      shards: the rows are repeated until their number divides by this; repeated ones are absent.

    Returns:
      (indices int [N, 2], best first; present bool [N, 2], False where all of a prompt's labels are equal).
    """
    pairs = []
    for rows in groups_of(judged):
        group = labels[rows.start : rows.stop]
        known = ~np.isnan(group)
        best, worst = np.argmax(np.where(known, group, -np.inf)), np.argmin(np.where(known, group, np.inf))
        pairs.append((rows[int(best)], rows[int(worst)]))
    pairs = np.array(pairs)
    return padded_pairs(pairs, labels[pairs[:, 0]] > labels[pairs[:, 1]], shards)


def pair_loss(members: Callable) -> Callable:
    """Makes loss(params, (TokenBatch [N, 2, T], present [N, 2])): Bradley-Terry, the mean over the members.

    members: (params, TokenBatch [B, T]) -> float32 [B, M].
    """

    def loss(params: Params, batch: tuple[TokenBatch, chex.Array]) -> tuple[Mean, dict]:
        tokens, present = batch
        flat = TokenBatch(*(None if x is None else x.reshape(-1, x.shape[-1]) for x in tokens))
        rewards = members(params, flat).reshape(*present.shape, -1)
        means = [masked_mean(*rankings.bradley_terry(rewards[..., m], present)) for m in range(rewards.shape[-1])]
        right = (jnp.mean(rewards[:, 0], axis=-1) > jnp.mean(rewards[:, 1], axis=-1)).astype(jnp.float32)
        total = Mean(sum(mean.total for mean in means), sum(mean.count for mean in means))
        return total, {"accuracy": masked_mean(right, present[:, 0])}

    return loss


def row_shards(setup: Setup) -> int:
    """Devices that rows are split over."""
    return sharding.row_shards(setup.mesh)
