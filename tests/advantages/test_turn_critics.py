"""advantages/turn_critics.py by plain loops: what turns earn, critics of whole turns, and lambdas of two levels."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import turn_critics
from tests.numpy_loops import turns as loops

# Two turns with an observation between them, three turns side by side, one turn, none, a row without a turn, and turns
# with holes in them.
TURNS = np.int32([[0, 0, -1, 2, 2, -1, -1], [0, 1, 1, 1, 2, 2, -1], [-1, 0, 0, 0, -1, -1, -1], [0, 0, 1, 1, 1, 2, 2]])
TURNS = np.concatenate([TURNS, np.full((1, 7), -1, np.int32), [[0, 0, 0, 1, 1, 1, -1]]]).astype(np.int32)
MASK = (TURNS >= 0) & np.array([1, 1, 1, 0, 1, 1], bool)[:, None]
MASK[1, 0] = False  # a turn that is not the policy's
MASK[5, [1, 4]] = False
MASK[0, 2] = MASK[4, 3] = True  # sampled, and of no turn
ON = MASK & (TURNS >= 0)
K = 2
RNG = np.random.default_rng(0)


def places():
    """(row, the columns of each of its turns in order)."""
    for i, (row, on) in enumerate(zip(TURNS, ON, strict=True)):
        yield i, [np.flatnonzero(on & (row == j)) for j in sorted({*row[on].tolist()})]


def test_what_turns_earn_is_taken_off_the_last_token():
    rewards = np.where(MASK, RNG.normal(size=TURNS.shape), np.nan).astype(np.float32)
    found = turn_critics.earned_early(rewards, jnp.asarray(MASK))
    expected = np.zeros(TURNS.shape)
    for i, columns in enumerate(map(np.flatnonzero, MASK)):
        for c in columns:
            expected[i, c] = rewards[i, c] - (sum(rewards[i, columns]) if c == columns[-1] else 0.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(AssertionError):
        turn_critics.earned_early(rewards[:, 1:], jnp.asarray(MASK))


def test_critics_are_read_after_a_turns_last_token_and_before_its_first():
    outputs = RNG.normal(size=(len(TURNS), TURNS.shape[1] + 1, 2 * K)).astype(np.float32)
    expected, ends = np.zeros((*TURNS.shape, 2 * K), np.float32), np.zeros(TURNS.shape, bool)
    for i, turns in places():
        for columns in turns:
            ends[i, columns[-1]] = True
            expected[i, columns[-1], :K] = outputs[i, columns[-1] + 1, :K]
            expected[i, columns[-1], K:] = outputs[i, columns[0], K:]
    np.testing.assert_array_equal(turn_critics.at_turns(outputs, TURNS, MASK), expected)
    np.testing.assert_array_equal(turn_critics.turn_ends(TURNS, MASK), ends)


def test_archers_advantages_and_targets_are_plain_loops():
    """Nothing is read off the turns' last tokens but the rewards of their tokens; nothing has a gradient."""
    ends = np.asarray(turn_critics.turn_ends(TURNS, MASK))
    values, target = (
        np.where(ends[:, :, None], RNG.normal(size=(*TURNS.shape, 2 * K)), np.nan).astype(np.float32) for _ in range(2)
    )
    rewards = np.where(ON, RNG.normal(size=TURNS.shape), np.nan).astype(np.float32)
    advantages, returns = np.zeros(TURNS.shape), np.zeros((*TURNS.shape, 2 * K))
    for i, turns in places():
        for columns, after in itertools.zip_longest(turns, turns[1:]):
            end = columns[-1]
            advantages[i, columns] = min(values[i, end, :K]) - min(values[i, end, K:])
            for k in range(K):
                ahead = 0.0 if after is None else 0.95 * target[i, after[-1], K + k]
                returns[i, end, k] = sum(rewards[i, columns]) + ahead
                returns[i, end, K + k] = target[i, end, k]

    def both(values, target):
        found = turn_critics.archer_td(rewards, values, MASK, turns=TURNS, target_values=target)
        return sum(jnp.sum(x) for x in found), found

    slopes, found = jax.jit(jax.grad(both, argnums=(0, 1), has_aux=True))(values, target)
    np.testing.assert_allclose(found[0], advantages, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], returns, rtol=1e-5, atol=1e-6)
    for slope in slopes:
        np.testing.assert_array_equal(slope, 0.0)


def test_bilevel_gae_with_all_its_discounts_is_a_plain_loop():
    rewards, values = np.where(ON, RNG.normal(size=(2, *TURNS.shape)), np.nan).astype(np.float32)
    after = RNG.normal(size=len(TURNS)).astype(np.float32)
    settings = dict(discount=0.9, lam=0.75, turn_discount=0.5, turn_lam=0.25)
    gae = jax.jit(functools.partial(turn_critics.bilevel_gae, **settings))
    found = gae(rewards, values, MASK, bootstrap_values=after, turns=TURNS)
    for i in range(len(TURNS)):
        expected = loops.bilevel_gae(rewards[i], values[i], ON[i], after[i], TURNS[i], **settings)
        for ours, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours[i], np.where(ON[i], other, 0.0), rtol=1e-5, atol=1e-6)


QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@functools.lru_cache
def mixture():
    """outcome_mixture, compiled."""

    def call(rewards, values, mask, after, turns, lam):
        known = dict(bootstrap_values=after, turns=turns, lam=lam, above=0.1)
        return turn_critics.outcome_mixture(rewards, values, mask, **known)

    return jax.jit(call, static_argnames="lam", compiler_options=QUICK)


def test_an_outcome_is_mixed_with_one_step_ahead():
    """WebRL's credit by a plain loop; the critic's target is the outcome, and nothing is read off the turns."""
    rng = np.random.default_rng(1)
    rewards, values = (rng.normal(size=TURNS.shape).astype(np.float32) for _ in range(2))
    after, lam = rng.normal(size=len(TURNS)).astype(np.float32), 0.25
    expected, outcome = np.zeros(TURNS.shape), np.zeros(TURNS.shape)
    for i, turns in places():
        whole = sum(rewards[i, columns].sum() for columns in turns)
        for number, columns in enumerate(turns):
            ahead = values[i, turns[number + 1][0]] if number + 1 < len(turns) else after[i]
            own = values[i, columns[0]]
            step = rewards[i, columns].sum() + ahead - own
            expected[i, columns], outcome[i, columns] = lam * step + (1 - lam) * (whole - own), float(whole > 0.1)
    noisy = [np.where(ON, x, 7.0).astype(np.float32) for x in (rewards, values)]
    found = mixture()(*noisy, MASK, after, TURNS, lam)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[1], outcome)
    assert 0 < outcome.sum() < ON.sum()
    with pytest.raises(ValueError, match=r"lam=2 must be in \[0, 1\]"):
        mixture()(*noisy, MASK, after, TURNS, 2)


def test_the_true_probability_of_success_makes_it_unbiased():
    """A turn's advantage is then Q - V on average, for any lambda: two turns, of which the second decides."""
    wins = {0: 0.6, 1: 0.24}  # of the second turn, by what the first one was
    pairs = list(itertools.product(wins, (0, 1)))  # the first turn, and whether the second wins
    weights = np.array([wins[first] if second else 1 - wins[first] for first, second in pairs])
    rewards = np.float32([[0, second] for _, second in pairs])
    values = np.float32([[0.42, wins[first]] for first, _ in pairs])
    turns, mask, after = np.int32([[0, 1]] * 4), np.ones((4, 2), bool), np.zeros(4, np.float32)
    for lam in (0.0, 1.0):
        found = np.asarray(mixture()(rewards, values, mask, after, turns, lam)[0])[:, 0] * weights
        assert found[:2].sum() == pytest.approx(0.6 - 0.42, abs=1e-6)
        assert found[2:].sum() == pytest.approx(0.24 - 0.42, abs=1e-6)
