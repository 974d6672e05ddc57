"""The loss of a process reward model, which scores each step of a solution at the step's last token."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import last_of, zero_masked
from rl_jax.losses.reward_model.base import Terms


def step_cross_entropy(
    logits: chex.Array, mask: chex.Array, *, step_labels: chex.Array, last_step_only: bool = False
) -> Terms:
    """-y log p_1 - (1 - y) log p_0, p = softmax(logits): one term per labelled step.

    dl/dlogits = p - (1 - y, y). Source: arXiv 2305.20050, 2211.14275; TRL's PRMTrainer (train_on_last_step_only).

    Args:
      logits: float [N, S, 2], read at the last token of each step, differentiated.
      mask: bool [N, S]. The steps that have a label.
      step_labels: float [N, S], y in [0, 1]: is the solution right so far?
      last_step_only: use only the last labelled step, which makes it an outcome model.
    """
    chex.assert_rank([logits, mask], [3, 2])
    chex.assert_type([logits, mask, step_labels], [float, bool, float])
    chex.assert_shape(logits, (*mask.shape, 2))
    chex.assert_equal_shape([mask, step_labels])
    if last_step_only:
        mask = last_of(mask)
    log_probs = jax.nn.log_softmax(zero_masked(logits, jnp.broadcast_to(mask[:, :, None], logits.shape)), axis=-1)
    labels = jax.lax.stop_gradient(zero_masked(step_labels, mask))
    loss = -labels * log_probs[..., 1] - (1.0 - labels) * log_probs[..., 0]
    return Terms(zero_masked(loss, mask), mask)
