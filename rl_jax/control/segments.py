"""Preferences between segments of episodes: how they are cut, judged, paired, and what learns from them.

    P(1 > 2) = sigma( beta (f_1 - f_2) )                                          preference_probs
    f = sum_t gamma^t r_t                          partial return, 1706.03741     segment_sums(rewards)
    f = sum_t gamma^t (Q*(s_t, a_t) - V*(s_t))     minus the regret, 2206.02231   segment_sums(advantages)

and back again, from preferences to

    a reward    -log sigma( sum_t gamma^t r(s_t, a_t) |_w - |_l )                 reward_loss
    a policy    -log sigma( alpha sum_t gamma^t log pi(a_t | s_t) |_w - lambda |_l )   policy_loss, CPL (2310.13639)

Both are losses that language models have, a step in the place of a token and a segment in that of a response:
rl_jax.reward_model.loss and rl_jax.dpo.loss. A segment ends with its episode; what follows is masked.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax import dpo, reward_model
from rl_jax.core.masked import Mean, empty_like, merge, zero_masked
from rl_jax.core.types import Metrics, PreferenceBatch, TokenScores
from rl_jax.losses.preference import regularizers, scores
from rl_jax.training.step import TrainState, make_train_step

# Of MetaWorld's states in the published configs; lambda = bias, and no cloning beside it.
CPL = dpo.Objective(
    reference={},
    beta=0.1,
    token_weight=functools.partial(scores.discounted, discount=1.0),
    score_map=functools.partial(scores.biased, bias=0.5),
    regularizer=regularizers.behaviour_cloning,
)


class SegmentPairs(NamedTuple):
    """N segments of K steps and what was preferred.

    steps: a pytree, [N, K, ...]. mask: bool [N, K], the steps that belong to the segment.
    pairs: int32 [M, 2], two segments each, the preferred one first.
    """

    steps: Any
    mask: chex.Array
    pairs: chex.Array


def cut(steps: Any, done: chex.Array, *, length: int) -> tuple[Any, chex.Array]:
    """Rows of T steps -> segments of K = length steps, one behind the other: (steps [N, K, ...], mask bool [N, K]).

    steps: a pytree, [B, T, ...]. done: bool [B, T], where an episode is over. N = B (T // K); what is left of a row is
    not used. mask: the steps up to the first that is done: none of the episode that begins behind it.
    Raises ValueError where the rows are shorter than a segment.
    """
    chex.assert_rank(done, 2)
    chex.assert_type(done, bool)
    chex.assert_tree_shape_prefix(steps, done.shape)
    rows, count = done.shape[0], done.shape[1] // length
    if not count:
        raise ValueError(f"segments of {length} steps cannot be cut from rows of {done.shape[1]}")

    def fold(x: chex.Array) -> chex.Array:
        return x[:, : count * length].reshape(rows * count, length, *x.shape[2:])

    over = jnp.cumsum(fold(done), axis=1) - fold(done)  # how many episodes have ended before the step
    return jax.tree.map(fold, steps), over == 0


def segment_sums(x: chex.Array, mask: chex.Array, *, discount: float = 1.0) -> chex.Array:
    """f = sum_t gamma^t m_t x_t over the segment's own steps, t from 0. float, bool [..., K] -> float [...].

    x: of rewards it gives the partial return, of advantages minus the regret. discount: gamma; 1 in 1706.03741 and in
    the published code of CPL, whose equation has gamma.
    """
    chex.assert_equal_shape([x, mask])
    chex.assert_type([x, mask], [float, bool])
    weights = discount ** jnp.arange(x.shape[-1], dtype=x.dtype)
    return jnp.sum(zero_masked(x, mask) * jnp.broadcast_to(weights, x.shape), axis=-1)


def preference_probs(scores: chex.Array, *, beta: float = 1.0, flip_rate: float = 0.0) -> chex.Array:
    """P(the first is preferred) = (1 - e) p + e (1 - p), p = sigma(beta (f_1 - f_2)). float [..., 2] -> float [...].

    scores: f of both, partial returns or minus regrets. beta: how rational the annotator is; math.inf never errs, and
    tosses a coin where both are equal. flip_rate: e, the share of labels that are turned round; 1706.03741 takes 0.1
    of them to be a coin's, which is 0.05. Raises ValueError for a negative beta and a flip_rate outside of [0, 1].
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
    """`count` pairs of two different segments, drawn at random, the preferred one first: int32 [count, 2].

    scores: float [N], f of each segment. beta, flip_rate: of `preference_probs`. Raises ValueError for N < 2.
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


def pair_batch(data: SegmentPairs, index: chex.Array) -> PreferenceBatch:
    """The pairs of these numbers as the losses take them; `batch` is their steps, [n, 2, K, ...]. index: int [n]."""
    pairs = data.pairs[index]
    present = jnp.ones(pairs.shape, bool)
    rewards = jnp.broadcast_to(jnp.array([1.0, 0.0]), pairs.shape)
    steps = jax.tree.map(lambda x: x[pairs], data.steps)
    return PreferenceBatch(steps, data.mask[pairs], present, rewards)


def reward_loss(
    rewards: chex.Array, batch: PreferenceBatch, objective: reward_model.Objective, *, discount: float = 1.0
) -> tuple[Mean, Metrics]:
    """Bradley-Terry on the sums of rewards: -log sigma(sum_t gamma^t r_t |_w - |_l), each member of an ensemble alone.

    rewards: float [n, 2, K, M] of M members, differentiated; of a regret model their optimal advantages stand here
    (control.tabular). Source: arXiv 1706.03741 section 2.2.3, 2206.02231 section 3.
    """
    chex.assert_rank(rewards, 4)
    by_member = jnp.swapaxes(rewards, 2, 3)
    mask = jnp.broadcast_to(batch.completion_mask[:, :, None], by_member.shape)
    return reward_model.loss(segment_sums(by_member, mask, discount=discount), batch, objective)


def policy_loss(
    log_probs: chex.Array, batch: PreferenceBatch, objective: dpo.Objective = CPL
) -> tuple[Mean, Metrics]:
    """CPL: -log sigma(alpha (sum_t gamma^t log pi_t |_w - lambda |_l)) + c BC, and other choices of rl_jax.dpo.

    log_probs: float [n, 2, K], differentiated. objective: beta = alpha, scores.discounted, scores.biased (lambda) and
    regularizers.behaviour_cloning (c = regularizer_coef), as in CPL. Source: arXiv 2310.13639, jhejna/cpl.
    """
    chex.assert_equal_shape([log_probs, batch.completion_mask])
    flat = log_probs.reshape(-1, log_probs.shape[-1])
    return dpo.loss(TokenScores(flat, jnp.zeros_like(flat)), batch, objective)


def cloning_loss(log_probs: chex.Array, batch: PreferenceBatch) -> tuple[Mean, Metrics]:
    """Behaviour cloning of both segments, the start of CPL: -log pi_t, the mean over the steps, of each pair's mean.

    log_probs: float [n, 2, K], differentiated. Source: the first bc_steps of jhejna/cpl.
    """
    mask = batch.completion_mask
    chex.assert_equal_shape([log_probs, mask])
    losses = regularizers.behaviour_cloning(zero_masked(log_probs, mask), mask, present=batch.present)
    return Mean(jnp.sum(losses), jnp.float32(len(losses))), {}


def make_fit(
    loss_fn: Callable, optimizer: optax.GradientTransformation, *, batch_size: int, max_grad_norm: float | None = None
) -> Callable:
    """A pure function (TrainState, SegmentPairs, count) -> (TrainState, metrics): count updates on random minibatches.

    loss_fn: (params, PreferenceBatch) -> (Mean, metrics). batch_size: pairs an update, drawn with replacement.
    count: static. metrics: float32 [] by name, the mean over the updates.
    """
    train_step = make_train_step(loss_fn, optimizer, max_grad_norm=max_grad_norm)

    def fit(state: TrainState, data: SegmentPairs, count: int):
        def turn(carry, _):
            state, sums = carry
            key = jax.random.fold_in(state.rng, state.step)
            index = jax.random.randint(key, (batch_size,), 0, len(data.pairs))
            state, metrics = train_step(state, pair_batch(data, index))
            return (state, merge(sums, _once(metrics))), None

        shapes = jax.eval_shape(lambda state: train_step(state, pair_batch(data, jnp.zeros(batch_size, int)))[1], state)
        (state, sums), _ = jax.lax.scan(turn, (state, empty_like(_once(shapes))), None, count)
        return state, {name: mean.value() for name, mean in sums.items()}

    return fit


def _once(metrics: dict[str, Any]) -> dict[str, Mean]:
    return {name: Mean(x, jnp.float32(1.0)) for name, x in metrics.items()}
