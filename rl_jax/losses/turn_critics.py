"""Losses of critics of whole turns (ArCHer). Named by their import path in a config."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses.value import ValueLoss


def squared_errors(values: chex.Array, returns: chex.Array, mask: chex.Array) -> ValueLoss:
    """l = sum_n (v_n - y_n)^2, n over the Q_k and V_k of a turn. dl/dv_n = 2 (v_n - y_n).

    Source: arXiv 2402.19446; YifeiZhou02/ArCHer archer/algorithms/archer/trainer.py (no factor 1/2).

    Args:
      values: float [B, T, 2 K], differentiated.
      returns: float [B, T, 2 K], data: gradients are stopped here.
      mask: bool [B, T], the last token of each turn.
    """
    chex.assert_rank([values, returns, mask], [3, 3, 2])
    chex.assert_equal_shape([values, returns])
    chex.assert_equal_shape_prefix([values, mask], 2)
    error = jnp.where(mask[:, :, None], values - jax.lax.stop_gradient(returns), 0.0)
    return ValueLoss(jnp.sum(jnp.square(error), axis=2), jnp.zeros_like(mask))
