"""One run of experiments.control.offline with algorithm.fn "t2mir": several tasks at once, told apart in context.

The tasks are those of continual.values, of which nothing is observed but the rewards; those of continual.held_out are
evaluated only. What is cloned is the scripted expert's action of each task where its data have been. With "t2mir_ad"
it is what a learner did in its history (history_runs).

In the evaluation the policy lives prompt.rounds episodes of each task, the first without a prompt, each later one with
its own last prompt.episodes. eval/return and eval/normalized are of the last, means over the trained tasks,
eval/held_out is eval/normalized of the others, eval/episode_E theirs in episode E.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import continual_runs, control_setup, offline_data, offline_runs
from rl_jax.control import offline
from rl_jax.control.offline import in_context
from rl_jax.core.binding import bind
from rl_jax.envs.worlds import scripted
from rl_jax.models.agents.expert_transformer import ExpertTransformer, Prompt, make_expert_transformer, newest
from rl_jax.rollout.envs.steps import Transitions, at_the_mode, collect, memoryless, start
from rl_jax.training.step import TrainState


class InContextState(NamedTuple):
    """State of a run.

    Attributes:
      train: TrainState of the network.
      tasks: what the fit reads of the K trained tasks, in_context.InContext or their histories.
      references: float32 [K + H, 2], the returns that count as 0 and 100, also of the held-out tasks.
    """

    train: TrainState
    tasks: Any
    references: jax.Array


def empty(model: ExpertTransformer, rows: int, shape: tuple[int, ...], length: int) -> Prompt:
    """A prompt of `length` steps in which nothing has been seen. shape: of an observation."""
    steps = (rows, length)
    return Prompt(
        jnp.zeros((*steps, *shape)), jnp.zeros((*steps, model.size)), jnp.zeros(steps), jnp.zeros(steps, bool)
    )


def first_episodes(steps: Transitions) -> jax.Array:
    """bool [B, T]. Whether a step is of the row's first episode."""
    ended = jnp.cumsum(steps.terminated | steps.truncated, axis=1)
    return jnp.concatenate([jnp.zeros_like(ended[:, :1]), ended[:, :-1]], axis=1) == 0


def live(model: ExpertTransformer, params, env, key: jax.Array, *, rounds: int, max_steps: int, prompt: Prompt):
    """The returns of `rounds` episodes in a row, float32 [rounds, B]: an episode's prompt is those before it.

    Args:
      model: of params.
      params: trained.
      env: an envs.Vector of B environments.
      key: for their starts.
      rounds: E.
      max_steps: of an episode.
      prompt: empty; of whole episodes of `length` steps, of which the oldest makes room for the newest.
    """
    distribution, length = at_the_mode(model.distribution), prompt.mask.shape[1]

    def episode(prompt: Prompt, key: jax.Array):
        def outputs(observations: jax.Array) -> jax.Array:
            return newest(model.apply(params, observations, prompt, params["gate"]).outputs, prompt.mask)

        start_key, act_key = jax.random.split(key)
        policy, worlds = memoryless(outputs), start(env, start_key)
        steps = collect(policy, distribution, env, worlds, act_key, num_steps=max_steps)[1]
        mask = first_episodes(steps)
        lived = Prompt(steps.observations, model.encode(steps.actions), steps.rewards, mask)
        later = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1)[:, -length:], prompt, lived)
        return later, jnp.sum(jnp.where(mask, steps.rewards, 0.0), axis=1)

    return jax.lax.scan(episode, prompt, jax.random.split(key, rounds))[1]


def check(config) -> None:
    """Raises ValueError for what the policy, its contexts or the mapped tasks do not allow."""
    continual_runs.check_fields(config)
    continual_runs.task_configs(config)
    if not config.eval.greedy:
        raise ValueError("eval.greedy=False: a policy in context acts by its likeliest action; set it True")
    if config.prompt.length != config.eval.max_steps:
        raise ValueError(
            f"prompt.length={config.prompt.length} and eval.max_steps={config.eval.max_steps} must be the same: "
            "the evaluation's episodes are the next ones' prompts"
        )
    if not config.continual.held_out:
        raise ValueError("continual.held_out is empty: give tasks that are evaluated, but not trained on")


def task_of(config, value):
    """The config of the task whose continual.field is `value`, which may be traced."""
    own = config.copy_and_resolve_references()
    with own.unlocked():
        own.env[config.continual.field] = value
    return own


def values_of(config) -> jax.Array:
    """continual.field of all tasks, float32 [K + H]: the trained ones, then those that are held out."""
    return jnp.asarray([*config.continual["values"], *config.continual.held_out], jnp.float32)


def make_tasks(config, networks) -> Callable:
    """Makes key -> (InContext of the trained tasks, references [K + H, 2]).

    One program for all tasks: the environment takes continual.field as a traced array.
    """
    trained, values = len(config.continual["values"]), values_of(config)

    def one(args):
        value, key = args
        own = task_of(config, value)
        loaded = offline_data.make_loader(own, networks, own.dataset.discount)(key)
        return loaded.data, scripted.controller(**own.env.to_dict())(loaded.data.steps.observations), loaded.references

    def load(key: jax.Array):
        data, best, references = jax.lax.map(one, (values, jax.random.split(key, len(values))))
        return in_context.InContext(*jax.tree.map(lambda x: x[:trained], (data, best))), references

    return load


def make_in_context_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: see `check`.
    """
    offline_runs.check_one_device(config, parts)
    check(config)
    fields = config.prompt
    sizes = dict(episodes=fields.episodes, length=fields.length)
    load = make_tasks(config, offline_data.make_offline_networks(config, control_setup.load_env(config, 1)))

    def lives(model: ExpertTransformer, params, env, key: jax.Array) -> jax.Array:
        before = empty(model, env.num_envs, env.observation_space.shape, fields.episodes * fields.length)
        return live(model, params, env, key, rounds=fields.rounds, max_steps=config.eval.max_steps, prompt=before)

    return run_of(config, load, functools.partial(in_context.sample_prompts, **sizes), lives)


def run_of(config, load: Callable, sample: Callable, lives: Callable, measure: Callable = lambda tasks, references: {}):
    """A run of an ExpertTransformer on the tasks of a config that `check` has passed.

    Args:
      config: of the program.
      load: key -> (what the fit reads of the trained tasks, references float32 [K + H, 2] of all).
      sample: (that, key, batch_size) -> what the loss reads.
      lives: (model, params, env of B, key) -> returns float32 [E, B] of the episodes in a row.
      measure: (what the fit reads, references) -> metrics of the data, float32 [] by name.

    Returns:
      (init, advance, params).
    """
    settings, env, rounds = control_setup.settings_of(config), control_setup.load_env(config, 1), config.prompt.rounds
    single, trained = offline_data.make_offline_networks(config, env), len(config.continual["values"])
    fields = config.sequence.to_dict() | config.experts.to_dict()
    space = env.observation_space.shape
    model = make_expert_transformer(space, single.distribution, single.encode, single.size, **fields)

    def fit_of(values: dict[str, jax.Array]):
        result = control_setup.with_values(settings, values)
        return offline_runs.fit_of(config, result, bind(result["algorithm"], offline)(model), sample=sample)

    def returns(train: TrainState) -> jax.Array:
        """float32 [K + H, E], means over eval.num_episodes lives."""
        key = jax.random.fold_in(jax.random.fold_in(train.rng, 2**31 - 1), train.step)

        def one(value: jax.Array) -> jax.Array:
            env = control_setup.load_env(task_of(config, value), config.eval.num_episodes)
            return jnp.mean(lives(model, train.params, env, key), axis=1)

        return jax.lax.map(one, values_of(config))

    def init(key: jax.Array, values: dict[str, jax.Array]) -> InContextState:
        init_key, load_key, fit_key = jax.random.split(key, 3)
        return InContextState(fit_of(values)[0](model.init(init_key), fit_key), *load(load_key))

    def advance(state: InContextState, values: dict[str, jax.Array], count: int):
        train, metrics = fit_of(values)[1](state.train, state.tasks, count)
        found = returns(train)
        low, high = (jnp.broadcast_to(state.references[:, i, None], found.shape) for i in range(2))
        scores = offline_data.normalized(found, low, high)
        unseen = jnp.mean(scores[trained:], axis=0)
        metrics |= {"eval/return": jnp.mean(found[:trained, -1]), "eval/normalized": jnp.mean(scores[:trained, -1])}
        metrics |= {"eval/held_out": unseen[-1]} | {f"eval/episode_{e}": unseen[e] for e in range(rounds)}
        metrics |= measure(state.tasks, state.references)
        return state._replace(train=train), jax.tree.map(jnp.float32, metrics)

    return init, advance, lambda state: state.train.params
