"""Preference between two episodes from their outcomes: (outcomes [N], opponents [Q]) -> P(i beats j) float32 [N, Q].

A config selects one of these functions. P(i beats j) + P(j beats i) = 1. An outcome is the episode's undiscounted
return, which can encode anything: for `table` it is the index of a behaviour, and preferences need not be transitive.
"""

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.selection import candidate_values


def greater(outcomes: chex.Array, opponents: chex.Array) -> chex.Array:
    """1 if i's outcome is greater, 1/2 if both are equal, else 0. float [N], [Q] -> float32 [N, Q]."""
    chex.assert_rank([outcomes, opponents], 1)
    mine, theirs = jnp.meshgrid(outcomes, opponents, indexing="ij")
    return 0.5 * (1.0 + jnp.sign(mine - theirs))


def bradley_terry(outcomes: chex.Array, opponents: chex.Array, *, temperature: float = 1.0) -> chex.Array:
    """sigma((R_i - R_j) / temperature). float [N], [Q] -> float32 [N, Q]."""
    chex.assert_rank([outcomes, opponents], 1)
    return candidate_values.preferences(outcomes[None], opponents[None], temperature=temperature)[0]


def table(
    outcomes: chex.Array, opponents: chex.Array, *, probs: tuple[tuple[float, ...], ...] = ((0.5,),)
) -> chex.Array:
    """probs[i][j] for outcomes that are indices of behaviours, 0, 1, ...

    Args:
      outcomes: float [N].
      opponents: float [Q].
      probs: P(i beats j) for any two behaviours.

    Returns:
      float32 [N, Q].

    Raises:
      ValueError: if P(i beats j) + P(j beats i) is not 1.
    """
    chex.assert_rank([outcomes, opponents], 1)
    known = np.asarray(probs, np.float32)
    if known.ndim != 2 or known.shape[0] != known.shape[1] or not np.allclose(known + known.T, 1.0):
        raise ValueError(f"probs: a square table in which P(i beats j) + P(j beats i) is 1, not {probs}")
    mine, theirs = jnp.meshgrid(outcomes, opponents, indexing="ij")
    return jnp.asarray(known)[mine.astype(jnp.int32), theirs.astype(jnp.int32)]
