"""The language-model term of a reward model that writes before it grades."""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.reward_model.base import Terms, terms


def trace_nll(log_probs: chex.Array, mask: chex.Array) -> Terms:
    """-1 / n_i sum_{k, t in trace} log p(y_ikt | x_i, y_ik<t): what a reward model writes, one term a prompt.

    n_i counts the tokens of all of the prompt's responses together. Themis adds it to Bradley-Terry: thought, action,
    its input, observation and rationale are written by the model that grades (its code: L_lm + 0.5 L_bt, the mean over
    a pair). Source: arXiv 2310.01045, ernie-research/Tool-Augmented-Reward-Model.

    Args:
      log_probs: float [N, K, C] of the responses' tokens, differentiated.
      mask: bool [N, K, C], the tokens that count (rl_jax.preferences.traced.trace_mask). A prompt without one has no
        term.

    Returns:
      Terms of [N].
    """
    chex.assert_rank([log_probs, mask], 3)
    chex.assert_type([log_probs, mask], [float, bool])
    chex.assert_equal_shape([log_probs, mask])
    count = jnp.sum(mask, axis=(1, 2))
    total = -jnp.sum(zero_masked(log_probs, mask), axis=(1, 2))
    return terms(total / jnp.maximum(count, 1), count > 0)
