"""Shared parts of all surrogates: the result type, the log ratio, and the ratios of whole completions."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import row_means, zero_masked


class Surrogate(NamedTuple):
    """A per-token loss and the tokens whose clip is active.

    Attributes:
      loss: float [B, T], to minimise; 0 outside the mask.
      ratio: float [B, T], pi / pi_old without gradient; 1 outside the mask.
      clipped_low: bool [B, T]. Tokens whose gradient the lower bound (A < 0) removed.
      clipped_high: bool [B, T]. Tokens whose gradient the upper bound (A > 0) removed.
    """

    loss: chex.Array
    ratio: chex.Array
    clipped_low: chex.Array
    clipped_high: chex.Array


def assert_tokens(mask: chex.Array, *arrays: chex.Array) -> None:
    """Asserts a bool mask [B, T] and float arrays of the same shape."""
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([mask, *arrays])
    chex.assert_type(list(arrays), float)


def log_ratio(log_probs: chex.Array, old_log_probs: chex.Array, mask: chex.Array) -> chex.Array:
    """log pi - log pi_old on the mask and 0 outside, so that exp never sees the contents of the padding.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      mask: bool [B, T].
    """
    assert_tokens(mask, log_probs, old_log_probs)
    return zero_masked(log_probs, mask) - jax.lax.stop_gradient(zero_masked(old_log_probs, mask))


def row_mean(per_token: chex.Array, mask: chex.Array) -> chex.Array:
    """Each row's mean over its tokens, on every column: (1 / n_i) sum_t x. float [B, T], bool [B, T] -> float [B, T].

    The mean log ratio of a completion is the log of the geometric mean of its ratios.
    """
    assert_tokens(mask, per_token)
    return jnp.broadcast_to(row_means(per_token, mask)[:, None], mask.shape)
