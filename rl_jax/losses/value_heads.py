"""What the outputs of a critic mean, and its loss against the next state's outputs: a number, a histogram, quantiles.

A config names one of these as algorithm.head. Every method of replay (rl_jax.control.replay_methods) takes every head.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses import td


class ValueHead(NamedTuple):
    """The reading of a critic's outputs.

    Attributes:
      num_outputs: H, outputs per value.
      values: (outputs [..., H]) -> float [...].
      loss: (outputs [N, H], rewards [N], discounts [N], next_outputs [N, H]) -> (loss [N], size of the error [N], for
        priorities). Only `outputs` are differentiated.
    """

    num_outputs: int
    values: Callable
    loss: Callable


def scalar(*, delta: float = math.inf) -> ValueHead:
    """One number: (q - y)^2 / 2, y = r + d q'.

    Args:
      delta: Huber's loss from this error on (DQN: 1); inf is the square everywhere.
    """

    def loss(outputs: chex.Array, rewards: chex.Array, discounts: chex.Array, following: chex.Array):
        values, targets = outputs[:, 0], td.td_target(rewards, discounts, following[:, 0])
        error = jax.lax.stop_gradient(jnp.abs(values - targets))
        return td.huber(values, targets, delta=delta), error

    return ValueHead(1, lambda outputs: outputs[..., 0], loss)


def categorical(*, low: float, high: float, num_atoms: int = 51) -> ValueHead:
    """C51: a histogram over equally spaced values; cross-entropy to the projection of r + d Z'.

    Args:
      low: the lowest atom, in the returns' units; values below are clipped to it.
      high: the highest. If an end is traced (swept) and they are in the wrong order, all atoms are nan, so that no
        gradient is finite.
      num_atoms: H.

    Raises:
      ValueError: if the ends are plain numbers in the wrong order, or there are fewer than two atoms.
    """
    plain = isinstance(low, int | float) and isinstance(high, int | float)
    if num_atoms < 2 or (plain and not low < high):
        raise ValueError(f"categorical: low={low} must be below high={high}, and num_atoms={num_atoms} 2 or more")
    atoms = jnp.linspace(low, high, num_atoms)
    atoms = atoms if plain else jnp.where(low < high, atoms, jnp.nan)

    def values(outputs: chex.Array) -> chex.Array:
        return jnp.sum(jax.nn.softmax(outputs, axis=-1) * jnp.broadcast_to(atoms, outputs.shape), axis=-1)

    def loss(outputs: chex.Array, rewards: chex.Array, discounts: chex.Array, following: chex.Array):
        target = td.project(atoms, jax.nn.softmax(following), rewards, discounts)
        entropy = td.cross_entropy(outputs, target)
        # The KL: without the target's own entropy, which nothing can lower.
        own = -jnp.sum(target * jnp.log(jnp.where(target > 0, target, 1.0)), axis=-1)
        return entropy, jax.lax.stop_gradient(jnp.maximum(entropy - own, 0.0))

    return ValueHead(num_atoms, values, loss)


def quantile(*, num_quantiles: int = 32, kappa: float = 1.0) -> ValueHead:
    """QR-DQN: the values at the levels (i + 1/2) / H; quantile regression on r + d theta'.

    Args:
      num_quantiles: H.
      kappa: of Huber's loss; 0 is none.
    """

    def loss(outputs: chex.Array, rewards: chex.Array, discounts: chex.Array, following: chex.Array):
        targets = jax.lax.stop_gradient(rewards[:, None] + discounts[:, None] * following)
        error = jax.lax.stop_gradient(jnp.abs(jnp.mean(targets, axis=1) - jnp.mean(outputs, axis=1)))
        return td.quantile_huber(outputs, targets, kappa=kappa), error

    return ValueHead(num_quantiles, lambda outputs: jnp.mean(outputs, axis=-1), loss)
