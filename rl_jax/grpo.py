"""GRPO (arXiv 2402.03300), top to bottom: advantages -> per-token terms -> their sum -> one aggregate.

    A_i   = (R_i - mean_g) / (std_g + eps)                                  advantages.group_relative (credit.assign)
    l_it  = w_it max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))         losses.policy.clipped_surrogate
          + kl_coef * k3(logp, ref_logp) - entropy_coef * H                 losses.kl.k3
    loss  = 1/B sum_i 1/n_i sum_t l_it                                      losses.aggregate.seq_mean_token_mean

Each right-hand side is an argument: another method is another choice, from a config or from a notebook. A choice may
ask for more arrays by name, as required keywords (rl_jax.core.names lists them). w is 1 in GRPO itself.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import supply
from rl_jax.core.masked import Mean, finite_gradient, masked_max, masked_mean, zero_masked
from rl_jax.core.types import Metrics, PolicyBatch, TokenScores
from rl_jax.losses import aggregate as aggregation
from rl_jax.losses import kl as kl_estimators
from rl_jax.losses import policy
from rl_jax.losses.policy.base import Surrogate, log_ratio


class Objective(NamedTuple):
    """The choices that make the loss. Bind keywords with functools.partial, or with rl_jax.core.binding.bind."""

    surrogate: Callable = policy.clipped_surrogate
    """(log_probs, old_log_probs, advantages, mask) -> Surrogate."""
    kl: Callable = kl_estimators.k3
    """(log_probs, ref_log_probs, mask) -> float [B, C]."""
    kl_coef: float | chex.Array = 0.04
    """Weight of the KL; 0 removes the term. The batch's `kl_coefs` override it."""
    entropy_coef: float | chex.Array = 0.0
    """Weight of the entropy bonus; 0 removes the term. The batch's `entropy_coefs` override it."""
    aggregate: Callable = aggregation.seq_mean_token_mean
    """(per_token, mask) -> Mean."""
    entropy_aggregate: Callable | None = None
    """The same for the entropy bonus, as TRL's mean over tokens; None: `aggregate`. See `with_entropy_scale`."""


def loss(scores: TokenScores, batch: PolicyBatch, objective: Objective) -> tuple[Mean, Metrics]:
    """The GRPO loss and its metrics, all undivided.

    Args:
      scores: the policy's log_probs and entropy, float [B, C], differentiated.
      batch: the same rows; data, without gradient. Without ref_log_probs there are no kl/ metrics.
      objective: the choices above. Each may ask for arrays by name: those below and the batch's extras.

    Returns:
      The loss as a Mean, and name -> Mean or Max.

    Raises:
      ValueError: if a term needs an array that the batch does not provide.
    """
    mask, extras = batch.completion_mask, jax.lax.stop_gradient(batch.extras)
    chex.assert_equal_shape([scores.log_probs, scores.entropy, mask, batch.advantages])
    current = jax.lax.stop_gradient(scores.log_probs)
    old_log_probs = current if batch.old_log_probs is None else batch.old_log_probs
    available = {
        **extras,
        "advantages": batch.advantages,
        "behavior_log_probs": batch.behavior_log_probs,
        "ref_log_probs": batch.ref_log_probs,
        "old_log_probs": old_log_probs,
        "entropy": jax.lax.stop_gradient(scores.entropy),
    }
    log_probs, weights = scores.log_probs, batch.token_weights
    if weights is not None:
        weights = jax.lax.stop_gradient(zero_masked(weights, mask))
        log_probs = finite_gradient(log_probs, weights == 0)
    surrogate = supply(objective.surrogate, available)(log_probs, old_log_probs, batch.advantages, mask)
    per_token = surrogate.loss
    if weights is not None:  # a weight of 0 drops a token, though its loss be infinite
        per_token = jnp.where(weights == 0, 0.0, weights * per_token)
    if _is_on(objective.kl_coef) or "kl_coefs" in extras:
        if batch.ref_log_probs is None:
            raise ValueError("a KL term (kl_coef, kl_coefs) needs batch.ref_log_probs")
        divergence = supply(objective.kl, available)(scores.log_probs, batch.ref_log_probs, mask)
        per_token += _per_row(extras.get("kl_coefs"), objective.kl_coef) * divergence
    bonus = None
    if _is_on(objective.entropy_coef) or "entropy_coefs" in extras:
        bonus = zero_masked(scores.entropy, mask)
        bonus = _per_row(extras.get("entropy_coefs"), objective.entropy_coef) * bonus
    if bonus is not None and objective.entropy_aggregate is None:
        per_token -= bonus
    result = supply(objective.aggregate, available)(per_token, mask)
    if bonus is not None and objective.entropy_aggregate is not None:
        result = _less(result, supply(objective.entropy_aggregate, available)(bonus, mask), extras)
    return result, _metrics(surrogate, scores, batch)


def with_entropy_scale(batch: PolicyBatch, objective: Objective) -> PolicyBatch:
    """The batch of one update with what an entropy bonus of its own aggregate needs; unchanged without one.

    The loss is divided once, by its own count N over all micro-batches. The bonus is to be divided by M, the count of
    entropy_aggregate, so its totals are multiplied by N / M, which no micro-batch can know.

    Args:
      batch: all rows of the update, with the extras that the two aggregates ask for.
      objective: the choices.

    Returns:
      The batch with extras["entropy_scale"], float [B]: N / M on each row.
    """
    if objective.entropy_aggregate is None:
        return batch
    mask = jnp.asarray(batch.completion_mask)
    zeros = jnp.zeros(mask.shape, jnp.float32)
    n, m = (supply(fn, batch.extras)(zeros, mask).count for fn in (objective.aggregate, objective.entropy_aggregate))
    scale = jnp.full(mask.shape[:1], n / jnp.where(m == 0, 1.0, m), jnp.float32)
    return batch._replace(extras={**batch.extras, "entropy_scale": scale})


def _less(result: Mean, bonus: Mean, extras: Mapping[str, chex.Array]) -> Mean:
    """The loss minus a bonus that has another count."""
    if "entropy_scale" not in extras:
        raise ValueError(
            "an entropy bonus with an aggregate of its own (entropy_aggregate) needs extras['entropy_scale']: make the "
            "batch of each update with grpo.with_entropy_scale(batch, objective)"
        )
    return Mean(result.total - extras["entropy_scale"][0] * bonus.total, result.count)


def _is_on(coef: float | chex.Array) -> bool:
    """Whether a term is computed: always if its weight is an array, whose value is not known when compiling."""
    return not isinstance(coef, int | float) or coef != 0


def _per_row(coefs: chex.Array | None, constant: float) -> float | chex.Array:
    """A regularizer's weight: that of the batch's rows, float [B], or of its tokens, [B, C]; else the constant."""
    return constant if coefs is None else coefs[:, None] if coefs.ndim == 1 else coefs


def _metrics(surrogate: Surrogate, scores: TokenScores, batch: PolicyBatch) -> Metrics:
    mask = batch.completion_mask
    log_probs, entropy = jax.lax.stop_gradient((scores.log_probs, scores.entropy))
    gap = log_ratio(log_probs, batch.behavior_log_probs, mask)
    weight = jnp.exp(gap)
    means = {
        "entropy": entropy,
        "ratio/mean": surrogate.ratio,
        "clip/low": surrogate.clipped_low.astype(jnp.float32),
        "clip/high": surrogate.clipped_high.astype(jnp.float32),
        "sampler/weight": weight,  # pi / sampler; with its square it gives the effective sample size
        "sampler/weight_squared": jnp.square(weight),
    }
    if batch.ref_log_probs is not None:
        means["kl/k1"] = kl_estimators.k1(log_probs, batch.ref_log_probs, mask)
        means["kl/k3"] = kl_estimators.k3(log_probs, batch.ref_log_probs, mask)
    metrics = {name: masked_mean(values, mask) for name, values in means.items()}
    return metrics | {
        "ratio/max_dev": masked_max(jnp.abs(surrogate.ratio - 1.0), mask),
        "sampler/gap_max": masked_max(jnp.abs(gap), mask),
    }
