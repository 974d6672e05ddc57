"""Token rewards and a critic's values [B, T] -> (advantages, returns), both [B, T] and 0 outside the mask.

Tokens outside the mask (tool output in the middle of a row, padding) are skipped: the value after a token is that of
the next token on the mask, without a discount in between. The value after a row's last token is an argument,
`bootstrap_values`: 0 if the row has ended, the critic's value if it was truncated and should be continued. Advantages
are not whitened here.
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums, following, lambda_advantages
from rl_jax.core.masked import last_of, sum_dtype, zero_masked


def assemble(
    rewards: chex.Array, kl: chex.Array, completion_mask: chex.Array, *, kl_coef: float | chex.Array
) -> chex.Array:
    """Token rewards: r_t = -kl_coef k_t, plus R on the last token of the row.

    Source: arXiv 1909.08593.

    Args:
      rewards: float [B], R.
      kl: float [B, T], an estimate per token.
      completion_mask: bool [B, T]. The reward of a row without tokens is dropped.
      kl_coef: float or float [].

    Returns:
      float [B, T], 0 outside the mask.
    """
    chex.assert_rank([rewards, completion_mask], [1, 2])
    chex.assert_type([rewards, kl, completion_mask], [float, float, bool])
    chex.assert_equal_shape([kl, completion_mask])
    chex.assert_equal_shape_prefix([rewards, completion_mask], 1)
    scores = jnp.where(last_of(completion_mask), jnp.broadcast_to(rewards[:, None], kl.shape), 0.0)
    return scores - kl_coef * zero_masked(kl, completion_mask)


def gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    discount: float = 1.0,
    lam: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """GAE; the returns are A + V.

        A_t = delta_t + gamma lambda A_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t

    Source: arXiv 1506.02438 eq. 16. verl, tunix and NeMo-RL skip masked tokens in the same way; verl whitens A here.

    Args:
      token_rewards: float [B, T].
      values: float [B, T].
      completion_mask: bool [B, T].
      bootstrap_values: float [B], V after the last token.
      discount: gamma.
      lam: lambda; 1 gives the discounted return minus V, 0 one-step TD.
    """
    _check(token_rewards, values, completion_mask, bootstrap_values)
    lam = jnp.full(values.shape[0], lam, values.dtype)
    advantages = _carried_gae(token_rewards, values, completion_mask, bootstrap_values, discount, lam)
    return advantages, _returns(advantages, values, completion_mask)


def length_adaptive_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    discount: float = 1.0,
    alpha: float = 0.05,
    critic_lam: float = 1.0,
) -> tuple[chex.Array, chex.Array]:
    """VAPO's GAE: lambda_i = 1 - 1 / (alpha n_i) for the advantages, critic_lam for the returns (decoupled).

    n_i is the number of tokens of the row. Source: arXiv 2504.05118; lambda as in NeMo-RL.

    Args:
      token_rewards: float [B, T].
      values: float [B, T].
      completion_mask: bool [B, T].
      bootstrap_values: float [B], V after the last token.
      discount: gamma.
      alpha: the horizon is sum_k lambda^k = alpha n_i tokens, and at least 1, so that rows below 1 / alpha = 20 tokens
        have lambda 0.
      critic_lam: 1 is an unbiased target for any length.
    """
    _check(token_rewards, values, completion_mask, bootstrap_values)
    lengths = jnp.sum(completion_mask, axis=1, dtype=sum_dtype(values))
    lam = (1.0 - 1.0 / jnp.maximum(alpha * lengths, 1.0)).astype(values.dtype)
    advantages = _carried_gae(token_rewards, values, completion_mask, bootstrap_values, discount, lam)
    critic_lam = jnp.full_like(lam, critic_lam)
    target = _carried_gae(token_rewards, values, completion_mask, bootstrap_values, discount, critic_lam)
    return advantages, _returns(target, values, completion_mask)


def vtrace(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    bootstrap_values: chex.Array,
    discount: float = 1.0,
    lam: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
    clip_pg_rho: float = 1.0,
) -> tuple[chex.Array, chex.Array]:
    """V-trace: off-policy advantages, and the value targets v_t = V_t + e_t.

        A_t = min(rho_t, clip_pg_rho) (r_t + gamma v_{t+1} - V_t)
        e_t = min(rho_t, clip_rho) (r_t + gamma V_{t+1} - V_t) + gamma lambda min(rho_t, clip_c) e_{t+1}

    On-policy and with lambda 1, v is the discounted return. rlax mixes v_{t+1} with V_{t+1} in A if lambda < 1; the
    paper does not. Source: arXiv 1802.01561 eq. 1 and section 4.2.

    Args:
      token_rewards: float [B, T].
      values: float [B, T].
      completion_mask: bool [B, T].
      log_probs: float [B, T], of the policy. rho_t = exp(log_probs - behavior_log_probs).
      behavior_log_probs: float [B, T], of the sampler.
      bootstrap_values: float [B], V after the last token.
      discount: gamma.
      lam: lambda.
      clip_rho: bound of rho in the targets.
      clip_c: bound of rho in the trace.
      clip_pg_rho: bound of rho in the advantages.

    Returns:
      (A, v), float [B, T] each.
    """
    _check(token_rewards, values, completion_mask, bootstrap_values)
    chex.assert_equal_shape([values, log_probs, behavior_log_probs])
    mask = completion_mask
    rewards, values = zero_masked(token_rewards, mask), zero_masked(values, mask)
    rho = zero_masked(jnp.exp(zero_masked(log_probs, mask) - zero_masked(behavior_log_probs, mask)), mask)
    ahead = rewards + discount * following(values, mask, bootstrap_values)
    decays = jnp.where(mask, discount * lam * jnp.minimum(rho, clip_c), 1.0)
    errors = backward_sums(jnp.minimum(rho, clip_rho) * (ahead - values), decays)
    targets = zero_masked(values + errors, mask)
    corrected = rewards + discount * following(targets, mask, bootstrap_values)
    return jnp.minimum(rho, clip_pg_rho) * (corrected - values), targets


def _check(token_rewards: chex.Array, values: chex.Array, mask: chex.Array, bootstrap_values: chex.Array) -> None:
    chex.assert_rank([values, bootstrap_values], [2, 1])
    chex.assert_equal_shape([token_rewards, values, mask])
    chex.assert_equal_shape_prefix([values, bootstrap_values], 1)
    chex.assert_type([token_rewards, values, mask, bootstrap_values], [float, float, bool, float])


def _carried_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    mask: chex.Array,
    bootstrap_values: chex.Array,
    discount: float,
    lam: chex.Array,
) -> chex.Array:
    """lambda_advantages over the tokens on the mask, with one lambda per row. -> float [B, T], 0 outside the mask."""
    rewards, values = zero_masked(token_rewards, mask), zero_masked(values, mask)
    next_values = zero_masked(following(values, mask, bootstrap_values), mask)
    # A masked token has delta 0 and passes A on unchanged.
    decays = jnp.where(mask, jnp.broadcast_to(discount * lam[:, None], mask.shape), 1.0)
    discounts = jnp.full_like(values, discount)
    return zero_masked(lambda_advantages(rewards, values, next_values, discounts=discounts, decays=decays), mask)


def _returns(advantages: chex.Array, values: chex.Array, mask: chex.Array) -> chex.Array:
    return advantages + zero_masked(values, mask)
