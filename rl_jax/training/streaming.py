"""A train step in pieces: a gradient is added as soon as its rows are there, and divided once when all are.

    sums = step.begin(state.params)
    for part in parts:                          # as groups arrive; the parts may differ in size
        sums = step.add(state.params, sums, part)
    state, metrics = step.apply(state, sums)

The sums are of totals, so the result is that of one step on all rows, however they were split (step.make_train_step
does the same inside one program). The parts must not know of each other: what couples a batch (a mean or a quantile
over all of its rows) has to be computed before, on all of it.

Rows that are cut into parts of one shape need one compiled `add`, whatever their number (training.balance).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from rl_jax.core.masked import empty_like, merge
from rl_jax.core.types import Metrics, Params
from rl_jax.training.step import make_apply, make_gradient


class Sums(NamedTuple):
    """What the parts so far have added up to.

    Attributes:
      gradients: of the loss's total; a tree like params.
      means: "loss" and the metrics, undivided.
    """

    gradients: Params
    means: Metrics


class StreamingStep(NamedTuple):
    """The three functions of a step in pieces, not compiled.

    Attributes:
      begin: (params, a part, or its shapes) -> Sums of nothing.
      add: (params, Sums, part) -> Sums. Donate the sums.
      apply: (state, Sums) -> (state, metrics). Donate the state.
    """

    begin: Callable
    add: Callable
    apply: Callable


def make_streaming_step(
    loss_fn: Callable,
    optimizer: optax.GradientTransformation,
    *,
    max_grad_norm: float | None = None,
    schedule: optax.Schedule | None = None,
) -> StreamingStep:
    """The functions of a step whose rows arrive one part after the other.

    Args:
      loss_fn: (params, batch) -> (Mean, {name: Mean or Max}).
      optimizer: as in step.make_train_step, as the next two.
      max_grad_norm: of the divided gradient.
      schedule: reported as "lr".
    """
    gradient = make_gradient(loss_fn)
    divide = make_apply(optimizer, max_grad_norm=max_grad_norm, schedule=schedule)

    def begin(params: Params, part) -> Sums:
        gradients, means = jax.eval_shape(gradient, params, part)
        return Sums(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), gradients), empty_like(means))

    def add(params: Params, sums: Sums, part) -> Sums:
        gradients, means = gradient(params, part)
        return Sums(jax.tree.map(jnp.add, sums.gradients, gradients), merge(sums.means, means))

    def apply(state, sums: Sums):
        return divide(state, *sums)

    return StreamingStep(begin, add, apply)
