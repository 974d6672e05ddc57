"""Several objectives in the programs of environments: wrappers by the config, metrics of a front, refusals."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax import envs
from rl_jax.control import fronts
from rl_jax.envs.objectives import preference_grid
from rl_jax.stats import pareto
from rl_jax.training.step import TrainState

UPDATERS = ("make_objectives_update", "make_front_update")  # of control, for rewards that are vectors


def with_objectives(config, env: envs.Vector, *, weights: Any, preferences: Any, learning: bool) -> envs.Vector:
    """`env` as config.env.weights and config.env.preferences have it.

    Args:
      config: of the program.
      env: as it was loaded.
      weights: of one reward; None leaves the vector.
      preferences: {"kind", "parts"} of envs.conditioned, or None.
      learning: whether each episode draws its weights; if not, those of the grid are used.

    Raises:
      ValueError: if the updater does not fit the number of objectives, or the preferences.
    """
    if weights is not None:
        env = envs.scalarized(env, weights)
    updater = config.algorithm.get("updater", {})
    several = updater.get("fn", "") in UPDATERS
    if several != bool(env.objectives):
        wanted = f"set algorithm.updater.fn to one of {', '.join(UPDATERS)}, or env.weights"
        raise ValueError(
            f"{config.env.name} has {env.objectives} objectives: {wanted}"
            if env.objectives
            else f"algorithm.updater.fn={updater.fn!r} needs several objectives, but {config.env.name} pays one reward"
        )
    conditioned = updater.get("utility", "") == "conditioned"
    if conditioned != (preferences is not None):
        raise ValueError("algorithm.updater.utility='conditioned' and env.preferences go together: set both, or none")
    return envs.conditioned(env, drawn=learning, **preferences) if conditioned else env


def one_policy(train: TrainState) -> TrainState:
    """The state of the first policy, if there are several; its trackers are left out."""
    return train._replace(params=train.params[0]) if train.params.ndim == 2 else train


def groups_of(config, objectives: int) -> int:
    """G: environment b of an evaluation has policy, or weights, b % G."""
    updater = config.algorithm.updater
    if updater.fn == "make_front_update":
        return updater.size
    preferences = config.env.get("preferences")
    return len(preference_grid(objectives, **preferences)) if preferences else 1


def front_metrics(config, returns: jax.Array) -> dict[str, jax.Array]:
    """Metrics of an evaluation with several objectives.

    Args:
      config: of the program; eval.reference is the hypervolume's, eval.parts the grid of expected_utility.
      returns: float32 [B, K] of the episodes.

    Returns:
      eval/objective_k, their means over all episodes; eval/hypervolume and eval/expected_utility of the mean returns of
      the G policies or weights, eval/front, how many of them no other one dominates.

    Raises:
      ValueError: if there are fewer episodes than G, eval.reference is not K numbers, or eval.parts below 1.
    """
    size, groups = returns.shape[1], groups_of(config, returns.shape[1])
    if not len(config.eval.reference):  # the hypervolume has no reference of its own
        raise ValueError(f"eval.reference=() must be {size} numbers: returns that every policy of a front is above")
    reference = pareto.check_weights("eval.reference", config.eval.reference, size)
    weights = pareto.weight_grid(size, config.eval.parts, name="eval.parts").astype(np.float32)
    if len(returns) < groups or len(returns) % groups:
        raise ValueError(f"eval.num_episodes={len(returns)} must be a multiple of {groups}, the policies or weights")
    points = jnp.mean(returns.reshape(-1, groups, size), axis=0)
    kept = fronts.nondominated(points, jnp.ones(groups, bool))
    result = {f"eval/objective_{k}": jnp.mean(returns[:, k]) for k in range(size)}
    return result | {
        "eval/hypervolume": fronts.hypervolume(points, kept, jnp.asarray(reference)),
        "eval/expected_utility": fronts.expected_utility(points, kept, jnp.asarray(weights)),
        "eval/front": jnp.sum(kept).astype(jnp.float32),
    }
