"""Advantages of batches in which some prompts are learned from a demonstration and the others from samples."""

import chex
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered


def hybrid(
    rewards: chex.Array,
    *,
    group_size: int,
    foreign: chex.Array,
    lengths: chex.Array,
    max_length: int,
    demonstration_coef: float = 1.0,
) -> chex.Array:
    """HPT: (R - mean_g) / L on sampled rows, demonstration_coef / n_i on demonstrations; for the sum over all tokens.

    Under losses.aggregate.token_sum and losses.policy.mixed a demonstration's loss is then its mean negative
    log-likelihood, and a sampled row's is the sum over its tokens over the generation limit L, whatever the number of
    rows. Source: arXiv 2509.04419 and its code.

    Args:
      rewards: float [B].
      group_size: G.
      foreign: bool [B]. The demonstrations; the other rows of their groups are out of the loss.
      lengths: int [B]. n_i, tokens of each row.
      max_length: L.
      demonstration_coef: weight of the demonstrations' loss.

    Returns:
      float [B].
    """
    chex.assert_equal_shape([rewards, foreign, lengths])
    sampled = group_centered(rewards, group_size=group_size) / max_length
    return jnp.where(foreign, demonstration_coef / jnp.maximum(lengths, 1), sampled)
