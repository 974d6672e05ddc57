"""Attention whose scores have keys first, with its backward pass by hand: what a CPU runs in place of jax.nn's.

XLA's CPU backend multiplies matrices as they lie in memory, and copies one that it must read the other way round. With
scores [S, T] only matrices as narrow as a head are ever turned: the products of both passes read the large ones as they
are. jax's own gradient turns the scores several times; with a row of 1024 tokens a GRPO update then takes a seventh
longer. The softmax is divided out of the narrow matrices, too.
"""

import functools

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.transformer.config import NEGATIVE


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend_keys_first(q: chex.Array, k: chex.Array, v: chex.Array, mask: chex.Array, scale: float) -> chex.Array:
    """softmax(scale q k^T) v over the keys that the mask shows; it has no forward-mode derivative.

    With p = e / z, e = exp(s - max s), and for a gradient g of the result: dv = e^T (g / z),
    ds = e ((g / z) v^T - rowsum((g / z) o)), dq = scale ds k, dk = scale ds^T q.

    Args:
      q: float32 [B, T, H, h].
      k: float32 [B, S, K, h], K divides H.
      v: float32 [B, S, K, h].
      mask: bool [B, 1, T, S].
      scale: of the scores.

    Returns:
      float32 [B, T, H, h].
    """
    return _forward(q, k, v, mask, scale)[0]


def _forward(q, k, v, mask, scale):
    chex.assert_rank([q, k, v, mask], 4)
    groups = q.shape[2] // k.shape[2]
    queries = _of_keys(q * scale, k.shape[2])
    keys, values = (jnp.swapaxes(x, 1, 2) for x in (k, v))
    scores = jnp.matmul(keys, _turned(queries))
    hidden = jnp.where(_turned(mask), 0.0, NEGATIVE)[:, :, :, None]  # [B, 1, S, 1, T]
    scores = (scores.reshape(*scores.shape[:3], groups, -1) + hidden).reshape(scores.shape)
    weights = jnp.exp(scores - jnp.max(scores, axis=2, keepdims=True))
    total = jnp.sum(weights, axis=2, keepdims=True)
    attended = jnp.matmul(_turned(values), weights) / total
    return _of_queries(_turned(attended), q.shape[2]), (queries, keys, values, weights, total, attended)


def _backward(scale, residuals, gradient):
    queries, keys, values, weights, total, attended = residuals
    heads = gradient.shape[2]
    gradient = _of_keys(gradient, keys.shape[1]) / _turned(total)
    by_values = jnp.matmul(weights, gradient)
    gradient = _turned(gradient)
    shared = jnp.sum(gradient * attended, axis=2, keepdims=True)
    by_scores = weights * (jnp.matmul(values, gradient) - shared)
    by_keys = jnp.matmul(by_scores, queries)
    by_queries = _of_queries(_turned(jnp.matmul(_turned(keys), by_scores)), heads) * scale
    return by_queries, jnp.swapaxes(by_keys, 1, 2), jnp.swapaxes(by_values, 1, 2), None


attend_keys_first.defvjp(_forward, _backward)


def _turned(x: chex.Array) -> chex.Array:
    return jnp.swapaxes(x, 2, 3)


def _of_keys(x: chex.Array, num_kv_heads: int) -> chex.Array:
    """[B, T, H, h] -> [B, K, G T, h]: the queries of each key head."""
    batch, length, _, width = x.shape
    grouped = x.reshape(batch, length, num_kv_heads, -1, width)
    return jnp.transpose(grouped, (0, 2, 3, 1, 4)).reshape(batch, num_kv_heads, -1, width)


def _of_queries(x: chex.Array, heads: int) -> chex.Array:
    """The inverse of _of_keys."""
    batch, num_kv_heads, _, width = x.shape
    grouped = x.reshape(batch, num_kv_heads, heads // num_kv_heads, -1, width)
    return jnp.transpose(grouped, (0, 3, 1, 2, 4)).reshape(batch, -1, heads, width)
