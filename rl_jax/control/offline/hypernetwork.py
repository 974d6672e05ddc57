"""Continual model-based RL: dynamics whose weights a hypernetwork makes for each task, held while it learns the next.

    L = mean_n |f(s, a; H(e_t; phi)) - s'|^2 / D  +  beta mean_{j<t} |H(e_j; phi + d) - H(e_j; before)|^2

d is the step that Adam would take for the first term alone; it is data, and so are the e_j of the second: an embedding
learns from its own task only. Source: arXiv 2009.11997, rvl-lab-utoronto/HyperCRL. There the gradients of phi and of
e_t are clipped apart and Adam's states are two; here they are one.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.control.transitions import Transitions
from rl_jax.core.masked import Mean
from rl_jax.core.tracing import traced_once
from rl_jax.losses.continual import held_outputs
from rl_jax.training.step import TrainState, init_state, make_train_step


class HyperBatch(NamedTuple):
    """What the loss reads.

    Attributes:
      steps: Transitions [n] of the newest task.
      task: int32 [], its number t.
      before: float32 [K, P], the weights of each task when t began; data.
      ahead: d, of the shape of params["hyper"]; data.
    """

    steps: Transitions
    task: chex.Array
    before: chex.Array
    ahead: chex.Array


def prediction_errors(nets, params: dict[str, Any], steps: Transitions, task: chex.Array) -> chex.Array:
    """|f(s, a; H(e_t)) - s'|^2 / D of steps [n] of a task: float [n].

    Args:
      nets: models.agents.hypernetwork.HyperDynamics.
      params: its.
      steps: of the task; actions in [-1, 1].
      task: int32 [], t.
    """
    made = nets.weights(params["hyper"], params["embeddings"][task][None])[0]
    missed = nets.predict(made, steps.observations, steps.actions) - steps.next_observations
    return jnp.mean(jnp.square(missed).reshape(len(missed), -1), axis=-1)


def hypercrl(nets, *, beta: float = 0.05) -> Callable:
    """Makes (params, HyperBatch) -> (Mean, metrics), L above. Source: arXiv 2009.11997.

    Args:
      nets: models.agents.hypernetwork.HyperDynamics.
      beta: of the weights that are held; .05 in the code, .5 for its hardest worlds; 0 forgets.
    """

    def loss(params: dict[str, Any], batch: HyperBatch):
        errors = prediction_errors(nets, params, batch.steps, batch.task)
        others = jax.lax.stop_gradient(params["embeddings"])
        made = nets.weights(params["hyper"] + jax.lax.stop_gradient(batch.ahead), others)
        moved = held_outputs(made, batch.before, jnp.arange(nets.tasks) < batch.task)
        count = jnp.float32(len(errors))
        whole = Mean(jnp.sum(errors) + beta * moved * count, count)
        return whole, {"loss/model": Mean(jnp.sum(errors), count), "loss/held": Mean(moved, jnp.float32(1.0))}

    return loss


def make_hyper_fit(
    nets, loss: Callable, learning_rate: float | chex.Array, *, batch_size: int, max_grad_norm: float | None, **adam
) -> tuple[Callable, Callable, Callable]:
    """Builds the pure functions of a fit.

    Args:
      nets: models.agents.hypernetwork.HyperDynamics.
      loss: of `hypercrl`.
      learning_rate: Adam's; 1e-4 in the code.
      batch_size: steps per update.
      max_grad_norm: of the gradient of all params; None or inf: no clipping.
      **adam: of optax.adam.

    Returns:
      (begin, renew, fit): begin(params, key) -> TrainState; renew(TrainState) -> the same with Adam as at its start,
      for a new task; fit(TrainState, steps, filled, task, before, count) -> (TrainState, metrics float32 []), on rows
      0 .. filled - 1 of steps [N] of task t. count is static.
    """
    optimizer = optax.adam(learning_rate, **adam)
    train_step = make_train_step(loss, optimizer, max_grad_norm=max_grad_norm)

    def begin(params: dict[str, Any], key: chex.PRNGKey) -> TrainState:
        return init_state(params, optimizer, key)

    def renew(state: TrainState) -> TrainState:
        return state._replace(opt_state=optimizer.init(state.params))

    def update(state: TrainState, steps: Transitions, filled, task, before):
        key = jax.random.fold_in(state.rng, state.step)
        index = jax.random.randint(key, (batch_size,), 0, filled)
        rows = jax.tree.map(lambda x: x[index], steps)
        alone = jax.grad(lambda params: jnp.mean(prediction_errors(nets, params, rows, task)))(state.params)
        ahead = optimizer.update(alone, state.opt_state, state.params)[0]["hyper"]
        return train_step(state, HyperBatch(rows, task, before, ahead))

    def fit(state: TrainState, steps: Transitions, filled, task, before, count: int):
        once = traced_once(update)

        def turn(state, _):
            return once(state, steps, filled, task, before)

        state, metrics = jax.lax.scan(turn, state, None, count)
        return state, {name: jnp.mean(x) for name, x in metrics.items()}

    return begin, renew, fit
