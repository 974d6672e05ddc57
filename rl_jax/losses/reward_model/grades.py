"""Losses of graded responses: (outputs of the head, present [N, K], *, ...) -> Terms with one term per label."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses import value
from rl_jax.losses.preference import links
from rl_jax.losses.reward_model.base import Terms, check_responses, terms


def mse(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """(r - y)^2, one term per response. dl/dr = 2 (r - y).

    Args:
      rewards: float [N, K], differentiated.
      present: bool [N, K].
      targets: float [N, K], y, data.
    """
    rewards = check_responses(rewards, present)
    return terms(jnp.square(rewards - jax.lax.stop_gradient(check_responses(targets, present))), present)


def attributes(
    outputs: chex.Array,
    present: chex.Array,
    *,
    attribute_targets: chex.Array,
    attribute_mask: chex.Array,
) -> Terms:
    """(r_a - y_a)^2 of each labelled attribute; the mean is over the labels of the whole batch.

    Source: the regression of HelpSteer, arXiv 2311.09528. One term per label, as NeMo-Aligner divides (from memory).

    Args:
      outputs: float [N, K, A], differentiated.
      present: bool [N, K].
      attribute_targets: float [N, K, A], y.
      attribute_mask: bool [N, K, A]. False if a label is missing; its target (nan, -100) is ignored.
    """
    chex.assert_rank([outputs, present], [3, 2])
    chex.assert_equal_shape([outputs, attribute_targets, attribute_mask])
    live = attribute_mask & jnp.broadcast_to(present[:, :, None], attribute_mask.shape)
    error = zero_masked(outputs, live) - jax.lax.stop_gradient(zero_masked(attribute_targets, live))
    return Terms(jnp.square(error), live)


def hl_gauss(
    logits: chex.Array,
    present: chex.Array,
    *,
    targets: chex.Array,
    support: value.Support,
    sigma_ratio: float = 0.75,
) -> Terms:
    """Cross-entropy to a binned Gaussian around the grade (losses.value.hl_gauss), one term per response.

    Source: arXiv 2403.03950.

    Args:
      logits: float [N, K, bins], differentiated.
      present: bool [N, K].
      targets: float [N, K], data.
      support: the bins.
      sigma_ratio: the Gaussian's sigma, in bin widths.
    """
    result = value.hl_gauss(logits, targets, present, support=support, sigma_ratio=sigma_ratio)
    return Terms(result.loss, present)


def outcome(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """-y log sigma(r) - (1 - y) log sigma(-r), r the log-odds that a solution is right; one term per response.

    dl/dr = sigma(r) - y. Source: the outcome verifier of arXiv 2110.14168, read at the last token.

    Args:
      rewards: float [N, K], differentiated.
      present: bool [N, K].
      targets: float [N, K] in [0, 1], y.
    """
    rewards, labels = check_responses(rewards, present), check_responses(targets, present)
    return terms(links.soft_label(rewards, label_probs=labels), present)
