"""GAE of answers that are not over yet: token rewards and values [B, T] -> (advantages, returns), both [B, T].

Named in a config by its import path, critic.advantage "rl_jax.advantages.truncated:extended_gae".
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.tokens import gae
from rl_jax.core.masked import last_of, masked_sum


def extended_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    unfinished: chex.Array,
    bootstrap_values: chex.Array,
    discount: float = 1.0,
    lam: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """T-PPO's extended GAE (EGAE): an answer that goes on is worth what its last state before the last token was.

        A_t = sum_k (gamma lambda)^k delta_{t+k},   delta_t = r_t + gamma V_{t+1} - V_t
        V after the last token = V before it, for an answer that goes on;   bootstrap_values for one that is over
        G_t = sum_k gamma^k r_{t+k}   Monte Carlo; targets are only those of answers that are over (PPOBatch.learned)

    If every answer is over, the advantages are those of `gae`. With gamma 1 the last delta of an answer that goes on is
    its reward alone.
    Source: arXiv 2506.15050, as reviews of it give the assumption; no code was found, gamma and lambda are gae's.

    Args:
      token_rewards: float [B, T].
      values: float [B, T], before each token.
      completion_mask: bool [B, T]. All tokens of the answer so far.
      unfinished: bool [B]. Answers that go on in a later step.
      bootstrap_values: float [B], V after the last token of the others.
      discount: gamma.
      lam: lambda, of the advantages.
    """
    last = masked_sum(values, last_of(completion_mask), axis=1)
    after = jnp.where(unfinished, last, bootstrap_values)
    given = dict(bootstrap_values=after, discount=discount)
    advantages, _ = gae(token_rewards, values, completion_mask, lam=lam, **given)
    _, returns = gae(token_rewards, values, completion_mask, lam=1.0, **given)
    return advantages, returns
