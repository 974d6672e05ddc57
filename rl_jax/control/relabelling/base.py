"""What the relabellings share: state per environment, flat steps, and one gradient step of a network of their own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.rollout.envs.steps import Transitions


class PerEnv(NamedTuple):
    """State that exists once per environment, and is split with the environments over devices.

    Attributes:
      worlds: a pytree of arrays with B first.
    """

    worlds: Any


class Learned(NamedTuple):
    """A trained part of a relabelling.

    Attributes:
      params: pytree.
      optimizer: its state.
      key: for what the next update samples.
    """

    params: Any
    optimizer: Any
    key: chex.PRNGKey


def begin(params: Any, optimizer: optax.GradientTransformation, key: chex.PRNGKey) -> Learned:
    """A Learned before its first update."""
    return Learned(params, optimizer.init(params), key)


def descend(
    loss_fn: Callable, learned: Learned, optimizer: optax.GradientTransformation, *, steps: int, axis_name=None
) -> Learned:
    """`steps` updates by the gradient of loss_fn (params, key) -> float []; gradients are means over axis_name."""

    def step(state: Learned, _):
        key, used = jax.random.split(state.key)
        part = used if axis_name is None else jax.random.fold_in(used, jax.lax.axis_index(axis_name))
        grads = jax.grad(loss_fn)(state.params, part)
        grads = grads if axis_name is None else jax.lax.pmean(grads, axis_name)
        updates, moved = optimizer.update(grads, state.optimizer, state.params)
        return Learned(optax.apply_updates(state.params, updates), moved, key), None

    return jax.lax.scan(step, learned, None, steps)[0]


def flat(x: chex.Array) -> chex.Array:
    """[B, T, ...] -> [B T, D]; a scalar per step becomes D = 1."""
    return x.reshape(x.shape[0] * x.shape[1], -1)


def mean_of(x: chex.Array, axis_name=None) -> chex.Array:
    """The mean of all entries, over axis_name too."""
    mean = jnp.mean(x)
    return mean if axis_name is None else jax.lax.pmean(mean, axis_name)


def as_the_env(rows: Transitions, distribution) -> Transitions:
    """The rows with actions as the environment receives them."""
    return rows._replace(actions=distribution.to_env(rows.actions))


def action_entries(distribution) -> int:
    """Entries of a continuous action as the environment receives it; 0 if actions are discrete."""
    outputs = jax.ShapeDtypeStruct((1, distribution.num_outputs), jnp.float32)
    action = jax.eval_shape(lambda x: distribution.to_env(distribution.mode(x)), outputs)
    return 0 if jnp.issubdtype(action.dtype, jnp.integer) else action.size


def action_features(distribution) -> int:
    """A of `features_of`: entries of a continuous action (whose outputs may be two each), values of a discrete one."""
    return action_entries(distribution) or distribution.num_outputs


def features_of(rows: Transitions, distribution) -> chex.Array:
    """(s, a) of every step as one vector: float32 [B T, D + A], A = `action_features`; discrete actions are one-hot.

    Args:
      rows: [B, T].
      distribution: of the policy. Integer actions have as many values as it has outputs.
    """
    actions = distribution.to_env(rows.actions)
    if jnp.issubdtype(actions.dtype, jnp.integer):
        actions = jax.nn.one_hot(actions, distribution.num_outputs)
    return jnp.concatenate([flat(rows.observations), flat(actions)], axis=1)
