"""One run of experiments.control.offline with algorithm.fn "t2mir_ad": a learner's way of getting better, imitated.

The data of each trained task are the whole history of a learner of its own, from its first random steps on: an offline
method that goes on in the environment (online_runs), which with cql's weight at 0 is a soft actor-critic. The tasks,
the model and the metrics are in_context_runs'.

In the evaluation the policy lives prompt.rounds episodes of each task with its own last prompt.past before its eyes, in
the order of the training's rows; what it has seen of the present one is there, too, so that it may learn within an
episode. A row of the training has prompt.episodes in all, so past = episodes - 1 is what it was trained on; the public
code has past = episodes, one more. data/first and data/last are the learners' scores in the first and the last fifth of
their episodes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from experiments.parts import in_context_runs, offline_data, offline_runs, online_runs
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import in_context
from rl_jax.models.agents.expert_transformer import ExpertTransformer, Prompt
from rl_jax.rollout.envs.steps import Worlds, at_the_mode, collect, start


class Lived(NamedTuple):
    """Memory of the policy.

    Attributes:
      prompt: Prompt [B, (P + 1) length]: P episodes, the newest last, then the present one.
      paid: float32 [B], the present episode's rewards that are in the prompt.
    """

    prompt: Prompt
    paid: jax.Array


def learner_config(config):
    """The config of a learner of one task, as online_runs takes it.

    Raises:
      ValueError: if its steps are not whole episodes, are too few, or its method is none that can go on online.
    """
    fields, length = config.learner, config.prompt.length
    for name in ("steps", "random"):
        if fields[name] % length or fields[name] % fields.every:
            raise ValueError(
                f"learner.{name}={fields[name]} must be a multiple of prompt.length={length}, whole episodes, and of "
                f"learner.every={fields.every}"
            )
    if not 0 < fields.random < fields.steps or fields.steps < config.prompt.episodes * length:
        raise ValueError(
            f"learner.random={fields.random} must be between 0 and learner.steps={fields.steps}, which are at least "
            f"prompt.episodes={config.prompt.episodes} episodes of {length} steps"
        )
    own = config.copy_and_resolve_references()
    with own.unlocked():
        del own.continual
        own.algorithm = fields.method.to_dict()
        own.online = dict(after=fields.random / fields.steps, every=fields.every, num_envs=1, mixing=-1.0)
    own.dataset.update(behaviours=("random",), shares=(1.0,), num_envs=1, num_steps=fields.random)
    own.train.update(batch_size=fields.batch_size, total_steps=fields.steps * fields.batch_size)
    own.train.optimizer.learning_rate = fields.learning_rate
    own.log_every = own.checkpoint.every = fields.every
    online_runs.after(own)
    return own


def make_histories(config) -> Callable:
    """Makes key -> (OfflineData [K, steps] of the trained tasks, references [K + H, 2] of all).

    Raises:
      ValueError: as `learner_config`.
    """
    own, trained = learner_config(config), len(config.continual["values"])

    def task_of(value: jax.Array):
        alone = own.copy_and_resolve_references()
        with alone.unlocked():
            alone.env[config.continual.field] = value
        return online_runs.make_online_run(alone)

    def history(value: jax.Array, key: jax.Array):
        init, advance, _ = task_of(value)
        state, fields = init(key, {}), config.learner
        # Turn by turn: a call of `advance` is either before the learner's own steps or after them. Nothing is judged.
        turns = fields.steps // fields.every
        after = jax.lax.scan(lambda state, _: (advance(state, {}, fields.every)[0], None), state, None, turns)[0]
        steps = after.loaded.data.steps
        return datasets.make_data(steps, discount=config.dataset.discount), state.loaded.references

    def references(value: jax.Array, key: jax.Array) -> jax.Array:
        return task_of(value)[0](key, {}).loaded.references

    def load(key: jax.Array):
        values = in_context_runs.values_of(config)
        keys = jax.random.split(key, len(values))
        data, of_trained = jax.vmap(history)(values[:trained], keys[:trained])
        of_others = jax.vmap(references)(values[trained:], keys[trained:])
        return data, jnp.concatenate([of_trained, of_others])

    return load


def progress(histories: datasets.OfflineData, references: jax.Array) -> dict[str, jax.Array]:
    """data/first and data/last: the scores of the first and the last fifth of the episodes, means over the tasks."""
    count = histories.episode[:, -1:] + 1
    scores = offline_data.normalized(histories.to_go, *(references[: len(count), i, None] for i in range(2)))
    begins = histories.time == 0
    early, late = histories.episode < 0.2 * count, histories.episode >= 0.8 * count
    found = {}
    for name, part in (("data/first", begins & early), ("data/last", begins & late)):
        found[name] = jnp.sum(jnp.where(part, scores, 0.0)) / jnp.maximum(jnp.sum(part), 1)
    return found


def joined(past: Prompt, lived: Prompt, *, by_return: bool) -> Prompt:
    """The newest P episodes of a past of P and one more, each of `length` steps.

    Args:
      past: Prompt [B, P length]; what is not there yet comes first.
      lived: Prompt [B, length].
      by_return: order them by their returns, the worst first, which is the one that makes room. False: as lived.
    """
    rows, length = lived.mask.shape
    both = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1)[:, length:], past, lived)
    if not by_return:
        return both
    apart = jax.tree.map(lambda x: x.reshape(rows, -1, length, *x.shape[2:]), both)
    returns = jnp.sum(jnp.where(apart.mask, apart.rewards, 0.0), axis=2)
    order = jnp.argsort(jnp.where(jnp.any(apart.mask, axis=2), returns, -jnp.inf), axis=1)
    return jax.tree.map(lambda x: jax.vmap(lambda own, at: own[at])(x, order).reshape(rows, -1, *x.shape[3:]), apart)


def live_on(
    model: ExpertTransformer, params, env, key: jax.Array, *, rounds: int, past: int, length: int, by_return: bool
) -> jax.Array:
    """The returns of `rounds` episodes in a row, float32 [rounds, B], of a policy that sees all steps so far.

    Source: NJU-RL/T2MIR, T2MIR-AD/algorithms/evaluation.py (evaluate_latest): the action and the reward of the step
    that is decided are zeros.

    Args:
      model: of params.
      params: trained.
      env: an envs.Vector of B environments.
      key: for their starts.
      rounds: episodes that are lived.
      past: P, the episodes that it remembers before the present one.
      length: of an episode, at most.
      by_return: see `joined`.
    """
    shape, rows, before = env.observation_space.shape, env.num_envs, past * length
    times = jnp.broadcast_to(jnp.tile(jnp.arange(length), past + 1), (rows, before + length))
    place, here = jnp.arange(before + length)[None], in_context_runs.empty(model, rows, shape, length)

    def policy(worlds: Worlds) -> tuple[jax.Array, Any]:
        (prompt, paid), at = worlds.memory, before + worlds.episode_length
        now = place == at[:, None]
        last = (place == at[:, None] - 1) & (worlds.episode_length > 0)[:, None]
        wide = now.reshape(*now.shape, *(1,) * len(shape))
        prompt = prompt._replace(
            observations=jnp.where(wide, worlds.observation[:, None], prompt.observations),
            rewards=jnp.where(last, (worlds.episode_return - paid)[:, None], prompt.rewards),
            mask=prompt.mask | now,
        )
        outputs = model.imitate(params, prompt, times, params["gate"]).outputs
        outputs = jnp.take_along_axis(outputs, at[:, None, None], axis=1)[:, 0]
        chosen = model.encode(model.distribution.mode(outputs))
        actions = jnp.where(now[:, :, None], chosen[:, None], prompt.actions)
        return outputs, Lived(prompt._replace(actions=actions), worlds.episode_return)

    def episode(lived: Prompt, key: jax.Array):
        start_key, act_key = jax.random.split(key)
        prompt = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), lived, here)
        worlds = start(env, start_key, Lived(prompt, jnp.zeros(rows)))
        steps = collect(policy, at_the_mode(model.distribution), env, worlds, act_key, num_steps=length)[1]
        mask = in_context_runs.first_episodes(steps)
        now = Prompt(steps.observations, model.encode(steps.actions), steps.rewards, mask)
        return joined(lived, now, by_return=by_return), jnp.sum(jnp.where(mask, steps.rewards, 0.0), axis=1)

    none = in_context_runs.empty(model, rows, shape, before)
    return jax.lax.scan(episode, none, jax.random.split(key, rounds))[1]


def make_history_run(config, *, parts: int = 1, axis_name: str | None = None):
    """Makes the pure functions of one run, as control_runs.make_run.

    Args:
      config: of the program.
      parts: devices per run; 1.
      axis_name: None.

    Returns:
      (init, advance, params).

    Raises:
      ValueError: see in_context_runs.check and `learner_config`; or if prompt.past is below 1.
    """
    offline_runs.check_one_device(config, parts)
    in_context_runs.check(config)
    fields = config.prompt
    past = fields.get("past", fields.episodes)  # runs of before there was a choice have as many
    if past < 1:
        raise ValueError(f"prompt.past={past} must be 1 or more: a policy that sees no episode gets no better by them")
    sizes = dict(length=fields.length, by_return=fields.by_return)
    rows = dict(episodes=fields.episodes, consecutive=fields.consecutive)
    sample = functools.partial(in_context.sample_histories, **rows, **sizes)
    lives = functools.partial(live_on, rounds=fields.rounds, past=past, **sizes)
    return in_context_runs.run_of(config, make_histories(config), sample, lives, progress)
