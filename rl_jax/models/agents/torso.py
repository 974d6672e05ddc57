"""The layers in front of a head or a memory, on flat batches of observations: plain matmuls on [N, D].

Observations of rank 3 (height, width, channels) first go through a small convolution. Weights are orthogonal as in
PPO's implementations, sqrt 2 inside.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}


class Torso(NamedTuple):
    """The layers in front of a head or a memory.

    Attributes:
      init: (key) -> (params, a key for the layers after it).
      apply: (params, observations [N, ...]) -> [N, size].
      size: of the output.
    """

    init: Callable
    apply: Callable
    size: int


def make_torso(
    observation_shape: tuple[int, ...], *, hidden: tuple[int, ...], activation: str, channels: int, features: int = 0
) -> Torso:
    """Fully connected layers, each followed by the activation.

    Args:
      observation_shape: (D,) or (H, W, C). The latter adds a 3 x 3 convolution with `channels` outputs in front, or is
        flattened if channels is 0.
      hidden: widths of the layers.
      activation: one of ACTIVATIONS.
      channels: outputs of the convolution.
      features: how many of the D features are used, the first ones; 0 is all.

    Raises:
      ValueError: if the activation is unknown, the shape is neither of the two, or there are fewer features than asked
        for.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is none of {', '.join(ACTIVATIONS)}")
    if len(observation_shape) not in (1, 3):
        raise ValueError(f"observations of shape {observation_shape}: only (D,) and (H, W, C) are known")
    if features and not (len(observation_shape) == 1 and 0 < features <= observation_shape[0]):
        raise ValueError(f"{features} features of observations of shape {observation_shape}: 0 is all")
    act = ACTIVATIONS[activation]
    convolved = len(observation_shape) == 3 and channels > 0
    sizes = (features or _flat_size(observation_shape, channels if convolved else 0), *hidden)

    def init(key: chex.PRNGKey) -> tuple[dict[str, Any], chex.PRNGKey]:
        keys = jax.random.split(key, len(sizes) + 1)
        params = {f"layer_{i}": dense(keys[i], sizes[i], sizes[i + 1], math.sqrt(2.0)) for i in range(len(sizes) - 1)}
        if convolved:
            params["conv"] = dense(keys[-1], 9 * observation_shape[-1], channels, math.sqrt(2.0))
        return params, keys[-2]

    def apply(params: dict[str, Any], observations: chex.Array) -> chex.Array:
        chex.assert_shape(observations, (None, *observation_shape))
        x = observations[:, :features] if features else observations
        if convolved:
            x = act(_convolve(x, params["conv"]))
        x = x.reshape(len(x), -1)
        for i in range(len(hidden)):
            x = act(linear(x, params[f"layer_{i}"]))
        return x

    return Torso(init, apply, sizes[-1])


def dense(key: chex.PRNGKey, inputs: int, outputs: int, scale: float) -> dict[str, chex.Array]:
    """Params of `linear`: {"kernel": orthogonal times scale, float32 [inputs, outputs], "bias": zeros [outputs]}."""

    # Under vmap one matrix after the other: jax 0.10.2 factors a batch in XLA's thread pool and waits there for its
    # parts, so that two batches at once, those of two layers, wait forever on two cores.
    @jax.custom_batching.sequential_vmap
    def kernel(key: chex.PRNGKey) -> chex.Array:
        return jax.nn.initializers.orthogonal(scale)(key, (inputs, outputs))

    return {"kernel": kernel(key), "bias": jnp.zeros(outputs)}


def linear(x: chex.Array, params: dict[str, chex.Array]) -> chex.Array:
    """x W + b: float [..., D] -> [..., outputs]."""
    out = x @ params["kernel"]
    return out + jnp.broadcast_to(params["bias"], out.shape)


def _flat_size(shape: tuple[int, ...], channels: int) -> int:
    return (shape[0] - 2) * (shape[1] - 2) * channels if channels else math.prod(shape)


def _convolve(x: chex.Array, params: dict[str, chex.Array]) -> chex.Array:
    """A 3 x 3 convolution without padding, as one matmul of the nine shifted images: [N, H, W, C] -> [N, H-2, W-2, F].

    XLA's CPU convolutions, and especially their gradients under vmap, are far slower than a matmul of the same size.
    """
    height, width = x.shape[1] - 2, x.shape[2] - 2
    patches = [x[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    flat = jnp.concatenate(patches, axis=-1).reshape(-1, params["kernel"].shape[0])
    return linear(flat, params).reshape(len(x), height, width, -1)
