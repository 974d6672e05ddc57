"""What every surrogate is made of: its result, the log ratio, and the ratios of whole completions."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import row_means, zero_masked


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


def assert_tokens(mask: chex.Array, *arrays: chex.Array) -> None:
    """Refuses anything but a bool mask [B, T] and float arrays of its shape."""
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, *arrays])
    chex.assert_type(list(arrays), float)


def log_ratio(log_probs: chex.Array, old_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """log pi - log pi_old on the mask, 0 behind it, so that exp never sees what stands in the padding.

    log_probs, old_log_probs: float [B, T]; gradients flow into log_probs only. mask: bool [B, T].
    """
    assert_tokens(mask, log_probs, old_log_probs)
    return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(old_log_probs, mask))


def row_mean(per_token: chex.Array, mask: chex.Array) -> chex.Array:
    """Each row's mean over its tokens, on every column: (1 / n_i) sum_t x. float [B, T], bool [B, T] -> float [B, T].

    The mean log ratio of a completion is the log of the geometric mean of its ratios.
    """
    assert_tokens(mask, per_token)
    return jnp.broadcast_to(row_means(per_token, mask)[:, None], mask.shape)
