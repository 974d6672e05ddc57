"""Advantages of steps, the parts of an answer between separators: (advantages, returns), both [B, T].

Named in a config by their import path, critic.advantage "rl_jax.advantages.stepwise:direct".
"""

from collections.abc import Sequence

import chex
import jax.numpy as jnp

from rl_jax.advantages.tokens import gae
from rl_jax.advantages.turn_critics import turn_gae
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
    step = jnp.cumsum(ends, axis=1) - ends
    given = dict(bootstrap_values=bootstrap_values, lam=0.0, discount=1.0)
    advantages, _ = turn_gae(token_rewards, values, completion_mask, turns=step, **given)
    _, returns = gae(token_rewards, values, completion_mask, bootstrap_values=bootstrap_values, lam=1.0)
    return advantages, returns
