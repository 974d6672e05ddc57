"""The estimators that a run carries from step to step (rl_jax.core.trackers), by their place in the loop.

    reward_scale   running_moments: of rewards, updated before they are shaped -> shaping.scaled
    baseline       ema_mean: of the rewards of earlier steps -> advantages.tracked_baseline
    reward_kl      adaptive_kl: moves the weight of the KL in the reward
    loss_kl        adaptive_kl: moves the weight of the KL in the loss
    entropy        adaptive_entropy: moves the weight of the entropy bonus

config.algorithm.trackers names one per place, or "". Their states are in TrainState.trackers and are checkpointed.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.parts import processes
from experiments.parts.sample_groups import Collected
from rl_jax.core import trackers
from rl_jax.core.binding import bind
from rl_jax.core.trackers import Tracker
from rl_jax.core.types import PolicyBatch
from rl_jax.training.step import TrainState

States = dict[str, Any]


# Place -> (fields of the state that the loop reads, the usual tracker).
PLACES = {
    "reward_scale": (("mean", "std"), "running_moments"),
    "baseline": (("value",), "ema_mean"),
    "reward_kl": (("coef",), "adaptive_kl"),
    "loss_kl": (("coef",), "adaptive_kl"),
    "entropy": (("applied",), "adaptive_entropy"),
}


def make_trackers(config) -> dict[str, Tracker]:
    """The trackers of config.algorithm.trackers, by place.

    Raises:
      ValueError: if a tracker is unknown, or its state lacks what its place reads.
    """
    specs = {place: spec for place, spec in config.algorithm.trackers.items() if spec.fn}
    estimators = {place: bind(spec.to_dict(), trackers)() for place, spec in specs.items()}
    for place, tracker in estimators.items():
        fields, usual = PLACES[place]
        lacking = [field for field in fields if not hasattr(tracker.init(), field)]
        if lacking:
            raise ValueError(
                f"algorithm.trackers.{place}={specs[place].fn!r}: its state lacks {', '.join(lacking)}, which the "
                f"loop reads; use {usual}"
            )
    return estimators


def init(estimators: dict[str, Tracker]) -> States:
    """The states before the first step."""
    return {place: tracker.init() for place, tracker in estimators.items()}


def see_rewards(estimators: dict[str, Tracker], states: States, rewards: np.ndarray) -> States:
    """The states after observing the step's rewards, float32 [B], if that comes before their use (PPO-max)."""
    if "reward_scale" not in estimators:
        return states
    return states | {"reward_scale": estimators["reward_scale"].update(states["reward_scale"], jnp.asarray(rewards))}


def known(config, states: States) -> dict[str, Any]:
    """What credit.assign may use: reward_mean, reward_std, baseline, and the weight of the KL in the reward."""
    result = {"reward_kl_coef": config.algorithm.reward_kl_coef}
    if "reward_kl" in states:
        result["reward_kl_coef"] = states["reward_kl"].coef
    if "reward_scale" in states:
        result["reward_mean"], result["reward_std"] = states["reward_scale"].mean, states["reward_scale"].std()
    if "baseline" in states:
        result["baseline"] = states["baseline"].value
    return result


def weigh(batch: PolicyBatch, states: States) -> PolicyBatch:
    """The batch with the weights of its regularisers, if a tracker moves them."""
    rows = batch.completion_mask.shape[:1]
    extras = dict(batch.extras)
    if "loss_kl" in states:
        extras["kl_coefs"] = jnp.full(rows, states["loss_kl"].coef)
    if "entropy" in states:
        extras["entropy_coefs"] = jnp.full(rows, states["entropy"].applied)
    return batch._replace(extras=extras)


def observe(estimators: dict[str, Tracker], states: States, rewards: np.ndarray, metrics: dict[str, float]) -> States:
    """The states after a step.

    Args:
      estimators: the trackers by place.
      states: before the step.
      rewards: float32 [B]. Shaped, as the advantage sees them.
      metrics: of the step; kl/k1 and entropy are means over tokens.
    """
    # On the host, so that a state on a mesh can be combined with numbers that are not.
    states, rewards = jax.device_get((states, rewards))
    samples = jnp.float32(len(rewards))
    seen = {"baseline": (jnp.asarray(rewards),)}
    if "entropy" in metrics:  # absent if the step trained only a critic
        seen["entropy"] = (jnp.float32(metrics["entropy"]),)
    if "kl/k1" in metrics:
        kl = jnp.float32(metrics["kl/k1"])
        seen |= {"reward_kl": (kl, samples), "loss_kl": (kl, samples)}
    return {
        place: estimators[place].update(state, *seen[place]) if place in seen else state
        for place, state in states.items()
    }


def metrics_of(states: States) -> dict[str, float]:
    """The states as metrics: tracker/PLACE/FIELD."""
    return {
        f"tracker/{place}/{field}": float(value)
        for place, state in states.items()
        for field, value in state._asdict().items()
    }


def see(estimators: dict[str, Tracker], state: TrainState, collected: Collected) -> TrainState:
    """The train state whose trackers have observed the step's rewards, if that comes before their use."""
    return state._replace(trackers=see_rewards(estimators, state.trackers, collected.judged.result.rewards))


def observe_step(
    mesh: Mesh,
    estimators: dict[str, Tracker],
    state: TrainState,
    collected: Collected,
    metrics: dict[str, float],
    earned: jax.Array | None = None,
) -> tuple[TrainState, dict[str, float]]:
    """Updates the trackers after a step.

    Args:
      mesh: of the training.
      estimators: the trackers by place.
      state: after the step's updates.
      collected: the step's rows.
      metrics: of the step.
      earned: float32 [B]. The rewards as the advantage sees them. None: the rewards themselves.

    Returns:
      (the train state with new tracker states, on the mesh; the metrics with theirs added).
    """
    states = observe(estimators, state.trackers, collected.judged.result.rewards if earned is None else earned, metrics)
    return state._replace(trackers=processes.replicate(mesh, states)), metrics | metrics_of(states)
