"""Surrogates for rows of older policies. A config names them by path ("rl_jax.losses.policy.stale:interpolated").

Three policies: mu drew the token, prox is where the clip stands, pi is trained. `token_weights.exact` and its kin are
decoupled PPO with a forward for prox; `mixed.against_sampler` takes mu for prox. Here is what is neither.
"""

import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio
from rl_jax.losses.policy.clipped import clipped_surrogate
from rl_jax.losses.policy.weighted import detached


def proximal_share(lags: chex.Array) -> chex.Array:
    """a = (d - 1) / d, how much of the way from mu to pi the policy of one version before pi has gone; 0 if d <= 1.

    With u the version that drew a token, v that of pi and v - 1 that of prox: a = (v - 1 - u) / (v - u), d = v - u.

    Args:
      lags: int [B, T], d.

    Returns:
      float32 [B, T], from 0 to 1.
    """
    chex.assert_type(lags, int)
    behind = jnp.maximum(lags, 1).astype(jnp.float32)
    return (behind - 1.0) / behind


def interpolated(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    lags: chex.Array,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    cap: float = math.inf,
) -> Surrogate:
    """Decoupled PPO whose proximal policy is interpolated and not computed: A-3PO.

        log prox = log mu + a (sg(logp) - log mu),   a = (d - 1) / d, d the token's lag
        l = sg(w) max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   w = prox / mu, 0 if w > cap;  r = pi / prox

    A token that is one version old or new has prox = mu: PPO about the policy that drew it.
    Source: arXiv 2512.06547; AReaL's prox_logp_method "loglinear".

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused: no forward is needed for it.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data; of mu.
      lags: int [B, T]: updates of the policy since the token was drawn.
      clip_low: distance from 1, not a bound.
      clip_high: as clip_low.
      cap: tokens with a larger weight are dropped; 5 in AReaL.

    Returns:
      Surrogate with the ratio pi / prox.
    """
    assert_tokens(mask, old_log_probs)
    gap = jax.lax.stop_gradient(log_ratio(log_probs, behavior_log_probs, mask))
    moved = proximal_share(lags) * gap  # log prox - log mu
    proximal = zero_masked(behavior_log_probs, mask) + moved
    weight = jnp.exp(moved)
    weight = jnp.where(weight <= cap, weight, 0.0)
    out = clipped_surrogate(log_probs, proximal, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return out._replace(loss=weight * out.loss)


def near_sampler(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    divergence_low: float = 0.2,
    divergence_high: float = 0.2,
    log_ratio_coef: float = 1e-3,
) -> Surrogate:
    """DPPO-TV about the sampler, with a penalty on the log ratio: prime-rl's default.

        l = -M A r + log_ratio_coef (log r)^2,   r = pi / mu
        M = 1[A > 0: p - p_mu <= divergence_high; A < 0: p - p_mu >= -divergence_low], p = exp(logp)

    A token that has moved too far keeps the penalty, which draws it back. The weight r is not truncated.
    Source: arXiv 2602.04879; prime-rl's default_loss_fn (559b447); the penalty arXiv 2602.02276.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data; of mu.
      divergence_low: in probability, 0 to 1.
      divergence_high: as divergence_low.
      log_ratio_coef: kl_tau in prime-rl.

    Returns:
      Surrogate with the ratio pi / mu.
    """
    assert_tokens(mask, old_log_probs)
    log_ratios = log_ratio(log_probs, behavior_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    change = jnp.exp(zero_masked(log_probs, mask)) - jnp.exp(zero_masked(behavior_log_probs, mask))  # p - p_mu
    low = mask & (advantages < 0) & (change < -divergence_low)
    high = mask & (advantages > 0) & (change > divergence_high)
    pushed = jnp.where(low | high, 0.0, -advantages) * jnp.exp(jnp.where(low | high, 0.0, log_ratios))
    loss = zero_masked(pushed + log_ratio_coef * jnp.square(log_ratios), mask)
    return Surrogate(loss=loss, ratio=ratio, clipped_low=low, clipped_high=high)
