"""Policy surrogates: per-token losses [B, T] from log-probs, advantages and a mask.

The order of arguments is the same everywhere: (log_probs, old_log_probs, advantages, mask, *, ...).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.masked import zero_masked


class Surrogate(NamedTuple):
    """A per-token loss and where its clip is active.

    loss: float [B, T], to minimise; 0 behind the mask.
    ratio: float [B, T], pi / pi_old without gradient; 1 behind the mask.
    clipped_low, clipped_high: bool [B, T]. Tokens whose gradient the lower (A < 0) or upper (A > 0) bound removed.
    """

    loss: chex.Array
    ratio: chex.Array
    clipped_low: chex.Array
    clipped_high: chex.Array


def _assert_tokens(mask: chex.Array, *arrays: chex.Array) -> None:
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, *arrays])
    chex.assert_type(list(arrays), float)


def log_ratio(log_probs: chex.Array, old_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """log pi - log pi_old on the mask, 0 behind it, so that exp never sees what stands in the padding.

    log_probs, old_log_probs: float [B, T]; gradients flow into log_probs only. mask: bool [B, T].
    """
    _assert_tokens(mask, log_probs, old_log_probs)
    return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(old_log_probs, mask))


def clipped_surrogate(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Surrogate:
    """PPO's clipped objective: l = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = exp(logp - old_logp).

    log_probs: float [B, T], differentiated. old_log_probs, advantages: float [B, T], stopped here: they are data.
    mask: bool [B, T]. clip_low, clip_high: distances from 1, not bounds; asymmetric is DAPO's clip-higher (.2, .28).
    Returns a Surrogate. dl/dlogp = -A r unless (A > 0 and r > 1 + clip_high) or (A < 0 and r < 1 - clip_low).
    Source: arXiv 1707.06347 eq. 7; clip-higher arXiv 2503.14476.
    """
    _assert_tokens(mask, log_probs, old_log_probs, advantages)
    advantages = jax.lax.stop_gradient(zero_masked(advantages, mask))
    ratio = jnp.exp(log_ratio(log_probs, old_log_probs, mask))
    clipped = jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high)
    loss = jnp.maximum(-advantages * ratio, -advantages * clipped)
    return Surrogate(
        loss=zero_masked(loss, mask),
        ratio=jax.lax.stop_gradient(ratio),
        clipped_low=mask & (advantages < 0) & (ratio < 1.0 - clip_low),
        clipped_high=mask & (advantages > 0) & (ratio > 1.0 + clip_high),
    )
