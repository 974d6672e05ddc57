"""A recipe, and the fit that every offline method shares.

    batch  <- random steps of the data
    loss   of all networks at once; each has a gradient from its own term only
    target <- (1 - rate) target + rate network                          every `delay` updates
    networks of `delayed` change every `delay` updates, as TD3's policy

The published programs update V, then pi, then Q, each with the newest of the others; here all are read before it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.offline import data as datasets
from rl_jax.control.transitions import td_discounts
from rl_jax.core.masked import Mean, empty_like, merge
from rl_jax.core.tracing import traced_once
from rl_jax.training.step import TrainState, init_state, make_train_step


class Batch(NamedTuple):
    """What a loss reads.

    Attributes:
      data: OfflineData [n].
      targets: params of the target networks, by name.
      key: for the noise of this update.
    """

    data: datasets.OfflineData
    targets: dict[str, Any]
    key: chex.PRNGKey


class Recipe(NamedTuple):
    """An offline method.

    Attributes:
      loss: (params, Batch) -> (Mean, {name: Mean}).
      uses: names of the networks that are trained.
      targets: names of those with a target network.
      delayed: names of those that change every `delay` updates.
      delay: see above.
      target_rate: see above.
    """

    loss: Callable
    uses: tuple[str, ...]
    targets: tuple[str, ...] = ()
    delayed: tuple[str, ...] = ()
    delay: int = 1
    target_rate: float = 0.005


def mean(x: chex.Array) -> Mean:
    """The mean of all entries, undivided."""
    return Mean(jnp.sum(x), jnp.float32(x.size))


def total(*terms: chex.Array) -> Mean:
    """The mean over [n] of the sum of the terms."""
    return mean(sum(terms))


def td_targets(batch: Batch, next_values: chex.Array, discount: float) -> chex.Array:
    """y = r + gamma V(s'), with 0 for V(s') where the task ended. next_values: float [n]."""
    steps = batch.data.steps
    return steps.rewards + td_discounts(steps.terminated, discount) * next_values


def with_targets(params: dict[str, Any], batch: Batch) -> dict[str, Any]:
    """The params with the target networks in the place of those that have one."""
    return {**params, **batch.targets}


def make_fit(
    recipe: Recipe,
    learning_rate: optax.ScalarOrSchedule,
    *,
    batch_size: int,
    max_grad_norm: float | None = None,
    shares: tuple[float, ...] = (),
    sample: Callable | None = None,
    **adam,
) -> tuple[Callable, Callable]:
    """Builds the pure functions of a fit.

    Args:
      recipe: the method.
      learning_rate: Adam's, of all networks.
      batch_size: steps per update.
      max_grad_norm: of the gradient of all networks together. None or inf: no clipping.
      shares: of the data's sources in a batch (data.sample_mixed); (): as they come.
      sample: (data, key, batch_size) -> what the loss reads as Batch.data; None: single steps.
      **adam: of optax.adam.

    Returns:
      (begin, fit): begin(params, key) -> TrainState, with the targets in its trackers; fit(TrainState, data, count) ->
      (TrainState, metrics float32 [] by name, means over the updates). count is static.
    """
    if sample is None:
        sample = datasets.sample
        if shares:

            def sample(data, key, size):
                return datasets.sample_mixed(data, key, size, shares)

    def group(params):
        return {name: "delayed" if name in recipe.delayed else "rest" for name in params}

    optimizer = optax.partition({name: optax.adam(learning_rate, **adam) for name in ("delayed", "rest")}, group)
    train_step = make_train_step(recipe.loss, optimizer, max_grad_norm=max_grad_norm)

    def begin(params: dict[str, Any], key: chex.PRNGKey) -> TrainState:
        params = {name: params[name] for name in recipe.uses}
        targets = jax.tree.map(jnp.copy, {name: params[name] for name in recipe.targets})
        return init_state(params, optimizer, key, trackers={"targets": targets})

    def update(state: TrainState, data):
        sample_key, noise_key = jax.random.split(jax.random.fold_in(state.rng, state.step))
        batch = Batch(sample(data, sample_key, batch_size), state.trackers["targets"], noise_key)
        after, metrics = train_step(state, batch)
        if recipe.delay > 1:
            moves = after.step % recipe.delay == 0
            after = _hold(after, state, recipe.delayed, moves)
        rate = jnp.where(after.step % recipe.delay == 0, recipe.target_rate, 0.0)
        targets = {
            name: jax.tree.map(lambda old, new: old + rate * (new - old), own, after.params[name])
            for name, own in batch.targets.items()
        }
        return after._replace(trackers={**after.trackers, "targets": targets}), metrics

    def fit(state: TrainState, data, count: int):
        once = traced_once(update)

        def turn(carry, _):
            state, metrics = once(carry[0], data)
            return (state, merge(carry[1], _once(metrics))), None

        shapes = jax.eval_shape(lambda state: once(state, data)[1], state)
        (state, sums), _ = jax.lax.scan(turn, (state, empty_like(_once(shapes))), None, count)
        return state, {name: mean.value() for name, mean in sums.items()}

    return begin, fit


def _hold(after: TrainState, before: TrainState, names: tuple[str, ...], moves: chex.Array) -> TrainState:
    """`after`, with the networks of `names` and their optimizer as in `before` unless `moves`."""

    def choose(path, new, old):
        keys = {getattr(key, "key", None) for key in path}
        return jnp.where(moves, new, old) if keys & {*names, "delayed"} else new

    params, opt_state = jax.tree_util.tree_map_with_path(
        choose, (after.params, after.opt_state), (before.params, before.opt_state)
    )
    return after._replace(params=params, opt_state=opt_state)


def _once(metrics: dict[str, Any]) -> dict[str, Mean]:
    return {name: Mean(x, jnp.float32(1.0)) for name, x in metrics.items()}
