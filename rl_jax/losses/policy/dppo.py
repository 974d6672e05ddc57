"""DPPO: a trust region on how far a token's probability has moved, in place of a bound on its ratio.

A ratio says little: a token of probability 1e-4 may double for free, and one of 0.9 may not lose a fifth of it cheaply.
Both functions drop a token's gradient where the divergence of the two-outcome distributions (p, 1 - p) is above its
bound AND the update would push it further out. Against the sampler instead of the proximal policy (prime-rl, SkyRL):
give them the sampler's log-probs as the old ones.
"""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, log_ratio
from rl_jax.losses.policy.weighted import detached, weighted_surrogate

_PROBABILITY_EPS = 1e-8  # verl's: the KL stays finite where a probability has been rounded to 1


def _trust_region(log_probs, ratio, advantages, mask, *, low, high, ratio_max) -> Surrogate:
    """min(r, ratio_max) as the weight, 0 where `low` and A < 0, or `high` and A > 0."""
    low, high = low & (advantages < 0), high & (advantages > 0)
    weight = jnp.where(low | high, 0.0, jnp.minimum(ratio, ratio_max))
    return weighted_surrogate(log_probs, weight, ratio, advantages, mask, low=low, high=high)


def dppo_tv(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    divergence_low: float = 0.15,
    divergence_high: float = 0.15,
    ratio_max: float = 20.0,
) -> Surrogate:
    """l = -sg(min(r, ratio_max) M) A logp, M = 1[A > 0: p - p_old <= divergence_high; A < 0: >= -divergence_low].

    log_probs: float [B, T], differentiated; p = exp(logp). old_log_probs, advantages: float [B, T], data.
    mask: bool [B, T]. divergence_low, divergence_high: in probability, 0 to 1 (total variation). .15 is the authors'
        run script in verl; verl's own config is 0.2. ratio_max: 20 in verl's function, 3 in its yaml, none in prime-rl.
    Returns a Surrogate. Source: arXiv 2602.04879 (DPPO-Binary-TV).
    """
    ratio, advantages = detached(log_ratio(log_probs, old_log_probs, mask), advantages, mask)
    change = jnp.exp(zero_masked(old_log_probs, mask)) * (ratio - 1.0)  # p - p_old, one exp less
    low, high = change < -divergence_low, change > divergence_high
    return _trust_region(log_probs, ratio, advantages, mask, low=low, high=high, ratio_max=ratio_max)


def dppo_kl(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    divergence_low: float = 0.05,
    divergence_high: float = 0.05,
    ratio_max: float = 20.0,
) -> Surrogate:
    """l = -sg(min(r, ratio_max) M) A logp, M = 0 where KL is above its bound and p has moved the way A pushes it.

    KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p)). The bound is divergence_high where A > 0 and
    p > p_old, and divergence_low where A < 0 and p < p_old.
    log_probs: float [B, T], differentiated; p = exp(logp). old_log_probs, advantages: float [B, T], data.
    mask: bool [B, T]. divergence_low, divergence_high: in nats. .05 is the authors' run script in verl; verl's own
        config is 0.2. ratio_max: 20 in verl's function, 3 in its yaml.
    Returns a Surrogate. Source: arXiv 2602.04879 (DPPO-Binary-KL).
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    old = jnp.exp(zero_masked(old_log_probs, mask))
    new = old + old * (ratio - 1.0)  # as old * ratio, XLA would take another exp for it
    # Rounding can put a probability a little above 1.
    rest, old_rest = (jnp.maximum(1.0 - p, 0.0) + _PROBABILITY_EPS for p in (new, old))
    bound = jnp.where(ratio > 1, divergence_high, divergence_low)
    # KL > bound, solved for 1 - p: an exp is cheaper than a log.
    far = rest < old_rest * jnp.exp(-(bound + old * log_ratios) / old_rest)
    low, high = far & (ratio < 1), far & (ratio > 1)
    return _trust_region(log_probs, ratio, advantages, mask, low=low, high=high, ratio_max=ratio_max)
