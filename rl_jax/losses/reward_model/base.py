"""The result of a reward-model loss: terms to average, and which of them count."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


class Terms(NamedTuple):
    """A loss before its mean.

    Attributes:
      loss: float [N, ...], one term per prompt, response, label or step, depending on the loss; 0 if not live.
      live: bool, the same shape. What the mean is over.
    """

    loss: chex.Array
    live: chex.Array


def terms(loss: chex.Array, live: chex.Array) -> Terms:
    """`loss` on `live`, 0 elsewhere. float [...], bool [...]."""
    return Terms(zero_masked(loss, live), live)


def check_responses(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """The rewards float [N, K], 0 if no response is present, after checking ranks, shapes and types."""
    chex.assert_rank([rewards, present], 2)
    chex.assert_type([rewards, present], [float, bool])
    chex.assert_equal_shape([rewards, present])
    return zero_masked(rewards, present)


def per_prompt(x: chex.Array, rewards: chex.Array, dtype=jnp.float32) -> chex.Array:
    """`x` as data with one number per prompt: float [N] without gradient."""
    chex.assert_shape(x, rewards.shape[:1])
    return jax.lax.stop_gradient(x.astype(dtype))
