"""Single steps in environments as replay and offline methods read them."""

from typing import NamedTuple

import chex
import jax.numpy as jnp


class Transitions(NamedTuple):
    """N steps (s, a, r, s'), from any policy; leading axes may be [N] or [..., N]."""

    observations: chex.Array
    """float32 or uint8 [N, *shape]. s, as the environment gave it."""
    actions: chex.Array
    """int32 [N], or float32 [N, A] in the environment's own units."""
    rewards: chex.Array
    """float32 [N]. r, in the environment's own units."""
    next_observations: chex.Array
    """[N, *shape]. s'; where the episode ended, the last observation of that episode and not the first of the next."""
    terminated: chex.Array
    """bool [N]. The task ended at s': nothing is worth anything after it."""
    truncated: chex.Array
    """bool [N]. A limit ended the episode at s': its value still counts."""


def td_discounts(terminated: chex.Array, discount: float) -> chex.Array:
    """What the value of s' is multiplied by: `discount`, and 0 where the task ended; a truncated episode bootstraps.

    Args:
      terminated: bool [...].
      discount: gamma, per step.
    """
    return jnp.where(terminated, 0.0, discount)
