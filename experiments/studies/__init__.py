"""The studies behind the ablations of configs/papers: each runs all seeds of all arms in one program.

study(seeds, *, settings...) -> Outcome. A config names a function of this package and gives its settings.
"""

from experiments.studies.base import Outcome
from experiments.studies.games import last_iterate
from experiments.studies.length import length_bias
from experiments.studies.noise import deterministic_preferences, label_noise
from experiments.studies.reward_models import ensemble_overoptimization
from experiments.studies.sampling import online_offline, pair_origin, power_law

__all__ = [
    "Outcome",
    "deterministic_preferences",
    "ensemble_overoptimization",
    "label_noise",
    "last_iterate",
    "length_bias",
    "online_offline",
    "pair_origin",
    "power_law",
]
