"""Weights of 0 and 1 that drop tokens or completions too far from the sampler's policy."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_sum, row_means
from rl_jax.token_weights.behavior import behavior_gap, pool_log_weight
from rl_jax.token_weights.select import lowest, ordered_bits


def reject_ratio(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    level: str = "token",
    low: float = 0.5,
    high: float = 2.0,
    max_log: float = 20.0,
) -> chex.Array:
    """w = 1 if low <= exp(-u) <= high, else 0, with -u = behavior_log_probs - log_probs pooled at `level`.

    CAUTION: the bounds are on behavior / policy, the inverse of an importance weight (verl's token_k1, seq_sum_k1 and
    seq_mean_k1). If the bounds are not reciprocal, that is another band: low = .5, high = 5 keeps weights .2 to 2. The
    defaults are the band of verl's "sequence" preset; its "geometric" one is .999 to 1.001.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      level: "token" drops tokens; "sequence" (the sum) and "geometric" (the mean) drop rows.
      low: lower bound on behavior / policy.
      high: upper bound on behavior / policy.
      max_log: u of each token is clamped to +-max_log first.

    Returns:
      float [B, T].

    Raises:
      ValueError: if the level is unknown.
    """
    gap = jnp.clip(behavior_gap(mask, log_probs, behavior_log_probs), -max_log, max_log)
    inverse = -pool_log_weight(gap, mask, level)
    # Compared in logs: the sum over a row overflows exp.
    keep = (inverse >= jnp.log(low)) & (inverse <= jnp.log(high))
    return (mask & keep).astype(gap.dtype)


_ESTIMATORS = {"k2": lambda gap: 0.5 * jnp.square(gap), "k3": lambda gap: jnp.expm1(gap) - gap}


_POOLS = {
    "sum": lambda x, mask: masked_sum(x, mask, axis=1),
    "mean": row_means,
    "max": lambda x, mask: jnp.max(x, axis=1),  # a divergence is 0 outside the mask, and never negative
}


def reject_divergence(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    estimator: str = "k3",
    pool: str = "mean",
    high: float = 0.01,
    max_log: float = 20.0,
) -> chex.Array:
    """w = 1 if the pooled divergence of sampler and policy is <= high, else 0: a hard trust region.

        k2 = u^2 / 2, k3 = exp(u) - u - 1, u = log_probs - behavior_log_probs

    Both estimate KL(behavior || policy). The defaults are verl's k3 preset (seq_mean_k3).

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      estimator: "k2" or "k3".
      pool: "token" drops tokens; "sum", "mean" and "max" over the row's tokens drop rows.
      high: the largest divergence that is kept, in nats.
      max_log: u is clamped to +-max_log.

    Returns:
      float [B, T].

    Raises:
      ValueError: if the estimator or the pool is unknown.
    """
    if estimator not in _ESTIMATORS:
        raise ValueError(f"estimator={estimator!r} is none of {', '.join(_ESTIMATORS)}")
    if pool != "token" and pool not in _POOLS:
        raise ValueError(f"pool={pool!r} is none of token, {', '.join(_POOLS)}")
    gap = jnp.clip(behavior_gap(mask, log_probs, behavior_log_probs), -max_log, max_log)
    divergence = _ESTIMATORS[estimator](gap)
    if pool != "token":
        divergence = jnp.broadcast_to(_POOLS[pool](divergence, mask)[:, None], mask.shape)
    return (mask & (divergence <= high)).astype(gap.dtype)


def opsm(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    advantages: chex.Array,
    delta: float = 1e-4,
) -> chex.Array:
    """Off-policy sequence masking: w = 0 if A_t < 0 and mean_t(behavior_log_probs - log_probs) > delta, else 1.

    Only tokens with a negative advantage can be dropped. The mean is over the row's tokens and estimates KL(behavior ||
    policy). The paper, slime and TRL evaluate it again at each update, with the current log-probs, as
    `losses.policy.stale.opsm` does: as a weight it sees the policy before the updates only. Source: arXiv 2512.02556
    (DeepSeek-V3.2); TRL's get_off_policy_mask.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T].
      behavior_log_probs: float [B, T].
      advantages: float [B, T].
      delta: in nats per token; 1e-4 in slime, none in the paper and in TRL.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([mask, advantages])
    gap = behavior_gap(mask, log_probs, behavior_log_probs)
    far = jnp.broadcast_to((row_means(-gap, mask) > delta)[:, None], mask.shape)
    return (mask & ~(far & (advantages < 0))).astype(gap.dtype)


def _second_moment_bound(squares: chex.Array, threshold: chex.Array) -> chex.Array:
    """The largest bound such that the squares below it have a mean < threshold.

    The next larger square would raise the mean to the threshold or above. Every square below the threshold may stay;
    beyond it, each further one raises sum(square - threshold), which has to stay below 0. The search bisects an
    interval of integers: floats >= 0 are ordered like their bits.

    Args:
      squares: float [B, T], inf if not counted.
      threshold: float [].

    Returns:
      float [].
    """
    dtype = squares.dtype
    bits = jnp.dtype(f"uint{8 * dtype.itemsize}")
    threshold = jnp.maximum(jnp.asarray(threshold, dtype), 0.0)

    def as_float(x):
        return jax.lax.bitcast_convert_type(x, dtype)

    def excess(bound):
        kept = jnp.where(squares < bound, squares - threshold, 0.0)
        return jnp.sum(jnp.sum(kept, axis=1))  # by rows: faster on a CPU, and with less rounding

    def halve(state):
        low, high, at_low, at_high = state
        middle = low + (high - low) // 2
        at_middle = excess(as_float(middle))
        stays = at_middle < 0
        low, at_low = jnp.where(stays, middle, low), jnp.where(stays, at_middle, at_low)
        high, at_high = jnp.where(stays, high, middle), jnp.where(stays, at_high, at_middle)
        return low, high, at_low, at_high

    def going(state):  # until the one square that is too much is alone between the ends, if there is one
        low, high, at_low, at_high = state
        alone = at_high - at_low < 1.5 * (as_float(low) - threshold)
        return (at_high >= 0) & (high - low > 1) & ~alone

    everything = jnp.asarray(jnp.inf, dtype)
    low, high = (jax.lax.bitcast_convert_type(x, bits) for x in (threshold, everything))
    start = (low, high, jnp.asarray(-jnp.inf, dtype), excess(everything))
    low, high, _, at_high = jax.lax.while_loop(going, halve, start)
    return as_float(jnp.where(at_high < 0, high, low))


def smallest_squares(mask: chex.Array, squares: chex.Array, threshold: float) -> chex.Array:
    """True on the tokens with the smallest squares, as many as there can be with a mean < threshold.

    Equal squares stay or go together. None stays if none is below the threshold.

    Args:
      mask: bool [B, T].
      squares: float [B, T], >= 0.
      threshold: of their mean.

    Returns:
      bool [B, T].
    """
    hidden = jnp.where(mask, squares, jnp.inf)
    return hidden < _second_moment_bound(hidden, threshold)


def m2po(
    mask: chex.Array, *, log_probs: chex.Array, behavior_log_probs: chex.Array, threshold: float = 0.04
) -> chex.Array:
    """w = 0 on the tokens with the largest u^2, as many as needed for the mean of the others to be < threshold.

    AReaL's mask. It is not the paper's, which takes the current policy, and only tokens that are pushed further away:
    `losses.policy.stale.m2po`. u = log_probs - behavior_log_probs; the mean is over the tokens of the batch (AReaL: of
    the micro-batch). Tokens with equal u^2 stay or go together; AReaL may split them. If no token is below the
    threshold, the first one with the smallest u^2 stays, as in AReaL. Source: AReaL's _get_m2po_loss_mask, after arXiv
    2510.01161.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T].
      behavior_log_probs: float [B, T].
      threshold: of the second moment, in nats^2; .04 in AReaL's recipe.

    Returns:
      float [B, T].
    """
    gap = behavior_gap(mask, log_probs, behavior_log_probs)
    squares = jnp.square(gap)
    keep = smallest_squares(mask, squares, threshold)
    return jax.lax.cond(jnp.any(keep), lambda: keep, lambda: lowest(ordered_bits(squares), mask, 1)).astype(gap.dtype)
