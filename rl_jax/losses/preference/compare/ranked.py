"""The best response of several is trained on: (s [N, K], present [N, K], link) -> float [N].

Named in a config by its import path, "rl_jax.losses.preference.compare.ranked:crraft".
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def crraft(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    rewards: chex.Array,
    sequence_scores: chex.Array,
    from_reference: chex.Array,
    kl_max: float = 10.0,
) -> chex.Array:
    """CRRAFT: -v s of the response with the highest value v among those of the policy with log(pi / ref) <= kl_max.

    If none of them has a value, the baseline response stands in with v = 1/2. With beta = 1 and the reference `ref`,
    s is log(pi / ref), whose gradient is that of logp. Source: arXiv 2409.20370 equation 18, by way of
    huggingface/trl pull request 2190.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: unused.
      rewards: float [N, K], v = J sigma(r - r_0) (rl_jax.selection.constraints.calibrated).
      sequence_scores: float [N, K], log(pi / ref) of the response.
      from_reference: bool [N, K], the baseline response.
      kl_max: in nats per response.

    Returns:
      float [N].
    """
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present, rewards, sequence_scores, from_reference])
    near = present & (jax.lax.stop_gradient(sequence_scores) <= kl_max)
    own = jnp.where(near & ~from_reference, rewards, 0.0)
    spare = jnp.where(near & from_reference & (rewards > 0), 0.5, 0.0)
    values = jnp.where(jnp.any(own > 0, axis=1, keepdims=True), own, spare)
    best = jnp.arange(scores.shape[1])[None] == jnp.argmax(values, axis=1)[:, None]
    return -jnp.sum(zero_masked(values * scores, best & (values > 0)), axis=1)


def superhf(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    log_probs: chex.Array,
    lengths: chex.Array,
    sequence_kl: chex.Array,
    kl_coef: float = 0.35,
) -> chex.Array:
    """SuperHF: -1/|y| sum_t logp_t + kl_coef / |y| sum_t KL(ref(. | s_t) || pi(. | s_t)) of the first response.

    The KL is over the whole vocabulary, from the reference to the policy, as in openfeedback/superhf (KLDivLoss of the
    online model's log-probs against the original's, row by row). Source: arXiv 2310.16763.

    Args:
      scores: float [N, K]; only its shape is used.
      present: bool [N, K].
      link: unused.
      log_probs: float [N, K, C].
      lengths: float [N, K].
      sequence_kl: float [N, K], the sum over the response's tokens.
      kl_coef: beta.

    Returns:
      float [N].
    """
    chex.assert_rank([scores, log_probs], [2, 3])
    chex.assert_equal_shape([scores, present, lengths, sequence_kl])
    total = -jnp.sum(log_probs[:, 0], axis=-1) + kl_coef * sequence_kl[:, 0]
    return zero_masked(total / jnp.maximum(lengths[:, 0], 1.0), present[:, 0])
