"""Networks for a sequence of tasks: a policy with a head for each of them, and a model of the newest one's dynamics."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.offline_networks import OfflineNetworks, layers_of, uniform_vector
from rl_jax.models.agents.torso import ACTIVATIONS, linear


class ContinualNetworks(NamedTuple):
    """Pure functions of params, those of OfflineNetworks and {"clone": a vector, "model": a vector}.

    Attributes:
      single: OfflineNetworks of the newest task.
      init: (key) -> params.
      clone: (params, observations [n, ...], task int []) -> outputs of single.distribution [n, num_outputs]; its log
        std is 0.
      model: (params, observations [n, ...], actions [n, A]) -> the next observations [n, ...].
      tasks: K.
    """

    single: OfflineNetworks
    init: Callable
    clone: Callable
    model: Callable
    tasks: int


def mlp(vector: chex.Array, sizes: tuple[int, ...], activation: str, x: chex.Array) -> chex.Array:
    """Layers of these sizes whose params are one vector (offline_networks.uniform_vector): [n, first] -> [n, last]."""
    layers = layers_of(vector, sizes)
    for layer in layers[:-1]:
        x = ACTIVATIONS[activation](linear(x, layer))
    return linear(x, layers[-1])


def make_continual_networks(
    observation_shape: tuple[int, ...],
    single: OfflineNetworks,
    *,
    tasks: int,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
) -> ContinualNetworks:
    """ContinualNetworks for continuous actions.

    Args:
      observation_shape: of one observation; it is flattened.
      single: networks of one task.
      tasks: K, heads of the cloned policy.
      hidden: widths of the layers.
      activation: "tanh", "relu" or "silu".
    """
    flat, size = math.prod(observation_shape), single.size
    clone_sizes, model_sizes = (flat, *hidden, tasks * size), (flat + size, *hidden, flat)

    def rows(x: chex.Array) -> chex.Array:
        return x.reshape(len(x), -1).astype(jnp.float32)

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        own_key, clone_key, model_key = jax.random.split(key, 3)
        return {
            **single.init(own_key),
            "clone": uniform_vector(clone_key, clone_sizes),
            "model": uniform_vector(model_key, model_sizes),
        }

    def clone(params: dict[str, Any], observations: chex.Array, task: chex.Array) -> chex.Array:
        heads = mlp(params["clone"], clone_sizes, activation, rows(observations))
        own = jnp.take(heads.reshape(-1, tasks, size), task, axis=1)
        return jnp.concatenate([own, jnp.zeros_like(own)], axis=-1)

    def model(params: dict[str, Any], observations: chex.Array, actions: chex.Array) -> chex.Array:
        inputs = jnp.concatenate([rows(observations), actions], axis=-1)
        return observations + mlp(params["model"], model_sizes, activation, inputs).reshape(observations.shape)

    return ContinualNetworks(single, init, clone, model, tasks)
