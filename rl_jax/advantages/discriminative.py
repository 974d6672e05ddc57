"""DisCO's scores as advantages: rewards [B] -> [B], group by group.

Named in a config by their import path, "rl_jax.advantages.discriminative:disco".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import grouped
from rl_jax.core.masked import row_means


def disco(
    rewards: chex.Array,
    *,
    group_size: int,
    log_probs: chex.Array,
    completion_mask: chex.Array,
    tau: float = 10.0,
    right: float = 0.5,
) -> chex.Array:
    """DisCO: right answers' scores up, wrong ones' down, the likeliest wrong ones most; each prompt weighs the same.

        J = mean over prompts of  mean_{right} s - tau log mean_{wrong} exp(s / tau),   s = 1/n sum_t logp
        dJ/ds_i / G = A_i:  1 / n_right for a right answer, -softmax over the wrong ones of s / tau for a wrong one

    A_i is G times that, so that REINFORCE with means of row means has J's gradient. A group with right answers only, or
    with wrong ones only, has 0. A row without a token (mask_truncated) has no score, and counts as neither.
    Source: arXiv 2505.12366; compute_policy_loss_disco_logL of Optimization-AI/DisCO.

    Args:
      rewards: float [B].
      group_size: G.
      log_probs: float [B, T], of the policy before the updates. The softmax is of these scores: with several updates
        per batch the code takes those of the moment.
      completion_mask: bool [B, T].
      tau: temperature; inf: all wrong answers weigh the same (DisCO-b). 10 in the scripts of logL.
      right: rewards above this are right answers.

    Returns:
      float [B].

    Raises:
      ValueError: if tau is not above 0, or B is not a multiple of group_size.
    """
    if tau <= 0:
        raise ValueError(f"tau={tau} must be above 0: it is the temperature of the wrong answers")
    is_right = grouped(rewards, group_size) > right
    live = jnp.any(completion_mask, axis=1).reshape(is_right.shape)
    is_right, is_wrong = live & is_right, live & ~is_right
    scores = grouped(jax.lax.stop_gradient(row_means(log_probs, completion_mask)), group_size)
    num_right = jnp.sum(is_right, axis=1, keepdims=True)
    mixed = (num_right > 0) & jnp.any(is_wrong, axis=1, keepdims=True)
    wrong = jax.nn.softmax(jnp.where(is_wrong, scores / tau, jnp.finfo(scores.dtype).min), axis=1)
    up = jnp.where(is_right, 1.0 / jnp.maximum(num_right, 1), 0.0)
    return jnp.where(mixed, group_size * (up - jnp.where(is_wrong, wrong, 0.0)), 0.0).reshape(-1)
