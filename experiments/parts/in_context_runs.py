"""One run of experiments.control.offline with algorithm.fn "t2mir": several tasks at once, told apart in context.

The tasks are those of continual.values, of which nothing is observed but the rewards. What is cloned is the scripted
expert's action of each task where its data have been. eval/return and eval/normalized are means over the tasks,
eval/task_k is eval/normalized of task k.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import continual_runs, control_runs, control_setup, offline_data, offline_runs
from rl_jax.control import offline
from rl_jax.control.offline import in_context
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import scripted
from rl_jax.models.agents import decision_transformer
from rl_jax.models.agents.expert_transformer import ExpertTransformer, make_expert_transformer
from rl_jax.training.step import TrainState


class InContextState(NamedTuple):
    """State of a run: TrainState of the network, and offline_data.Loaded [K] of the tasks."""

    train: TrainState
    loaded: offline_data.Loaded


class Memory(NamedTuple):
    """What the actor remembers: a decision_transformer.Sequence, and float32 [B], the return before the last step."""

    steps: decision_transformer.Sequence
    returned: jax.Array


def acting(model: ExpertTransformer, params):
    """The policy that reads its own episode so far: (Worlds) -> (outputs, Memory)."""

    def policy(worlds):
        steps, returned = worlds.memory
        before = jnp.where(worlds.episode_length > 0, worlds.episode_return - returned, 0.0)
        steps = decision_transformer.extended(steps, before, worlds.observation, worlds.episode_length)
        outputs = model.apply(params, steps, params["gate"]).outputs[:, -1]
        chosen = model.encode(model.distribution.mode(outputs))
        steps = steps._replace(actions=steps.actions.at[:, -1].set(chosen))
        return outputs, Memory(steps, worlds.episode_return)

    return policy


def make_in_context_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: if eval.greedy is off: the policy remembers the likeliest action, not a sampled one.
    """
    offline_runs.check_one_device(config, parts)
    continual_runs.check_fields(config)
    if not config.eval.greedy:
        raise ValueError("eval.greedy=False: a policy in context acts by its likeliest action; set it True")
    configs, settings = continual_runs.task_configs(config), control_setup.settings_of(config)
    env = control_setup.load_env(config, 1)
    single, shape = offline_data.make_offline_networks(config, env), env.observation_space.shape
    fields = config.sequence.to_dict() | config.experts.to_dict()
    model = make_expert_transformer(shape, single.distribution, single.encode, single.size, **fields)
    load = continual_runs.load_tasks(configs, single)
    scripts = [scripted.controller(**own.env.to_dict()) for own in configs]
    eval_envs = [control_setup.load_env(own, config.eval.num_episodes) for own in configs]

    def fit_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        sample = functools.partial(in_context.sample_pairs, context=config.sequence.context)
        return offline_runs.fit_of(config, result, bind(result["algorithm"], offline)(model), sample=sample)

    def init(key: jax.Array, values: dict[str, jax.Array]) -> InContextState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        return InContextState(fit_of(values)[0](model.init(init_key), fit_key), load(load_key))

    def advance(state: InContextState, values: dict[str, jax.Array], count: int):
        data = state.loaded.data
        best = jnp.stack([script(data.steps.observations[k]) for k, script in enumerate(scripts)])
        tasks = in_context.InContext(data, best, jnp.ones(data.time.shape, bool), jnp.arange(len(scripts)))
        train, metrics = fit_of(values)[1](state.train, tasks, count)
        found = []
        for eval_env in eval_envs:
            memory = Memory(decision_transformer.empty(model, eval_env.num_envs, shape), jnp.zeros(eval_env.num_envs))
            policy = acting(model, train.params)
            found.append(control_runs.judge(config, policy, model.distribution, eval_env, train, memory))
        returns = jnp.stack([each["eval/return"] for each in found])
        scores = offline_data.normalized(returns, *jnp.moveaxis(state.loaded.references, 1, 0))
        metrics |= {f"eval/task_{k}": scores[k] for k in range(len(scripts))}
        metrics |= {"eval/return": jnp.mean(returns), "eval/normalized": jnp.mean(scores)}
        return state._replace(train=train), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
