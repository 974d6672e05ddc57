"""Losses of ordered responses: (rewards [N, K], present [N, K], *, ...) -> Terms of one term a prompt, [N].

Of a pair the first is the better one; of a list the grades say it, and two of the same grade are not compared. Only
differences of one prompt's rewards count, so a constant added to all of them changes nothing; `centered` and `squared`,
the regularizers, pin that constant. A prompt with nothing to compare has no term.
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

    rewards: float [N, 2], differentiated: dl/dr_w = sigma(r_w - r_l) - (1 - eps). present: bool [N, 2].
    label_smoothing: eps, the share of labels that are taken to be wrong.
    Source: Bradley and Terry (1952), arXiv 1706.03741; TRL's RewardTrainer.
    """
    gaps, live = _gaps(rewards, present)
    return terms(links.logistic(gaps, label_smoothing=label_smoothing), live)


def bradley_terry_margin(
    rewards: chex.Array, present: chex.Array, *, margins: chex.Array, label_smoothing: float = 0.0
) -> Terms:
    """The same of r_w - r_l - m: the two shall lie at least m apart.

    rewards: float [N, 2], differentiated. present: bool [N, 2]. margins: float [N], m, in the reward's units:
    LLAMA2_MARGINS of how clear the preference is, or the mean gap of other reward models.
    Source: arXiv 2307.09288 equation 2; the adaptive margin of arXiv 2401.06080.
    """
    gaps, live = _gaps(rewards, present)
    gaps = gaps - per_prompt(margins, gaps, gaps.dtype)
    return terms(links.logistic(gaps, label_smoothing=label_smoothing), live)


def bradley_terry_soft(rewards: chex.Array, present: chex.Array, *, label_probs: chex.Array) -> Terms:
    """-p log sigma(r_w - r_l) - (1 - p) log sigma(r_l - r_w): labels that are known with probability p.

    rewards: float [N, 2], differentiated: dl/dr_w = sigma(r_w - r_l) - p. present: bool [N, 2].
    label_probs: float [N], p: the share of annotators who prefer the first, or sigma of the mean gap of other models.
    Source: arXiv 2401.06080 section 2 (soft labels); p = 1 is bradley_terry.
    """
    gaps, live = _gaps(rewards, present)
    return terms(links.soft_label(gaps, label_probs=per_prompt(label_probs, gaps, gaps.dtype)), live)


def k_wise(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """1 / P sum_{y_i > y_j} -log sigma(r_i - r_j): all P pairs of different grades of a prompt, in one term.

    rewards: float [N, K], differentiated. present: bool [N, K]. targets: float [N, K], y, data: two of equal y are no
    pair. Without ties P = C(k, 2) of the k responses present, and it is bradley_terry for K = 2.
    Source: arXiv 2203.02155 equation 1 (InstructGPT).
    """
    rewards, targets = check_responses(rewards, present), _data(targets, present)
    pairs = lists.all_pairs(rewards, present, links.logistic, rewards=targets, reduce="mean")
    return terms(pairs, _ranked(targets, present))


def plackett_luce(rewards: chex.Array, present: chex.Array, *, targets: chex.Array) -> Terms:
    """-sum_k log( exp r_k / (exp r_k + sum_{y_j < y_k} exp r_j) ): each is drawn ahead of all that is worse.

    rewards: float [N, K], differentiated. present: bool [N, K]. targets: float [N, K], y, data: two of equal y are not
    compared. Without ties it is the likelihood of the ranking, and bradley_terry for K = 2.
    Source: Plackett (1975), Luce (1959); ListMLE (Xia et al., 2008).
    """
    rewards, targets = check_responses(rewards, present), _data(targets, present)
    return terms(lists.plackett_luce(rewards, present, links.logistic, rewards=targets), _ranked(targets, present))


def centered(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """(sum_k r_k)^2, for a pair (r_w + r_l)^2: rewards about 0. float [N, K], bool [N, K] -> float [N].

    Source: arXiv 2312.09244 section 2; center_rewards_coefficient of TRL's RewardTrainer, which suggests 0.01.
    """
    return jnp.square(jnp.sum(check_responses(rewards, present), axis=1))


def squared(rewards: chex.Array, present: chex.Array) -> chex.Array:
    """sum_k r_k^2: small rewards, their gap included. float [N, K], bool [N, K] -> float [N].

    Source: the "reg" baseline of arXiv 2502.18770 (PAR), coefficient 0.005.
    """
    return jnp.sum(jnp.square(check_responses(rewards, present)), axis=1)


def antisymmetric(forward: chex.Array, backward: chex.Array) -> chex.Array:
    """(P(a, b) + 1 - P(b, a)) / 2: a preference model's answer without its liking for a place.

    forward, backward: float [...], its probability that the first is better, in both orders. -> float [...].
    """
    chex.assert_equal_shape([forward, backward])
    return 0.5 * (forward + 1.0 - backward)


def _data(targets: chex.Array, present: chex.Array) -> chex.Array:
    return jax.lax.stop_gradient(check_responses(targets, present))


def _ranked(targets: chex.Array, present: chex.Array) -> chex.Array:
    """Where a prompt has two responses of different grades. float [N, K], bool [N, K] -> bool [N]."""
    best = jnp.max(jnp.where(present, targets, -jnp.inf), axis=1)
    return best > jnp.min(jnp.where(present, targets, jnp.inf), axis=1)


def _gaps(rewards: chex.Array, present: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(r_w - r_l float [N], whether both are there bool [N]). Raises ValueError where K is not 2."""
    rewards = check_responses(rewards, present)
    if rewards.shape[1] != 2:
        raise ValueError(f"a pair has 2 responses, these prompts have {rewards.shape[1]}: use k_wise or plackett_luce")
    return rewards[:, 0] - rewards[:, 1], jnp.all(present, axis=1)
