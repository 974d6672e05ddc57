"""Two memories, between a network's torso and its head.

    gru           r, z = sigmoid(x W + h U),   n = tanh(x W + r (h U + c)),   h' = (1 - z) n + z h
    transformer   x + Attention(norm x) over the last K steps of the episode,   x + MLP(norm x)

The GRU is that of torch and cuDNN: the reset gate comes after the matmul, and z keeps the old state (in arXiv 1406.1078
r comes before it). The transformer has pre-norm layers, so that a gradient can bypass them (arXiv 1910.06764). It keeps
the keys and values of K - 1 steps (arXiv 1901.02860; from the second layer on they carry information older than K
steps), and encodes the age of a step by a learned weight per head and distance (arXiv 1910.10683).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.models.agents.torso import dense, linear


class Memory(NamedTuple):
    """The part between the torso and the head of one network.

    Attributes:
      init: (key) -> params.
      empty: (B) -> state.
      size: of the output.
      run: (params, x [B, T, D], state, first bool [B, T]) -> (y [B, T, size], state, trace).
      peek: (params, x [B, T, D], trace of run) -> [B, T, size]: y of x_t if it came next after step t.
    """

    init: Callable
    empty: Callable
    size: int
    run: Callable
    peek: Callable


def gru(inputs: int, width: int) -> Memory:
    """A gated recurrent unit; state and output are h, float32 [B, width]. The gates are in the order r, z, n.

    Source: arXiv 1406.1078, in the form given in the module's docstring.

    Args:
      inputs: D.
      width: of the state.
    """

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        def gates(key: chex.PRNGKey, size: int) -> chex.Array:
            kernels = [dense(k, size, width, 1.0)["kernel"] for k in jax.random.split(key, 3)]
            return jnp.concatenate(kernels, axis=1)

        input_key, state_key = jax.random.split(key)
        return {
            "input": {"kernel": gates(input_key, inputs), "bias": jnp.zeros(3 * width)},
            "state": {"kernel": gates(state_key, width), "bias": jnp.zeros(width)},  # c
        }

    def cell(params: dict[str, Any], x: chex.Array, h: chex.Array) -> chex.Array:
        """x W + b float [N, 3 width] and h [N, width] -> h'."""
        from_state = h @ params["kernel"]
        r, z = jnp.split(jax.nn.sigmoid(x[:, : 2 * width] + from_state[:, : 2 * width]), 2, axis=1)
        c = jnp.broadcast_to(params["bias"], h.shape)
        n = jnp.tanh(x[:, 2 * width :] + r * (from_state[:, 2 * width :] + c))
        return (1.0 - z) * n + z * h

    def run(params: dict[str, Any], x: chex.Array, state: chex.Array, first: chex.Array):
        def step(h: chex.Array, now):
            x, first = now
            h = cell(params["state"], x, jnp.where(first[:, None], 0.0, h))
            return h, h

        columns = jnp.swapaxes(linear(x, params["input"]), 0, 1), jnp.swapaxes(first, 0, 1)
        state, states = jax.lax.scan(step, state, columns)
        y = jnp.swapaxes(states, 0, 1)
        return y, state, y

    def peek(params: dict[str, Any], x: chex.Array, trace: chex.Array) -> chex.Array:
        following = linear(x, params["input"]).reshape(-1, 3 * width)
        return cell(params["state"], following, trace.reshape(-1, width)).reshape(trace.shape)

    return Memory(init, lambda rows: jnp.zeros((rows, width)), width, run, peek)


class Cache(NamedTuple):
    """The last K - 1 steps, the newest last.

    Attributes:
      keys: float32 [B, layers, K - 1, heads, width / heads].
      values: float32 [B, layers, K - 1, heads, width / heads].
      valid: bool [B, K - 1]. Whether the step belongs to the current episode.
    """

    keys: chex.Array
    values: chex.Array
    valid: chex.Array


class Trace(NamedTuple):
    """What later steps attend to, for S = K - 1 + T steps, the cached ones first.

    Attributes:
      streams: (keys, values) of each layer, float32 [B, S, heads, width / heads].
      episodes: int32 [B, S], episode numbers; -1 is hidden.
    """

    streams: list[tuple[chex.Array, chex.Array]]
    episodes: chex.Array


def transformer(inputs: int, width: int, context: int, heads: int, layers: int) -> Memory:
    """`layers` blocks of causal attention; the state is a Cache.

    Args:
      inputs: D.
      width: of the residual stream; the MLPs are 4 times as wide.
      context: K.
      heads: of the attention.
      layers: number of blocks.
    """
    size, cached = width // heads, context - 1

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        embed_key, shift_key, *keys = jax.random.split(key, layers + 2)

        def block(key: chex.PRNGKey) -> dict[str, Any]:
            q, k, v, out, up, down = jax.random.split(key, 6)
            return {
                "q": dense(q, width, width, 1.0), "k": dense(k, width, width, 1.0), "v": dense(v, width, width, 1.0),
                "out": dense(out, width, width, 1.0), "distance": jnp.zeros((heads, context)),
                "up": dense(up, width, 4 * width, math.sqrt(2.0)), "down": dense(down, 4 * width, width, 1.0),
            }  # fmt: skip

        embed = dense(embed_key, inputs, width, 1.0)
        # Not 0: otherwise an observation of zeros would leave only tiny values to normalise.
        embed["bias"] = 0.5 * jax.random.normal(shift_key, (width,))
        return {"embed": embed} | {f"block_{i}": block(k) for i, k in enumerate(keys)}

    def empty(rows: int) -> Cache:
        # Two arrays: leaves that share one buffer cannot be donated.
        keys, values = (jnp.zeros((rows, layers, cached, heads, size)) for _ in range(2))
        return Cache(keys, values, jnp.zeros((rows, cached), bool))

    def forward(params: dict[str, Any], x: chex.Array, ahead: int, episodes: chex.Array, seen: chex.Array, stream_of):
        """y [B, T, width] and x's own (keys, values) of each layer; queries come `ahead` steps after x's own keys.

        Args:
          params: of the memory.
          x: [B, T, D].
          ahead: 0 or 1.
          episodes: int32 [B, T], of the queries.
          seen: [B, S], episodes of the stream.
          stream_of: (layer, own keys and values) -> the (keys, values) of the stream.
        """
        offsets = np.arange(seen.shape[1])[None, :] - np.arange(x.shape[1])[:, None] - ahead
        window = jnp.broadcast_to(jnp.asarray((offsets >= 0) & (offsets < cached)), (len(x), *offsets.shape))
        mask = window & (seen[:, None, :] == episodes[:, :, None])
        x, own = linear(x, params["embed"]), []
        for i in range(layers):
            block, normed = params[f"block_{i}"], _norm(x)
            q, k, v = (linear(normed, block[name]).reshape(*x.shape[:2], heads, size) for name in ("q", "k", "v"))
            own.append((k, v))
            weights = _by_distance(block["distance"], *offsets.shape, ahead)
            y = _attend(q, own[i], stream_of(i, own[i]), mask, weights, block["distance"][:, 0])
            x = x + linear(y.reshape(x.shape), block["out"])
            x = x + linear(jax.nn.gelu(linear(_norm(x), block["up"])), block["down"])
        return _norm(x), own

    def run(params: dict[str, Any], x: chex.Array, state: Cache, first: chex.Array):
        episodes = jnp.cumsum(first, axis=1, dtype=jnp.int32)  # 0 continues the cached one
        seen = jnp.concatenate([jnp.where(state.valid, 0, -1), episodes], axis=1)

        def stream(layer: int, own) -> tuple[chex.Array, chex.Array]:
            caches = state.keys[:, layer], state.values[:, layer]
            return tuple(jnp.concatenate(pair, axis=1) for pair in zip(caches, own, strict=True))

        y, own = forward(params, x, 0, episodes, seen, stream)
        streams = [stream(i, own[i]) for i in range(layers)]
        keys, values = (jnp.stack([pair[j][:, -cached:] for pair in streams], axis=1) for j in range(2))
        return y, Cache(keys, values, seen[:, -cached:] == episodes[:, -1:]), Trace(streams, seen)

    def peek(params: dict[str, Any], x: chex.Array, trace: Trace) -> chex.Array:
        return forward(params, x, 1, trace.episodes[:, cached:], trace.episodes, lambda i, _: trace.streams[i])[0]

    return Memory(init, empty, width, run, peek)


def _attend(q, own, stream, mask: chex.Array, weights: chex.Array, now: chex.Array) -> chex.Array:
    """softmax(q k / sqrt(d) + weight of the distance) v over the stream on the mask, and over the query's own step.

    Args:
      q: [B, T, heads, d].
      own: (k, v) of that shape.
      stream: (k, v) [B, S, heads, d].
      mask: bool [B, T, S].
      weights: [heads, T, S].
      now: [heads], the weight of distance 0.

    Returns:
      [B, T, heads, d].
    """
    q = q * q.shape[-1] ** -0.5
    past = jnp.einsum("bthd,bshd->bhts", q, stream[0])
    past = jnp.where(mask[:, None], past + jnp.broadcast_to(weights, past.shape), -jnp.inf)
    present = jnp.einsum("bthd,bthd->bht", q, own[0])
    present = present + jnp.broadcast_to(now[:, None], present.shape)
    shares = jax.nn.softmax(jnp.concatenate([past, present[..., None]], axis=-1), axis=-1)
    of_own = jnp.moveaxis(shares[..., -1], 1, 2)
    return jnp.einsum("bhts,bshd->bthd", shares[..., :-1], stream[1]) + of_own[..., None] * own[1]


def _by_distance(table: chex.Array, queries: int, keys: int, ahead: int) -> chex.Array:
    """[heads, queries, keys]: the table's entry for how far key s is before query t, K - 1 - (s - t - ahead).

    table: [heads, K]; 0 if it has no entry from 1 to K - 1. Built by repeating a line, shifted by one each time,
    instead of a gather, whose gradient would be a scatter.
    """
    heads = len(table)
    line = jnp.pad(table[:, :0:-1], ((0, 0), (ahead, queries + keys)))[:, : keys + 1]
    lines = jnp.broadcast_to(line[:, None], (heads, queries, keys + 1)).reshape(heads, -1)
    return lines[:, : queries * keys].reshape(heads, queries, keys)


def _norm(x: chex.Array) -> chex.Array:
    """To mean 0 and variance 1 on the last axis; the layer after it has the scale and the shift."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)
