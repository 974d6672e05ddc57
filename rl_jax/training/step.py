"""The train step: any loss that returns (Mean, metrics), any optax optimizer, micro-batches, one division.

    (state, batch) -> (state, metrics)

Gradients of totals are summed over micro-batches (and, under a mesh, over devices by XLA), and divided once by the
summed count. So neither the number of micro-batches nor the mesh changes the objective.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.core.masked import all_reduce, empty_like, merge
from rl_jax.core.tracing import traced_once
from rl_jax.core.types import Params


class TrainState(NamedTuple):
    """Everything a run carries from step to step, as arrays; all of it is checkpointed.

    Attributes:
      step: int32 []. Calls of the train step so far, skipped ones included.
      params: pytree of arrays.
      opt_state: pytree of arrays.
      rng: typed PRNG key []. Never changes; per-step randomness is fold_in(rng, step).
      skipped: int32 []. Steps with a non-finite gradient or result, which changed nothing.
      skipped_in_a_row: int32 []. The same, since the last good step.
      trackers: estimators that the loop carries along (rl_jax.core.trackers), by name. The train step does not touch
        them.
    """

    step: chex.Array
    params: Params
    opt_state: optax.OptState
    rng: chex.PRNGKey
    skipped: chex.Array
    skipped_in_a_row: chex.Array
    trackers: Any = ()


def init_state(
    params: Params, optimizer: optax.GradientTransformation, rng: chex.PRNGKey, trackers: Any = ()
) -> TrainState:
    """The state before the first step. params, trackers: pytrees of arrays. rng: a typed key."""
    return TrainState(jnp.int32(0), params, optimizer.init(params), rng, jnp.int32(0), jnp.int32(0), trackers)


# Shapes of a learning rate's decay: the share of it, from 0 to 1, -> the share of the rate that is left.
DECAYS = {
    "cosine": lambda done: 0.5 * (1.0 + jnp.cos(jnp.pi * done)),
    "linear": lambda done: 1.0 - done,
    "sqrt": lambda done: 1.0 - jnp.sqrt(done),
}


def make_schedule(
    *,
    learning_rate: float,
    warmup_steps: int = 0,
    decay_steps: int = 0,
    final_fraction: float = 1.0,
    hold_steps: int = 0,
    decay: str = "cosine",
) -> optax.Schedule:
    """Linear warm-up to learning_rate, which is then held, then decay to final_fraction * learning_rate.

    With hold_steps and decay "sqrt" it is the schedule of arXiv 2405.18392 (warm-up, stable, decay).

    Args:
      learning_rate: peak rate.
      warmup_steps: updates of warm-up. 0 starts at the full rate.
      decay_steps: updates of decay. 0 keeps the rate constant.
      final_fraction: final rate as a fraction of the peak.
      hold_steps: updates at the peak, between warm-up and decay.
      decay: a shape of DECAYS.

    Returns:
      An optax schedule, update -> rate.

    Raises:
      ValueError: for another shape.
    """
    if decay not in DECAYS:
        raise ValueError(f"decay={decay!r} is none of {', '.join(DECAYS)}")
    main = optax.constant_schedule(learning_rate)
    if decay_steps:

        def main(count):
            left = DECAYS[decay](jnp.clip(count / decay_steps, 0.0, 1.0))
            return learning_rate * (final_fraction + (1.0 - final_fraction) * left)

    if hold_steps:
        main = optax.join_schedules((optax.constant_schedule(learning_rate), main), (hold_steps,))
    if not warmup_steps:
        return main
    # The first update has a positive rate: a rate of 0 would waste its batch.
    warmup = optax.linear_schedule(learning_rate / warmup_steps, learning_rate, max(warmup_steps - 1, 1))
    return optax.join_schedules((warmup, main), (warmup_steps,))


def make_gradient(loss_fn: Callable) -> Callable:
    """Makes gradient(params, batch) -> (gradient of the loss's total, metrics with "loss"), nothing of it divided.

    Args:
      loss_fn: (params, batch) -> (Mean, {name: Mean or Max}).
    """

    def gradient(params: Params, batch):
        def total(params):
            loss, metrics = loss_fn(params, batch)
            return loss.total, {"loss": loss, **metrics}

        return jax.grad(total, has_aux=True)(params)

    return gradient


def make_apply(
    optimizer: optax.GradientTransformation,
    *,
    max_grad_norm: float | None = None,
    schedule: optax.Schedule | None = None,
    check_params: bool = True,
) -> Callable:
    """Makes apply(state, gradients, means) -> (state, metrics): the division, the clip, the update.

    Args:
      optimizer: as in make_train_step.
      max_grad_norm: as in make_train_step.
      schedule: as in make_train_step.
      check_params: as in make_train_step.
    """

    def apply(state: TrainState, gradients: Params, means) -> tuple[TrainState, dict[str, chex.Array]]:
        count = means["loss"].count
        # The one division. A batch without any live token has a zero gradient, not nan.
        divisor = jnp.where(count == 0, 1.0, count)
        wide = optax.tree.cast(gradients, jnp.float32)  # not divided yet: squares of float16 would end at 256
        grad_norm = jnp.where(count == 0, 0.0, optax.tree.norm(wide) / divisor)
        metrics = {name: mean.value() for name, mean in means.items()}

        def update(params: Params, opt_state):
            mean = jax.tree.map(lambda g: jnp.where(count == 0, 0.0, g / divisor).astype(g.dtype), gradients)
            if max_grad_norm is not None:
                scale = jnp.minimum(1.0, max_grad_norm / jnp.maximum(grad_norm, 1e-30))
                mean = jax.tree.map(lambda g: (g * scale).astype(g.dtype), mean)
            updates, new = optimizer.update(mean, opt_state, params)
            return optax.apply_updates(params, updates), optax.tree.cast_like(new, opt_state)

        finite = jnp.isfinite(grad_norm) & jnp.isfinite(metrics["loss"])
        old = (state.params, state.opt_state)
        if check_params:
            # Not all_finite: XLA's CPU backend writes a sum's terms out, but not those of a conjunction.
            new = jax.tree.leaves(update(*old)[0])
            finite = functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(x)) for x in new], finite)
            # A branch, so that the state is written once, in place. The check reads a result that is not kept.
            params, opt_state = jax.lax.cond(finite, update, lambda *old: old, *old)
        else:  # of many small steps in a program each branch would be decided on a GPU's host
            params, opt_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), update(*old), old)
        skipped = state.skipped + ~finite
        in_a_row = jnp.where(finite, 0, state.skipped_in_a_row + 1)
        metrics |= {"grad_norm": grad_norm, "nonfinite/skipped": skipped.astype(jnp.float32)}
        if schedule is not None:
            metrics["lr"] = schedule(state.step - state.skipped)
        state = TrainState(state.step + 1, params, opt_state, state.rng, skipped, in_a_row, state.trackers)
        return state, metrics

    return apply


def make_train_step(
    loss_fn: Callable,
    optimizer: optax.GradientTransformation,
    *,
    num_micro_batches: int = 1,
    max_grad_norm: float | None = None,
    schedule: optax.Schedule | None = None,
    axis_name: str | None = None,
    check_params: bool = True,
) -> Callable:
    """Builds a pure function (state, batch) -> (state, metrics). Jit it with a donated state and explicit shardings.

    A non-finite gradient, or one that would make a param non-finite (a learning rate that is too high), leaves params
    and optimizer state unchanged and is counted in `skipped`.

    Args:
      loss_fn: (params, batch) -> (Mean, {name: Mean or Max}).
      optimizer: any optax transformation.
      num_micro_batches: gradient-accumulation steps the batch is split into.
      max_grad_norm: global norm to which the divided gradient is clipped. None: no clipping.
      schedule: the optimizer's learning rate per update, only to report it as "lr".
      axis_name: mapped axis (pmap, shard_map) over which the rows are spread. Totals and counts are summed over it
        before the division, so every part makes the same step. Leave it None under jit with shardings, where XLA does
        this.
      check_params: refuse an update that makes a param non-finite. False where many small steps are compiled into one
        program, in which the check takes a tenth of the time: there, unless_poisoned looks after the last of them.

    Returns:
      train_step(state, batch) -> (state, metrics). metrics: float32 [] by name; those of the loss, divided, and loss,
      grad_norm, nonfinite/skipped, lr.

    Raises:
      ValueError: when traced, if the rows do not divide into the micro-batches.
    """

    gradient = make_gradient(loss_fn)
    apply = make_apply(optimizer, max_grad_norm=max_grad_norm, schedule=schedule, check_params=check_params)

    def accumulate(params: Params, batch):
        if num_micro_batches == 1:
            return gradient(params, batch)
        parts, of_a_part = jax.tree.map(lambda x: deal(x, num_micro_batches), batch), traced_once(gradient)
        shapes = jax.eval_shape(of_a_part, params, jax.tree.map(lambda x: x[0], parts))

        def turn(sums, part):
            gradients, means = of_a_part(params, part)
            return (jax.tree.map(jnp.add, sums[0], gradients), merge(sums[1], means)), None

        zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes[0])
        return jax.lax.scan(turn, (zeros, empty_like(shapes[1])), parts)[0]

    def train_step(state: TrainState, batch) -> tuple[TrainState, dict[str, chex.Array]]:
        gradients, means = accumulate(state.params, batch)
        if axis_name is not None:
            gradients, means = jax.lax.psum(gradients, axis_name), all_reduce(means, axis_name)
        return apply(state, gradients, means)

    return train_step


def unless_poisoned(before: TrainState, after: TrainState) -> TrainState:
    """`after`, or if a param of it is not finite: `before`, with all the steps between them counted as skipped.

    Args:
      before: the state before some steps.
      after: the state after them.
    """
    good, steps = all_finite(after.params), after.step - before.step
    params, opt_state = jax.tree.map(
        lambda new, old: jnp.where(good, new, old), (after.params, after.opt_state), (before.params, before.opt_state)
    )
    return after._replace(
        params=params,
        opt_state=opt_state,
        skipped=jnp.where(good, after.skipped, before.skipped + steps),
        skipped_in_a_row=jnp.where(good, after.skipped_in_a_row, before.skipped_in_a_row + steps),
    )


def all_finite(tree: Any) -> chex.Array:
    """Whether no float of any leaf is nan or infinite, bool []."""
    floats = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    # 0 times a number that is not finite is nan: one sum, a third of the time of all(isfinite) on a CPU.
    return functools.reduce(jnp.logical_and, [jnp.sum(0.0 * x) == 0.0 for x in floats], jnp.bool_(True))


def deal(x: chex.Array, num_micro_batches: int) -> chex.Array:
    """[B, ...] -> [m, B / m, ...], row i to micro-batch i % m, so that a batch sharded over devices stays in place."""
    if x.shape[0] % num_micro_batches:
        raise ValueError(f"{x.shape[0]} rows do not divide into num_micro_batches={num_micro_batches}")
    return jnp.swapaxes(x.reshape(x.shape[0] // num_micro_batches, num_micro_batches, *x.shape[1:]), 0, 1)
