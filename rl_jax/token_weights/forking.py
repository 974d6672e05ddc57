"""Forking tokens: those of each response at which the policy is least sure. Weights, and a band for their entropy.

Named in a config by their import path, "rl_jax.token_weights.forking:forking".
"""

import chex
import jax.numpy as jnp


def forking(mask: chex.Array, *, entropy: chex.Array, share: float = 0.2) -> chex.Array:
    """w = 1 on the max(1, ceil(share n)) tokens of each row with the highest entropy, and on those equal to the last.

    `high_entropy` takes the quantile over the batch, this one over each response. Source: SPINE arXiv 2511.17938.

    Args:
      mask: bool [B, T].
      entropy: float [B, T], in nats.
      share: of a row's tokens.

    Returns:
      float [B, T].
    """
    chex.assert_equal_shape([mask, entropy])
    hidden = jnp.where(mask, entropy, -jnp.inf)
    number = share * jnp.sum(mask, axis=1) * (1.0 - 1e-6)  # .3 of 50 is 15, though float32 has it a little above
    count = jnp.maximum(jnp.ceil(number).astype(jnp.int32), 1)
    ordered = jnp.sort(hidden, axis=1)[:, ::-1]
    last = jnp.take_along_axis(ordered, count[:, None] - 1, axis=1)
    return (mask & (hidden >= last)).astype(entropy.dtype)


def entropy_band(
    mask: chex.Array,
    *,
    entropy: chex.Array,
    share: float = 0.2,
    low: float = 0.1,
    high: float = 0.5,
    raise_coef: float = 0.01,
    lower_coef: float = 0.01,
) -> chex.Array:
    """Weights of the entropy bonus that hold forking tokens within a band of entropies.

        raise_coef if H < lo,  -lower_coef if H > hi,  0 in between and on the other tokens

    They have the gradient of raise_coef (lo - H)+ + lower_coef (H - hi)+; lo and hi are quantiles of H over the forking
    tokens of the batch. Batch-coupled. Source: SPINE arXiv 2511.17938; its coefficients are not known, and two readings
    of its band disagree: this one has the quantiles .1 and .5.

    Args:
      mask: bool [B, T].
      entropy: float [B, T], in nats, before the updates.
      share: as in `forking`.
      low: quantile of the lower edge.
      high: quantile of the upper edge.
      raise_coef: weight below the band.
      lower_coef: weight above it.

    Returns:
      float [B, T], for `entropy_coefs`.

    Raises:
      ValueError: if not 0 <= low <= high <= 1.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"low={low} and high={high} must be quantiles, 0 <= low <= high <= 1")
    chosen = forking(mask, entropy=entropy, share=share) > 0
    lower, upper = jnp.nanquantile(jnp.where(chosen, entropy, jnp.nan), jnp.array([low, high]))
    coefs = raise_coef * (entropy < lower) - lower_coef * (entropy > upper)
    return jnp.where(chosen, coefs, 0.0).astype(entropy.dtype)
