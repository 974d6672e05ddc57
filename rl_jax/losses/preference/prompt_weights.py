"""Slot 7: the weight of each prompt's loss, without gradient (rl_jax.dpo stops it): (losses [N]) -> float [N]."""

import chex
import jax.numpy as jnp


def uniform(losses: chex.Array) -> chex.Array:
    """omega = 1. float [N] -> float [N]."""
    chex.assert_rank(losses, 1)
    return jnp.ones_like(losses)


def constant(losses: chex.Array, *, value: float = 0.1) -> chex.Array:
    """omega = value: ORPO's lambda on the odds ratio, next to a likelihood of weight 1. float [N] -> float [N]."""
    chex.assert_rank(losses, 1)
    return jnp.full_like(losses, value)


def policy_likelihood(
    losses: chex.Array, *, response_weights: chex.Array, present: chex.Array, max_weight: float = jnp.inf
) -> chex.Array:
    """WPO: omega = min(max_weight, prod_k w_k), w_k = exp(mean_t [logp_t - log sum_v pi(v|s_t)^2]).

    Source: arXiv 2406.11827 eq. 2.

    Args:
      losses: float [N].
      response_weights: float [N, K], the w_k.
      present: bool [N, K]; an absent response counts as 1.
      max_weight: 1 in the authors' code (wzhouad/WPO) and in TRL up to 0.28.

    Returns:
      float [N].
    """
    chex.assert_rank([losses, response_weights], [1, 2])
    chex.assert_equal_shape([response_weights, present])
    return jnp.minimum(jnp.prod(jnp.where(present, response_weights, 1.0), axis=1), max_weight)


def kept(losses: chex.Array, *, kept: chex.Array) -> chex.Array:
    """beta-DPO: omega = kept, 0 for pairs dropped by the filter of the whole batch (batch_stats.beta_statistics).

    Source: arXiv 2407.08639.

    Args:
      losses: float [N].
      kept: float [N]. N / (number kept) for kept pairs, so that the mean over all is the mean over those.

    Returns:
      float [N].
    """
    chex.assert_rank(losses, 1)
    chex.assert_equal_shape([losses, kept])
    return kept.astype(losses.dtype)


def given(losses: chex.Array, *, prompt_weights: chex.Array) -> chex.Array:
    """omega from the data: BCO's density ratio of the prompt, or trust in an annotator. float [N] x2 -> float [N]."""
    chex.assert_rank(losses, 1)
    chex.assert_equal_shape([losses, prompt_weights])
    return prompt_weights
