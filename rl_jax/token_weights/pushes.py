"""Weights of tokens by how far their advantage pushes them.

Named in a config by their import path, "rl_jax.token_weights.pushes:exponential".
"""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import row_means, zero_masked
from rl_jax.token_weights.select import lowest, ordered_bits


def exponential(mask: chex.Array, *, advantages: chex.Array, temperature: float = 1.0) -> chex.Array:
    """RED-Weight: w = exp(A / temperature); good answers weigh more than bad ones. float [B, T].

    Source: arXiv 2509.24203; weight "advantage" of Trinity-RFT, which does not normalise it.

    Args:
      mask: bool [B, T].
      advantages: float [B, T].
      temperature: above 0, in the units of A.

    Raises:
      ValueError: if the temperature is not above 0.
    """
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be above 0")
    return zero_masked(jnp.exp(zero_masked(advantages, mask) / temperature), mask)


def widest_rows(values: chex.Array, live: chex.Array, count: chex.Array) -> chex.Array:
    """True on `count` of the live values, those whose variance is the largest: the lowest and the highest ones.

    Of all ways to take i from the bottom and the rest from the top the best is taken; the highest is always among them.

    Args:
      values: float [B].
      live: bool [B].
      count: int [], at most the number of live values.

    Returns:
      bool [B].
    """
    chex.assert_rank([values, live], 1)
    size = jnp.sum(live)
    order = jnp.argsort(jnp.where(live, values, jnp.inf))  # those that are not live come last
    centred = values - jnp.sum(jnp.where(live, values, 0.0)) / jnp.maximum(size, 1)  # squares cancel far from 0
    ordered = jnp.where(live, centred, 0.0)[order]
    first, second = (jnp.concatenate([jnp.zeros(1), jnp.cumsum(x)]) for x in (ordered, jnp.square(ordered)))
    bottom = jnp.arange(len(values))
    top = size - count + bottom
    total = first[bottom] + first[-1] - first[top]
    squares = second[bottom] - second[top]  # and the same for all i
    variance = jnp.where(bottom < count, squares / count - jnp.square(total / count), -jnp.inf)
    best = jnp.argmax(variance)
    rank = jnp.argsort(order)
    return live & ((rank < best) | (rank >= size - count + best))


def down_sampled(
    mask: chex.Array,
    *,
    advantages: chex.Array,
    entropy: chex.Array,
    row_share: float | chex.Array = 0.5,
    token_share: float | chex.Array = 0.5,
) -> chex.Array:
    """D3S: the rows of the batch whose advantages vary most, and of these the tokens with the largest |A| H.

        w = c on max(1, token_share N) tokens of max(2, row_share B) rows, 0 elsewhere; c = all tokens / tokens kept

    With c an aggregate that is a mean over tokens is the mean over those kept. Batch-coupled.
    Source: arXiv 2509.22115; its shares and their schedule are not published in what could be read.

    Args:
      mask: bool [B, T].
      advantages: float [B, T], the same on all tokens of a row.
      entropy: float [B, T], in nats, before the updates.
      row_share: of the rows with tokens, rounded to a number of rows; a number, or an array if it is scheduled.
      token_share: of the tokens of these rows.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([mask, advantages, entropy])
    live = jnp.any(mask, axis=1)
    count = jnp.clip(jnp.round(row_share * jnp.sum(live)), jnp.minimum(2, jnp.sum(live)), jnp.sum(live)).astype(
        jnp.int32
    )
    kept_rows = widest_rows(row_means(advantages, mask), live, count)
    among = mask & kept_rows[:, None]
    push = jnp.abs(advantages) * entropy
    keep = jnp.clip(jnp.round(token_share * jnp.sum(among)), jnp.minimum(1, jnp.sum(among)), None).astype(jnp.int32)
    chosen = lowest(ordered_bits(-push), among, keep)
    scale = jnp.sum(mask) / jnp.maximum(jnp.sum(chosen), 1)
    return jnp.where(chosen, scale, 0.0).astype(advantages.dtype)
