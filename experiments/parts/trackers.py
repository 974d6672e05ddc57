"""The estimators that a run carries from step to step (rl_jax.core.trackers), by their place in the loop.

    reward_scale   running_moments: of rewards, updated before they are shaped -> shaping.scaled
                   credit.prices:cost_window: of what episodes cost -> credit.prices:priced
    baseline       ema_mean: of the rewards of earlier steps -> advantages.tracked_baseline
                   beta_values: the same of each prompt -> advantages.tracked_relative
                   a tracker of rl_jax.advantages.memory: what its state has named -> advantages.remembered
    reward_kl      adaptive_kl: moves the weight of the KL in the reward
    loss_kl        adaptive_kl: moves the weight of the KL in the loss
    entropy        adaptive_entropy: moves the weight of the entropy bonus

config.algorithm.trackers names one per place, or "". Their states are in TrainState.trackers and are checkpointed. The
values of config.schedules (experiments.parts.schedules) are one more state, which follows the step's number.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from experiments.parts import processes, schedules
from experiments.parts.sample_groups import Collected
from rl_jax.core import trackers
from rl_jax.core.binding import bind, needs
from rl_jax.core.trackers import Tracker
from rl_jax.core.types import PolicyBatch
from rl_jax.tasks import Task
from rl_jax.training.step import TrainState

States = dict[str, Any]


# Place -> (fields of the state that the loop reads, the usual tracker).
PLACES = {
    "reward_scale": (("mean or named", "std or named"), "running_moments"),
    "baseline": (("value or values or named",), "ema_mean or beta_values"),
    "reward_kl": (("coef",), "adaptive_kl"),
    "loss_kl": (("coef",), "adaptive_kl"),
    "entropy": (("applied",), "adaptive_entropy"),
}


def make_trackers(config, task: Task | None = None) -> dict[str, Tracker]:
    """The trackers of config.algorithm.trackers, by place.

    Args:
      config: of the run.
      task: tells a tracker of prompts (beta_values) how many there are.

    Raises:
      ValueError: if a tracker is unknown, or its state lacks what its place reads.
    """
    specs = {place: spec for place, spec in config.algorithm.trackers.items() if spec.fn}
    about = {"group_size": config.sample.group_size, "updates": config.train.steps}
    about["reward_kl_coef"] = config.algorithm.reward_kl_coef
    about |= {"num_prompts": len(task.data_source("train"))} if task and specs else {}
    estimators = {place: bind(spec.to_dict(), trackers, **about)() for place, spec in specs.items()}
    for place, tracker in estimators.items():
        fields, usual = PLACES[place]
        state = tracker.init()
        lacking = [field for field in fields if not any(hasattr(state, name) for name in field.split(" or "))]
        if lacking:
            raise ValueError(
                f"algorithm.trackers.{place}={specs[place].fn!r}: its state lacks {', '.join(lacking)}, which the "
                f"loop reads; use {usual}"
            )
    return estimators | ({schedules.PLACE: schedules.make_tracker(config)} if config.schedules else {})


def init(estimators: dict[str, Tracker]) -> States:
    """The states before the first step."""
    return {place: tracker.init() for place, tracker in estimators.items()}


def see_rewards(
    estimators: dict[str, Tracker], states: States, rewards: np.ndarray, counted: Mapping[str, np.ndarray] | None = None
) -> States:
    """The states after observing the step's rewards, float32 [B], if that comes before their use (PPO-max).

    counted: what a tracker may ask for by name, of the turns of episodes.
    """
    if "reward_scale" not in estimators:
        return states
    update = estimators["reward_scale"].update
    asked = {name: jnp.asarray(array) for name, array in (counted or {}).items() if name in needs(update)}
    return states | {"reward_scale": update(states["reward_scale"], jnp.asarray(rewards), **asked)}


def _counted(collected: Collected) -> dict[str, np.ndarray]:
    """The turns of a step's rows, and what the environment has counted of each; {} for single answers."""
    turns = collected.judged.rollout.turns
    return {} if turns is None else {"turns": turns.numbers} | {f"turn_{name}": x for name, x in turns.counts.items()}


def known(config, states: States, named: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What credit.assign may use: reward_mean, reward_std and baseline, or what their states have named, and the weight
    of the KL in the reward.

    Args:
      config: of the run.
      states: before the step.
      named: further arrays of the step; a baseline per prompt needs prompt_ids int [B].
    """
    result = {"reward_kl_coef": config.algorithm.reward_kl_coef}
    if "reward_kl" in states:
        result["reward_kl_coef"] = states["reward_kl"].coef
    if hasattr(states.get("reward_scale"), "named"):
        result |= states["reward_scale"].named()
    elif "reward_scale" in states:
        result["reward_mean"], result["reward_std"] = states["reward_scale"].mean, states["reward_scale"].std()
    if "baseline" in states:
        result |= _of_baseline(states["baseline"], named or {})
    return result


def _of_baseline(state: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays of a baseline's state, by name."""
    if hasattr(state, "named"):
        return state.named(named.get("prompt_ids"))
    return {"baseline": state.values(named["prompt_ids"]) if hasattr(state, "values") else state.value}


def weigh(batch: PolicyBatch, states: States) -> PolicyBatch:
    """The batch with the weights of its regularisers, if a tracker moves them."""
    rows = batch.completion_mask.shape[:1]
    extras = dict(batch.extras)
    if "loss_kl" in states:
        extras["kl_coefs"] = jnp.full(rows, states["loss_kl"].coef)
    if "entropy" in states:
        extras["entropy_coefs"] = jnp.full(rows, states["entropy"].applied)
    return batch._replace(extras=extras | schedules.carry(batch, states))


def observe(
    estimators: dict[str, Tracker],
    states: States,
    rewards: np.ndarray,
    metrics: dict[str, float],
    named: Mapping[str, Any] | None = None,
) -> States:
    """The states after a step.

    Args:
      estimators: the trackers by place.
      states: before the step.
      rewards: float32 [B]. Shaped, as the advantage sees them.
      metrics: of the step; kl/k1 and entropy are means over tokens.
      named: further arrays of the step; a baseline per prompt needs prompt_ids int [B], and takes divergence float [B]
        as 0 if it is not measured.
    """
    # On the host, so that a state on a mesh can be combined with numbers that are not.
    states, rewards = jax.device_get((states, rewards))
    samples = jnp.float32(len(rewards))
    seen = {"baseline": (jnp.asarray(rewards),)}
    if hasattr(states.get("baseline"), "values"):
        moved = named.get("divergence", np.zeros(len(rewards), np.float32))
        seen = {"baseline": (jnp.asarray(named["prompt_ids"]), jnp.asarray(rewards), jnp.asarray(moved))}
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
    """The states as metrics: tracker/PLACE/FIELD, the mean over prompts of a field that has one value for each; and
    schedule/NAME."""
    found = {
        f"tracker/{place}/{field}": float(np.mean(value))
        for place, state in states.items()
        if place != schedules.PLACE
        for field, value in state._asdict().items()
    }
    return found | schedules.metrics_of(states)


def see(estimators: dict[str, Tracker], state: TrainState, collected: Collected, step: int) -> TrainState:
    """The train state whose trackers have observed what comes before their use: the step's rewards, and its number."""
    asks = "reward_scale" in estimators and needs(estimators["reward_scale"].update)
    counted = _counted(collected) if asks else {}
    states = see_rewards(estimators, state.trackers, collected.judged.result.rewards, counted)
    if schedules.PLACE in estimators:
        values = estimators[schedules.PLACE].update(states[schedules.PLACE], step)
        states = states | {schedules.PLACE: jax.device_put(values, state.step.sharding)}
    return state._replace(trackers=_as_trained(states, state))


def _as_trained(states: States, state: TrainState) -> States:
    """The states where the train step leaves them: a number in another place would be another program to jit."""
    return states if jax.process_count() > 1 else jax.device_put(states, state.step.sharding)


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
    rewards = collected.judged.result.rewards if earned is None else earned
    states = observe(estimators, state.trackers, rewards, metrics, collected.named)
    placed = _as_trained(processes.replicate(mesh, states), state)
    return state._replace(trackers=placed), metrics | metrics_of(states)
