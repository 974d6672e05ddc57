"""A hypernetwork: an embedding of the task in, all weights of a dynamics network for that task out.

    theta_j = H(e_j; phi),   s' = s + f(s, a; theta_j)

Source: arXiv 2009.11997, rvl-lab-utoronto/HyperCRL.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.agents.continual_networks import mlp
from rl_jax.models.agents.offline_networks import uniform_vector


class HyperDynamics(NamedTuple):
    """Pure functions of params {"hyper": a vector, "embeddings": float32 [K, E]}.

    Attributes:
      init: (key) -> params.
      weights: (hyper, embeddings [..., E]) -> float32 [..., P], the weights of the dynamics network.
      predict: (weights [P], observations [n, ...], actions [n, A]) -> the next observations [n, ...].
      tasks: K.
      size: P.
    """

    init: Callable
    weights: Callable
    predict: Callable
    tasks: int
    size: int


def make_hyper_dynamics(
    observation_shape: tuple[int, ...],
    size: int,
    *,
    tasks: int,
    embedding: int = 10,
    layers: tuple[int, ...] = (50, 50),
    hidden: tuple[int, ...] = (200, 200),
    activation: str = "relu",
) -> HyperDynamics:
    """HyperDynamics of continuous actions.

    Args:
      observation_shape: of one observation; it is flattened.
      size: A.
      tasks: K.
      embedding: E, of a task; 10 published, drawn from N(0, 1).
      layers: hidden widths of the hypernetwork; (50, 50) published beside two of 200.
      hidden: widths of the dynamics network.
      activation: "tanh", "relu" or "silu", of both.
    """
    flat = math.prod(observation_shape)
    own = (flat + size, *hidden, flat)
    count = sum((i + 1) * o for i, o in zip(own[:-1], own[1:], strict=True))
    sizes = (embedding, *layers, count)

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        hyper_key, task_key = jax.random.split(key)
        return {
            "hyper": uniform_vector(hyper_key, sizes),
            "embeddings": jax.random.normal(task_key, (tasks, embedding)),
        }

    def weights(hyper: chex.Array, embeddings: chex.Array) -> chex.Array:
        return mlp(hyper, sizes, activation, embeddings)

    def predict(made: chex.Array, observations: chex.Array, actions: chex.Array) -> chex.Array:
        inputs = jnp.concatenate([observations.reshape(len(actions), -1).astype(jnp.float32), actions], axis=-1)
        return observations + mlp(made, own, activation, inputs).reshape(observations.shape)

    return HyperDynamics(init, weights, predict, tasks, count)
