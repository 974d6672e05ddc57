"""An agent that models others from its last K observations: a code of the window beside the newest one (CLAM).

    tokens   x_i + sin, cos of i;   two blocks of self-attention;   pooling by a learned seed;   e = unit(W .)
    actor and critic read (x_K, sg(e)), e of a slow copy: the code is learned by its own loss
    (control.auxiliary.agent_model), and after each gradient step slow <- (1 - rate) slow + rate newest (`followed`)

    block(Q, K):  O = q + softmax(q k^T / sqrt(width)) v for each head,   O + relu(O W_o)

Source: arXiv 2401.00132, fadegehg/CLAM clam/models/basic_models.py (MAB, SAB, PMA of the Set Transformer) and
policy_representation.py (the slow copy). Departs: a frame of zeros is not there, so not attended to; observations must
not be normalised, then, which would move zeros elsewhere.
"""

import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from rl_jax.core.types import Params
from rl_jax.core.vectors import unit
from rl_jax.models.agents.actor_critic import Agent, make_agent
from rl_jax.models.agents.distributions import Distribution
from rl_jax.models.agents.features import Net
from rl_jax.models.agents.scoring import predict_steps
from rl_jax.models.agents.torso import dense, linear


def positions(length: int, size: int) -> np.ndarray:
    """sin(i w_j) and cos(i w_j) by turns, w_j = 10000^(-2j / size): float32 [length, size]."""
    angles = np.arange(length)[:, None] * np.exp(-np.log(1e4) * (np.arange(size) // 2 * 2) / size)
    return np.where(np.arange(size) % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def attend(params: Params, query: chex.Array, seen: chex.Array, mask: chex.Array, heads: int) -> chex.Array:
    """A block: float [N, Q, D], [N, K, D'], bool [N, K] -> [N, Q, width]. A row without any True sees every place."""
    q, k, v = linear(query, params["q"]), linear(seen, params["k"]), linear(seen, params["v"])
    rows, width = len(q), q.shape[-1]
    q, k, v = (x.reshape(rows, -1, heads, width // heads) for x in (q, k, v))
    scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(width)
    shares = jax.nn.softmax(jnp.where(mask[:, None, None, :], scores, -1e9), axis=-1)
    out = (q + jnp.einsum("nhqk,nkhd->nqhd", shares, v)).reshape(rows, -1, width)
    return out + jax.nn.relu(linear(out, params["out"]))


def make_window_encoder(size: int, context: int, *, width: int, heads: int) -> Net:
    """The Net float [N, context * size] -> unit codes [N, width].

    Args:
      size: numbers of a frame.
      context: K.
      width: of the blocks and the code.
      heads: of the attention.

    Raises:
      ValueError: if heads does not divide width.
    """
    if width % heads:
        raise ValueError(f"network.width={width} does not divide into network.heads={heads}")

    def block(key: chex.PRNGKey, inputs: int) -> dict[str, Any]:
        keys = jax.random.split(key, 4)
        sizes = {"q": inputs, "k": inputs, "v": inputs, "out": width}
        return {name: dense(k, n, width, 1.0) for k, (name, n) in zip(keys, sizes.items(), strict=True)}

    def init(key: chex.PRNGKey) -> Params:
        keys = jax.random.split(key, 5)
        params = {"first": block(keys[0], size), "second": block(keys[1], width), "pool": block(keys[2], width)}
        seed = jax.random.normal(keys[3], (1, width)) * width**-0.5
        return params | {"seed": seed, "code": dense(keys[4], width, width, 1.0)}

    def apply(params: Params, windows: chex.Array) -> chex.Array:
        chex.assert_shape(windows, (None, context * size))
        x = windows.reshape(-1, context, size)
        mask = jnp.any(x != 0.0, axis=-1)
        x = x + jnp.asarray(positions(context, size))[None]
        for name in ("first", "second"):
            x = attend(params[name], x, x, mask, heads)
        pooled = attend(params["pool"], jnp.broadcast_to(params["seed"][None], (len(x), 1, width)), x, mask, heads)
        return unit(linear(pooled[:, 0], params["code"]), 1e-6)

    return Net(init, apply)


def make_window_agent(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    *,
    num_values: int = 1,
    hidden: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    context: int = 16,
    width: int = 64,
    heads: int = 4,
) -> Agent:
    """An Agent with further params, "window" of the encoder and "slow_window" of the copy that is read.

    Neither the policy's loss nor the critic's moves them. Its optimizer is `followed`.

    Args:
      observation_shape: (K C,), of env.frame_stack = K.
      distribution: of the actions.
      num_values: of the value head.
      hidden: widths of the layers.
      activation: as of make_agent.
      context: K.
      width: of the code.
      heads: of the attention.

    Raises:
      ValueError: if the observations are not K frames.
    """
    if len(observation_shape) != 1 or observation_shape[0] % context:
        raise ValueError(
            f"network.kind='windows' reads network.context={context} frames, observations have shape "
            f"{tuple(observation_shape)}: set env.frame_stack={context}"
        )
    size = observation_shape[0] // context
    encoder = make_window_encoder(size, context, width=width, heads=heads)
    inner = make_agent((size + width,), distribution, num_values=num_values, hidden=hidden, activation=activation)

    def init(key: chex.PRNGKey) -> Params:
        window = encoder.init(jax.random.fold_in(key, 1))
        return inner.init(key) | {"window": window, "slow_window": jax.tree.map(jnp.copy, window)}

    def read(params: Params, observations: chex.Array) -> chex.Array:
        code = jax.lax.stop_gradient(encoder.apply(params["slow_window"], observations))
        return jnp.concatenate([observations[:, -size:], code], axis=1)

    def policy(params: Params, observations: chex.Array) -> chex.Array:
        return inner.policy(params, read(params, observations))

    def value(params: Params, observations: chex.Array) -> chex.Array:
        return inner.value(params, read(params, observations))

    predict, predict_ahead = predict_steps(policy, value, distribution)
    return inner._replace(init=init, policy=policy, value=value, predict=predict, predict_ahead=predict_ahead)


def followed(
    optimizer: optax.GradientTransformation, unravel: Callable, rate: float | chex.Array
) -> optax.GradientTransformation:
    """The optimizer, after each step of which slow_window <- (1 - rate) slow_window + rate window.

    Args:
      optimizer: of the params as one flat vector, float [D].
      unravel: float [D] -> the params (control.unraveler).
      rate: .01 published; 1 reads the newest encoder.
    """

    def update(gradients: chex.Array, state: optax.OptState, params: chex.Array):
        chex.assert_rank([gradients, params], 1)
        moves, state = optimizer.update(gradients, state, params)
        newest, slow = unravel(params + moves)["window"], unravel(params)["slow_window"]
        nearer = jax.tree.map(lambda slow, new: rate * (new - slow), slow, newest)
        return ravel_pytree({**unravel(moves), "slow_window": nearer})[0], state

    return optax.GradientTransformation(optimizer.init, update)
