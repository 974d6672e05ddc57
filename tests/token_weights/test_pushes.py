"""token_weights/pushes.py against brute force; credit/switches.py by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.credit import switches
from rl_jax.token_weights import pushes

MASK = np.arange(5) < np.array([5, 3, 1, 0, 4, 2])[:, None]
RNG = np.random.default_rng(0)
ENTROPY = RNG.uniform(0.1, 2.0, MASK.shape).astype(np.float32)


def rows_of(values):
    """Advantages of rows on their tokens, nan on the rest."""
    return np.where(MASK, np.float32(values)[:, None], np.nan).astype(np.float32)


def test_exponential_weights_and_their_limits():
    advantages = rows_of([1.0, -1.0, 0.5, 3.0, 0.0, 2.0])
    found = pushes.exponential(MASK, advantages=advantages, temperature=0.5)
    np.testing.assert_allclose(found, np.where(MASK, np.exp(2 * np.nan_to_num(advantages)), 0), rtol=1e-6)
    np.testing.assert_allclose(pushes.exponential(MASK, advantages=advantages, temperature=1e9), MASK, rtol=1e-6)
    usual = pushes.exponential(MASK, advantages=advantages)
    np.testing.assert_allclose(usual, np.where(MASK, np.exp(np.nan_to_num(advantages)), 0), rtol=1e-6)
    slope = jax.grad(lambda x: pushes.exponential(MASK, advantages=x).sum())(advantages)
    np.testing.assert_allclose(slope, usual, rtol=1e-6)
    with pytest.raises(ValueError, match="temperature=0 must be above 0"):
        pushes.exponential(MASK, advantages=advantages, temperature=0)


widest = jax.jit(pushes.widest_rows)


def widest_subset(values, live, count):
    """The variance of the widest `count` of the live values, by all subsets."""
    return max(np.var(values[list(some)]) for some in itertools.combinations(np.flatnonzero(live), count))


@pytest.mark.parametrize("count", range(7))
def test_the_widest_rows_are_those_of_all_subsets(count):
    """Far from 0, too, and with values that lean to one side: the low ones alone, or the high ones, are the widest."""
    rng = np.random.default_rng(count)
    for lean in (1.0, 3.0, -3.0, 1.0, 4.0, -4.0):
        values = np.sign(lean) * rng.exponential(size=7) ** abs(lean) + rng.integers(-2, 3)
        live = rng.permutation(7) < max(count, rng.integers(2, 8))
        values = np.where(live, values, np.nan).astype(np.float32)
        found = np.asarray(widest(jnp.asarray(values), jnp.asarray(live), jnp.int32(count)))
        assert found.sum() == count and not found[~live].any()
        if count:
            np.testing.assert_allclose(np.var(values[found]), widest_subset(values, live, count), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("offset", [100.0, -1000.0])
def test_the_widest_rows_are_found_far_from_0(offset):
    """E[x^2] - E[x]^2 has no digit left there: advantages without a baseline, of rewards about 100."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        values = (offset + 0.1 * rng.normal(size=9)).astype(np.float32)
        live = np.arange(9) != 4
        found = np.asarray(widest(jnp.asarray(np.where(live, values, np.nan)), jnp.asarray(live), jnp.int32(4)))
        exact = values.astype(np.float64)
        np.testing.assert_allclose(np.var(exact[found]), widest_subset(exact, live, 4), rtol=1e-4)


def test_all_rows_and_all_tokens_are_grpo():
    advantages = rows_of([1.0, -1.0, 0.5, 3.0, 0.0, 2.0])
    found = pushes.down_sampled(MASK, advantages=advantages, entropy=ENTROPY, row_share=1.0, token_share=1.0)
    np.testing.assert_array_equal(found, MASK * 1.0)


def test_the_strongest_tokens_of_the_widest_rows():
    values = [2.0, -1.0, 0.1, 0.0, 0.2, -3.0]
    arrays = dict(advantages=rows_of(values), entropy=np.where(MASK, ENTROPY, np.nan).astype(np.float32))
    scheduled = jax.jit(lambda rows, tokens: pushes.down_sampled(MASK, row_share=rows, token_share=tokens, **arrays))
    found = np.asarray(scheduled(0.4, 0.5))  # 2 of the 5 rows with tokens: the first and the last, 7 tokens; 4 of them
    strength = {(i, t): abs(values[i]) * ENTROPY[i, t] for i in (0, 5) for t in range(5) if MASK[i, t]}
    expected = np.zeros(MASK.shape)
    for place in sorted(strength, key=strength.get)[-4:]:
        expected[place] = MASK.sum() / 4  # a mean over all tokens is then the mean over these
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(pushes.down_sampled(MASK & False, **arrays), 0.0)


sampled = jax.jit(pushes.down_sampled)


@pytest.mark.parametrize("shares", [(), (0.0, 0.0), (0.1, 0.2), (0.7, 0.9), (2.0, 1.0), (None, 1.0)])
def test_down_sampling_is_brute_force(shares):
    """Over the rows with tokens: at least two of them, or the one that there is; at least one token."""
    rng = np.random.default_rng(3)
    named = {name: x for name, x in zip(("row_share", "token_share"), shares, strict=False) if x is not None}
    rows, tokens = named.get("row_share", 0.5), named.get("token_share", 0.5)
    for lengths in ([5, 3, 1, 0, 4, 2], [0, 4, 0, 3, 1, 5], [0, 0, 3, 0, 0, 0]):
        mask = np.arange(5) < np.array(lengths)[:, None]
        values = rng.normal(size=6).astype(np.float32)
        advantages, entropy = (np.where(mask, x, np.nan) for x in (values[:, None], rng.uniform(0.1, 2, mask.shape)))
        found = sampled(mask, advantages=advantages.astype(np.float32), entropy=entropy.astype(np.float32), **named)
        live = mask.any(axis=1)
        count = min(max(round(rows * live.sum()), min(2, live.sum())), live.sum())
        best = widest_subset(values, live, count)
        kept = next(
            list(some)
            for some in itertools.combinations(np.flatnonzero(live), count)
            if np.var(values[list(some)]) == best
        )
        push = {(i, t): abs(values[i]) * entropy[i, t] for i in kept for t in np.flatnonzero(mask[i])}
        chosen = sorted(push, key=push.get)[-max(round(tokens * len(push)), 1) :]
        expected = np.zeros(mask.shape)
        for place in chosen:
            expected[place] = mask.sum() / len(chosen)
        np.testing.assert_allclose(found, expected, rtol=1e-5)


LENGTHS = np.int32([4, 2, 6, 3, 5, 1, 2, 3])
REWARDS = np.float32([1, 1, 1, 0, 1, 0, 0, 0])


def brief(rewards=REWARDS, **keywords):
    cut = np.zeros(len(rewards), bool)
    return np.asarray(
        switches.brief_if_solved(jnp.asarray(rewards), LENGTHS, cut, jax.random.key(0), group_size=4, **keywords)
    )


@pytest.mark.parametrize("settings", [{}, {"share": 0.45, "alpha": 0.3, "right": 0.5}, {"share": 1.0}], ids=str)
def test_brief_groups_are_a_plain_loop(settings):
    """Ten groups of three: groups that tie, without a right answer, with one, and with equal lengths."""
    rng = np.random.default_rng(5)
    rewards = rng.choice([0.0, 0.5, 1.0, 1.0], size=(10, 3)).astype(np.float32)
    lengths = rng.integers(1, 6, size=(10, 3))
    rewards[4], lengths[7] = 0.0, 3
    share, alpha, right = (settings.get(k, v) for k, v in (("share", 0.2), ("alpha", 0.6), ("right", 1.0)))
    counts = (rewards >= right).sum(axis=1)
    chosen = sorted(range(10), key=lambda g: -counts[g])[: int(np.ceil(share * 10))]
    expected = rewards.astype(float)
    for g in chosen:
        own = [n for n, r in zip(lengths[g], rewards[g], strict=True) if r >= right]
        for i in np.flatnonzero(rewards[g] >= right):
            z = (lengths[g, i] - np.mean(own)) / np.std(own) if np.std(own) > 0 else 0.0
            expected[g, i] *= 1 - alpha / (1 + np.exp(-z))
    given = (lengths.reshape(-1), np.zeros(30, bool), jax.random.key(0))
    found = switches.brief_if_solved(jnp.asarray(rewards.reshape(-1)), *given, group_size=3, **settings)
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-5)


def test_only_the_group_that_is_solved_is_to_be_brief():
    found = brief(share=0.5, alpha=0.5)
    z = (np.array([4, 2, 6]) - 4) / np.std([4, 2, 6])
    np.testing.assert_allclose(found[:3], 1 - 0.5 / (1 + np.exp(-z)), rtol=1e-6)
    np.testing.assert_array_equal(found[3:], REWARDS[3:])
    np.testing.assert_array_equal(brief(share=0.0), REWARDS)
    np.testing.assert_allclose(brief(share=1.0, alpha=0.5)[4], 0.75)  # a single right answer has no spread
    assert (found[:3] > 0).all(), "a right answer earns more than a wrong one"
    with pytest.raises(ValueError, match="share=2 and alpha=0.6 must lie within"):
        brief(share=2)
    for bad in ({"share": -0.1}, {"share": 1.1}, {"alpha": -0.1}, {"alpha": 1.1}):
        with pytest.raises(ValueError, match="must lie within"):
            brief(**bad)
    np.testing.assert_array_equal(brief(share=1.0, alpha=0.0), REWARDS)
    np.testing.assert_allclose(brief(share=1.0, alpha=1.0)[4], 0.5)
    one = (LENGTHS[:4], np.zeros(4, bool), jax.random.key(0))  # the least share there is means one group
    least = switches.brief_if_solved(jnp.asarray(REWARDS[:4]), *one, group_size=4, share=1.05e-6)
    assert (np.asarray(least)[:3] < 1).all()
    # A share of 3 / 21 that is above it by float32's rounding still is three groups, here of one right answer each.
    ones, share = np.ones(21, np.float32), np.float32(1 / 7)
    assert share * np.float32(21) > 3
    cut, key = np.zeros(21, bool), jax.random.key(0)
    few = switches.brief_if_solved(ones, np.ones(21, int), cut, key, group_size=1, share=share)
    np.testing.assert_allclose(few, np.where(np.arange(21) < 3, 0.7, 1.0), rtol=1e-6)
