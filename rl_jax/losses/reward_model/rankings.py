"""Losses of ordered responses: (rewards [N, K], present [N, K], *, ...) -> Terms with one term per prompt, [N].

In a pair the first response is the better one. In a list the grades give the order, and two of the same grade are not
compared. Only differences between rewards of one prompt count, so a constant added to all of them changes nothing; the
regularizers `centered` and `squared` fix that constant. A prompt with nothing to compare has no term.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses.preference import links
from rl_jax.losses.preference.compare import lists
from rl_jax.losses.reward_model.base import Terms, check_responses, per_prompt, terms

# The margin of each degree of preference, from "significantly better" down. Source: arXiv 2307.09288 table 27.
LLAMA2_MARGINS = {
    "small": {"significantly": 1.0, "better": 2.0 / 3.0, "slightly": 1.0 / 3.0, "negligibly": 0.0},
    "large": {"significantly": 3.0, "better": 2.0, "slightly": 1.0, "negligibly": 0.0},
}


def bradley_terry(rewards: chex.Array, present: chex.Array, *, label_smoothing: float = 0.0) -> Terms:
    """-(1 - eps) log sigma(r_w - r_l) - eps log sigma(r_l - r_w): P(w is preferred) = sigma(r_w - r_l).

    dl/dr_w = sigma(r_w - r_l) - (1 - eps). Source: Bradley and Terry (1952), arXiv 1706.03741; TRL's RewardTrainer.

    Args:
      rewards: float [N, 2], differentiated.
      present: bool [N, 2].
      label_smoothing: eps, the assumed share of wrong labels.
    """
    gaps, live = _gaps(rewards, present)
    return terms(links.logistic(gaps, label_smoothing=label_smoothing), live)


def bradley_terry_margin(
    rewards: chex.Array, present: chex.Array, *, margins: chex.Array, label_smoothing: float = 0.0
) -> Terms:
    """`bradley_terry` of r_w - r_l - m: the two rewards should be at least m apart.

    Source: arXiv 2307.09288 equation 2; the adaptive margin of arXiv 2401.06080.

    Args:
      rewards: float [N, 2], differentiated.
      present: bool [N, 2].
      margins: float [N], m, in the reward's units: LLAMA2_MARGINS by how clear the preference is, or the mean gap of
        other reward models.
      label_smoothing: as in `bradley_terry`.
    """
    gaps, live = _gaps(rewards, present)
    gaps = gaps - per_prompt(margins, gaps, gaps.dtype)
    return terms(links.logistic(gaps, label_smoothing=label_smoothing), live)


def bradley_terry_soft(rewards: chex.Array, present: chex.Array, *, label_probs: chex.Array) -> Terms:
    """-p log sigma(r_w - r_l) - (1 - p) log sigma(r_l - r_w): labels that are right with probability p.

    dl/dr_w = sigma(r_w - r_l) - p. Source: arXiv 2401.06080 section 2 (soft labels); p = 1 is `bradley_terry`.

    Args:
      rewards: float [N, 2], differentiated.
      present: bool [N, 2].
      label_probs: float [N], p: the share of annotators who prefer the first, or sigma of the mean gap of other models.
    """
    gaps, live = _gaps(rewards, present)
    return terms(links.soft_label(gaps, label_probs=per_prompt(label_probs, gaps, gaps.dtype)), live)


def k_wise(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """1 / P sum_{y_i > y_j} -log sigma(r_i - r_j): all P pairs of different grades of a prompt, in one term.

    Without ties P = C(k, 2) of the k responses present, and it is `bradley_terry` for K = 2.
    Source: arXiv 2203.02155 equation 1 (InstructGPT).

    Args:
      rewards: float [N, K], differentiated.
      present: bool [N, K].
      targets: float [N, K], y, data. Two of equal y are not a pair.
    """
    rewards, targets = check_responses(rewards, present), _data(targets, present)
    pairs = lists.all_pairs(rewards, present, links.logistic, rewards=targets, reduce="mean")
    return terms(pairs, _ranked(targets, present))


def plackett_luce(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """-sum_k log( exp r_k / (exp r_k + sum_{y_j < y_k} exp r_j) ): each is chosen ahead of all that is worse.

    Without ties it is the likelihood of the ranking, and `bradley_terry` for K = 2.
    Source: Plackett (1975), Luce (1959); ListMLE (Xia et al., 2008).

    Args:
      rewards: float [N, K], differentiated.
      present: bool [N, K].
      targets: float [N, K], y, data. Two of equal y are not compared.
    """
    rewards, targets = check_responses(rewards, present), _data(targets, present)
    return terms(lists.plackett_luce(rewards, present, links.logistic, rewards=targets), _ranked(targets, present))


def centered(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """(sum_k r_k)^2, for a pair (r_w + r_l)^2: centres rewards at 0. float [N, K], bool [N, K] -> float [N].

    Source: arXiv 2312.09244 section 2; center_rewards_coefficient of TRL's RewardTrainer, which suggests 0.01.
    """
    return jnp.square(jnp.sum(check_responses(rewards, present), axis=1))


def squared(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """sum_k r_k^2: keeps rewards, and so their gaps, small. float [N, K], bool [N, K] -> float [N].

    Source: the "reg" baseline of arXiv 2502.18770 (PAR), coefficient 0.005.
    """
    return jnp.sum(jnp.square(check_responses(rewards, present)), axis=1)


def _data(targets: chex.Array, present: chex.Array) -> chex.Array:
    return jax.lax.stop_gradient(check_responses(targets, present))


def _ranked(targets: chex.Array, present: chex.Array) -> chex.Array:
    """Whether a prompt has two responses of different grades. float [N, K], bool [N, K] -> bool [N]."""
    best = jnp.max(jnp.where(present, targets, -jnp.inf), axis=1)
    return best > jnp.min(jnp.where(present, targets, jnp.inf), axis=1)


def _gaps(rewards: chex.Array, present: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(r_w - r_l float [N], whether both are present bool [N]). Raises ValueError if K is not 2."""
    rewards = check_responses(rewards, present)
    if rewards.shape[1] != 2:
        raise ValueError(f"pairs need 2 responses per prompt, got {rewards.shape[1]}: use k_wise or plackett_luce")
    return rewards[:, 0] - rewards[:, 1], jnp.all(present, axis=1)
