"""Losses of reward models, by name: rankings (the best response first), grades, steps of a solution, log-ratios.

Each is arithmetic on arrays and returns `Terms`: the terms to average, and which of them count. N prompts, K responses
per prompt, S steps.
"""

from rl_jax.losses.reward_model.base import Terms
from rl_jax.losses.reward_model.grades import attributes, hl_gauss, mse, outcome
from rl_jax.losses.reward_model.implicit import implicit_outcome, implicit_pairs
from rl_jax.losses.reward_model.rankings import (
    bradley_terry,
    bradley_terry_margin,
    bradley_terry_soft,
    k_wise,
    plackett_luce,
)
from rl_jax.losses.reward_model.steps import step_cross_entropy

__all__ = [
    "Terms",
    "attributes",
    "bradley_terry",
    "bradley_terry_margin",
    "bradley_terry_soft",
    "hl_gauss",
    "implicit_outcome",
    "implicit_pairs",
    "k_wise",
    "mse",
    "outcome",
    "plackett_luce",
    "step_cross_entropy",
]
