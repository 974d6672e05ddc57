"""Degrees of degradation (SPO, arXiv 2409.17791) that a head of its own tells from a response: loss and accuracy."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import Mean, masked_mean


def degree_log_probs(degree_logits: chex.Array, degrees: chex.Array) -> chex.Array:
    """log p(d_k | x, y_k) of each response's own degree.

    Args:
      degree_logits: float [N, K, D], of the head.
      degrees: float or int [N, K], whole numbers 0 .. D - 1.

    Returns:
      float [N, K].
    """
    chex.assert_rank([degree_logits, degrees], [3, 2])
    chex.assert_equal_shape_prefix([degree_logits, degrees], 2)
    own = jax.nn.one_hot(degrees.astype(jnp.int32), degree_logits.shape[2], dtype=degree_logits.dtype)
    return jnp.sum(jax.nn.log_softmax(degree_logits) * own, axis=2)


def degree_accuracy(degree_logits: chex.Array, degrees: chex.Array, present: chex.Array) -> Mean:
    """The share of the responses whose likeliest degree is their own, undivided, without gradient.

    Args:
      degree_logits: float [N, K, D].
      degrees: float or int [N, K].
      present: bool [N, K].
    """
    chex.assert_rank([degree_logits, degrees, present], [3, 2, 2])
    chex.assert_equal_shape([degrees, present])
    right = jnp.argmax(jax.lax.stop_gradient(degree_logits), axis=2) == degrees.astype(jnp.int32)
    return masked_mean(right.astype(jnp.float32), present)
