"""Interventions: somebody takes over where the policy goes wrong, and what they did is drawn like demonstrations.

    a_t      = expert(s_t) if takes_over(s_t) else a ~ policy(s_t)
    a batch  = N/2 steps of the replay (the policy's and the expert's)
             + N/2 steps of the demonstrations and of the steps in the replay that the expert took, each as likely

HIL-SERL keeps a second buffer and copies the expert's steps into it; a flag for each slot of the replay draws the same
steps without a copy, as long as the replay still holds them. Source: arXiv 2410.21845 (HIL-SERL); drawing half from
each side: arXiv 2302.02948 (RLPD).
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.control.replay import Replay, ReplayBatch
from rl_jax.models.agents.distributions import Distribution


def to_stored(low: np.ndarray, high: np.ndarray, *, before_squash: bool) -> Callable:
    """The function from the environment's actions [..., D] to those that a distribution stores.

    Args:
      low: finite, [D].
      high: finite, [D].
      before_squash: of `exploration.squashed`, which stores arctanh of the action scaled to [-1, 1].
    """

    def stored(actions: chex.Array) -> chex.Array:
        if not before_squash:
            return actions
        middle, half = (jnp.broadcast_to(x, actions.shape) for x in (0.5 * (high + low), 0.5 * (high - low)))
        unit = (actions - middle) / half
        return jnp.arctanh(jnp.clip(unit, -0.9999, 0.9999))

    return stored


def intervened(distribution: Distribution, size: int) -> Distribution:
    """`distribution` with D + 1 more outputs, the last: the expert's action as it is stored, and 1 if it is taken.

    Args:
      distribution: of real actions.
      size: D.
    """
    own = -(size + 1)

    def sample(outputs: chex.Array, noise) -> chex.Array:
        return jnp.where(outputs[..., -1:] > 0, outputs[..., own:-1], distribution.sample(outputs[..., :own], noise))

    def mode(outputs: chex.Array) -> chex.Array:
        return jnp.where(outputs[..., -1:] > 0, outputs[..., own:-1], distribution.mode(outputs[..., :own]))

    return distribution._replace(num_outputs=distribution.num_outputs + size + 1, sample=sample, mode=mode)


def draw_shown(
    demonstrations: Replay, replay: Replay, taken: chex.Array, key: chex.PRNGKey, size: int, *, discount: float
) -> ReplayBatch:
    """N draws with replacement, each as likely, of the demonstrations and the steps that the expert took.

    Args:
      demonstrations: K slots, all written.
      replay: R slots.
      taken: float32 [B, R], 1 where the expert took the step that a slot of the replay holds.
      key: typed PRNG key.
      size: N.
      discount: gamma.
    """
    chex.assert_equal_shape([taken, replay.rows.rewards])
    (envs, kept), slots = demonstrations.rows.rewards.shape, taken.shape[1]
    shown = envs * kept
    summed = jnp.cumsum(jnp.concatenate([jnp.ones(shown), taken.reshape(-1)]))
    at = jax.random.uniform(key, (size,)) * summed[-1]
    # Rounding up to the sum itself would find a slot after the last one.
    place = jnp.searchsorted(summed, jnp.minimum(at, summed[-1] - 0.5), side="right")
    theirs, mine = jnp.minimum(place, shown - 1), jnp.maximum(place - shown, 0)

    def pick(old: chex.Array, new: chex.Array) -> chex.Array:
        demonstrated, during = old[theirs // kept, theirs % kept], new[mine // slots, mine % slots]
        return jnp.where((place < shown).reshape(-1, *[1] * (during.ndim - 1)), demonstrated, during)

    steps = jax.tree.map(pick, demonstrations.rows, replay.rows)
    discounts = jnp.where(steps.terminated, 0.0, discount)
    nowhere = jnp.full((size, 2), -1, jnp.int32)  # draws without priority: nobody writes back
    return ReplayBatch(steps, discounts, jnp.ones(size), nowhere)


def write(taken: chex.Array, written: chex.Array, new: chex.Array) -> chex.Array:
    """The flags [B, R] after T more steps [B, T], in the slots that `replay.add` writes. written: int32 []."""
    at = written % taken.shape[1]
    return jax.lax.dynamic_update_slice_in_dim(taken, new.astype(taken.dtype), at, axis=1)
