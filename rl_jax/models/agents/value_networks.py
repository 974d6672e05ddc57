"""Critics of actions, Q(s, a), as ensembles, and the actors that they teach: for replay (rl_jax.control.off_policy).

Weights and biases start uniform in +- 1 / sqrt(inputs), PyTorch's default, as in the published codes of DQN, TD3 and
SAC; PPO's networks (actor_critic.py) start orthogonal.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.torso import ACTIVATIONS, linear, make_torso


class Critic(NamedTuple):
    """K = members networks of the same form.

    Attributes:
      init: (key) -> params, every leaf with K first.
      apply: (params, observations [N, *shape]) -> float32 [K, N, A, H] for A actions; or (params, observations,
        actions [N, D] in the environment's units) -> float32 [K, N, H].
      members: K.
    """

    init: Callable
    apply: Callable
    members: int


class Actor(NamedTuple):
    """A policy.

    Attributes:
      init: (key) -> params.
      apply: (params, observations [N, *shape]) -> float32 [N, distribution.num_outputs].
      distribution: of the actions.
    """

    init: Callable
    apply: Callable
    distribution: Distribution


def reading(actor: Actor, count: int) -> Actor:
    """The actor of observations [N, D] of which it reads the first `count`: an asymmetric one beside its critic."""
    return actor._replace(apply=lambda params, observations: actor.apply(params, observations[:, :count]))


def make_action_values(
    observation_shape: tuple[int, ...], num_actions: int, num_outputs: int, *, dueling: bool = False, **layers
) -> Critic:
    """Q(s, .) of A = num_actions actions, H = num_outputs outputs each.

        dueling: q_a = v + x_a - mean_a x_a, for each of the H outputs

    Args:
      observation_shape: as in agents.torso.
      num_actions: A.
      num_outputs: H.
      dueling: two heads, for the state and for the actions. Source: arXiv 1511.06581.
      **layers: members, hidden, activation, channels, layer_norm; see `make_layers`.
    """
    members, torso = make_layers(observation_shape, layers)

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        value_key, head_key = jax.random.split(head_key)
        params["head"] = uniform_dense(head_key, torso.size, num_actions * num_outputs)
        if dueling:
            params["value"] = uniform_dense(value_key, torso.size, num_outputs)
        return params

    def apply(params: Params, observations: chex.Array) -> chex.Array:
        x = torso.apply(params, observations)
        out = linear(x, params["head"]).reshape(len(x), num_actions, num_outputs)
        if dueling:
            out = linear(x, params["value"])[:, None, :] + out - jnp.mean(out, axis=1, keepdims=True)
        return out

    return Critic(lambda key: _ensemble_init(init, key, members), _ensemble(apply), members)


def make_enumerated_values(
    observation_shape: tuple[int, ...], action_vectors: Any, num_outputs: int, **layers
) -> Critic:
    """Q(s, .) of A combined actions by one network that reads (s, action vector), on every one of them.

    A network of the action's parts generalises over combinations; a head per combination does not. Its largest value is
    found by enumeration; the source, arXiv 2503.01919, uses a mixed-integer program for sets too large for that, as
    `relu_programs` does.

    Args:
      observation_shape: (D,).
      action_vectors: float [A, n].
      num_outputs: H.
      **layers: members, hidden, activation, layer_norm; see `make_layers`.
    """
    count, size = action_vectors.shape
    low, high = -jnp.ones(size), jnp.ones(size)
    one = make_q_function(observation_shape, low, high, num_outputs, **layers)

    def apply(params: Params, observations: chex.Array) -> chex.Array:
        rows = len(observations)
        tiled = jnp.repeat(observations, count, axis=0)
        out = one.apply(params, tiled, jnp.tile(jnp.asarray(action_vectors), (rows, 1)))
        return out.reshape(out.shape[0], rows, count, num_outputs)

    return Critic(one.init, apply, one.members)


def make_q_function(observation_shape: tuple[int, ...], low: Any, high: Any, num_outputs: int = 1, **layers) -> Critic:
    """Q(s, a) of D-dimensional actions, H = num_outputs outputs; the network reads (s, a scaled to [-1, 1]).

    Args:
      observation_shape: (D,), or images, which are flattened.
      low: of the actions, finite, [D].
      high: of the actions, finite, [D].
      num_outputs: H.
      **layers: members, hidden, activation, layer_norm; see `make_layers`.
    """
    size = len(low)
    seen = 1
    for length in observation_shape:
        seen *= length
    members, torso = make_layers((seen + size,), layers | dict(channels=0))
    half, middle = 0.5 * (high - low), 0.5 * (high + low)

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": uniform_dense(head_key, torso.size, num_outputs)}

    def apply(params: Params, observations: chex.Array, actions: chex.Array) -> chex.Array:
        scaled = (actions - jnp.broadcast_to(middle, actions.shape)) / jnp.broadcast_to(half, actions.shape)
        x = jnp.concatenate([observations.reshape(len(observations), -1), scaled], axis=1)
        return linear(torso.apply(params, x), params["head"])

    return Critic(lambda key: _ensemble_init(init, key, members), _ensemble(apply), members)


def make_actor(observation_shape: tuple[int, ...], distribution: Distribution, **layers) -> Actor:
    """An Actor: a torso and a linear head. **layers: as in `make_action_values`, less members."""
    _, torso = make_layers(observation_shape, layers | dict(members=1))

    def init(key: chex.PRNGKey) -> Params:
        params, head_key = torso.init(key)
        return params | {"head": uniform_dense(head_key, torso.size, distribution.num_outputs)}

    def apply(params: Params, observations: chex.Array) -> chex.Array:
        return linear(torso.apply(params, observations), params["head"])

    return Actor(init, apply, distribution)


class Base(NamedTuple):
    """A policy that another one corrects.

    Attributes:
      init: (key) -> params; it may clone them from data. {} of a fixed function.
      apply: (params, observations [N, D]) -> actions [N, A] in [-1, 1].
    """

    init: Callable
    apply: Callable


def make_residual_actor(observation_shape: tuple[int, ...], distribution: Distribution, base: Base, **layers) -> Actor:
    """An Actor that corrects a frozen policy: outputs are (base action, raw correction), 0 at first.

    The base's params are the actor's "base", so that a checkpoint holds them; no gradient reaches them.

    Args:
      observation_shape: (D,).
      distribution: models.agents.exploration.residual.
      base: the policy; a black box.
      **layers: as in `make_action_values`, less members.
    """
    size = distribution.num_outputs // 2
    _, torso = make_layers((observation_shape[0] + size,), layers | dict(members=1))

    def init(key: chex.PRNGKey) -> Params:
        params, _ = torso.init(key)
        head = {"kernel": jnp.zeros((torso.size, size)), "bias": jnp.zeros(size)}
        return params | {"head": head, "base": base.init(jax.random.fold_in(key, 1))}

    def apply(params: Params, observations: chex.Array) -> chex.Array:
        own = jax.lax.stop_gradient(base.apply(params["base"], observations))
        x = torso.apply(params, jnp.concatenate([observations, own], axis=1))
        return jnp.concatenate([own, linear(x, params["head"])], axis=1)

    return Actor(init, apply, distribution)


def uniform_dense(key: chex.PRNGKey, inputs: int, outputs: int) -> dict[str, chex.Array]:
    """Params of agents.torso.linear: kernel float32 [inputs, outputs] and bias [outputs], in +- 1 / sqrt(inputs)."""
    kernel_key, bias_key = jax.random.split(key)
    bound = inputs**-0.5
    return {
        "kernel": jax.random.uniform(kernel_key, (inputs, outputs), minval=-bound, maxval=bound),
        "bias": jax.random.uniform(bias_key, (outputs,), minval=-bound, maxval=bound),
    }


def make_layers(shape: tuple[int, ...], layers: dict[str, Any]):
    """(members, Torso) of the layers that a config gives, their weights uniform in +- 1 / sqrt(inputs).

    Args:
      shape: of the observations.
      layers: members, hidden, activation, channels, and layer_norm: LayerNorm before each activation.

    Raises:
      ValueError: if layer_norm is set for images.
    """
    hidden, activation = tuple(layers.get("hidden", (64, 64))), layers.get("activation", "relu")
    torso = make_torso(shape, hidden=hidden, activation=activation, channels=layers.get("channels", 16))
    shapes = jax.eval_shape(torso.init, jax.random.key(0))[0]

    def init(key: chex.PRNGKey):
        *keys, head_key = jax.random.split(key, len(shapes) + 1)
        params = {
            name: uniform_dense(own, *shapes[name]["kernel"].shape)
            for own, name in zip(keys, sorted(shapes), strict=True)
        }
        return params, head_key

    torso = torso._replace(init=init)
    if not layers.get("layer_norm", False):
        return layers.get("members", 1), torso
    if len(shape) != 1:
        raise ValueError(f"network.layer_norm=True reads vectors, not observations of shape {shape}: set it False")
    act = ACTIVATIONS[activation]

    def apply(params: Params, observations: chex.Array) -> chex.Array:
        x = observations
        for i in range(len(hidden)):
            x = linear(x, params[f"layer_{i}"])
            centred = x - jnp.mean(x, axis=-1, keepdims=True)
            x = act(centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-6))
        return x

    return layers.get("members", 1), torso._replace(apply=apply)


def _ensemble_init(init: Callable, key: chex.PRNGKey, members: int) -> Params:
    parts = [init(part) for part in jax.random.split(key, members)]
    return jax.tree.map(lambda *x: jnp.stack(x), *parts)


def _ensemble(apply: Callable) -> Callable:
    """Members one after the other: batched matmuls of small matrices are slower than separate ones on a CPU."""

    def applied(params: Params, *inputs: chex.Array) -> chex.Array:
        members = jax.tree.leaves(params)[0].shape[0]
        if members > 4:
            return jax.vmap(lambda own: apply(own, *inputs))(params)
        return jnp.stack([apply(jax.tree.map(lambda x: x[i], params), *inputs) for i in range(members)])  # noqa: B023

    return applied
