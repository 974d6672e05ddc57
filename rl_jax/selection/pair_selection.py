"""Which of a prompt's sampled responses become a pair or a list, given the judge's rewards.

Each choice is a function (rewards [N, G], key) -> Selection of N prompts with G candidates each. Lists have a fixed
shape: a dropped pair (a tie) is kept but marked absent, so that nothing is compiled again and nothing is learned from
it. These functions need rewards only, no tokens and no models; a new choice is a new function.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

TIES = ("drop", "first")


class Selection(NamedTuple):
    """L lists of K responses for each of N prompts, the best one first.

    Attributes:
      indices: int32 [N, L, K]. Which of the prompt's G candidates.
      present: bool [N, L, K]. False for the whole of a list that was dropped.
    """

    indices: chex.Array
    present: chex.Array


def first_pair(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "first") -> Selection:
    """The first two candidates, ordered by reward: online DPO (OAIF, arXiv 2402.04792).

    Args:
      rewards: float32 [N, G], G >= 2.
      key: unused.
      ties: "drop" leaves out pairs of equal rewards, "first" treats the earlier candidate as the better one.

    Returns:
      One pair per prompt.

    Raises:
      ValueError: if ties is neither of the two.
    """
    _check(rewards, 2)
    both = jnp.broadcast_to(jnp.arange(2)[None, None], (rewards.shape[0], 1, 2))
    return _ordered(rewards, both, ties)


def random_pair(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """Two different candidates, all pairs equally likely, ordered by reward.

    Args:
      rewards: float32 [N, G], G >= 2.
      key: typed.
      ties: as in `first_pair`.

    Returns:
      One pair per prompt.
    """
    _check(rewards, 2)
    return _ordered(rewards, _shuffled(key, rewards.shape)[:, None, :2], ties)


def best_worst(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """argmax against argmin of the rewards (iterative DPO, arXiv 2405.07863, "max_min").

    Args:
      rewards: float32 [N, G], G >= 2.
      key: unused.
      ties: as in `first_pair`; a tie means that all of the prompt's rewards are equal.

    Returns:
      One pair per prompt.
    """
    _check(rewards, 2)
    # Among equal rewards the first is the best and the last the worst, so that the two never coincide.
    worst = rewards.shape[1] - 1 - jnp.argmin(rewards[:, ::-1], axis=1)
    return _ordered(rewards, jnp.stack([jnp.argmax(rewards, axis=1), worst], axis=1)[:, None], ties)


def best_random(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """argmax of the rewards against one of the others, each equally likely (arXiv 2405.07863, "max_random").

    Args:
      rewards: float32 [N, G], G >= 2.
      key: typed.
      ties: as in `first_pair`.

    Returns:
      One pair per prompt.
    """
    _check(rewards, 2)
    best = jnp.argmax(rewards, axis=1)
    step = jax.random.randint(key, best.shape, 1, rewards.shape[1])
    return _ordered(rewards, jnp.stack([best, (best + step) % rewards.shape[1]], axis=1)[:, None], ties)


def bradley_terry(rewards: chex.Array, key: chex.PRNGKey, *, temperature: float = 1.0) -> Selection:
    """Two different candidates with a sampled label: P(i before j) = sigma((r_i - r_j) / temperature).

    The labels of the controlled experiments (arXiv 2305.18290, section 6.1). They are noisy if rewards are close, so
    there are no ties.

    Args:
      rewards: float32 [N, G], G >= 2.
      key: typed.
      temperature: in the reward's units.

    Returns:
      One pair per prompt.
    """
    _check(rewards, 2)
    draw, label = jax.random.split(key)
    pair = _shuffled(draw, rewards.shape)[:, :2]
    pair_rewards = jnp.take_along_axis(rewards, pair, axis=1)
    margins = pair_rewards[:, 0] - pair_rewards[:, 1]
    keep = jax.random.uniform(label, margins.shape) < jax.nn.sigmoid(margins / temperature)
    keep = jnp.broadcast_to(keep[:, None], pair.shape)
    indices = jnp.where(keep, pair, pair[:, ::-1])[:, None]
    return Selection(indices, jnp.ones(indices.shape, bool))


def ranking(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """All candidates as one list, by decreasing reward; equal ones keep their order.

    For the list comparators, whose rewards give the ties.

    Args:
      rewards: float32 [N, G].
      key: unused.

    Returns:
      One list of K = G per prompt.
    """
    _check(rewards, 1)
    order = jnp.argsort(-rewards, axis=1, stable=True).astype(jnp.int32)[:, None]
    return Selection(order, jnp.ones(order.shape, bool))


def best(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """argmax of the rewards, alone: best-of-n fine-tuning (SuperHF, arXiv 2310.16763). Of equal ones the first.

    Args:
      rewards: float32 [N, G].
      key: unused.

    Returns:
      One list of K = 1 per prompt.
    """
    _check(rewards, 1)
    indices = jnp.argmax(rewards, axis=1).astype(jnp.int32)[:, None, None]
    return Selection(indices, jnp.ones(indices.shape, bool))


def rejection_sampled(
    rewards: chex.Array, key: chex.PRNGKey, *, num_samples: int = 8, beta: float = 0.5, ties: str = "drop"
) -> Selection:
    """RSO (arXiv 2309.06657, algorithm 1): pairs of candidates accepted as if sampled from ref exp(r / beta).

    Args:
      rewards: float32 [N, G], of G samples from the reference.
      key: typed.
      num_samples: number accepted, even.
      beta: near 0, the num_samples best; if large, any.
      ties: as in `first_pair`.

    Returns:
      num_samples / 2 pairs per prompt: the accepted candidates, paired at random, ordered by reward.
    """
    accept, deal = jax.random.split(key)
    accepted = rejection_sample(rewards, accept, num_samples=num_samples, beta=beta)
    order = _shuffled(deal, accepted.shape)
    dealt = jnp.take_along_axis(accepted, order, axis=1)
    return _ordered(rewards, dealt.reshape(rewards.shape[0], num_samples // 2, 2), ties)


@functools.partial(jax.jit, static_argnames="num_samples")  # un-jitted, its loop is compiled anew at every call
def rejection_sample(rewards: chex.Array, key: chex.PRNGKey, *, num_samples: int, beta: float) -> chex.Array:
    """The candidates that statistical rejection sampling keeps, in the order of acceptance.

    In each round, each remaining candidate i is accepted with probability exp((r_i - max r of those left at the round's
    start) / beta), until num_samples are accepted (arXiv 2309.06657, algorithm 1).

    Args:
      rewards: float32 [N, G].
      key: typed.
      num_samples: even, at most G.
      beta: as in `rejection_sampled`.

    Returns:
      int32 [N, num_samples].

    Raises:
      ValueError: if num_samples is odd or larger than G.
    """
    _check(rewards, 1)
    if num_samples % 2 or not 0 < num_samples <= rewards.shape[1]:
        raise ValueError(f"num_samples={num_samples} must be even and at most the {rewards.shape[1]} candidates")
    count = rewards.shape[1]

    def turn(round_, carry):
        left, turns = carry
        highest = jnp.max(jnp.where(left, rewards, -jnp.inf), axis=1, keepdims=True)
        chance = jnp.exp(jnp.where(left, rewards - highest, -jnp.inf) / beta)
        accepted = left & (jax.random.uniform(jax.random.fold_in(key, round_), rewards.shape) < chance)
        return left & ~accepted, jnp.where(accepted, round_ * count, turns)

    # Each round accepts at least the best one left, so num_samples rounds are always enough.
    never = jnp.full(rewards.shape, num_samples * count, jnp.int32)
    _, turns = jax.lax.fori_loop(0, num_samples, turn, (jnp.ones(rewards.shape, bool), never))
    order = turns + jnp.arange(count, dtype=jnp.int32)[None]
    return jnp.argsort(order, axis=1).astype(jnp.int32)[:, :num_samples]


def data_first(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """Self-play (SPIN, arXiv 2401.01335): the last candidate, which is from the data, before one of the sampled ones.

    Args:
      rewards: float32 [N, G + 1]; values unused.
      key: typed.

    Returns:
      One pair per prompt.
    """
    _check(rewards, 2)
    prompts, count = rewards.shape
    rejected = jax.random.randint(key, (prompts,), 0, count - 1)
    indices = jnp.stack([jnp.full_like(rejected, count - 1), rejected], axis=1)[:, None]
    return Selection(indices, jnp.ones(indices.shape, bool))


def given_pair(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """The last two candidates, a pair of the data in its order, followed by all sampled ones (HyPO).

    For the comparator first_pair (arXiv 2406.01462).

    Args:
      rewards: float32 [N, G + 2]; values unused.
      key: unused.

    Returns:
      One list of K = G + 2 per prompt.
    """
    _check(rewards, 2)
    prompts, count = rewards.shape
    order = jnp.roll(jnp.arange(count, dtype=jnp.int32), 2)
    indices = jnp.broadcast_to(order[None, None], (prompts, 1, count))
    return Selection(indices, jnp.ones(indices.shape, bool))


def _check(rewards: chex.Array, at_least: int) -> None:
    chex.assert_rank(rewards, 2)
    chex.assert_type(rewards, float)
    if rewards.shape[1] < at_least:
        raise ValueError(f"{rewards.shape[1]} candidates per prompt; this selection needs {at_least} or more")


def _shuffled(key: chex.PRNGKey, shape: tuple[int, int]) -> chex.Array:
    """Each row a permutation of its columns: int32 [N, G]."""
    return jnp.argsort(jax.random.uniform(key, shape), axis=1).astype(jnp.int32)


def _ordered(rewards: chex.Array, pairs: chex.Array, ties: str) -> Selection:
    """The pairs, int [N, L, 2], each with its better candidate first; ties keep candidate order."""
    if ties not in TIES:
        raise ValueError(f"ties={ties!r} is none of {', '.join(TIES)}")
    pairs = jnp.sort(pairs.astype(jnp.int32), axis=2)
    flat = jnp.take_along_axis(rewards, pairs.reshape(pairs.shape[0], -1), axis=1)
    pair_rewards = flat.reshape(pairs.shape)
    swap = jnp.broadcast_to((pair_rewards[..., 1] > pair_rewards[..., 0])[..., None], pairs.shape)
    tied = jnp.broadcast_to((pair_rewards[..., 1] == pair_rewards[..., 0])[..., None], pairs.shape)
    return Selection(jnp.where(swap, pairs[..., ::-1], pairs), ~tied if ties == "drop" else jnp.ones_like(tied))
