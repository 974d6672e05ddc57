"""MuZero's model: a latent state of the observation, its successors under actions, and what is predicted from it.

    s_0 = h(o)      s_{k+1}, r_{k+1} = g(s_k, a_{k+1})      p_k, v_k = f(s_k)

Latent states are scaled to [0, 1] by their least and largest entry, as published, so that they have the range of the
actions beside them. No observation is ever reconstructed. h, g and f are MLPs, h may begin with a convolution; the
published ones are residual towers. Source: arXiv 1911.08265 equation 1 and appendix G.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.models.agents.torso import linear
from rl_jax.models.agents.value_networks import make_layers, uniform_dense


class LatentModel(NamedTuple):
    """A learned model to plan in, of D = width numbers per state.

    Attributes:
      init: (key) -> params.
      represent: (params, observations [N, ...]) -> states float32 [N, D].
      step: (params, states [N, D], actions int32 [N]) -> (next states [N, D], outputs of the reward [N, H]).
      predict: (params, states [N, D]) -> (policy logits [N, A], outputs of the value [N, H]).
      num_actions: A.
    """

    init: Callable
    represent: Callable
    step: Callable
    predict: Callable
    num_actions: int


def make_latent_model(
    observation_shape: tuple[int, ...], num_actions: int, num_outputs: int, *, width: int, **layers: Any
) -> LatentModel:
    """A LatentModel of three MLPs with the same hidden layers.

    Args:
      observation_shape: as in agents.torso.
      num_actions: A.
      num_outputs: H of a value and of a reward, see losses.value_heads.
      width: D.
      **layers: hidden, activation, channels, layer_norm, as in models.agents.value_networks.
    """
    flat = layers | dict(members=1, channels=0)
    _, seeing = make_layers(observation_shape, layers | dict(members=1))
    _, moving = make_layers((width + num_actions,), flat)
    _, judging = make_layers((width,), flat)

    def init(key: chex.PRNGKey) -> Params:
        heads = {
            "represent": (seeing, {"state": width}),
            "step": (moving, {"state": width, "reward": num_outputs}),
            "predict": (judging, {"policy": num_actions, "value": num_outputs}),
        }
        params = {}
        for own, (name, (torso, outputs)) in zip(jax.random.split(key, len(heads)), heads.items(), strict=True):
            layer_params, head_key = torso.init(own)
            keys = jax.random.split(head_key, len(outputs))
            made = {
                head: uniform_dense(k, torso.size, size) for k, (head, size) in zip(keys, outputs.items(), strict=True)
            }
            params[name] = layer_params | made
        return params

    def represent(params: Params, observations: chex.Array) -> chex.Array:
        own = params["represent"]
        return unit_range(linear(seeing.apply(own, observations), own["state"]))

    def step(params: Params, states: chex.Array, actions: chex.Array) -> tuple[chex.Array, chex.Array]:
        own, chosen = params["step"], jax.nn.one_hot(actions, num_actions, dtype=states.dtype)
        x = moving.apply(own, jnp.concatenate([states, chosen], axis=1))
        return unit_range(linear(x, own["state"])), linear(x, own["reward"])

    def predict(params: Params, states: chex.Array) -> tuple[chex.Array, chex.Array]:
        own = params["predict"]
        x = judging.apply(own, states)
        return linear(x, own["policy"]), linear(x, own["value"])

    return LatentModel(init, represent, step, predict, num_actions)


def unit_range(states: chex.Array) -> chex.Array:
    """(s - min s) / (max s - min s), float [N, D], per row."""
    low, high = jnp.min(states, axis=-1, keepdims=True), jnp.max(states, axis=-1, keepdims=True)
    return (states - low) / jnp.maximum(high - low, 1e-5)
