"""Secrets of RLHF II (arXiv 2401.06080): contrasts of two views of a pair, and how far a model tells responses apart.

L_cl = -log exp(cos(d_i, d'_i) / tau) / sum_j exp(cos(d_i, d'_j) / tau),   d = h_w - h_l under one dropout mask
J    = 2 / k^2 sum_{i < j} sigma(|r_i - r_j|)                              of k unlabelled responses to a prompt
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses.contrastive import info_nce
from rl_jax.losses.reward_model.base import Terms, check_responses, terms

FAR = -1e9  # the score of a candidate that is absent


def view_contrast(hidden: chex.Array, keep: chex.Array, live: chex.Array, *, temperature: float = 0.05) -> Terms:
    """InfoNCE of each pair's difference under one mask with all pairs' differences under the other. Terms of [N].

    Source: section 3.1 of arXiv 2401.06080 with SimCSE (2104.08821), on the representation of the preference
    difference.

    Args:
      hidden: float [N, 2, D], states of the chosen and of the rejected response, differentiated.
      keep: bool [N, 2, 2, D], dropout masks of two views of both responses: axis 1 is the view.
      live: bool [N], pairs that are there.
      temperature: tau; 0.05 in SimCSE.
    """
    chex.assert_rank([hidden, keep, live], [3, 4, 1])
    hidden = jnp.where(live[:, None, None], hidden, 0.0)
    views = []
    for view in (0, 1):
        kept = jnp.where(keep[:, view], hidden, 0.0)
        gap = kept[:, 0] - kept[:, 1]
        # The norm of zeros has no gradient.
        square = jnp.sum(jnp.square(gap), axis=1, keepdims=True)
        views.append(gap * jax.lax.rsqrt(jnp.where(square > 0, square, 1.0)))
    scores = views[0] @ views[1].T / temperature
    candidates = jnp.broadcast_to(live[None, :] | ~live[:, None], scores.shape)
    return terms(info_nce(jnp.where(candidates, scores, FAR)), live)


def difference(rewards: chex.Array, present: chex.Array) -> Terms:
    """J of each prompt, which MetaRM ascends: larger the farther rewards of its k responses are apart. Terms of [N].

    Source: equation 9 of arXiv 2401.06080 (MetaRM, also 2405.00438).

    Args:
      rewards: float [N, K], differentiated.
      present: bool [N, K]; a prompt with fewer than two is not live.
    """
    rewards = check_responses(rewards, present)
    pairs = present[:, :, None] & present[:, None, :] & jnp.tril(jnp.ones((1, *[rewards.shape[1]] * 2), bool), -1)
    gaps = jnp.abs(rewards[:, :, None] - rewards[:, None, :])
    total = jnp.sum(jnp.where(pairs, jax.nn.sigmoid(gaps), 0.0), axis=(1, 2))
    count = jnp.sum(present, axis=1)
    return terms(2.0 * total / jnp.square(jnp.maximum(count, 1)).astype(total.dtype), count > 1)
