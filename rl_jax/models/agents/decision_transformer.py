"""The decision transformer: a causal transformer over returns to go, observations and actions of the last K steps.

    tokens   R_1 s_1 a_1 R_2 s_2 a_2 ... R_K s_K a_K, each embedded, plus an embedding of its step's time
    heads    a_t from the token of s_t;   s_{t+1} and R_{t+1} from the token of a_t

Source: arXiv 2106.01345, kzl/decision-transformer. Here time is encoded by sines, and layers are normalised before, not
after (pre-norm), without learned scales.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.models.agents.distributions import Distribution

PERIODS = np.asarray([2.0, 5.0, 13.0, 34.0, 89.0, 233.0, 610.0], np.float32)  # of the sines, in steps


class Sequence(NamedTuple):
    """K steps of B episodes, the newest last.

    Attributes:
      to_go: float32 [B, K], scaled.
      observations: float32 [B, K, *shape].
      actions: float32 [B, K, A], encoded; the newest one's may be anything.
      time: int32 [B, K], steps since the episode's start.
      mask: bool [B, K]. False before the episode's start.
    """

    to_go: chex.Array
    observations: chex.Array
    actions: chex.Array
    time: chex.Array
    mask: chex.Array


class DecisionTransformer(NamedTuple):
    """Pure functions of params {"sequence": a vector}.

    Attributes:
      init: (key) -> params.
      apply: (params, Sequence) -> (outputs [B, K, distribution.num_outputs], next observations [B, K, D], returns [B,
        K]).
      act: (params, Sequence) -> outputs [B, distribution.num_outputs] of the newest step, whose action is not read.
      distribution: of the actions.
      encode: actions -> float32 [..., A].
      size: A.
      context: K.
      sequence: makes a Sequence of its fields.
    """

    init: Callable
    apply: Callable
    act: Callable
    distribution: Distribution
    encode: Callable
    size: int
    context: int
    sequence: Callable = Sequence


def make_decision_transformer(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    encode: Callable,
    size: int,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    context: int = 10,
) -> DecisionTransformer:
    """A DecisionTransformer.

    Args:
      observation_shape: of one observation; it is flattened.
      distribution: of the actions.
      encode: actions -> float32 [..., size].
      size: A.
      width: of the residual stream; the MLPs are 4 times as wide. 128 published.
      layers: number of blocks; 3 published.
      heads: of the attention; 1 published.
      context: K, the steps that are seen; 20 published.

    Raises:
      ValueError: if heads does not divide width.
    """
    flat = math.prod(observation_shape)
    shapes = {"to_go": (1, width), "observation": (flat, width), "action": (size, width), "kind": (3, width)}
    shapes |= block_shapes(width, layers, heads)
    shapes |= {"head": (width, distribution.num_outputs), "next": (width, flat), "return": (width, 1)}
    init, parts_of = vector_of(shapes)

    def apply(params: dict[str, Any], steps: Sequence):
        own = parts_of(params["sequence"])
        tokens = [
            steps.to_go[:, :, None] @ own["to_go"],
            flattened(steps.observations) @ own["observation"],
            steps.actions @ own["action"],
        ]
        x = blocks(own, *interleaved(own, tokens, steps), layers=layers, heads=heads)
        return x[:, :, 1] @ own["head"], x[:, :, 2] @ own["next"], (x[:, :, 2] @ own["return"])[:, :, 0]

    def act(params: dict[str, Any], steps: Sequence) -> chex.Array:
        return apply(params, steps)[0][:, -1]

    return DecisionTransformer(init, apply, act, distribution, encode, size, context)


def block_shapes(width: int, layers: int, heads: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the matrices that `interleaved` and `blocks` read, without "kind".

    Raises:
      ValueError: if heads does not divide width.
    """
    if width % heads:
        raise ValueError(f"sequence.width={width} does not divide into sequence.heads={heads}")
    shapes = {"time": (2 * len(PERIODS), width)}
    for i in range(layers):
        shapes |= {f"qkv_{i}": (width, 3 * width), f"out_{i}": (width, width)}
        shapes |= {f"up_{i}": (width, 4 * width), f"down_{i}": (4 * width, width)}
    return shapes


def vector_of(shapes: dict[str, tuple[int, ...]]) -> tuple[Callable, Callable]:
    """Matrices in one vector, uniform in +-1 / sqrt(inputs) at the start.

    Returns:
      (key -> params {"sequence": the vector}, vector -> {name: matrix}).
    """
    scale = np.concatenate([np.full(math.prod(s), s[0] ** -0.5, np.float32) for s in shapes.values()])

    def init(key: chex.PRNGKey) -> dict[str, Any]:
        return {"sequence": scale * jax.random.uniform(key, scale.shape, minval=-1.0, maxval=1.0)}

    def parts_of(vector: chex.Array) -> dict[str, chex.Array]:
        result, place = {}, 0
        for name, shape in shapes.items():
            result[name] = vector[place : place + math.prod(shape)].reshape(shape)
            place += math.prod(shape)
        return result

    return init, parts_of


def flattened(observations: chex.Array) -> chex.Array:
    """Observations [B, K, *shape] as float32 [B, K, D]."""
    return observations.reshape(*observations.shape[:2], -1).astype(jnp.float32)


def interleaved(own: dict[str, chex.Array], tokens: list[chex.Array], steps: Sequence):
    """The tokens of a sequence, N for each step in their order, and which of them sees which.

    Args:
      own: "time" and "kind" [N, W], matrices of a transformer of width W.
      tokens: N of float32 [B, K, W].
      steps: [B, K].

    Returns:
      (tokens [B, N K, W], bool [B, N K, N K], [b, i, j]: i sees j).
    """
    chex.assert_rank(steps.mask, 2)
    (rows, length), count = steps.mask.shape, len(tokens)
    phase = steps.time[:, :, None] * (2.0 * np.pi / PERIODS)[None, None, :]
    time = jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1) @ own["time"]
    tokens = [x + time + own["kind"][i][None, None, :] for i, x in enumerate(tokens)]
    x = jnp.stack(tokens, axis=2).reshape(rows, count * length, -1)
    seen = jnp.repeat(steps.mask, count, axis=1)
    causal = np.tril(np.ones((count * length, count * length), bool))[None]
    # A token sees itself, so that a masked one has something to attend to.
    return x, (causal & seen[:, None, :]) | np.eye(count * length, dtype=bool)[None]


def blocks(own: dict[str, chex.Array], x: chex.Array, visible: chex.Array, *, layers: int, heads: int) -> chex.Array:
    """A pre-norm transformer over the tokens of `interleaved`.

    Args:
      own: matrices of `block_shapes`, and "kind" [N, W].
      x: float32 [B, N K, W].
      visible: bool [B, N K, N K].
      layers: number of blocks.
      heads: of the attention.

    Returns:
      float32 [B, K, N, W], normalised.
    """
    for i in range(layers):
        x = x + attend(norm(x) @ own[f"qkv_{i}"], visible, heads) @ own[f"out_{i}"]
        x = x + jax.nn.gelu(norm(x) @ own[f"up_{i}"]) @ own[f"down_{i}"]
    count = len(own["kind"])
    return norm(x).reshape(x.shape[0], -1, count, x.shape[-1])


def attend(qkv: chex.Array, visible: chex.Array, heads: int) -> chex.Array:
    """Attention of [B, T, 3 width] on visible bool [B, T, T] -> [B, T, width]."""
    rows, length, size = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(rows, length, 3, heads, size // 3 // heads), 2, 0)
    logits = jnp.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5
    shares = jax.nn.softmax(jnp.where(visible[:, None], logits, -1e9), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", shares, v).reshape(rows, length, size // 3)


def uniform_matrices(key: chex.PRNGKey, shapes: dict[str, tuple[int, ...]]) -> dict[str, chex.Array]:
    """Matrices of these shapes, [..., inputs, outputs], uniform in +- 1 / sqrt(inputs)."""
    keys = jax.random.split(key, len(shapes))
    return {
        name: jax.random.uniform(k, shape, minval=-1.0, maxval=1.0) * shape[-2] ** -0.5
        for k, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def norm(x: chex.Array) -> chex.Array:
    """To mean 0 and variance 1 on the last axis."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + 1e-5)


def empty(model: DecisionTransformer, rows: int, observation_shape: tuple[int, ...]) -> Sequence:
    """The memory of an actor before an episode's first step."""
    shape = (rows, model.context)
    return Sequence(
        jnp.zeros(shape),
        jnp.zeros((*shape, *observation_shape)),
        jnp.zeros((*shape, model.size)),
        jnp.zeros(shape, jnp.int32),
        jnp.zeros(shape, bool),
    )


def extended(memory: Sequence, to_go: chex.Array, observations: chex.Array, time: chex.Array) -> Sequence:
    """The memory with one more step, whose action is not known yet; at time 0 the steps before it are forgotten.

    Args:
      memory: of K steps.
      to_go: float32 [B].
      observations: float32 [B, *shape].
      time: int32 [B].
    """

    def push(old: chex.Array, new: chex.Array) -> chex.Array:
        return jnp.concatenate([old[:, 1:], new[:, None].astype(old.dtype)], axis=1)

    kept = memory.mask & (time > 0)[:, None]
    return Sequence(
        push(memory.to_go, to_go),
        push(memory.observations, observations),
        push(memory.actions, jnp.zeros_like(memory.actions[:, 0])),
        push(memory.time, time),
        push(kept, jnp.ones_like(kept[:, 0])),
    )
