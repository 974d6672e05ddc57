"""A list whose best response is trained on: (s [N, K], present [N, K], link) -> float [N].

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
