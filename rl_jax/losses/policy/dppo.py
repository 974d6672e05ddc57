"""DPPO: a trust region on the change of a token's probability instead of a bound on its ratio.

The ratio is a poor measure of change: doubling a token of probability 1e-4 changes the policy little, while a token of
probability 0.9 that loses a fifth of it changes it a lot. Both functions drop a token's gradient if the divergence of
the two-outcome distributions (p, 1 - p) is above its bound AND the update would increase it. To constrain against the
sampler instead of the proximal policy (prime-rl, SkyRL), pass the sampler's log-probs as the old ones.
"""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.policy.base import Surrogate, log_ratio
from rl_jax.losses.policy.weighted import detached, weighted_surrogate

_PROBABILITY_EPS = 1e-8  # verl's: keeps the KL finite if a probability was rounded to 1


def _trust_region(log_probs, ratio, advantages, mask, *, low, high, ratio_max) -> Surrogate:
    """Surrogate with weight min(r, ratio_max), and 0 if `low` and A < 0, or `high` and A > 0."""
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
    """DPPO with total variation: truncated importance weights, masked by the change of probability.

        l = -sg(min(r, ratio_max) M) A logp
        M = 1[A > 0: p - p_old <= divergence_high; A < 0: p - p_old >= -divergence_low], p = exp(logp)

    Source: arXiv 2602.04879 (DPPO-Binary-TV).

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      divergence_low: in probability, 0 to 1 (total variation). .15 is the authors' run script in verl; verl's own
        config has 0.2.
      divergence_high: as divergence_low.
      ratio_max: 20 in verl's function, 3 in its yaml, none in prime-rl.
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
    """DPPO with the binary KL: truncated importance weights, masked if the KL is too large.

        l = -sg(min(r, ratio_max) M) A logp, p = exp(logp)
        M = 0 if KL is above its bound and p has moved in the direction of A, 1 otherwise
        KL = p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))

    The bound is divergence_high if A > 0 and p > p_old, and divergence_low if A < 0 and p < p_old.
    Source: arXiv 2602.04879 (DPPO-Binary-KL).

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      divergence_low: in nats. .05 is the authors' run script in verl; verl's own config has 0.2.
      divergence_high: as divergence_low.
      ratio_max: 20 in verl's function, 3 in its yaml.
    """
    log_ratios = log_ratio(log_probs, old_log_probs, mask)
    ratio, advantages = detached(log_ratios, advantages, mask)
    old = jnp.exp(zero_masked(old_log_probs, mask))
    new = old + old * (ratio - 1.0)  # written as old * ratio, XLA would compute another exp
    # Rounding can make a probability slightly larger than 1.
    rest, old_rest = (jnp.maximum(1.0 - p, 0.0) + _PROBABILITY_EPS for p in (new, old))
    bound = jnp.where(ratio > 1, divergence_high, divergence_low)
    # KL > bound, solved for 1 - p: an exp is cheaper than a log.
    far = rest < old_rest * jnp.exp(-(bound + old * log_ratios) / old_rest)
    low, high = far & (ratio < 1), far & (ratio > 1)
    return _trust_region(log_probs, ratio, advantages, mask, low=low, high=high, ratio_max=ratio_max)
