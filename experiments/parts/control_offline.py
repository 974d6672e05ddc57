"""Fitting a function to labelled segments: the settings of config.fit, and a run that learns from segments only."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from experiments.parts import control_runs, control_setup
from experiments.parts.control_segments import AgentSetup, make_gather
from rl_jax.control import segments
from rl_jax.rollout.envs.steps import memoryless
from rl_jax.training.step import TrainState, init_state


class OfflineState(NamedTuple):
    """State of a run that learns from segments only.

    Attributes:
      train: TrainState.
      data: segments.SegmentPairs.
    """

    train: TrainState
    data: segments.SegmentPairs


def fit_settings(config) -> dict[str, Any]:
    """The keywords of segments.make_fit from config.fit."""
    fit = config.fit
    optimizer = optax.adam(**fit.optimizer.to_dict())
    return dict(optimizer=optimizer, batch_size=fit.batch_size, max_grad_norm=fit.max_grad_norm)


def offline_run(config, begin: Callable, loss_fn: Callable, policy_of: Callable, setup: AgentSetup):
    """A run that fits a function to segments and evaluates the policy it implies.

    Args:
      config: of the run.
      begin: (key, data) -> params.
      loss_fn: (params, PreferenceBatch) -> (Mean, metrics).
      policy_of: params -> (observations -> outputs).
      setup: agent, algorithm and env.

    Returns:
      (init, advance, params), as control_runs.make_run returns.
    """
    settings = fit_settings(config)
    fit, gather = segments.make_fit(loss_fn, **settings), make_gather(config, setup)
    eval_env = control_setup.load_env(config, config.eval.num_episodes)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> OfflineState:
        begin_key, gather_key, fit_key = jax.random.split(key, 3)
        data, _ = gather(gather_key, values)
        return OfflineState(init_state(begin(begin_key, data), settings["optimizer"], fit_key), data)

    def advance(state: OfflineState, values: dict[str, jax.Array], count: int):
        train, metrics = fit(state.train, state.data, count)
        policy = memoryless(policy_of(train.params))
        metrics |= control_runs.judge(config, policy, setup.agent.distribution, eval_env, train)
        return state._replace(train=train), metrics

    return init, advance, lambda state: state.train.params


def check(config, parts: int) -> None:
    """Raises ValueError for what has no meaning for a run that learns from segments only, or is not read by it."""
    method = config.preferences.method
    if parts > 1:
        raise ValueError(f"mesh={config.mesh!r}: {method} has no envs to spread; use seeds:N")
    if config.eval.num_episodes < 1:
        raise ValueError(f"eval.num_episodes={config.eval.num_episodes} must be 1 or more: returns are the result")
    if config.record.path:
        raise ValueError(f"record.path={config.record.path!r}: {method} records no transitions; set it to ''")
    swept = dict.fromkeys([name for name, _ in config.sweep] + [name for _, run in config.runs for name, _ in run], 0.0)
    if swept and not config.segments.teacher_steps:
        raise ValueError(
            f"sweep: {method} does not read config.{next(iter(swept))}, only a teacher would (segments.teacher_steps); "
            "sweep in programs of their own, with python -m experiments.sweep"
        )
    control_setup.with_values(control_setup.settings_of(config), swept)
