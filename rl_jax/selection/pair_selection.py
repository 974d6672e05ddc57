"""Which of a prompt's sampled responses become a pair, or a list, and what the judge's rewards say about them.

Each choice is a function (rewards [N, G], key) -> Selection of N prompts with G candidates each. Its lists have a fixed
shape: a pair that is dropped (a tie) is there and absent, so that nothing is compiled again and nothing is learned.
The functions that start from rewards know no tokens and no models; a new choice is a new function.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

TIES = ("drop", "first")


class Selection(NamedTuple):
    """L lists of K responses for each of N prompts, the best one first.

    indices: int32 [N, L, K]. Which of the prompt's G candidates.
    present: bool [N, L, K]. False for the whole of a list that was dropped.
    """

    indices: chex.Array
    present: chex.Array


def first_pair(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "first") -> Selection:
    """The first two candidates, ordered by reward: online DPO (OAIF, arXiv 2402.04792).

    rewards: float32 [N, G], G >= 2. key: not used. ties: "drop" leaves equal rewards out, "first" takes the candidate
    that stands first for the better one. -> one pair a prompt. Raises ValueError for another word.
    """
    _check(rewards, 2)
    both = jnp.broadcast_to(jnp.arange(2)[None, None], (rewards.shape[0], 1, 2))
    return _ordered(rewards, both, ties)


def random_pair(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """Two different candidates, any two equally likely, ordered by reward.

    rewards: float32 [N, G], G >= 2. key: typed. ties: as in first_pair. -> one pair a prompt.
    """
    _check(rewards, 2)
    return _ordered(rewards, _shuffled(key, rewards.shape)[:, None, :2], ties)


def best_worst(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """argmax against argmin of the rewards (iterative DPO, arXiv 2405.07863, "max_min").

    rewards: float32 [N, G], G >= 2. key: not used. ties: as in first_pair; the prompt's rewards are then all equal.
    -> one pair a prompt.
    """
    _check(rewards, 2)
    # Of equal rewards the first is the best and the last the worst, so that the two never coincide.
    worst = rewards.shape[1] - 1 - jnp.argmin(rewards[:, ::-1], axis=1)
    return _ordered(rewards, jnp.stack([jnp.argmax(rewards, axis=1), worst], axis=1)[:, None], ties)


def best_random(rewards: chex.Array, key: chex.PRNGKey, *, ties: str = "drop") -> Selection:
    """argmax of the rewards against one of the others, each equally likely (arXiv 2405.07863, "max_random").

    rewards: float32 [N, G], G >= 2. key: typed. ties: as in first_pair. -> one pair a prompt.
    """
    _check(rewards, 2)
    best = jnp.argmax(rewards, axis=1)
    step = jax.random.randint(key, best.shape, 1, rewards.shape[1])
    return _ordered(rewards, jnp.stack([best, (best + step) % rewards.shape[1]], axis=1)[:, None], ties)


def bradley_terry(rewards: chex.Array, key: chex.PRNGKey, *, temperature: float = 1.0) -> Selection:
    """Two different candidates, the better one drawn: P(i before j) = sigma((r_i - r_j) / temperature).

    The labels of the controlled experiments (arXiv 2305.18290, section 6.1): noisy where rewards are close, so that
    there are no ties. rewards: float32 [N, G], G >= 2. key: typed. -> one pair a prompt.
    """
    _check(rewards, 2)
    draw, label = jax.random.split(key)
    pair = _shuffled(draw, rewards.shape)[:, :2]
    found = jnp.take_along_axis(rewards, pair, axis=1)
    keep = jax.random.uniform(label, found.shape[:1]) < jax.nn.sigmoid((found[:, 0] - found[:, 1]) / temperature)
    keep = jnp.broadcast_to(keep[:, None], pair.shape)
    indices = jnp.where(keep, pair, pair[:, ::-1])[:, None]
    return Selection(indices, jnp.ones(indices.shape, bool))


def ranking(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """All candidates as one list, by falling reward; equal ones keep their order.

    rewards: float32 [N, G]. key: not used. -> one list of K = G a prompt. For the comparators of lists, whose rewards
    say where there are ties.
    """
    _check(rewards, 1)
    order = jnp.argsort(-rewards, axis=1, stable=True).astype(jnp.int32)[:, None]
    return Selection(order, jnp.ones(order.shape, bool))


def rejection_sampled(
    rewards: chex.Array, key: chex.PRNGKey, *, num_samples: int = 8, beta: float = 0.5, ties: str = "drop"
) -> Selection:
    """RSO (arXiv 2309.06657, algorithm 1): pairs of candidates accepted as if drawn from ref exp(r / beta).

    rewards: float32 [N, G]; r of G draws from the reference. key: typed. num_samples: how many are accepted, even.
    beta: near 0 the num_samples best, large any. ties: as in first_pair.
    -> num_samples / 2 pairs a prompt: those accepted, paired at random, ordered by reward.
    """
    accept, deal = jax.random.split(key)
    accepted = rejection_sample(rewards, accept, num_samples=num_samples, beta=beta)
    order = _shuffled(deal, accepted.shape)
    dealt = jnp.take_along_axis(accepted, order, axis=1)
    return _ordered(rewards, dealt.reshape(rewards.shape[0], num_samples // 2, 2), ties)


def rejection_sample(rewards: chex.Array, key: chex.PRNGKey, *, num_samples: int, beta: float) -> chex.Array:
    """The candidates that statistical rejection sampling keeps, in the order of acceptance: int32 [N, num_samples].

    Round after round, each candidate i that is left is accepted with probability exp((r_i - max r of those left at the
    round's start) / beta), until num_samples are (arXiv 2309.06657, algorithm 1). rewards: float32 [N, G].
    Raises ValueError where num_samples is odd or over G.
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

    # Each round takes at least the best that is left, so num_samples rounds are always enough.
    never = jnp.full(rewards.shape, num_samples * count, jnp.int32)
    _, turns = jax.lax.fori_loop(0, num_samples, turn, (jnp.ones(rewards.shape, bool), never))
    order = turns + jnp.arange(count, dtype=jnp.int32)[None]
    return jnp.argsort(order, axis=1).astype(jnp.int32)[:, :num_samples]


def data_first(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """Self-play (SPIN, arXiv 2401.01335): the last candidate, which is the data's, before one of the sampled ones.

    rewards: float32 [N, G + 1]; not looked at. key: typed. -> one pair a prompt.
    """
    _check(rewards, 2)
    prompts, count = rewards.shape
    rejected = jax.random.randint(key, (prompts,), 0, count - 1)
    indices = jnp.stack([jnp.full_like(rejected, count - 1), rejected], axis=1)[:, None]
    return Selection(indices, jnp.ones(indices.shape, bool))


def given_pair(rewards: chex.Array, key: chex.PRNGKey) -> Selection:
    """The last two candidates, a pair of the data in its order, and all that were sampled behind it (HyPO).

    rewards: float32 [N, G + 2]; not looked at. key: not used. -> one list of K = G + 2 a prompt, for the comparator
    first_pair (arXiv 2406.01462).
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
        raise ValueError(f"{rewards.shape[1]} candidates a prompt; this selection needs {at_least} or more")


def _shuffled(key: chex.PRNGKey, shape: tuple[int, int]) -> chex.Array:
    """Each row a permutation of its columns: int32 [N, G]."""
    return jnp.argsort(jax.random.uniform(key, shape), axis=1).astype(jnp.int32)


def _ordered(rewards: chex.Array, pairs: chex.Array, ties: str) -> Selection:
    """The pairs, int [N, L, 2], each with its better candidate first; of equal ones the one that stands first."""
    if ties not in TIES:
        raise ValueError(f"ties={ties!r} is none of {', '.join(TIES)}")
    pairs = jnp.sort(pairs.astype(jnp.int32), axis=2)
    flat = jnp.take_along_axis(rewards, pairs.reshape(pairs.shape[0], -1), axis=1)
    found = flat.reshape(pairs.shape)
    swap = jnp.broadcast_to((found[..., 1] > found[..., 0])[..., None], pairs.shape)
    tied = jnp.broadcast_to((found[..., 1] == found[..., 0])[..., None], pairs.shape)
    return Selection(jnp.where(swap, pairs[..., ::-1], pairs), ~tied if ties == "drop" else jnp.ones_like(tied))
