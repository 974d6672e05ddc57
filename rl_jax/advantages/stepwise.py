"""Advantages of steps, the parts of an answer between separators: (advantages, returns), both [B, T].

Named in a config by their import path, critic.advantage "rl_jax.advantages.stepwise:direct".
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.tokens import gae
from rl_jax.core.steps import step_ends


def direct(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    tokens: chex.Array,
    bootstrap_values: chex.Array,
    separators: Sequence[int] = (),
) -> tuple[chex.Array, chex.Array]:
    """The critic's advantage of each step, on all its tokens; the returns are the answer's own, Monte Carlo.

        A_k = V(s_{k+1}) - V(s_k) + the step's rewards,   s_k: the state before step k;   bootstrap after the last one

    Source: arXiv 2412.18279 (Direct Advantage Policy Optimization).

    Args:
      token_rewards: float [B, T].
      values: float [B, T], before each token.
      completion_mask: bool [B, T].
      tokens: int [B, T], sampled.
      bootstrap_values: float [B], V after the last token.
      separators: ids that end a step; the answer's last token ends one, too.
    """
    chex.assert_equal_shape([token_rewards, values, completion_mask, tokens])
    ends = step_ends(completion_mask, tokens=tokens, separators=separators)
    number = completion_mask.shape[1]
    before = jnp.cumsum(ends, axis=1) - ends
    step = jnp.where(completion_mask, before, number)
    changed = jnp.concatenate([jnp.full_like(step[:, :1], -1), _last_step(step, completion_mask)[:, :-1]], axis=1)
    first = completion_mask & (step != changed)

    def pooled(x: chex.Array, where: chex.Array) -> chex.Array:
        """Sums over the steps. [B, T] -> [B, number]."""
        kept = jnp.where(where, x, 0.0)
        return jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, num_segments=number + 1))(kept, step)[:, :-1]

    is_step = pooled(jnp.ones_like(values), first) > 0
    of_steps, _ = gae(
        pooled(token_rewards, completion_mask),
        pooled(values, first),
        is_step,
        bootstrap_values=bootstrap_values,
        lam=0.0,
    )
    advantages = jnp.take_along_axis(of_steps, jnp.minimum(step, number - 1), axis=1)
    _, returns = gae(token_rewards, values, completion_mask, bootstrap_values=bootstrap_values, lam=1.0)
    return jnp.where(completion_mask, advantages, 0.0), returns


def _last_step(step: chex.Array, mask: chex.Array) -> chex.Array:
    """The step of the last token on the mask up to each column; -1 before the first."""
    return jax.lax.cummax(jnp.where(mask, step, -1), axis=1)
