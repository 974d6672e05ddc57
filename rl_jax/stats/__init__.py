"""Statistics over few seeds: estimates with intervals, tests, and verdicts on claims. numpy and scipy only.

Randomness is keyed: the same values and the same key give the same result.
"""

from rl_jax.stats.adastop import AdaStop, SeedsWanted, adastop, seeds_wanted
from rl_jax.stats.aggregates import (
    average_performance_profile,
    iqm,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
)
from rl_jax.stats.bootstrap import Estimate, sample_efficiency, stratified_bootstrap
from rl_jax.stats.intervals import (
    FEW,
    NOT_REPRODUCED,
    REPRODUCED,
    UNDECIDED,
    Interval,
    all_equal,
    bootstrap_mean,
    judge,
    judge_all,
    paired_difference,
    seeds_for_power,
    widened,
)
from rl_jax.stats.multiple import benjamini_hochberg, holm
from rl_jax.stats.passk import maj_at_k, pass_at_k, pass_hat_k

__all__ = [
    "FEW",
    "NOT_REPRODUCED",
    "REPRODUCED",
    "UNDECIDED",
    "AdaStop",
    "Estimate",
    "Interval",
    "SeedsWanted",
    "adastop",
    "all_equal",
    "average_performance_profile",
    "benjamini_hochberg",
    "bootstrap_mean",
    "holm",
    "iqm",
    "judge",
    "judge_all",
    "maj_at_k",
    "mean",
    "median",
    "optimality_gap",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "performance_profile",
    "probability_of_improvement",
    "sample_efficiency",
    "seeds_for_power",
    "seeds_wanted",
    "stratified_bootstrap",
    "widened",
]
