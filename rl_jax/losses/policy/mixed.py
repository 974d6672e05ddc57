"""Surrogates for groups with foreign rows: one loss for the policy's own rows, another one for the others.

Named in a config by their import path, "rl_jax.losses.policy.mixed:mixed_rows".
"""

from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.binding import bind
from rl_jax.core.masked import zero_masked
from rl_jax.losses import policy
from rl_jax.losses.policy.base import Surrogate, log_ratio


def probability_shaped(
    log_probs: chex.Array, old_log_probs: chex.Array, advantages: chex.Array, mask: chex.Array, *, gamma: float = 0.1
) -> Surrogate:
    """Policy shaping of off-policy rows: unlikely tokens of a demonstration are pushed harder than likely ones.

        l = -A p / (p + gamma), p = exp(logp);   dl/dlogp = -A gamma p / (p + gamma)^2

    Source: LUFFY arXiv 2504.14945 (f, with behaviour probabilities of 1); Critique-GRPO arXiv 2506.03106, gamma .1.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data; used for the reported ratio only.
      advantages: float [B, T], data.
      mask: bool [B, T].
      gamma: above 0.

    Returns:
      Surrogate; nothing is ever clipped.
    """
    ratio = jnp.exp(jax.lax.stop_gradient(log_ratio(log_probs, old_log_probs, mask)))
    p = jnp.exp(jnp.where(mask, log_probs, 0.0))
    loss = zero_masked(-jax.lax.stop_gradient(zero_masked(advantages, mask)) * p / (p + gamma), mask)
    never = jnp.zeros_like(mask)
    return Surrogate(loss, ratio, clipped_low=never, clipped_high=never)


def mixed_rows(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    foreign: chex.Array,
    own: str | Callable | Mapping = "clipped_surrogate",
    other: str | Callable | Mapping = probability_shaped,
) -> Surrogate:
    """`own` on the rows that the policy sampled, `other` on foreign ones.

    Source: LUFFY arXiv 2504.14945 and HPT arXiv 2509.04419, whose unified estimator this is: each row has its own
    reference policy and gate.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], data.
      advantages: float [B, T], data.
      mask: bool [B, T].
      foreign: bool [B].
      own: a surrogate of rl_jax.losses.policy that needs no further arrays: a name, {"fn": name, **keywords}, or a
        function.
      other: the same.

    Returns:
      Surrogate, row by row that of the one or the other.
    """
    chex.assert_shape(foreign, mask.shape[:1])
    of_row = jnp.broadcast_to(foreign[:, None], mask.shape)

    def found(fn, rows):  # a row that the other one takes has no advantage here: 0 * inf would be its gradient
        return bind(fn, policy)(log_probs, old_log_probs, zero_masked(advantages, rows), mask)

    return jax.tree.map(lambda x, y: jnp.where(of_row, y, x), found(own, ~of_row), found(other, of_row))


def against_sampler(
    log_probs: chex.Array,
    old_log_probs: chex.Array,
    advantages: chex.Array,
    mask: chex.Array,
    *,
    behavior_log_probs: chex.Array,
    surrogate: str | Callable | Mapping = "clipped_surrogate",
) -> Surrogate:
    """Any surrogate with the log-probs that each token was drawn with in the place of old ones.

    A replayed row is then clipped about the policy that sampled it, whenever that was. Source: arXiv 2505.16282.

    Args:
      log_probs: float [B, T], differentiated.
      old_log_probs: float [B, T], unused.
      advantages: float [B, T], data.
      mask: bool [B, T].
      behavior_log_probs: float [B, T], data.
      surrogate: as `own` of `mixed_rows`.
    """
    return bind(surrogate, policy)(log_probs, behavior_log_probs, advantages, mask)
