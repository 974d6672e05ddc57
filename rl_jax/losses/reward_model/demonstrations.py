"""A reward learned from demonstrations alone: (rewards [N, K], present [N, K], *, ...) -> Terms, one term per prompt.

The first response of a prompt is the demonstration, the others are samples of the policy of the moment.
"""

import chex
import jax.numpy as jnp

from rl_jax.losses.reward_model.base import Terms, check_responses, terms


def inverse_rl(rewards: chex.Array, present: chex.Array, *, decay: float = 0.5) -> Terms:
    """mean_k r(y_k) - r(y_0) + decay / 2 (r(y_0)^2 + mean_k r(y_k)^2): maximum-likelihood inverse RL.

    Without decay its gradient is that of the likelihood of the demonstrations under the policy that is best for r, with
    the policy's samples in place of that policy's: the reward rises on demonstrations and falls on what is sampled
    until the two cannot be told apart. The decay bounds it: of two responses that are apart, r goes to 1 / decay and
    -1 / decay. Source: arXiv 2405.17888 (reward learning from demonstrations), which arXiv 2503.18991 uses for each
    category of harm; whether the latter has a decay is not known to us.

    Args:
      rewards: float [N, K], K > 1, differentiated.
      present: bool [N, K]. A prompt without its demonstration, or without a sample, has no term.
      decay: 0 lets the reward grow for ever.

    Returns:
      Terms of [N].
    """
    rewards = check_responses(rewards, present)
    chex.assert_axis_dimension_gt(rewards, 1, 1)
    of_samples = rewards[:, 1:] + 0.5 * decay * jnp.square(rewards[:, 1:])
    count = jnp.sum(present[:, 1:], axis=1)
    sampled = jnp.sum(jnp.where(present[:, 1:], of_samples, 0.0), axis=1) / jnp.maximum(count, 1)
    shown = -rewards[:, 0] + 0.5 * decay * jnp.square(rewards[:, 0])
    return terms(sampled + shown, present[:, 0] & (count > 0))
