"""A transformer over a query and episodes of a task, whose last block has two mixtures of experts side by side.

    tokens   q, s_1 a_1 r_1, s_2 a_2 r_2, ...   each embedded, plus an embedding of the step's number, 0 of the query q
    last     x + [token-wise experts(x), task-wise experts(x)], each of half the width
    heads    the action of q, from the token of q and from that of each s_t: what has been seen up to there

The token-wise gate is noisy while learning, so that experts can be shared out over the kinds of tokens; the task-wise
gate is told to say the same of contexts of the same task (losses.experts). Source: arXiv 2506.05426 (T2MIR), the model
of NJU-RL/T2MIR, T2MIR-DPT: gates are tanh layers of E units, the query comes first, a step's own action and reward are
not read by its token. Here time is encoded by sines, and experts have no biases and no dropout.

The same model reads histories (`imitate`, the paper's T2MIR-AD): no query, a step's number is its time in its episode,
and the action of each step is predicted from the token of its observation.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Params
from rl_jax.losses import experts
from rl_jax.models.agents.decision_transformer import PERIODS, attend, norm, uniform_matrices
from rl_jax.models.agents.distributions import Distribution


class Prompt(NamedTuple):
    """What was seen of B tasks: T steps each, of one episode or several, one after the other.

    Attributes:
      observations: float32 [B, T, *shape].
      actions: float32 [B, T, A], encoded.
      rewards: float32 [B, T].
      mask: bool [B, T]. Steps that are False are not seen.
    """

    observations: chex.Array
    actions: chex.Array
    rewards: chex.Array
    mask: chex.Array


class Routed(NamedTuple):
    """What a forward says.

    Attributes:
      outputs: float32 [B, 1 + T, distribution.num_outputs] for the query; the first reads nothing else, those of
        step t the steps before it and its observation. Of `imitate` [B, T, distribution.num_outputs], for each step.
      uneven: float32 [], losses.experts.even_loads of the token-wise experts.
      queries: float32 [B, E], mean over the real tokens of the task-wise gate's logits, or probabilities.
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
      apply: (params, queries float32 [B, *shape], Prompt, slow gate, key or None) -> Routed; None: gates without noise.
      imitate: (params, Prompt, times int32 [B, T] in the episodes, slow gate, key or None) -> Routed.
      distribution: of the actions.
      encode: actions -> float32 [..., A].
      size: A.
      prompt: Prompt, for those that may not import it: rows that `apply` reads.
    """

    init: Callable
    apply: Callable
    imitate: Callable
    distribution: Distribution
    encode: Callable
    size: int
    prompt: Callable = Prompt


def make_expert_transformer(
    observation_shape: tuple[int, ...],
    distribution: Distribution,
    encode: Callable,
    size: int,
    *,
    width: int = 64,
    layers: int = 2,
    heads: int = 2,
    token_experts: int = 6,
    task_experts: int = 8,
    chosen: int = 2,
    noise: float = 0.01,
    pooled: bool = True,
    contrast_probs: bool = False,
) -> ExpertTransformer:
    """An ExpertTransformer.

    Args:
      observation_shape: of one observation; it is flattened.
      distribution: of the actions.
      encode: actions -> float32 [..., size].
      size: A.
      width: of the residual stream; an expert's hidden layer is as wide. 128 published, and 256.
      layers: blocks; only the last has experts. 3 published.
      heads: of the attention; 8 published.
      token_experts: 6 published.
      task_experts: 8 published, 12 for one task.
      chosen: experts of a token in each mixture, 2 published.
      noise: smallest deviation of the token-wise gate's noise.
      pooled: the task-wise gate reads the mean token of a row, and all tokens of the row take the same experts, as in
        PointRobot and Meta-World; False: it reads each token, as in the others. While `imitate` learns, the mean has
        the row's later steps, too, and the predicted actions, as in the public code.
      contrast_probs: the contrast compares probabilities, as some of T2MIR-AD's; False: logits, as all of T2MIR-DPT's.

    Raises:
      ValueError: if heads does not divide width, the width is odd, or the chosen are not fewer than the experts.
    """
    if width % heads or width % 2:
        raise ValueError(f"sequence.width={width} must be even and divide into sequence.heads={heads}")
    if not 1 <= chosen < min(token_experts, task_experts):
        raise ValueError(f"experts.chosen={chosen} must be from 1 to below {min(token_experts, task_experts)} experts")
    flat = math.prod(observation_shape)
    shapes = {"observation": (flat, width), "action": (size, width), "reward": (1, width), "kind": (4, width)}
    shapes |= {"time": (2 * len(PERIODS), width), "head": (width, distribution.num_outputs)}
    for i in range(layers):
        shapes |= {f"qkv_{i}": (width, 3 * width), f"out_{i}": (width, width)}
        if i < layers - 1:
            shapes |= {f"up_{i}": (width, 4 * width), f"down_{i}": (4 * width, width)}
    for name, count in (("token", token_experts), ("task", task_experts)):
        shapes |= {f"{name}_up": (count, width, width), f"{name}_down": (count, width, width // 2)}

    def init(key: chex.PRNGKey) -> Params:
        own_key, token_key, task_key, contrast_key = jax.random.split(key, 4)
        own = uniform_matrices(own_key, shapes) | {"token_noise": jnp.zeros((width, token_experts))}
        own["token_gate"] = uniform_matrices(token_key, _gate_shapes(width, token_experts))
        return {
            "sequence": own,
            "gate": uniform_matrices(task_key, _gate_shapes(width, task_experts)),
            "contrast": {"kernel": jax.random.normal(contrast_key, (task_experts, task_experts))},
        }

    options = dict(layers=layers, heads=heads, chosen=chosen, noise=noise, pooled=pooled, probs=contrast_probs)
    through = functools.partial(_through, **options)

    def apply(params: Params, queries: chex.Array, prompt: Prompt, slow: Params, key: chex.PRNGKey | None = None):
        own, (rows, length) = params["sequence"], prompt.mask.shape
        x, *routed = through(params, *_tokens(own, queries, prompt), slow, key)
        states = x[:, 1:].reshape(rows, length, 3, width)[:, :, 0]
        return Routed(jnp.concatenate([x[:, :1], states], axis=1) @ own["head"], *routed)

    def imitate(params: Params, prompt: Prompt, times: chex.Array, slow: Params, key: chex.PRNGKey | None = None):
        chex.assert_equal_shape([times, prompt.mask])
        own, shape = params["sequence"], (*prompt.mask.shape, 3, width)
        x, *routed = through(params, *_steps(own, prompt, _timed(own, times)), slow, key)
        return Routed(x.reshape(shape)[:, :, 0] @ own["head"], *routed)

    return ExpertTransformer(init, apply, imitate, distribution, encode, size)


def newest(outputs: chex.Array, mask: chex.Array) -> chex.Array:
    """What Routed.outputs, [B, 1 + T, ...], say at the last real step, or the query if there is none: [B, ...].

    mask: bool [B, T], of the Prompt.
    """
    chex.assert_shape(mask, (len(outputs), outputs.shape[1] - 1))
    last = jnp.max(jnp.where(mask, jnp.arange(1, outputs.shape[1])[None], 0), axis=1)
    return jax.vmap(lambda row, at: row[at])(outputs, last)


def _gate_shapes(width: int, count: int) -> dict[str, tuple[int, int]]:
    return {"up": (width, count), "down": (count, count)}


def _through(params: Params, x: chex.Array, seen: chex.Array, slow: Params, key: chex.PRNGKey | None, **options):
    """The blocks over tokens [B, T, width], of which `seen` are real: (tokens, uneven, queries, keys), as in Routed."""
    own, layers, heads, chosen = params["sequence"], options["layers"], options["heads"], options["chosen"]
    # A token sees itself, so that a masked one has something to attend to.
    causal, itself = np.tril(np.ones((x.shape[1],) * 2, bool)), np.eye(x.shape[1], dtype=bool)
    visible = (causal[None] & seen[:, None, :]) | itself[None]
    for i in range(layers):
        x = x + attend(norm(x) @ own[f"qkv_{i}"], visible, heads) @ own[f"out_{i}"]
        if i < layers - 1:
            x = x + jax.nn.gelu(norm(x) @ own[f"up_{i}"]) @ own[f"down_{i}"]
    normed = norm(x)
    by_token, uneven = _by_token(own, normed, seen, key, chosen=chosen, noise=options["noise"])
    kinds = dict(pooled=options["pooled"], probs=options["probs"])
    by_task, said, slowly = _by_task(params, normed, seen, slow, chosen, **kinds)
    return norm(x + jnp.concatenate([by_token, by_task], axis=2)), uneven, said, slowly


def _timed(own: Params, number: chex.Array) -> chex.Array:
    """The embedding of steps' numbers, int [B, T] -> [B, T, width]."""
    phase = number[:, :, None] * (2.0 * np.pi / PERIODS)[None, None, :]
    return jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], axis=-1) @ own["time"]


def _steps(own: Params, prompt: Prompt, time: chex.Array) -> tuple[chex.Array, chex.Array]:
    """(tokens [B, 3 T, width], bool [B, 3 T], the real ones). time: [B, T, width], as `_timed`."""
    chex.assert_rank(prompt.mask, 2)
    rows, length = prompt.mask.shape
    kinds = [
        prompt.observations.reshape(rows, length, -1).astype(jnp.float32) @ own["observation"],
        prompt.actions @ own["action"],
        prompt.rewards[:, :, None] @ own["reward"],
    ]
    kinds = [x + time + own["kind"][None, None, i] for i, x in enumerate(kinds)]
    return jnp.stack(kinds, axis=2).reshape(rows, 3 * length, -1), jnp.repeat(prompt.mask, 3, axis=1)


def _tokens(own: Params, queries: chex.Array, prompt: Prompt) -> tuple[chex.Array, chex.Array]:
    """(tokens [B, 1 + 3 T, width], bool [B, 1 + 3 T], the real ones): the query, then the steps."""
    chex.assert_rank(prompt.mask, 2)
    rows = len(prompt.mask)
    number = jnp.cumsum(prompt.mask, axis=1, dtype=jnp.int32)  # of the step; 0 is the query
    time = _timed(own, jnp.concatenate([jnp.zeros((rows, 1), jnp.int32), number], axis=1))
    first = queries.reshape(rows, 1, -1).astype(jnp.float32) @ own["observation"] + own["kind"][None, None, 3]
    steps, seen = _steps(own, prompt, time[:, 1:])
    seen = jnp.concatenate([jnp.ones((rows, 1), bool), seen], axis=1)
    return jnp.concatenate([first + time[:, :1], steps], axis=1), seen


def _gate(gate: Params, x: chex.Array) -> chex.Array:
    return jnp.tanh(x @ gate["up"]) @ gate["down"]


def _mixed(x: chex.Array, scores: chex.Array, up: chex.Array, down: chex.Array) -> chex.Array:
    """sum_e s_e down_e(gelu(up_e x)): every expert reads every token, few and small as they are."""
    hidden = jax.nn.gelu(jnp.einsum("btd,edh->bteh", x, up))
    return jnp.einsum("bte,bteh,eho->bto", scores, hidden, down)


def _by_token(own: Params, x: chex.Array, seen: chex.Array, key: chex.PRNGKey | None, *, chosen: int, noise: float):
    """(what the token-wise experts add, [B, T, width / 2]; their unevenness)."""
    rows, length, width = x.shape
    flat = x.reshape(rows * length, width)
    clean = noisy = _gate(own["token_gate"], flat)
    std = jax.nn.softplus(flat @ own["token_noise"]) + noise
    if key is not None:
        noisy = clean + std * jax.random.normal(key, std.shape)
    scores = experts.top_scores(noisy, chosen)
    uneven = experts.even_loads(scores, experts.noisy_load(clean, noisy, std, chosen), seen.reshape(-1))
    return _mixed(x, scores.reshape(rows, length, -1), own["token_up"], own["token_down"]), uneven


def _by_task(params: Params, x: chex.Array, seen: chex.Array, slow: Params, chosen: int, *, pooled: bool, probs: bool):
    """(what the task-wise experts add, [B, T, width / 2]; what their gate says of each row, [B, E]; the slow gate)."""
    own, (rows, length) = params["sequence"], x.shape[:2]

    def mean(x: chex.Array) -> chex.Array:
        kept = jnp.where(seen[:, :, None], x, 0.0)
        return jnp.sum(kept, axis=1) / jnp.sum(seen, axis=1)[:, None]

    def said(logits: chex.Array) -> chex.Array:
        told = jax.nn.softmax(logits, axis=-1) if probs else logits
        return told if pooled else mean(told)

    read = mean(x) if pooled else x
    logits, slowly = _gate(params["gate"], read), _gate(slow, jax.lax.stop_gradient(read))
    scores = experts.top_scores(logits.reshape(-1, logits.shape[-1]), chosen)
    scores = jnp.broadcast_to(scores.reshape(rows, -1, logits.shape[-1]), (rows, length, logits.shape[-1]))
    return _mixed(x, scores, own["task_up"], own["task_down"]), said(logits), said(slowly)
