"""A transformer over rewards, observations and actions whose last block has two mixtures of experts side by side.

    tokens   r_0 s_1 a_1 r_1 s_2 a_2 ..., each embedded, plus an embedding of its step's time; r_0 = 0
    last     x + [token-wise experts(x), task-wise experts(x)], each of half the width
    heads    a_t from the token of s_t

The token-wise gate is noisy while learning, so that experts can be shared out over the kinds of tokens; the task-wise
gate is told to say the same of episodes of the same task (losses.experts). Source: arXiv 2506.05426 (T2MIR), its code.
Here gates are one matrix, not two with a tanh between, and experts have no biases and no dropout.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params
from rl_jax.losses import experts
from rl_jax.models.agents.decision_transformer import PERIODS, Sequence, attend, embedded, norm
from rl_jax.models.agents.distributions import Distribution


class Routed(NamedTuple):
    """What a forward says.

    Attributes:
      outputs: float32 [B, K, distribution.num_outputs].
      uneven: float32 [], losses.experts.even_loads of the token-wise experts.
      queries: float32 [B, E], mean over the real tokens of the task-wise gate's probabilities.
      keys: float32 [B, E], those of the slow gate.
    """

    outputs: chex.Array
    uneven: chex.Array
    queries: chex.Array
    keys: chex.Array


class ExpertTransformer(NamedTuple):
    """Pure functions of params {"sequence": ..., "gate": the task-wise gate, "contrast": W}.

    Attributes:
      init: (key) -> params.
      apply: (params, Sequence, slow gate, key or None) -> Routed; None: gates without noise. Sequence.to_go is the
        reward of the step before.
      distribution: of the actions.
      encode: actions -> float32 [..., A].
      size: A.
      context: K.
      sequence: makes a Sequence of its fields.
    """

    init: Callable
    apply: Callable
    distribution: Distribution
    encode: Callable
    size: int
    context: int
    sequence: Callable = Sequence


def make_expert_transformer(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    encode: Callable,
    size: int,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    context: int = 20,
    token_experts: int = 6,
    task_experts: int = 12,
    chosen: int = 2,
    noise: float = 0.01,
) -> ExpertTransformer:
    """An ExpertTransformer.

    Args:
      observation_shape: of one observation; it is flattened.
      distribution: of the actions.
      encode: actions -> float32 [..., size].
      size: A.
      width: of the residual stream; an expert's hidden layer is as wide.
      layers: blocks; only the last has experts.
      heads: of the attention.
      context: K.
      token_experts: 6 published.
      task_experts: 12 published.
      chosen: experts of a token in each mixture, 2 published.
      noise: smallest deviation of the token-wise gate's noise.

    Raises:
      ValueError: if heads does not divide width, the width is odd, or the chosen are not fewer than the experts.
    """
    if width % heads or width % 2:
        raise ValueError(f"sequence.width={width} must be even and divide into sequence.heads={heads}")
    if not 1 <= chosen < min(token_experts, task_experts):
        raise ValueError(f"experts.chosen={chosen} must be from 1 to below {min(token_experts, task_experts)} experts")
    flat = math.prod(observation_shape)
    shapes = {"reward": (1, width), "observation": (flat, width), "action": (size, width), "kind": (3, width)}
    shapes |= {"time": (2 * len(PERIODS), width), "head": (width, distribution.num_outputs)}
    for i in range(layers):
        shapes |= {f"qkv_{i}": (width, 3 * width), f"out_{i}": (width, width)}
        if i < layers - 1:
            shapes |= {f"up_{i}": (width, 4 * width), f"down_{i}": (4 * width, width)}
    shapes |= {"token_gate": (width, token_experts)}
    for name, count in (("token", token_experts), ("task", task_experts)):
        shapes |= {f"{name}_up": (count, width, width), f"{name}_down": (count, width, width // 2)}

    def init(key: chex.PRNGKey) -> Params:
        keys = jax.random.split(key, len(shapes) + 2)
        own = {
            name: jax.random.uniform(k, shape, minval=-1.0, maxval=1.0) * shape[-2] ** -0.5
            for k, (name, shape) in zip(keys[2:], shapes.items(), strict=True)
        }
        own["token_noise"] = jnp.zeros((width, token_experts))
        gate = jax.random.uniform(keys[0], (width, task_experts), minval=-1.0, maxval=1.0) * width**-0.5
        return {
            "sequence": own,
            "gate": {"kernel": gate},
            "contrast": {"kernel": jax.random.normal(keys[1], (task_experts, task_experts))},
        }

    def apply(params: Params, steps: Sequence, slow: Params, key: chex.PRNGKey | None = None) -> Routed:
        own, (rows, length) = params["sequence"], steps.mask.shape
        x, seen, visible = embedded(own, own["reward"], steps)
        for i in range(layers):
            x = x + attend(norm(x) @ own[f"qkv_{i}"], visible, heads) @ own[f"out_{i}"]
            if i < layers - 1:
                x = x + jax.nn.gelu(norm(x) @ own[f"up_{i}"]) @ own[f"down_{i}"]
        joined, *said = _joined(params, norm(x), seen, slow, key, chosen=chosen, noise=noise)
        x = norm(x + joined).reshape(rows, length, 3, width)
        return Routed(x[:, :, 1] @ own["head"], *said)

    return ExpertTransformer(init, apply, distribution, encode, size, context)


def _mixed(x: chex.Array, scores: chex.Array, up: chex.Array, down: chex.Array) -> chex.Array:
    """sum_e s_e down_e(gelu(up_e x)): every expert reads every token, few and small as they are."""
    hidden = jax.nn.gelu(jnp.einsum("nd,edh->neh", x, up))
    return jnp.einsum("ne,neh,eho->no", scores, hidden, down)


def _joined(params: Params, x: chex.Array, seen: chex.Array, slow: Params, key: chex.PRNGKey | None, *, chosen, noise):
    """(the two mixtures of tokens [B, T, width], unevenness, queries, keys)."""
    own, (rows, length, width) = params["sequence"], x.shape
    x, real = x.reshape(rows * length, width), seen.reshape(-1)
    clean = noisy = x @ own["token_gate"]
    std = jax.nn.softplus(x @ own["token_noise"]) + noise
    if key is not None:
        noisy = clean + std * jax.random.normal(key, std.shape)
    scores = experts.top_scores(noisy, chosen)
    uneven = experts.even_loads(scores, experts.noisy_load(clean, noisy, std, chosen), real)
    logits = x @ params["gate"]["kernel"]
    told = experts.top_scores(logits, chosen)

    def said(logits: chex.Array) -> chex.Array:
        probs = jax.nn.softmax(logits, axis=1).reshape(rows, length, -1)
        kept = jnp.where(seen[:, :, None], probs, 0.0)
        return jnp.sum(kept, axis=1) / jnp.maximum(jnp.sum(seen, axis=1), 1)[:, None]

    both = [
        _mixed(x, scores, own["token_up"], own["token_down"]),
        _mixed(x, told, own["task_up"], own["task_down"]),
    ]
    joined = jnp.concatenate(both, axis=1).reshape(rows, length, width)
    return joined, uneven, said(logits), said(jax.lax.stop_gradient(x) @ slow["kernel"])
