"""The gradient steps of an update from replay: those of the critics, of the actor, and the slow copies."""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.adversaries import Adversary
from rl_jax.control.interventions import draw_shown
from rl_jax.control.replay import ReplayBatch, draw, draw_windows, join, with_priorities
from rl_jax.control.replay_types import OffPolicy, ReplaySettings, ReplayState, opener
from rl_jax.core.masked import Mean
from rl_jax.training.step import TrainState, all_finite


def make_learner(
    method: OffPolicy,
    settings: ReplaySettings,
    optimizers: dict[str, optax.GradientTransformation],
    *,
    axis_name=None,
    learn_from: Callable | None = None,
    adversary: Adversary | None = None,
) -> Callable:
    """Builds the learning part of an update: (state, key) -> (state, {name: Mean}), G gradient steps.

    Args:
      method: the losses.
      settings: the numbers.
      optimizers: group of params -> optax transformation.
      axis_name: mapped axis over which gradients are summed; draws are each part's own.
      learn_from: (state, key) -> ReplayBatch, instead of a draw from the replay alone.
      adversary: whose rewards, of its newest state, are those of the draws.
    """
    opened = opener(method)
    turns, per_turn = _turns(settings, method)
    common = dict(opened=opened, optimizers=optimizers, settings=settings, axis_name=axis_name)

    next_batch = learn_from or make_draws(settings, axis_name, adversary, window=method.window)

    def critic_step(state: ReplayState, key: chex.PRNGKey):
        draw_key, loss_key = jax.random.split(key)
        batch = next_batch(state, draw_key)
        slow = opened(state.train.trackers["slow"])

        def loss(params: dict[str, Any]):
            each, errors, metrics = method.critic_loss(params, slow, batch, loss_key)
            return each * batch.weights, (errors, metrics)

        train, metrics, (errors, more) = _step(state.train, "critic", loss, **common)
        train = train._replace(step=train.step + 1)
        train = train._replace(trackers=train.trackers | {"slow": _followed(train, settings)})
        replay = with_priorities(state.replay, batch.places, errors, settings.priority)
        return state._replace(train=train, replay=replay), (batch, metrics | more)

    def actor_step(state: ReplayState, batch: ReplayBatch, key: chex.PRNGKey):
        slow = opened(state.train.trackers["slow"])
        train, metrics, more = _step(
            state.train, "actor", lambda params: method.actor_loss(params, slow, batch, key), **common
        )
        metrics = {f"actor/{name}": x for name, x in metrics.items()}
        return state._replace(train=train), metrics | more

    def turn(state: ReplayState, key: chex.PRNGKey):
        keys = jax.random.split(key, per_turn + 1)
        if per_turn == 1:
            state, (batch, metrics) = critic_step(state, keys[0])
        else:
            state, (batches, metrics) = jax.lax.scan(critic_step, state, keys[:-1])
            batch = jax.tree.map(lambda x: x[-1], batches)
            metrics = jax.tree.map(lambda x: jnp.mean(x, axis=0), metrics)
        measured = _means(metrics, jnp.float32(1.0))
        if method.actor_loss is None:
            return state, measured
        every = max(settings.actor_every // settings.gradient_steps, 1)
        if every == 1:
            state, more = actor_step(state, batch, keys[-1])
            return state, measured | _means(more, jnp.float32(1.0))
        shapes = jax.eval_shape(actor_step, state, batch, keys[-1])[1]
        nothing = {name: jnp.zeros(shape.shape, shape.dtype) for name, shape in shapes.items()}
        due = state.updates % every == every - 1
        state, more = jax.lax.cond(
            due, lambda state: actor_step(state, batch, keys[-1]), lambda state: (state, nothing), state
        )
        return state, measured | _means(more, due.astype(jnp.float32))

    def learn(state: ReplayState, key: chex.PRNGKey):
        if turns == 1:
            return turn(state, key)
        state, learned = jax.lax.scan(turn, state, jax.random.split(key, turns))
        return state, jax.tree.map(lambda x: jnp.sum(x, axis=0), learned)

    return learn


def make_draws(settings: ReplaySettings, axis_name, adversary: Adversary | None = None, *, window: int = 0) -> Callable:
    """(state, key) -> ReplayBatch: of the replay, or half of it and half of what is kept.

    Args:
      settings: the numbers.
      axis_name: mapped axis over which the environments are spread.
      adversary: as at make_learner.
      window: as at OffPolicy.
    """
    if window:
        one = functools.partial(draw_windows, length=window)
    else:
        one = functools.partial(draw, steps=settings.steps)

    def draws(state: ReplayState, key: chex.PRNGKey) -> ReplayBatch:
        options = dict(discount=settings.discount, priority=settings.priority, axis_name=axis_name)
        if adversary is not None:
            options["pay"] = functools.partial(adversary.pay, state.train.trackers["adversary"])
        if not settings.kept:
            return one(state.replay, state.written, key, settings.batch_size, **options)
        own_key, kept_key = jax.random.split(key)
        half, kept = settings.batch_size // 2, state.train.trackers["kept"]
        mine = one(state.replay, state.written, own_key, half, **options)
        if "taken" in state.train.trackers:
            taken = state.train.trackers["taken"]
            return join(mine, draw_shown(kept, state.replay, taken, kept_key, half, discount=settings.discount))
        return join(mine, one(kept, jnp.int32(settings.kept), kept_key, half, **options))

    return draws


def _means(metrics: dict[str, chex.Array], count: chex.Array) -> dict[str, Mean]:
    return {name: Mean(x, count) for name, x in metrics.items()}


def _step(train: TrainState, name: str, loss_of: Callable, *, opened, optimizers, settings: ReplaySettings, axis_name):
    """One optimizer step of one group: (TrainState, {"loss", "grad_norm"}, what the loss returned beside the losses).

    A gradient that is not finite, or that would make a param so, changes nothing and is counted, those in a row for
    each group: skipped_in_a_row is the longest of these rows.
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
    # A good step of one group does not end a row of bad ones of another: what never learns is to stop the run.
    in_a_row = train.trackers["in_a_row"] | {name: jnp.where(finite, 0, train.trackers["in_a_row"][name] + 1)}
    train = train._replace(
        params=train.params | {name: params},
        opt_state=train.opt_state | {name: opt_state},
        skipped=train.skipped + ~finite,
        skipped_in_a_row=functools.reduce(jnp.maximum, in_a_row.values()),
        trackers=train.trackers | {"in_a_row": in_a_row},
    )
    return train, {"loss": value, "grad_norm": norm}, more


def _followed(train: TrainState, settings: ReplaySettings) -> dict[str, chex.Array]:
    """The slow copies after gradient step train.step."""
    result = {}
    for name, old in train.trackers["slow"].items():
        new = old + settings.tau * (train.params[name] - old)
        result[name] = (
            new if settings.target_every == 1 else jnp.where(train.step % settings.target_every == 0, new, old)
        )
    return result


def _turns(settings: ReplaySettings, method: OffPolicy) -> tuple[int, int]:
    """(turns of an update, gradient steps of the critics in each)."""
    if method.actor_loss is None or settings.actor_every >= settings.gradient_steps:
        return 1, settings.gradient_steps
    return settings.gradient_steps // settings.actor_every, settings.actor_every
