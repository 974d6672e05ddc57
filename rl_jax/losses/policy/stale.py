"""Surrogates for rows of older policies. A config names them by path ("rl_jax.losses.policy.stale:interpolated").

Three policies: mu drew the token, prox is where the clip stands, pi is trained. `token_weights.exact` and its kin are
decoupled PPO with a forward for prox; `mixed.against_sampler` takes mu for prox. Here is what is neither, and masks
that are found again at each update, from pi; those of `token_weights` are found once, from the policy before it.
"""

import math
from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import bind
from rl_jax.core.masked import zero_masked
from rl_jax.losses import policy
from rl_jax.losses.policy.base import Surrogate, assert_tokens, log_ratio
from rl_jax.losses.policy.clipped import clipped_surrogate, finite_exp
from rl_jax.losses.policy.weighted import detached
from rl_jax.token_weights import rejection


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
    weight = finite_exp(moved, mask)  # an infinite one would make the gradient of a clipped token 0 * inf = nan
    weight = jnp.where(weight <= cap, weight, 0.0)
    out = clipped_surrogate(log_probs, proximal, advantages, mask, clip_low=clip_low, clip_high=clip_high)
    return out._replace(loss=weight * out.loss)


def _without(dropped: chex.Array, log_ratios: chex.Array, advantages: chex.Array) -> chex.Array:
    """-A r, and 0 where `dropped` or A = 0. exp sees no such ratio: one beyond float32 would make the gradient nan."""
    dropped |= advantages == 0
    return jnp.where(dropped, 0.0, -advantages) * jnp.exp(jnp.where(dropped, 0.0, log_ratios))


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
    loss = zero_masked(_without(low | high, log_ratios, advantages) + log_ratio_coef * jnp.square(log_ratios), mask)
    return Surrogate(loss=loss, ratio=ratio, clipped_low=low, clipped_high=high)


def m2po(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    threshold: float = 0.04,
) -> Surrogate:
    """M2PO: no clip; the largest log ratios are dropped, and only as many as it takes to bound their second moment.

        l = -M A r,   r = pi / mu
        M = 0 on the tokens of T with the largest (log r)^2, as many as needed for the mean of the others of T to be
            < threshold; 1 elsewhere.   T: A > 0 and r > 1, or A < 0 and r < 1

    T holds the tokens that are pushed further from the sampler. M has no gradient. It is that of the rows of one call:
    of the micro-batch, if an update has several. Equal squares stay or go together; no token of T stays if none is
    below the threshold. Aggregate with token_mean: the paper divides by all tokens, dropped ones included.

    Source: arXiv 2510.01161, section 5.2 and algorithm 1; Trinity-RFT's m2po_policy_loss (3a41dc2), with <= for <, and
    all rows of the update in two passes. The authors' code (Infini-AI-Lab/M2PO af54a3e; micro-batches, <=) differs from
    their paper: its bound b solves mean_T(min((log r)^2, b)) = threshold, and T is clipped there. That drops more.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data; of mu.
      threshold: of the second moment, in nats^2; .04 in the paper, the authors' scripts and Trinity-RFT.

    Returns:
      Surrogate with the ratio pi / mu. The clip flags are the dropped tokens, by the sign of A.
    """
    assert_tokens(mask, old_log_probs)
    log_ratios = log_ratio(log_probs, behavior_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    moved = jax.lax.stop_gradient(log_ratios)
    outwards = mask & (jnp.sign(moved) * jnp.sign(advantages) > 0)
    dropped = outwards & ~rejection.smallest_squares(outwards, jnp.square(moved), threshold)
    loss = _without(dropped, log_ratios, advantages)
    return Surrogate(loss, ratio, clipped_low=dropped & (advantages < 0), clipped_high=dropped & (advantages > 0))


def opsm(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    delta: float = 1e-4,
    surrogate: str | Callable | Mapping = "clipped_surrogate",
) -> Surrogate:
    """Off-policy sequence masking: a bad row that has become less likely than its sampler made it is left alone.

        l = M l_surrogate,   M = 0 if A < 0 and mean_t(log mu - sg(logp)) > delta, else 1

    M is `token_weights.opsm` of the current policy, so that it counts both what the updates have moved since the row
    was drawn, and the sampler's numerics. The surrogate keeps its own old policy.
    Source: arXiv 2512.02556 (DeepSeek-V3.2), equation 9; slime's compute_opsm_mask; TRL's get_off_policy_mask.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data; of mu.
      delta: in nats per token; 1e-4 in slime, none in the paper and in TRL.
      surrogate: one of rl_jax.losses.policy that needs no further arrays: a name, {"fn": name, **keywords}, or a
        function.

    Returns:
      The inner Surrogate. Dropped tokens have a loss of 0 and count as clipped_low.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs, "advantages": advantages}
    dropped = mask & (rejection.opsm(mask, **arrays, delta=delta) == 0)
    # Without its advantage, the ratio of a dropped token may overflow: 0 * inf would be its gradient.
    out = bind(surrogate, policy)(log_probs, old_log_probs, zero_masked(advantages, ~dropped), mask)
    return out._replace(loss=jnp.where(dropped, 0.0, out.loss), clipped_low=out.clipped_low | dropped)
