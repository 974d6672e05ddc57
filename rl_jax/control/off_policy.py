"""Learning from replay: one update of critics, and of an actor if there is one, as a pure function of all of a run.

    T steps of B environments  -> the ring                                             replay.add
    G times: N draws           -> loss of the critics, one optimizer step              method.critic_loss
             every E-th time   -> loss of the actor, one optimizer step                method.actor_loss
             slow copy <- (1 - tau) slow copy + tau params

Methods (DQN, TD3, SAC, REDQ ... in replay_methods.py) are choices of the losses; heads (losses.value_heads) of what a
critic's outputs mean. The functions have the form of update.make_update: they work under jit, lax.scan, lax.map, vmap
and, with `axis_name`, with environments and rings spread over devices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from rl_jax.control.replay import Priority, Replay, ReplayBatch, add, draw, empty, with_priorities
from rl_jax.control.transitions import Transitions
from rl_jax.control.update import own_key
from rl_jax.core.masked import Max, Mean
from rl_jax.rollout.envs.steps import Worlds, collect, memoryless, start
from rl_jax.training.step import TrainState, all_finite


class OffPolicy(NamedTuple):
    """A method of replay. params and slow are {"critic": pytree, "actor": pytree}, as far as there are such groups.

    Attributes:
      init: (key) -> params.
      policy: (params, observations [N, ...]) -> outputs [N, ...] of the distribution.
      critic_loss: (params, slow, ReplayBatch [N], key) -> (loss [N], size of the errors [N], {name: float []}).
      actor_loss: (params, slow, ReplayBatch [N], key) -> (loss [N], {name: float []}), or None without an actor.
      slow: the groups of which a slow copy is kept.
    """

    init: Callable
    policy: Callable
    critic_loss: Callable
    actor_loss: Callable | None
    slow: tuple[str, ...]


class ReplaySettings(NamedTuple):
    """The numbers of an update. They may be traced where float is said.

    Attributes:
      slots: R, steps that are kept of each environment.
      warmup: random steps of each environment before the first update.
      batch_size: N, draws of one gradient step.
      steps: n, rewards that are summed before the value.
      discount: gamma, float.
      tau: share of the newest params in the slow copy, float; 1 copies.
      target_every: gradient steps between changes of the slow copy.
      gradient_steps: G per update.
      actor_every: E, gradient steps of the critics per one of the actor.
      max_grad_norm: float, or None.
      priority: of the draws.
      random_share: (updates so far, int32 []) -> the probability of a uniform action.
    """

    slots: int
    warmup: int
    batch_size: int
    steps: int = 1
    discount: Any = 0.99
    tau: Any = 0.005
    target_every: int = 1
    gradient_steps: int = 1
    actor_every: int = 1
    max_grad_norm: Any = None
    priority: Priority = Priority()
    random_share: Callable = lambda updates: jnp.float32(0.0)


class ReplayState(NamedTuple):
    """Everything a run carries.

    Attributes:
      train: TrainState. params and opt_state are {"critic": one flat vector, "actor": ...}; trackers is {"slow": {...}}.
        Its step counts gradient steps of the critics.
      worlds: state of the environments.
      replay: Replay.
      written: int32 []. Steps of each environment in the replay so far, those that were overwritten included.
      updates: int32 [].
    """

    train: TrainState
    worlds: Worlds
    replay: Replay
    written: chex.Array
    updates: chex.Array


def make_replay_update(
    method: OffPolicy,
    distribution,
    env,
    settings: ReplaySettings,
    optimizers: dict[str, optax.GradientTransformation],
    *,
    num_steps: int,
    axis_name=None,
    learn_from: Callable | None = None,
) -> tuple[Callable, Callable, Callable]:
    """Builds the pure functions of a training run from replay.

    Args:
      method: the losses.
      distribution: of the actions, whose last output is the probability of a uniform one
        (models.agents.exploration.exploring).
      env: envs.Vector.
      settings: the numbers.
      optimizers: group of params -> optax transformation.
      num_steps: T, steps of each environment per update.
      axis_name: mapped axis over which the environments are spread. Gradients are summed over it; draws are each
        part's own.
      learn_from: (state, key) -> ReplayBatch, instead of a draw from the replay alone.

    Returns:
      (init, update, policy_of), see update.make_update; init(key) -> ReplayState.

    Raises:
      ValueError: if numbers do not divide.
    """
    _check(settings, num_steps, method)
    unravel = unravelers(method)
    turns, per_turn = _turns(settings, method)

    def opened(vectors: dict[str, chex.Array]) -> dict[str, Any]:
        return {name: unravel[name](x) for name, x in vectors.items()}

    def acting(params: dict[str, Any], share: chex.Array) -> Callable:
        def policy(observations: chex.Array) -> chex.Array:
            outputs = method.policy(params, observations)
            column = jnp.broadcast_to(jnp.asarray(share, outputs.dtype), (len(outputs), 1))
            return jnp.concatenate([outputs, column], axis=1)

        return memoryless(policy)

    def gathered(params: dict[str, Any], worlds: Worlds, key: chex.PRNGKey, share: chex.Array, count: int):
        worlds, rows, metrics = collect(acting(params, share), distribution, env, worlds, key, num_steps=count)
        kept = Transitions(
            observations=rows.observations,
            actions=distribution.to_env(rows.actions),
            rewards=rows.rewards,
            next_observations=rows.next_observations,
            terminated=rows.terminated,
            truncated=rows.truncated,
        )
        return worlds, kept, metrics

    def init(key: chex.PRNGKey) -> ReplayState:
        params_key, worlds_key, train_key, warmup_key = jax.random.split(key, 4)
        params = {name: ravel_pytree(x)[0] for name, x in method.init(params_key).items()}
        opt_state = {name: optimizers[name].init(x) for name, x in params.items()}
        slow = {name: params[name] + 0.0 for name in method.slow}  # copies: a shared buffer cannot be donated
        zero = jnp.int32(0)
        train = TrainState(zero, params, opt_state, train_key, zero + 0, zero + 0, {"slow": slow})
        worlds = start(env, own_key(worlds_key, axis_name))
        keys = own_key(warmup_key, axis_name), jnp.float32(1.0)
        worlds, rows, _ = gathered(opened(params), worlds, *keys, settings.warmup)
        replay = empty(rows, settings.slots, settings.priority)
        filled = jax.tree.map(lambda old, new: old.at[:, : settings.warmup].set(new), replay.rows, rows)
        replay = replay._replace(rows=filled)
        if settings.priority.used():
            replay = replay._replace(priorities=replay.priorities.at[:, : settings.warmup].set(1.0))
        return ReplayState(train, worlds, replay, jnp.int32(settings.warmup), jnp.int32(0))

    def draws(state: ReplayState, key: chex.PRNGKey) -> ReplayBatch:
        options = dict(discount=settings.discount, steps=settings.steps, priority=settings.priority)
        return draw(state.replay, state.written, key, settings.batch_size, axis_name=axis_name, **options)

    next_batch = learn_from or draws

    def critic_step(state: ReplayState, key: chex.PRNGKey):
        draw_key, loss_key = jax.random.split(key)
        batch = next_batch(state, draw_key)
        slow = opened(state.train.trackers["slow"])

        def loss(params: dict[str, Any]):
            each, errors, metrics = method.critic_loss(params, slow, batch, loss_key)
            return each * batch.weights, (errors, metrics)

        train, metrics, (errors, more) = _step(state.train, "critic", loss, opened, optimizers, settings, axis_name)
        train = train._replace(step=train.step + 1)
        train = train._replace(trackers={"slow": _followed(train, settings)})
        replay = with_priorities(state.replay, batch.places, errors, settings.priority)
        return state._replace(train=train, replay=replay), (batch, metrics | more)

    def actor_step(state: ReplayState, batch: ReplayBatch, key: chex.PRNGKey):
        slow = opened(state.train.trackers["slow"])

        def loss(params: dict[str, Any]):
            each, metrics = method.actor_loss(params, slow, batch, key)
            return each, metrics

        train, metrics, more = _step(state.train, "actor", loss, opened, optimizers, settings, axis_name)
        return state._replace(train=train), {"actor/loss": metrics["loss"], "actor/grad_norm": metrics["grad_norm"]} | more

    def turn(state: ReplayState, key: chex.PRNGKey):
        keys = jax.random.split(key, per_turn + 1)
        if per_turn == 1:
            state, (batch, metrics) = critic_step(state, keys[0])
        else:
            state, (batches, metrics) = jax.lax.scan(critic_step, state, keys[:-1])
            batch = jax.tree.map(lambda x: x[-1], batches)
            metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)
        measured = {name: Mean(x, jnp.float32(1.0)) for name, x in metrics.items()}
        if method.actor_loss is None:
            return state, measured
        every = max(settings.actor_every // settings.gradient_steps, 1)
        if every == 1:
            state, more = actor_step(state, batch, keys[-1])
            return state, measured | {name: Mean(x, jnp.float32(1.0)) for name, x in more.items()}
        shapes = jax.eval_shape(actor_step, state, batch, keys[-1])[1]
        rest = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
        due = state.updates % every == every - 1
        state, more = jax.lax.cond(
            due, lambda state: actor_step(state, batch, keys[-1]), lambda state: (state, rest), state
        )
        return state, measured | {name: Mean(x, due.astype(jnp.float32)) for name, x in more.items()}

    def update(state: ReplayState):
        key = own_key(jax.random.fold_in(state.train.rng, state.updates), axis_name)
        act_key, learn_key = jax.random.split(key)
        share = settings.random_share(state.updates)
        worlds, rows, metrics = gathered(opened(state.train.params), state.worlds, act_key, share, num_steps)
        replay = add(state.replay, state.written, rows)
        state = state._replace(worlds=worlds, replay=replay, written=state.written + num_steps)
        if turns == 1:
            state, learned = turn(state, learn_key)
        else:
            state, learned = jax.lax.scan(turn, state, jax.random.split(learn_key, turns))
            learned = jax.tree.map(lambda x: jnp.sum(x, axis=0), learned)
        metrics = metrics | learned | {
            "nonfinite/skipped": Max(state.train.skipped.astype(jnp.float32)),
            "explore/share": Mean(jnp.asarray(share, jnp.float32), jnp.float32(1.0)),
        }
        return state._replace(updates=state.updates + 1), metrics

    def policy_of(state: ReplayState) -> Callable:
        return acting(opened(state.train.params), jnp.float32(0.0))

    return init, update, policy_of


def unravelers(method: OffPolicy) -> dict[str, Callable]:
    """group -> the function that turns its flat vector of params into the method's pytree."""
    shapes = jax.eval_shape(method.init, jax.random.key(0))
    return {
        name: ravel_pytree(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), tree))[1] for name, tree in shapes.items()
    }


def _step(train: TrainState, name: str, loss_of: Callable, opened, optimizers, settings: ReplaySettings, axis_name):
    """One optimizer step of one group: (TrainState, {"loss", "grad_norm"}, what the loss returned beside the losses).

    A gradient that is not finite, or that would make a param so, changes nothing and is counted.
    """

    def total(vector: chex.Array):
        each, more = loss_of(opened(train.params | {name: vector}))
        return jnp.sum(each), (jnp.float32(each.size), more)

    (value, (count, more)), gradient = jax.value_and_grad(total, has_aux=True)(train.params[name])
    if axis_name is not None:
        value, count, gradient = jax.lax.psum((value, count, gradient), axis_name)
    value, gradient = value / count, gradient / count
    norm = jnp.sqrt(jnp.sum(jnp.square(gradient)))
    if settings.max_grad_norm is not None:
        gradient = gradient * jnp.minimum(1.0, settings.max_grad_norm / jnp.maximum(norm, 1e-30))
    moved, opt_state = optimizers[name].update(gradient, train.opt_state[name], train.params[name])
    params = optax.apply_updates(train.params[name], moved)
    finite = jnp.isfinite(norm) & jnp.isfinite(value) & all_finite(params)
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(finite, new, old),
        (params, opt_state),
        (train.params[name], train.opt_state[name]),
    )
    train = train._replace(
        params=train.params | {name: params},
        opt_state=train.opt_state | {name: opt_state},
        skipped=train.skipped + ~finite,
        skipped_in_a_row=jnp.where(finite, 0, train.skipped_in_a_row + 1),
    )
    return train, {"loss": value, "grad_norm": norm}, more


def _followed(train: TrainState, settings: ReplaySettings) -> dict[str, chex.Array]:
    """The slow copies after gradient step train.step."""
    result = {}
    for name, old in train.trackers["slow"].items():
        new = old + settings.tau * (train.params[name] - old)
        result[name] = new if settings.target_every == 1 else jnp.where(train.step % settings.target_every == 0, new, old)
    return result


def _turns(settings: ReplaySettings, method: OffPolicy) -> tuple[int, int]:
    """(turns of an update, gradient steps of the critics in each)."""
    if method.actor_loss is None or settings.actor_every >= settings.gradient_steps:
        return 1, settings.gradient_steps
    return settings.gradient_steps // settings.actor_every, settings.actor_every


def _check(settings: ReplaySettings, num_steps: int, method: OffPolicy) -> None:
    every, count = settings.actor_every, settings.gradient_steps
    if method.actor_loss is not None and max(every, count) % min(every, count):
        raise ValueError(f"train.gradient_steps={count} and train.actor_every={every}: one must be a multiple of the other")
    if settings.slots % num_steps or settings.warmup % num_steps:
        raise ValueError(
            f"replay: {settings.slots} slots and {settings.warmup} warm-up steps of each environment must be multiples "
            f"of the {num_steps} steps of an update"
        )
    if not max(settings.steps, 1) <= settings.warmup <= settings.slots:
        raise ValueError(
            f"replay: {settings.warmup} warm-up steps of each environment must be at least n_step={settings.steps}, and "
            f"fit into its {settings.slots} slots"
        )
