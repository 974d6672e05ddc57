"""Importance weights against the sampler: w = pi_old / pi_behavior, at the level of tokens or of completions.

They correct for samples from another policy: an older one, or the same one in another program. With u = log_probs -
behavior_log_probs and n_i the tokens of row i, the log weight of a token is, by `level`,

    "token"      u_t                       low variance; right for the token given its prefix
    "sequence"   sum_t u_t                 unbiased; its variance grows with the length
    "geometric"  (1 / n_i) sum_t u_t       the mean over the row, which does not depend on the length

and the last two are the same on every token of the row. The log weight is clamped to +-max_log before exp, as in verl.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import masked_mean, masked_sum, row_means, zero_masked


def behavior_gap(mask: chex.Array, log_probs: chex.Array, behavior_log_probs: chex.Array) -> chex.Array:
    """u = log_probs - behavior_log_probs without gradient, 0 outside the mask. bool [B, T], float [B, T] x2."""
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, log_probs, behavior_log_probs])
    chex.assert_type([log_probs, behavior_log_probs], float)
    # Weights are data: gradients are stopped here, and arrays masked before any exp.
    return zero_masked(jax.lax.stop_gradient(log_probs - behavior_log_probs), mask)


def _on_every_token(rows: chex.Array, mask: chex.Array) -> chex.Array:
    return jnp.broadcast_to(rows[:, None], mask.shape)


_LEVELS: dict[str, Callable] = {
    "token": lambda gap, mask: gap,
    "sequence": lambda gap, mask: _on_every_token(masked_sum(gap, mask, axis=1), mask),
    "geometric": lambda gap, mask: _on_every_token(row_means(gap, mask), mask),
}


def pool_log_weight(gap: chex.Array, mask: chex.Array, level: str) -> chex.Array:
    """The log weight of each token at `level`. float [B, T], bool [B, T] -> float [B, T].

    Raises:
      ValueError: if the level is unknown.
    """
    if level not in _LEVELS:
        raise ValueError(f"level={level!r} is none of {', '.join(_LEVELS)}")
    return _LEVELS[level](gap, mask)


def _divide_by_mean(weight: chex.Array, mask: chex.Array, level: str) -> chex.Array:
    """The weights over their mean: over tokens, or over rows if a row has one weight; 0 stays 0."""
    if level == "token":
        mean = masked_mean(weight, mask)
    else:
        mean = masked_mean(row_means(weight, mask), jnp.any(mask, axis=1))
    mean = mean.value().astype(weight.dtype)
    return weight / jnp.where(mean > 0, mean, 1.0)


def none(mask: chex.Array) -> chex.Array:
    """w = 1 on the mask: the batch is treated as on-policy. bool [B, T] -> float32 [B, T]."""
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    return mask.astype(jnp.float32)


def exact(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    level: str = "token",
    normalize: bool = False,
    max_log: float = 20.0,
) -> chex.Array:
    """w = exp(u): the weight of decoupled PPO, l = w * PPO(logp, old_logp, A), without truncation.

    Source: arXiv 2110.00641; arXiv 2505.24298 (AReaL, which may cap it: `truncated` or `masked` with cap 5).

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates (the proximal one).
      behavior_log_probs: float [B, T], the sampler's.
      level: "token", "sequence" or "geometric", see the module.
      normalize: divide by the mean weight of the batch (of its tokens, or of its rows at the other two levels).
      max_log: the log weight is clamped to +-max_log.

    Returns:
      float [B, T].

    Raises:
      ValueError: if the level is unknown.
    """
    gap = behavior_gap(mask, log_probs, behavior_log_probs)
    weight = jnp.exp(jnp.clip(pool_log_weight(gap, mask, level), -max_log, max_log))
    weight = zero_masked(weight, mask)
    return _divide_by_mean(weight, mask, level) if normalize else weight


def truncated(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    level: str = "token",
    cap: float = 2.0,
    normalize: bool = False,
    max_log: float = 20.0,
) -> chex.Array:
    """w = min(exp(u), cap): truncated importance sampling (TIS). A cap below the largest weight biases the estimate.

    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      level: as in `exact`.
      cap: the largest weight; 2 in verl and the source.
      normalize: as in `exact`.
      max_log: as in `exact`.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs}
    weight = jnp.minimum(exact(mask, **arrays, level=level, max_log=max_log), cap)
    return _divide_by_mean(weight, mask, level) if normalize else weight


def icepop(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    level: str = "token",
    low: float = 0.5,
    high: float = 5.0,
    normalize: bool = False,
    max_log: float = 20.0,
) -> chex.Array:
    """w = exp(u) if low <= exp(u) <= high, else 0 (IcePop). Both bounds are inclusive.

    Source: Zhao et al. 2025, "Small Leak Can Sink a Great Ship" (IcePop); arXiv 2510.18855 (Ring-1T).

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      level: as in `exact`.
      low: bound on the weight itself.
      high: bound on the weight itself.
      normalize: as in `exact`.
      max_log: as in `exact`.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs}
    weight = exact(mask, **arrays, level=level, max_log=max_log)
    weight = jnp.where((weight >= low) & (weight <= high), weight, 0.0)
    return _divide_by_mean(weight, mask, level) if normalize else weight


def masked(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    level: str = "token",
    cap: float = 2.0,
    normalize: bool = False,
    max_log: float = 20.0,
) -> chex.Array:
    """w = exp(u) if exp(u) <= cap, else 0: masked importance sampling (MIS). Unlike IcePop, it has no lower bound.

    Source: Liu et al. 2025, "When Speed Kills Stability"; TRL's token_mask (with cap 3).

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      level: as in `exact`.
      cap: the largest weight that is kept.
      normalize: as in `exact`.
      max_log: as in `exact`.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs}
    return icepop(mask, **arrays, level=level, low=0.0, high=cap, normalize=normalize, max_log=max_log)


def sequence_mask(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    cap: float = 3.0,
    max_log: float = 20.0,
) -> chex.Array:
    """w = p_i = exp(sum_t u_t) on every token of row i, 0 on the row if p_i > cap: what TRL 1.16 does with vLLM.

    Source: TRL vllm_importance_sampling_mode.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      cap: the largest product that is kept.
      max_log: as in `exact`.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs}
    return masked(mask, **arrays, level="sequence", cap=cap, max_log=max_log)


def geometric_mask(
    mask: chex.Array,
    *,
    log_probs: chex.Array,
    behavior_log_probs: chex.Array,
    low: float = 0.5,
    high: float = 5.0,
    max_log: float = 20.0,
) -> chex.Array:
    """w_t = exp(u_t) on rows with low <= exp(mean_t u) <= high, 0 on the others (OpenRLHF's level "seq").

    The geometric mean decides for the whole row; the remaining tokens keep their own weights.

    Args:
      mask: bool [B, T].
      log_probs: float [B, T], the policy at the start of this batch's updates.
      behavior_log_probs: float [B, T], the sampler's.
      low: bound on the geometric mean; .999 in NeMo-RL.
      high: bound on the geometric mean; 1.002 in NeMo-RL.
      max_log: as in `exact`.
    """
    arrays = {"log_probs": log_probs, "behavior_log_probs": behavior_log_probs}
    row = exact(mask, **arrays, level="geometric", max_log=max_log)
    return jnp.where((row >= low) & (row <= high), exact(mask, **arrays, max_log=max_log), 0.0)
