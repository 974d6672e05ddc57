"""The trainer of experiments.control.asynchronous: its update, its evaluation, its metrics."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from experiments.parts.budgets import samples_per_step
from experiments.parts.control_actors import layout_of, make_agent, make_env, make_forward
from rl_jax import control
from rl_jax.control.algorithm import assign, loss
from rl_jax.control.update import over_turns, shuffled
from rl_jax.core.masked import masked_mean
from rl_jax.rollout.actors.sampler import Segment
from rl_jax.rollout.actors.stage import Episode, Ledger, Stage
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.training.step import TrainState, init_state, make_train_step

EVALUATION = 2**31 - 1  # in place of an environment's number, in the seeds of evaluations


class Learner(NamedTuple):
    """The functions of a training.

    Attributes:
      init: () -> TrainState; params is one flat vector.
      update: (TrainState, Transitions [E, T]) -> (TrainState, metrics float32 []).
      act: the actors' forward.
      total: updates of the whole run.
      unravel: params as a vector -> the agent's.
    """

    init: Callable
    update: Callable
    act: Callable
    total: int
    unravel: Callable


def num_updates(config) -> int:
    """Updates for train.total_steps, rounded up."""
    return math.ceil(config.train.total_steps / samples_per_step(config))


def make_learner(config) -> Learner:
    """The Learner of a config. Raises ValueError as its parts do, or if the steps do not divide into minibatches."""
    layout_of(config)
    agent, algorithm = make_agent(config)
    if samples_per_step(config) % algorithm.minibatches:
        raise ValueError(
            f"{config.sample.num_envs} environments x {config.sample.num_steps} steps do not divide into "
            f"{algorithm.minibatches} minibatches: set train.minibatches to another number"
        )
    total, unravel = num_updates(config), control.unraveler(agent)
    adam = config.train.optimizer.to_dict()
    rate, final = adam.pop("learning_rate"), adam.pop("final_fraction")
    turns = algorithm.epochs * algorithm.minibatches
    optimizer = optax.adam(optax.linear_schedule(rate, rate * final, total * turns), **adam)

    def loss_of(params, batch):
        return loss(*agent.predict(unravel(params), batch.policy.batch), batch, algorithm)

    train_step = make_train_step(loss_of, optimizer, max_grad_norm=algorithm.max_grad_norm)

    def init() -> TrainState:
        params_key, train_key = jax.random.split(jax.random.key(config.seed))
        return init_state(ravel_pytree(agent.init(params_key))[0], optimizer, train_key)

    @jax.jit
    def update(train: TrainState, rows: Transitions):
        batch, metrics = assign(agent, unravel(train.params), rows, lambda x: x, algorithm)
        log_ratio = batch.policy.old_log_probs - batch.policy.behavior_log_probs
        metrics["lag/gap"] = masked_mean(jnp.abs(log_ratio), batch.policy.completion_mask)
        metrics["lag/rho"] = masked_mean(jnp.exp(log_ratio), batch.policy.completion_mask)
        order = shuffled(jax.random.fold_in(train.rng, train.step), algorithm.epochs, rows.rewards.size)

        def turn(train: TrainState, index):
            train, learned = train_step(train, jax.tree.map(lambda x: x[index], batch))
            return train, {name: learned[name] for name in control.update.TURN_METRICS}

        train, learned = jax.lax.scan(turn, train, order.reshape(turns, -1))
        metrics = metrics | over_turns(learned) | loss_of(train.params, batch)[1]
        return train, {name: x.value() for name, x in metrics.items()}

    return Learner(init, update, make_forward(config, agent), total, unravel)


def make_evaluate(config, act: Callable) -> Callable:
    """evaluate(params [P], updates) -> {"eval/return", "eval/length"}: whole episodes in environments of their own.

    Actions are drawn, as no actor draws them; the episodes are those of `updates`.
    """
    count, block = config.eval.num_episodes, config.actors.block
    width = -(-count // block) * block
    blocks = np.arange(width // block, dtype=np.int32)

    def evaluate(params: np.ndarray, updates: int) -> dict[str, float]:
        if not count:
            return {}
        stage = Stage(make_env(config), config.seed)
        # Episode `updates` of environments that no actor has.
        names = [EVALUATION - i for i in range(width)]
        for name in names:
            stage.restore(name, Episode(updates, []))
        total, length, alive = np.zeros(width), np.zeros(width), np.arange(width) < count
        for t in range(config.eval.max_steps):
            draw = -1 - updates * config.eval.max_steps - t  # actors count their steps from 0
            actions = np.asarray(act(params, draw, blocks, stage.observations(names))[2])
            _, _, rewards, terminated, truncated = stage.step(names, actions)
            total, length = total + np.where(alive, rewards, 0.0), length + alive
            alive = alive & ~terminated & ~truncated
            if not alive.any():
                break
        return {"eval/return": float(total[:count].mean()), "eval/length": float(length[:count].mean())}

    return evaluate


class Feed:
    """Between segments and the loop: versions out, segments in, and the state that a checkpoint has.

    Args:
      source: control_actors.OwnSegments, or control_roles.LinkedSegments of actors elsewhere.
      num_envs: E.
    """

    def __init__(self, source, num_envs: int):
        self._source = source
        self._totals, self._lengths = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self._after = Ledger(num_envs).get_state()

    def first_versions(self, params: np.ndarray) -> np.ndarray:
        """float32 [kept, P], the newest last: all are version 0."""
        return np.stack([np.asarray(params)] * self._source.kept)

    def get_state(self) -> dict[str, Any]:
        """JSON values: where every environment is after the segments that were trained on."""
        self._source.settle()
        totals = {"totals": self._totals.tolist(), "lengths": self._lengths.tolist()}
        return {"episodes": self._after, **totals}

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what `get_state` gave."""
        self._totals, self._lengths = np.asarray(state["totals"]), np.asarray(state["lengths"])
        self._after = state["episodes"]

    def begun(self, step: int, versions: np.ndarray) -> "Feed":
        """Starts sampling after `step` updates. versions: float32 [kept, P], the newest last. Use it in a `with`."""
        weights = {step - i: params for i, params in enumerate(reversed(versions)) if step >= i}
        self._source.begin(step, dict(sorted(weights.items())), self._after)
        return self

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, *error) -> None:
        self._source.close(error[0])

    def take(self) -> Segment:
        """The next segment."""
        return self._source.take()

    def publish(self, step: int, versions: np.ndarray, params: jax.Array) -> np.ndarray:
        """Gives the actors the version that update `step` has made. Returns the versions that are kept now."""
        params = np.asarray(params)
        self._source.publish(step, params)
        return np.concatenate([versions[1:], params[None]])

    def measure(self, segment: Segment) -> dict[str, float]:
        """Metrics of a segment: episodes that ended, and how old the acting weights were."""
        rows, ended, truncated = segment.rows, [], 0
        for rewards, over, cut in zip(
            *(np.asarray(x).T for x in (rows.rewards, rows.terminated | rows.truncated, rows.truncated)), strict=True
        ):
            self._totals, self._lengths = self._totals + rewards, self._lengths + 1
            ended += list(zip(self._totals[over].tolist(), self._lengths[over].tolist(), strict=True))
            truncated += int(cut.sum())
            self._totals, self._lengths = np.where(over, 0.0, self._totals), np.where(over, 0, self._lengths)
        self._after = segment.after
        lags = segment.number - 1 - segment.versions
        result = {"lag/mean": float(lags.mean()), "lag/max": float(lags.max())}
        result["episodes"] = float(len(ended))
        if ended:
            returns, lengths = np.mean(np.asarray(ended), axis=0)
            result |= {"episode/return": float(returns), "episode/length": float(lengths)}
            result["episode/truncated"] = truncated / len(ended)
        return result

    def write(self, log, segment: Segment) -> None:
        """With the free schedule, writes which version acted in each step: a row of schedule.jsonl.

        By "step" the run's logger cuts the file back when the run resumes.
        """
        if self._source.notes:
            row = {"step": segment.number, "segment": segment.number, "versions": segment.versions}
            log.rows("schedule", [row])
