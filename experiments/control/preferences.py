"""Control without a reward: from preferences between segments of episodes, or between whole episodes.

    python -m experiments.control.preferences --config=configs/control/preferences.py:reward
    python -m experiments.control.preferences --config=configs/control/preferences.py:cpl
    python -m experiments.control.preferences --config=configs/control/preferences.py:spo

    reward   segments -> a reward network -> PPO on it                    rl_jax/control/reward_learning.py
    regret   segments -> the reward of a finite MDP -> its best policy    rl_jax/control/reward_learning.py, tabular.py
    cpl      segments -> the policy, after behaviour cloning              rl_jax/control/cpl.py
    spo      PPO on the share of episodes that an episode beats           rl_jax/control/self_play.py

The true reward labels segments and episodes, as a person would, and gives eval/return; it is never a training signal.
Runs, meshes, checkpoints and the loop are those of experiments.control.ppo. Each *_run makes the functions of one run
from a config; arguments and result are those of control_runs.make_run.
"""

import functools
import pathlib

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from experiments.parts import (
    control_loop,
    control_offline,
    control_record,
    control_rewards,
    control_runs,
    control_segments,
    flags,
)
from rl_jax import control
from rl_jax.control import cpl, duels, reward_learning, self_play, tabular
from rl_jax.core.binding import bind
from rl_jax.models.agents.scoring import make_score


def reward_run(config, *, parts: int = 1, axis_name: str | None = None):
    """PPO on a reward learned from segments."""
    setup = control_segments.make_agent_setup(config)
    agent, network = setup.agent, control_rewards.reward_network(config, setup.env)
    blank = functools.partial(reward_learning.blank_reward, network)  # the fitted one takes its place before a step
    relabel = reward_learning.by_reward(network.apply, agent.distribution.to_env, blank)
    begin, update, params = control_runs.make_run(config, parts=parts, axis_name=axis_name, relabel=relabel)
    gather, learn = control_segments.make_gather(config, setup), control_rewards.make_learner(config, agent, network)
    judge = control_rewards.make_learned_judge(config, agent, network)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> control.ControlState:
        online_key, gather_key, fit_key = jax.random.split(key, 3)
        state = begin(online_key, values)
        reward, fitted = learn(fit_key, *gather(gather_key, values))
        trackers = state.train.trackers | {"relabel": reward, "fitted": fitted}
        return state._replace(train=state.train._replace(trackers=trackers))

    def advance(state: control.ControlState, values: dict[str, jax.Array], count: int):
        state, metrics = update(state, values, count)
        trackers = state.train.trackers
        return state, metrics | trackers["fitted"] | judge(params(state), trackers["relabel"], state.train)

    return init, advance, params


def regret_run(config, *, parts: int = 1, axis_name: str | None = None):
    """The reward r(s, a) of a finite MDP from segments, by the regret model; the policy is greedy on Q*_r."""
    control_offline.check(config, parts)
    setup, table = control_segments.make_agent_setup(config), control_segments.table_of(config)
    probs, fields = jnp.asarray(table.transition_probs), config.tabular.to_dict()
    model = fields.pop("model")
    regret = functools.partial(tabular.advantages, transition_probs=probs, **fields)
    models = {"partial_return": lambda rewards: rewards, "regret": regret}
    if model not in models:
        raise ValueError(f"tabular.model={model!r} is none of {', '.join(models)}")
    loss_fn = functools.partial(reward_learning.table_loss, models[model], discount=config.fit.discount)
    policy_of = functools.partial(tabular.q_policy, transition_probs=probs, **fields)
    zeros = jnp.zeros(table.rewards.shape)
    return control_offline.offline_run(config, lambda key, data: zeros, loss_fn, policy_of, setup)


def cpl_run(config, *, parts: int = 1, axis_name: str | None = None):
    """CPL: behaviour cloning of all segments, then the policy from preferences."""
    control_offline.check(config, parts)
    setup, fields = control_segments.make_agent_setup(config), config.cpl.to_dict()
    agent, unravel, fit = setup.agent, control.unraveler(setup.agent), control_offline.fit_settings(config)
    updates = fields.pop("cloning_updates")
    objective = cpl.make_objective(**fields)

    def score(params: jax.Array, inputs):
        return make_score(agent)(unravel(params), inputs)

    def loss_fn(params: jax.Array, batch):
        return cpl.policy_loss(cpl.segment_log_probs(score, params, batch.batch), batch, objective)

    def begin(key: jax.Array, data) -> jax.Array:
        init_key, fit_key = jax.random.split(key)
        return cpl.clone(score, ravel_pytree(agent.init(init_key))[0], fit_key, data, updates=updates, **fit)

    init, advance, flat = control_offline.offline_run(
        config, begin, loss_fn, lambda params: functools.partial(agent.policy, unravel(params)), setup
    )
    return init, advance, lambda state: unravel(flat(state))


def spo_run(config, *, parts: int = 1, axis_name: str | None = None):
    """PPO on how often an episode is preferred."""
    fields = config.spo
    relabel = self_play.by_self_play(
        config.sample.num_envs // parts,
        preference=bind(fields.preference.to_dict(), duels),
        queue_size=fields.queue_size,
        horizon=fields.horizon or None,
        axis_name=axis_name,
    )
    return control_runs.make_run(config, parts=parts, axis_name=axis_name, relabel=relabel)


METHODS = {"reward": reward_run, "regret": regret_run, "cpl": cpl_run, "spo": spo_run}


def run(config, workdir: pathlib.Path) -> None:
    """Fits to segments first, if the method does, then the loop of control.ppo."""
    method = config.preferences.method
    if method not in METHODS:
        raise ValueError(f"preferences.method={method!r} is none of {', '.join(METHODS)}")
    if method == "regret":  # its policy is a table: no episodes are recorded
        control_loop.train(config, workdir, regret_run, lambda config: lambda state, step: [])
    else:
        control_loop.train(config, workdir, METHODS[method], control_record.make_recorder)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
