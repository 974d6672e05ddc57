"""The recursions over time used by returns, GAE and V-trace, on [B, T]: for tokens and for environment steps."""

import chex
import jax
import jax.numpy as jnp


def backward_sums(increments: chex.Array, decays: chex.Array) -> chex.Array:
    """x_t = increment_t + decay_t x_{t+1}, with x_T = 0: one reverse scan. float [B, T] x2 -> float [B, T]."""
    chex.assert_rank(increments, 2)
    chex.assert_equal_shape([increments, decays])
    chex.assert_type([increments, decays], float)

    def step(following, now):
        increment, decay = now
        x = increment + decay * following
        return x, x

    end = jnp.zeros(increments.shape[0], increments.dtype)
    _, sums = jax.lax.scan(step, end, (increments.T, decays.T), reverse=True)
    return sums.T


def lambda_advantages(
    rewards: chex.Array, values: chex.Array, next_values: chex.Array, *, discounts: chex.Array, decays: chex.Array
) -> chex.Array:
    """GAE: A_t = delta_t + decay_t A_{t+1}, delta_t = r_t + discount_t V'_t - V_t.

    Source: arXiv 1506.02438 eq. 16.

    Args:
      rewards: float [B, T].
      values: float [B, T], V_t of the state that step t starts from.
      next_values: float [B, T], V'_t of the state that step t leads to, before any reset of the environment.
      discounts: float [B, T]. gamma, and 0 if step t terminated its episode, since no value follows.
      decays: float [B, T]. gamma lambda, and 0 if t is the last step of its episode, terminated or truncated, since t +
        1 belongs to another episode. A truncated step keeps its discount, because its V' still counts.

    Returns:
      float [B, T]; add `values` to get the returns.
    """
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, values, next_values, discounts, decays])
    return backward_sums(rewards + discounts * next_values - values, decays)


def following(x: chex.Array, mask: chex.Array, last: chex.Array) -> chex.Array:
    """x of the next token on the mask, or the row's `last` if there is none.

    Args:
      x: float [B, T]; values outside the mask are not used.
      mask: bool [B, T].
      last: float [B].

    Returns:
      float [B, T].
    """
    chex.assert_rank([mask, last], [2, 1])
    chex.assert_type(mask, bool)
    chex.assert_equal_shape([x, mask])
    chex.assert_equal_shape_prefix([x, last], 1)
    rows, length = mask.shape
    own = jnp.where(mask, jnp.arange(length)[None, :], length)
    first = jax.lax.cummin(own, axis=1, reverse=True)  # the first column on the mask, from here on
    places = jnp.concatenate([first[:, 1:], jnp.full((rows, 1), length)], axis=1)
    return jnp.take_along_axis(jnp.concatenate([x, last[:, None]], axis=1), places, axis=1)
