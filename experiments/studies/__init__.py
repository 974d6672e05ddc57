"""The studies of the ablations in configs/papers: each runs all seeds of all arms in one program.

study(seeds, *, settings...) -> Outcome. A config names a function of this package and gives its settings.
"""

from experiments.studies.asynchrony import asynchronous_schedules
from experiments.studies.base import Outcome
from experiments.studies.coverage import off_policy_rewards, partial_coverage
from experiments.studies.criteria import hackable_criterion
from experiments.studies.fronts import front_stages
from experiments.studies.games import last_iterate
from experiments.studies.horizons import effective_horizon
from experiments.studies.iterations import preference_iterations
from experiments.studies.judges import judge_cotraining
from experiments.studies.length import length_bias
from experiments.studies.mismatch import objective_mismatch
from experiments.studies.noise import deterministic_preferences, label_noise
from experiments.studies.offline_values import value_outliers
from experiments.studies.over_optimization import best_of_many
from experiments.studies.over_optimized_policy import optimized_policy
from experiments.studies.policy_gradients import gradient_noise, kl_placement
from experiments.studies.policy_learning import answers_by_policy_gradient
from experiments.studies.policy_length import free_length, question_weights
from experiments.studies.proxies import divergence_targets, wrong_somewhere
from experiments.studies.queries import partial_rewards
from experiments.studies.regrets import preference_models
from experiments.studies.reward_models import ensemble_overoptimization
from experiments.studies.reward_searches import searched_rewards
from experiments.studies.sampling import online_offline, pair_origin, power_law
from experiments.studies.satisfiability import sat_levels
from experiments.studies.statistics import best_of_seeds, few_seeds, tuning_seeds
from experiments.studies.suboptimal import suboptimal_data
from experiments.studies.theory import best_of_n_limit, reward_distances
from experiments.studies.turn_credit import maze_steps
from experiments.studies.waiting import waiting_dropping
from experiments.studies.worlds import trained_in_worlds

__all__ = [
    "Outcome",
    "asynchronous_schedules",
    "best_of_many",
    "optimized_policy",
    "best_of_n_limit",
    "best_of_seeds",
    "deterministic_preferences",
    "divergence_targets",
    "effective_horizon",
    "ensemble_overoptimization",
    "few_seeds",
    "label_noise",
    "last_iterate",
    "length_bias",
    "answers_by_policy_gradient",
    "free_length",
    "front_stages",
    "gradient_noise",
    "hackable_criterion",
    "judge_cotraining",
    "kl_placement",
    "maze_steps",
    "objective_mismatch",
    "question_weights",
    "online_offline",
    "off_policy_rewards",
    "pair_origin",
    "partial_coverage",
    "partial_rewards",
    "power_law",
    "preference_iterations",
    "preference_models",
    "reward_distances",
    "sat_levels",
    "searched_rewards",
    "suboptimal_data",
    "trained_in_worlds",
    "tuning_seeds",
    "value_outliers",
    "waiting_dropping",
    "wrong_somewhere",
]
