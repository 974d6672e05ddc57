"""The minibatches of an update, and what an auxiliary loss keeps from one to the next."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax import ppo
from rl_jax.training.step import TrainState


class Anchored(NamedTuple):
    """The memory of an auxiliary loss.

    Attributes:
      begin: () -> state, a pytree of arrays, the same on all parts.
      observe: (the agent's params, PPOBatch, state, axis_name) -> (state, {name: float [n, ...]}), for the loss of this
        minibatch: its extras.
    """

    begin: Callable
    observe: Callable


def minibatch_of(batch: ppo.PPOBatch, index: chex.Array, coefs: Any) -> ppo.PPOBatch:
    """The rows `index` of a batch; with the controlled weight of the KL if there is one."""
    part = jax.tree.map(lambda x: x[index], batch)
    return part if coefs is None else with_extras(part, {"kl_coefs": jnp.full(len(index), coefs.coef)})


def with_extras(part: ppo.PPOBatch, extras: dict[str, chex.Array]) -> ppo.PPOBatch:
    """The minibatch with further arrays of its rows."""
    return part._replace(policy=part.policy._replace(extras=part.policy.extras | extras))


def observed(
    anchored: Anchored | None, unravel: Callable, train: TrainState, part: ppo.PPOBatch, axis_name=None
) -> tuple[TrainState, ppo.PPOBatch]:
    """The state after the memory has seen the minibatch, and the minibatch with what the loss is to know of it."""
    if anchored is None:
        return train, part
    kept, extras = anchored.observe(unravel(train.params), part, train.trackers["anchors"], axis_name)
    return train._replace(trackers=train.trackers | {"anchors": kept}), with_extras(part, extras)
