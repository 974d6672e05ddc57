"""Rewards [B] -> rewards [B], before any advantage: (rewards, lengths, truncated, key) -> rewards."""

import chex
import jax
import jax.numpy as jnp


def unchanged(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The rewards as they are. float [B] -> float [B]."""
    return rewards


def shuffled(rewards: chex.Array, lengths: chex.Array, truncated: chex.Array, key: chex.PRNGKey) -> chex.Array:
    """The wrong-reward control: the batch's rewards, dealt out again at random over all its rows.

    Their distribution is kept and their information destroyed, so that nothing but chance can be learned from them.
    rewards: float [B]. key: a typed key. Source: the spurious-reward controls of arXiv 2507.10532.
    """
    chex.assert_rank(rewards, 1)
    return jax.random.permutation(key, rewards)


def overlong(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    max_length: int,
    buffer: int,
    penalty: float = 1.0,
) -> chex.Array:
    """DAPO's soft overlong punishment: R + min(-(n - (max_length - buffer)) / buffer * penalty, 0).

    rewards: float [B]. lengths: int [B], n in tokens. max_length, buffer: tokens. At n = max_length it is -penalty.
    Source: arXiv 2503.14476 eq. 13.
    """
    chex.assert_equal_shape([rewards, lengths])
    excess = (lengths - (max_length - buffer)).astype(rewards.dtype)
    return rewards + jnp.minimum(-excess / buffer * penalty, 0.0)
