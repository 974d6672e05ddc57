"""Preferences between segments of episodes: cutting, labelling, pairing, and fitting a function to the pairs.

    P(1 > 2) = sigma( beta (f_1 - f_2) )                                          preference_probs
    f = sum_t gamma^t r_t                          partial return, 1706.03741     segment_sums(rewards)
    f = sum_t gamma^t (Q*(s_t, a_t) - V*(s_t))     minus the regret, 2206.02231   segment_sums(advantages)

What learns from them is in reward_learning.py (a reward) and cpl.py (a policy). A segment ends with its episode; later
steps are masked.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax.core.masked import Mean, empty_like, merge, zero_masked
from rl_jax.core.tracing import traced_once
from rl_jax.core.types import PreferenceBatch
from rl_jax.training.step import TrainState, make_train_step


class SegmentPairs(NamedTuple):
    """N segments of K steps, and preferences between them.

    Attributes:
      steps: a pytree, [N, K, ...].
      mask: bool [N, K]. The steps that belong to the segment.
      pairs: int32 [M, 2]. Two segments each, the preferred one first.
    """

    steps: Any
    mask: chex.Array
    pairs: chex.Array


def cut(steps: Any, done: chex.Array, *, length: int) -> tuple[Any, chex.Array]:
    """Cuts rows of T steps into consecutive segments of K = length steps.

    Args:
      steps: a pytree, [B, T, ...].
      done: bool [B, T]. True at the last step of an episode.
      length: K.

    Returns:
      (steps [N, K, ...], mask bool [N, K]) with N = B (T // K); the remainder of a row is not used. The mask covers the
      steps up to the first that is done, not those of the episode that begins after it.

    Raises:
      ValueError: if the rows are shorter than a segment.
    """
    chex.assert_rank(done, 2)
    chex.assert_type(done, bool)
    chex.assert_tree_shape_prefix(steps, done.shape)
    rows, count = done.shape[0], done.shape[1] // length
    if not count:
        raise ValueError(f"segments of {length} steps cannot be cut from rows of {done.shape[1]}")

    def fold(x: chex.Array) -> chex.Array:
        return x[:, : count * length].reshape(rows * count, length, *x.shape[2:])

    over = jnp.cumsum(fold(done), axis=1) - fold(done)  # number of episodes that ended before the step
    return jax.tree.map(fold, steps), over == 0


def segment_sums(x: chex.Array, mask: chex.Array, *, discount: float = 1.0) -> chex.Array:
    """f = sum_t gamma^t m_t x_t over the segment's own steps, with t from 0.

    Args:
      x: float [..., K]. Rewards give the partial return, advantages give minus the regret.
      mask: bool [..., K].
      discount: gamma; 1 in 1706.03741 and in the published code of CPL, whose equation has gamma.

    Returns:
      float [...].
    """
    chex.assert_equal_shape([x, mask])
    chex.assert_type([x, mask], [float, bool])
    weights = discount ** jnp.arange(x.shape[-1], dtype=x.dtype)
    return jnp.sum(zero_masked(x, mask) * jnp.broadcast_to(weights, x.shape), axis=-1)


def preference_probs(scores: chex.Array, *, beta: float = 1.0, flip_rate: float = 0.0) -> chex.Array:
    """P(the first is preferred) = (1 - e) p + e (1 - p), p = sigma(beta (f_1 - f_2)).

    Args:
      scores: float [..., 2]. f of both, partial returns or minus regrets.
      beta: rationality of the annotator. math.inf never errs, and tosses a coin if both are equal.
      flip_rate: e, the fraction of flipped labels. 1706.03741 assumes 10 % random labels, i.e. flip_rate = 0.05.

    Returns:
      float [...].

    Raises:
      ValueError: if beta is negative or flip_rate is outside of [0, 1].
    """
    chex.assert_axis_dimension(scores, -1, 2)
    chex.assert_type(scores, float)
    if not (beta >= 0.0 and 0.0 <= flip_rate <= 1.0):
        raise ValueError(f"beta={beta} must not be negative, flip_rate={flip_rate} must be in [0, 1]")
    gaps = scores[..., 0] - scores[..., 1]
    probs = 0.5 * (1.0 + jnp.sign(gaps)) if math.isinf(beta) else jax.nn.sigmoid(beta * gaps)
    return (1.0 - flip_rate) * probs + flip_rate * (1.0 - probs)


def labelled_pairs(
    key: chex.PRNGKey, scores: chex.Array, *, count: int, beta: float = 1.0, flip_rate: float = 0.0
) -> chex.Array:
    """`count` random pairs of two different segments, the preferred one first.

    Args:
      key: for the pairs and the labels.
      scores: float [N]. f of each segment.
      count: number of pairs.
      beta: as for `preference_probs`.
      flip_rate: as for `preference_probs`.

    Returns:
      int32 [count, 2].

    Raises:
      ValueError: if N < 2.
    """
    chex.assert_rank(scores, 1)
    if len(scores) < 2:
        raise ValueError(f"{len(scores)} segment is no pair: cut more of them")
    first_key, gap_key, label_key = jax.random.split(key, 3)
    first = jax.random.randint(first_key, (count,), 0, len(scores))
    second = (first + jax.random.randint(gap_key, (count,), 1, len(scores))) % len(scores)
    pairs = jnp.stack([first, second], axis=1)
    probs = preference_probs(scores[pairs], beta=beta, flip_rate=flip_rate)
    right = jax.random.uniform(label_key, (count,)) < probs
    return jnp.where(right[:, None], pairs, pairs[:, ::-1])


def over_leading(fn: Callable, rank: int, *arrays: chex.Array) -> chex.Array:
    """Applies `fn` to arrays whose first `rank` axes are flattened into one, and restores these axes in the result."""
    shape = arrays[0].shape[:rank]
    result = fn(*(x.reshape(-1, *x.shape[rank:]) for x in arrays))
    return result.reshape(*shape, *result.shape[1:])


def pair_batch(data: SegmentPairs, index: chex.Array) -> PreferenceBatch:
    """The pairs at index (int [n]) in the form that the losses take; `batch` is their steps, [n, 2, K, ...]."""
    pairs = data.pairs[index]
    present = jnp.ones(pairs.shape, bool)
    rewards = jnp.broadcast_to(jnp.array([1.0, 0.0]), pairs.shape)
    steps = jax.tree.map(lambda x: x[pairs], data.steps)
    return PreferenceBatch(steps, data.mask[pairs], present, rewards)


def make_fit(
    loss_fn: Callable, optimizer: optax.GradientTransformation, *, batch_size: int, max_grad_norm: float | None = None
) -> Callable:
    """Builds a pure function that makes a number of updates on random minibatches of pairs.

    Args:
      loss_fn: (params, PreferenceBatch) -> (Mean, metrics).
      optimizer: any optax transformation.
      batch_size: pairs per update, sampled with replacement.
      max_grad_norm: gradient clipping.

    Returns:
      fit(TrainState, SegmentPairs, count) -> (TrainState, metrics). count is static. metrics: float32 [] by name, the
      mean over the updates.
    """
    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=max_grad_norm)

    def fit(state: TrainState, data: SegmentPairs, count: int):
        def turn(carry, _):
            state, sums = carry
            key = jax.random.fold_in(state.rng, state.step)
            index = jax.random.randint(key, (batch_size,), 0, len(data.pairs))
            state, metrics = once(state, pair_batch(data, index))
            return (state, merge(sums, _once(metrics))), None

        once = traced_once(train_step)
        shapes = jax.eval_shape(lambda state: once(state, pair_batch(data, jnp.zeros(batch_size, int)))[1], state)
        (state, sums), _ = jax.lax.scan(turn, (state, empty_like(_once(shapes))), None, count)
        return state, {name: mean.value() for name, mean in sums.items()}

    return fit


def _once(metrics: dict[str, Any]) -> dict[str, Mean]:
    return {name: Mean(x, jnp.float32(1.0)) for name, x in metrics.items()}
