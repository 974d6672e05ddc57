"""Actor and critic for control: two networks without a common trunk, as pure functions on flat batches of observations.

Layers are plain matmuls on [N, D]; observations of rank 3 (height, width, channels) go through a small convolution
first. Weights are orthogonal as in PPO's implementations (sqrt 2 inside, .01 on the policy, 1 on the value).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.models.distributions import Distribution
from rl_jax.types import Params

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}


class Agent(NamedTuple):
    """What acts and what judges.

    init: (key) -> params {"actor", "critic"}.
    policy: (params, observations [N, ...]) -> float32 [N, distribution.num_outputs].
    value: (params, observations [N, ...]) -> float32 [N, K], the outputs of a value head (losses.value).
    distribution: of the actions.
    """

    init: Callable
    policy: Callable
    value: Callable
    distribution: Distribution


def make_agent(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    channels: int = 16,
) -> Agent:
    """An Agent of two networks of the same kind.

    observation_shape: (D,), or (H, W, C), which adds a 3 x 3 convolution with `channels` outputs in front.
    num_values: K. hidden: widths of the layers. activation: one of ACTIVATIONS.
    Raises ValueError for an unknown activation or a shape that is neither.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is none of {', '.join(ACTIVATIONS)}")
    if len(observation_shape) not in (1, 3):
        raise ValueError(f"observations of shape {observation_shape}: only (D,) and (H, W, C) are known")
    act = ACTIVATIONS[activation]
    sizes = (_flat_size(observation_shape, channels), *hidden)

    def init_network(key: chex.PRNGKey, outputs: int, scale: float) -> dict[str, Any]:
        keys = jax.random.split(key, len(sizes) + 1)
        params = {
            f"layer_{i}": _dense(keys[i], sizes[i], sizes[i + 1], math.sqrt(2.0)) for i in range(len(sizes) - 1)
        }
        params["head"] = _dense(keys[-2], sizes[-1], outputs, scale)
        if len(observation_shape) == 3:
            inputs = 9 * observation_shape[-1]
            params["conv"] = _dense(keys[-1], inputs, channels, math.sqrt(2.0))
        return params

    def init(key: chex.PRNGKey) -> Params:
        actor_key, critic_key = jax.random.split(key)
        return {
            "actor": init_network(actor_key, distribution.num_outputs, 0.01),
            "critic": init_network(critic_key, num_values, 1.0),
        }

    def forward(params: dict[str, Any], observations: chex.Array) -> chex.Array:
        chex.assert_shape(observations, (None, *observation_shape))
        x = observations
        if "conv" in params:
            x = act(_convolve(x, params["conv"])).reshape(len(x), -1)
        for i in range(len(hidden)):
            x = act(_linear(x, params[f"layer_{i}"]))
        return _linear(x, params["head"])

    return Agent(
        init=init,
        policy=lambda params, observations: forward(params["actor"], observations),
        value=lambda params, observations: forward(params["critic"], observations),
        distribution=distribution,
    )


def _flat_size(shape: tuple[int, ...], channels: int) -> int:
    return shape[0] if len(shape) == 1 else (shape[0] - 2) * (shape[1] - 2) * channels


def _dense(key: chex.PRNGKey, inputs: int, outputs: int, scale: float) -> dict[str, chex.Array]:
    return {"kernel": jax.nn.initializers.orthogonal(scale)(key, (inputs, outputs)), "bias": jnp.zeros(outputs)}


def _linear(x: chex.Array, params: dict[str, chex.Array]) -> chex.Array:
    out = x @ params["kernel"]
    return out + jnp.broadcast_to(params["bias"], out.shape)


def _convolve(x: chex.Array, params: dict[str, chex.Array]) -> chex.Array:
    """A 3 x 3 convolution without padding, as one matmul of the nine shifted images: [N, H, W, C] -> [N, H-2, W-2, F].

    XLA's CPU convolutions, and their gradients under vmap above all, are far slower than a matmul of the same size.
    """
    height, width = x.shape[1] - 2, x.shape[2] - 2
    patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    flat = jnp.concatenate(patches, axis=-1).reshape(-1, params["kernel"].shape[0])
    return _linear(flat, params).reshape(len(x), height, width, -1)
