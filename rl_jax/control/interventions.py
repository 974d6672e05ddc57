"""Interventions: somebody takes over where the policy goes wrong, and what they did is drawn like demonstrations.

    a_t      = expert(s_t) if takes_over(s_t) else a ~ policy(s_t)
    a batch  = N/2 steps of the replay (the policy's and the expert's)
             + N/2 steps of the demonstrations and of the steps in the replay that the expert took, each as likely

HIL-SERL keeps a second buffer and copies the expert's steps into it; a flag for each slot of the replay draws the same
steps without a copy, as long as the replay still holds them. Source: arXiv 2410.21845 (HIL-SERL); drawing half from
each side: arXiv 2302.02948 (RLPD). models.agents.exploration.intervened lets the expert act.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.replay import Replay, ReplayBatch


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
