"""Slot 4: from the scores of a prompt's responses to one loss: (s [N, K], present [N, K], link) -> float [N]."""

from rl_jax.losses.preference.compare.games import (
    advantage_leftover,
    contrastive_policy_gradient,
    group_advantage_leftover,
    nash_md,
    win_rates,
)
from rl_jax.losses.preference.compare.lists import (
    all_pairs,
    brain,
    info_nca,
    label_softmax,
    lambda_pairs,
    plackett_luce,
    point_logistic,
    point_square,
    pro,
    rrhf,
    softmax,
)
from rl_jax.losses.preference.compare.pairs import (
    anchored,
    apo_down,
    first_pair,
    nca,
    pairs,
    sorted_pairs,
    sorted_unpaired,
)

__all__ = [
    "advantage_leftover",
    "all_pairs",
    "anchored",
    "apo_down",
    "brain",
    "contrastive_policy_gradient",
    "first_pair",
    "group_advantage_leftover",
    "info_nca",
    "label_softmax",
    "lambda_pairs",
    "nash_md",
    "nca",
    "pairs",
    "plackett_luce",
    "point_logistic",
    "point_square",
    "pro",
    "rrhf",
    "softmax",
    "sorted_pairs",
    "sorted_unpaired",
    "win_rates",
]
