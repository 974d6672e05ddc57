"""Two responses against each other, or each against an anchor.

The anchors and partners that responses are compared with are statistics of the whole batch, computed by
losses.preference.batch_stats without gradient and on the scale of the sequence score u, before beta. These comparators
multiply them by beta; use them with the score map `identity` and the scale `constant`.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked


def pairs(scores: chex.Array, present: chex.Array, link: Callable) -> chex.Array:
    """l(s_chosen - s_rejected) of K = 2, 0 if one of them is absent. float, bool [N, 2] -> float [N]."""
    chex.assert_axis_dimension(scores, 1, 2)
    return first_pair(scores, present, link)


def first_pair(scores: chex.Array, present: chex.Array, link: Callable) -> chex.Array:
    """l(s_1 - s_2) of K >= 2; regularizers use the responses after them. float, bool [N, K] -> float [N]."""
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present])
    chex.assert_axis_dimension_gteq(scores, 1, 2)
    return zero_masked(link(scores[:, 0] - scores[:, 1]), present[:, 0] & present[:, 1])


def _good(present: chex.Array, rewards: chex.Array) -> chex.Array:
    """Which responses are desirable, bool [N, K]: the first, or those of label 1 if K = 1."""
    if present.shape[1] == 1:
        return rewards > 0.5
    return jnp.broadcast_to(jnp.arange(present.shape[1])[None] == 0, present.shape)


def anchored(
    scores: chex.Array,
    present: chex.Array,
    link: Callable,
    *,
    anchor: chex.Array | float,
    beta: float,
    rewards: chex.Array,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> chex.Array:
    """Each response against an anchor z: sum_k lambda_k l(+-(s_k - beta z)), + for desirable responses, - for others.

    Args:
      scores: float [N, K].
      present: bool [N, K].
      link: (margins) -> losses, elementwise.
      anchor: z, float [N] or a number, on the scale of u. KTO's batch KL (arXiv 2402.01306) or BCO's running mean
        (arXiv 2404.04656), both by batch_stats; 0 for APO-zero (arXiv 2408.06266 eq. 7) and SPPO (arXiv 2405.00675).
      beta: multiplies the anchor.
      rewards: float [N, K]. If K = 1, the label: 1 desirable, 0 not.
      desirable_weight: lambda_D. KTO's rule is lambda_D n_D / (lambda_U n_U) in [1, 4/3].
      undesirable_weight: lambda_U.

    Returns:
      float [N].
    """
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present, rewards])
    centred = scores - beta * jax.lax.stop_gradient(jnp.reshape(jnp.asarray(anchor, scores.dtype), (-1, 1)))
    good = _good(present, rewards)
    losses = link(jnp.where(good, centred, -centred))
    weighted = jnp.where(good, desirable_weight, undesirable_weight) * losses
    return jnp.sum(zero_masked(weighted, present), axis=1)


anchored.reads_labels = True  # dpo.Objective.reads_labels


def nca(scores: chex.Array, present: chex.Array, link: Callable) -> chex.Array:
    """l(s_chosen) + mean_k l(-s_k) over all responses: keeps the chosen one likely. float, bool [N, K] -> float [N].

    NCA of a pair, with the logistic link: arXiv 2402.05369.
    """
    chex.assert_rank(scores, 2)
    chex.assert_equal_shape([scores, present])
    count = jnp.maximum(jnp.sum(present, axis=1), 1)
    attract = zero_masked(link(scores[:, 0]), present[:, 0])
    return attract + jnp.sum(zero_masked(link(-scores), present), axis=1) / count


def apo_down(scores: chex.Array, present: chex.Array, link: Callable) -> chex.Array:
    """l(-s_chosen) + l(s_chosen - s_rejected): both fall, the rejected one further. float, bool [N, 2] -> float [N].

    For data worse than the policy, with the saturating link. Source: arXiv 2408.06266 eq. 8.
    """
    return zero_masked(link(-scores[:, 0]), present[:, 0]) + pairs(scores, present, link)


def sorted_pairs(
    scores: chex.Array, present: chex.Array, link: Callable, *, partners: chex.Array, beta: float
) -> chex.Array:
    """AOT of pairs: l of the policy's i-th smallest margin minus the reference's i-th smallest.

    The rank is that of the policy's margin in the whole batch; gradients treat it as a constant. Without partners of
    its own (a batch of one) it is DPO. Source: arXiv 2406.05882.

    Args:
      scores: float [N, 2], with reference {ref: 1}.
      present: bool [N, 2].
      link: (margins) -> losses, elementwise.
      partners: float [N, 2], by batch_stats.aot_partners: the reference's log-probs of the row whose reference margin
        has the rank of this row's policy margin, minus this row's own, which are already in the scores.
      beta: multiplies the partners.

    Returns:
      float [N].
    """
    chex.assert_equal_shape([scores, present, partners])
    partners = jax.lax.stop_gradient(zero_masked(partners, present))
    return pairs(scores - beta * partners, present, link)


def sorted_unpaired(
    scores: chex.Array, present: chex.Array, link: Callable, *, partners: chex.Array, beta: float
) -> chex.Array:
    """AOT of two sets: l(i-th smallest chosen score - i-th smallest rejected score), the same sum over rows.

    A row holds one side of two sorted pairs: l(s_w - p_w) + l(p_l - s_l), minus half of that as a constant, so that the
    rows add up to the value and the gradient of the sorted loss. Source: arXiv 2406.05882.

    Args:
      scores: float [N, 2].
      present: bool [N, 2].
      link: (margins) -> losses, elementwise.
      partners: float [N, 2], by batch_stats.aot_partners: the rejected u with the rank of this row's chosen one, and
        the chosen u with the rank of its rejected one, both without gradient.
      beta: multiplies the partners.

    Returns:
      float [N].
    """
    chex.assert_equal_shape([scores, present, partners])
    chex.assert_axis_dimension(scores, 1, 2)
    partners = beta * jax.lax.stop_gradient(partners)
    both = link(scores[:, 0] - partners[:, 0]) + link(partners[:, 1] - scores[:, 1])
    both = zero_masked(both, present[:, 0] & present[:, 1])
    return both - 0.5 * jax.lax.stop_gradient(both)
