"""GAE over macro actions, runs of n tokens: token rewards and values [B, T] -> (advantages, returns), both [B, T].

Named in a config by its import path, critic.advantage "rl_jax.advantages.macros:macro_gae".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.tokens import gae
from rl_jax.core.masked import zero_masked


def macro_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    n: int = 5,
    discount: float = 1.0,
    lam: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """MA-RLHF: each n tokens of a row are one action; its tokens share the action's advantage and return.

        A_k = delta_k + gamma lambda A_{k+1},  delta_k = r_k + gamma V_{k+1} - V_k
        r_k = sum of its tokens' rewards,  V_k = mean of its tokens' values

    n = 1 is `gae`; n >= T is a bandit. The last action of a row may be shorter.
    Source: arXiv 2410.02743; ernie-research/MA-RLHF (fixed n-gram, value_function "equal"). Its code also takes a mean
    of the token rewards, and makes the last column an action of its own so that the score stays whole.

    Args:
      token_rewards: float [B, T].
      values: float [B, T].
      completion_mask: bool [B, T]. Tokens outside of it are not counted.
      bootstrap_values: float [B], V after the last token.
      n: tokens of an action; 5 in the paper.
      discount: gamma, per action.
      lam: lambda, per action.

    Raises:
      ValueError: if n is below 1.
    """
    if n < 1:
        raise ValueError(f"n={n} must be at least 1: it is the number of tokens of an action")
    chex.assert_equal_shape([token_rewards, values, completion_mask])
    width = completion_mask.shape[1]
    number = -(-width // n)
    action = (jnp.cumsum(completion_mask, axis=1) - 1) // n

    def pooled(x: chex.Array) -> chex.Array:
        """Sums over the actions. [B, T] -> [B, number]."""
        kept = zero_masked(x, completion_mask)
        return jax.vmap(lambda row, ids: jax.ops.segment_sum(row, ids, num_segments=number))(kept, action)

    count = pooled(jnp.ones_like(values))
    action_values = pooled(values) / jnp.maximum(count, 1.0)
    given = dict(bootstrap_values=bootstrap_values, discount=discount, lam=lam)
    estimates = gae(pooled(token_rewards), action_values, count > 0, **given)
    return tuple(zero_masked(jnp.take_along_axis(x, action, axis=1), completion_mask) for x in estimates)
