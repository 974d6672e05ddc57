"""The networks of offline methods: a policy, two critics Q(s, a), a value V(s), an autoencoder of actions.

Actions are in [-1, 1]^A, or one-hot if they are finitely many (`encode`, of a dataset's own). Weights and biases are
uniform in +-1 / sqrt(inputs), as torch's, whose defaults TD3+BC and A2PR have.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.models.agents.distributions import LOG_TWO_PI, Distribution, categorical
from rl_jax.models.agents.torso import ACTIVATIONS, linear

MIN_LOG_STD, MAX_LOG_STD = -5.0, 2.0


class OfflineNetworks(NamedTuple):
    """Networks as pure functions of params {"policy", "q", "value", "vae"}.

    Attributes:
      init: (key) -> params.
      policy: (params, observations [N, ...]) -> float32 [N, distribution.num_outputs].
      q: (params, observations [N, ...], actions [N, A]) -> float32 [2, N].
      value: (params, observations [N, ...]) -> float32 [N].
      vae: (params, observations, actions, noise float32 [N, L]) -> (actions [N, A], mean [N, L], log_std [N, L]).
      distribution: of the policy; its actions are int32 [N] or float32 [N, A] in [-1, 1].
      encode: actions of a dataset -> float32 [N, A], as q reads them.
      stored: actions of a dataset -> as the distribution scores them.
      num_actions: of a finite set; 0 if actions are continuous.
      size: A.
      latent: L = 2 A.
    """

    init: Callable
    policy: Callable
    q: Callable
    value: Callable
    vae: Callable
    distribution: Distribution
    encode: Callable
    stored: Callable
    num_actions: int
    size: int
    latent: int


def bounded_normal(low: np.ndarray, high: np.ndarray) -> Distribution:
    """N(tanh(m), std^2) in [-1, 1]^A, clipped to the bounds when it acts; log_prob is the normal's.

    Outputs are m and log std, 2 A. As IQL's policy, which keeps the density of an action at a bound finite; there the
    std does not depend on the state. Source: ikostrikov/implicit_q_learning (NormalTanhPolicy without the squash).

    Args:
      low: finite, [A].
      high: finite, [A].

    Raises:
      ValueError: if a bound is not finite.
    """
    low, high = np.asarray(low, np.float32), np.asarray(high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError(f"bounded_normal needs finite bounds, there are {low} and {high}")
    size, half, middle = low.size, 0.5 * (high - low), 0.5 * (high + low)

    def split(outputs: chex.Array) -> tuple[chex.Array, chex.Array]:
        chex.assert_axis_dimension(outputs, -1, 2 * size)
        return jnp.tanh(outputs[..., :size]), jnp.clip(outputs[..., size:], MIN_LOG_STD, MAX_LOG_STD)

    def sample(outputs: chex.Array, noise: chex.Array) -> chex.Array:
        mean, log_std = split(outputs)
        return mean + jnp.exp(log_std) * noise

    def log_prob(outputs: chex.Array, actions: chex.Array) -> chex.Array:
        mean, log_std = split(outputs)
        chex.assert_equal_shape([mean, actions])
        z = (actions - mean) * jnp.exp(-log_std)
        return jnp.sum(-0.5 * (jnp.square(z) + LOG_TWO_PI) - log_std, axis=-1)

    def entropy(outputs: chex.Array) -> chex.Array:
        return jnp.sum(0.5 * (1.0 + LOG_TWO_PI) + split(outputs)[1], axis=-1)

    def kl(outputs: chex.Array, others: chex.Array) -> chex.Array:
        (mean, log_std), (other_mean, other_log_std) = split(outputs), split(others)
        z, ratio = (mean - other_mean) * jnp.exp(-other_log_std), log_std - other_log_std
        return jnp.sum(0.5 * (jnp.exp(2.0 * ratio) + jnp.square(z) - 1.0) - ratio, axis=-1)

    def to_env(actions: chex.Array) -> chex.Array:
        bounded = jnp.clip(actions, -1.0, 1.0)
        return jnp.broadcast_to(middle, bounded.shape) + jnp.broadcast_to(half, bounded.shape) * bounded

    def noise(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        return jax.random.normal(key, (*shape, size))

    return Distribution(2 * size, noise, sample, lambda outputs: split(outputs)[0], log_prob, entropy, to_env, kl)


def uniform_vector(key: chex.PRNGKey, sizes: tuple[int, ...]) -> chex.Array:
    """The params of layers of these sizes as one vector, uniform in +-1 / sqrt(inputs) of the layer; see `layers_of`.

    One vector a network: an optimizer then compiles and runs a few loops instead of a few for every layer.
    """
    pairs = list(zip(sizes[:-1], sizes[1:], strict=True))
    scale = np.concatenate([np.full((i + 1) * o, i**-0.5, np.float32) for i, o in pairs])
    return scale * jax.random.uniform(key, scale.shape, minval=-1.0, maxval=1.0)


def layers_of(vector: chex.Array, sizes: tuple[int, ...]) -> list[dict[str, chex.Array]]:
    """[{"kernel": [in, out], "bias": [out]}, ...] of a vector of `uniform_vector`."""
    layers, place = [], 0
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        end = place + (inputs + 1) * outputs
        numbers = vector[place:end].reshape(inputs + 1, outputs)
        layers.append({"kernel": numbers[:-1], "bias": numbers[-1]})
        place = end
    return layers


def make_networks(
    observation_shape: tuple[int, ...],
    *,
    num_actions: int = 0,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
    hidden: tuple[int, ...] = (256, 256),
    activation: str = "relu",
) -> OfflineNetworks:
    """OfflineNetworks of torsos of one shape.

    Args:
      observation_shape: (D,) or (H, W, C), which is flattened.
      num_actions: of a finite set; 0: actions are continuous, between `low` and `high`.
      low: float [A].
      high: float [A].
      hidden: widths of the layers; two of 256 published by TD3+BC, IQL and CQL.
      activation: "tanh", "relu" or "silu".

    Raises:
      ValueError: for another activation, or a bound that is not finite.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is none of {', '.join(ACTIVATIONS)}")
    flat, act = math.prod(observation_shape), ACTIVATIONS[activation]
    distribution = categorical(num_actions) if num_actions else bounded_normal(low, high)
    size = num_actions or np.size(low)
    latent = 2 * size

    sizes = {
        "policy": (flat, *hidden, distribution.num_outputs),
        "q": (flat + size, *hidden, 1),
        "value": (flat, *hidden, 1),
        "encoder": (flat + size, *hidden, 2 * latent),
        "decoder": (flat + latent, *hidden, size),
    }

    def run(name: str, vector: chex.Array, *inputs: chex.Array) -> chex.Array:
        rows = len(inputs[0])
        x = jnp.concatenate([x.reshape(rows, -1).astype(jnp.float32) for x in inputs], axis=-1)
        layers = layers_of(vector, sizes[name])
        for layer in layers[:-1]:
            x = act(linear(x, layer))
        return linear(x, layers[-1])

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        policy_key, first, second, value_key, encoder_key, decoder_key = jax.random.split(key, 6)
        return {
            "policy": uniform_vector(policy_key, sizes["policy"]),
            "q": jnp.stack([uniform_vector(k, sizes["q"]) for k in (first, second)]),
            "value": uniform_vector(value_key, sizes["value"]),
            "vae": {
                "encoder": uniform_vector(encoder_key, sizes["encoder"]),
                "decoder": uniform_vector(decoder_key, sizes["decoder"]),
            },
        }

    def q(params: dict[str, Any], observations: chex.Array, actions: chex.Array) -> chex.Array:
        # One after the other: small batched matmuls are slow on a CPU, and can deadlock in its thread pool.
        return jnp.stack([run("q", params["q"][i], observations, actions)[:, 0] for i in range(2)])

    def vae(params: dict[str, Any], observations: chex.Array, actions: chex.Array, noise: chex.Array):
        code = run("encoder", params["vae"]["encoder"], observations, actions)
        mean, log_std = code[:, :latent], jnp.clip(code[:, latent:], -4.0, 15.0)
        decoded = run("decoder", params["vae"]["decoder"], observations, mean + jnp.exp(log_std) * noise)
        return jnp.tanh(decoded), mean, log_std

    def stored(actions: chex.Array) -> chex.Array:
        if num_actions:
            return actions.astype(jnp.int32)
        half, middle = 0.5 * (np.asarray(high) - low), 0.5 * (np.asarray(high) + low)
        middle, half = (jnp.broadcast_to(jnp.asarray(x, jnp.float32), actions.shape) for x in (middle, half))
        return jnp.clip((actions - middle) / half, -1.0, 1.0)

    def encode(actions: chex.Array) -> chex.Array:
        return jax.nn.one_hot(actions, num_actions) if num_actions else actions

    def policy(params: dict[str, Any], observations: chex.Array) -> chex.Array:
        return run("policy", params["policy"], observations)

    def value(params: dict[str, Any], observations: chex.Array) -> chex.Array:
        return run("value", params["value"], observations)[:, 0]

    return OfflineNetworks(init, policy, q, value, vae, distribution, encode, stored, num_actions, size, latent)
