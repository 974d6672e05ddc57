"""Credit of rounds, roles and refinements against plain loops; whole rounds against their count."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import turn_rounds, turn_states
from rl_jax.losses.aggregate import token_mean
from rl_jax.token_weights.rounds import whole_rounds

# Four rows of a group: turns of two tokens, with a hole behind each.
TWO = [0, 0, -1, 1, 1, -1, -1, -1]
TURNS = np.array([[0, 0, -1, 1, 1, -1, 2, 2], TWO, [0, 0] + [-1] * 6, TWO])
ENDS = (TURNS >= 0) & (np.pad(TURNS[:, 1:], ((0, 0), (0, 1)), constant_values=-1) != TURNS)


def on_ends(rows):
    """Lists of numbers of turns -> float32 [4, 8]."""
    found = np.zeros(TURNS.shape, np.float32)
    for row, values in enumerate(rows):
        found[row, np.flatnonzero(ENDS[row])] = values
    return found


def arguments(rows):
    return dict(turns=jnp.asarray(TURNS), turn_rewards=jnp.asarray(on_ends(rows)), group_size=4)


def test_the_outcome_is_discounted_to_each_round():
    rows = [[0, 0, 1], [0, 1], [0.0], [0, 0]]
    totals = jnp.asarray([sum(row) for row in rows], jnp.float32)

    @jax.jit  # one program for all three
    def credits():
        given = arguments(rows)
        plain = turn_states.transitions(totals, **given)
        return plain, *(turn_rounds.eapo(totals, **given, discount=discount) for discount in (0.5, 1.0))

    same, found, undiscounted = map(np.asarray, credits())
    earned = np.array([0.25, 0.5, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0])  # round by round
    expected = (earned - earned.mean()) / (earned.std(ddof=1) + 1e-6)
    np.testing.assert_allclose(found[ENDS], expected, rtol=1e-5)
    np.testing.assert_allclose(found[TURNS >= 0], np.repeat(expected, 2), rtol=1e-5)
    assert (found[TURNS < 0] == 0).all() and found[1, 0] > found[0, 0]  # the shorter way earns more
    np.testing.assert_allclose(undiscounted, same, rtol=1e-5)
    for discount in (-1, 0, 1.01, 2):
        with pytest.raises(ValueError, match=f"discount={discount} must be in"):
            turn_rounds.eapo(totals, **arguments(rows), discount=discount)


def zero_sum_loop(rows, roles, scores, learn):
    """CoMAS's rewards turn by turn, then one mean and std of all tokens that learn. Plain loops."""
    tokens = []
    for row, of_row in enumerate(rows):
        for turn, own in enumerate(of_row):
            score = next((score for score in scores[row][turn:] if score), None)
            role = roles[row][turn]
            if score is None or role not in learn:
                continue
            share = (score - 1) / 2
            paired = {1: share, 2: 1 - share} if score > 0 else {1: 0.0, 2: 0.0}
            tokens += [(row, place, paired.get(role, own)) for place in np.flatnonzero(TURNS[row] == turn)]
    found, values = np.zeros(TURNS.shape), np.array([value for *_, value in tokens])
    for row, place, value in tokens:
        found[row, place] = (value - values.mean()) / max(values.std(), 1e-4)
    return found


def test_a_pair_shares_one_and_all_tokens_are_normalized_together():
    """Rows: a judge without a score; a round of two; a round that was cut off; two rounds of two, the last one cut."""
    rows = [[0, 0, -1], [0, 0], [0.0], [0, 0]]
    roles, scores = [[1, 2, 3], [1, 2], [1], [2, 1]], [[0, 0, -1], [0, 1], [0.0], [3, 0]]
    named = dict(turn_role=jnp.asarray(on_ends(roles)), turn_score=jnp.asarray(on_ends(scores)))
    totals, masks = jnp.asarray([-1.0, 0, 0, 0]), ((1, 2, 3), (2,))
    credits = jax.jit(lambda: [turn_rounds.zero_sum(totals, **arguments(rows), **named, roles=mask) for mask in masks])
    for found, mask in zip(map(np.asarray, credits()), masks, strict=True):
        np.testing.assert_allclose(found, zero_sum_loop(rows, roles, scores, mask), rtol=1e-5, atol=1e-6)
    assert (found[2] == 0).all() and (found[3, 3:] == 0).all()  # no score follows


def test_the_best_response_of_each_state_is_fitted():
    rows = [[0, 0, 1], [0, 1], [1.0], [0, 0]]
    keys = np.where(TURNS >= 0, np.array([5, 6, 7, 8])[np.minimum(TURNS, 3)], -1)
    totals = jnp.asarray([1.0, 1, 1, 0])
    named = dict(state_keys=jnp.asarray(keys))
    fit = jax.jit(functools.partial(turn_rounds.reward_weighted, group_size=4, temperature=0.5), static_argnames="best")
    named = {name: value for name, value in (arguments(rows) | named).items() if name != "group_size"}
    found = np.asarray(fit(totals, **named))
    assert found[2, 0] > 0 and (found[[0, 1, 3], 0] == 0).all()  # of the first state, row 2's is right
    assert found[1, 3] > 0 and (found[[0, 3], 3] == 0).all() and found[0, 6] > 0
    np.testing.assert_allclose(found[ENDS & (found > 0)], 1.0, rtol=1e-6)
    all_turns = np.asarray(fit(totals, **named, best=False))
    assert all_turns[ENDS].mean() == pytest.approx(1)
    assert all_turns[2, 0] / all_turns[0, 0] == pytest.approx(np.exp(1 / 0.5), rel=1e-5)
    equal = fit(jnp.zeros(4), **(named | dict(turn_rewards=jnp.zeros(TURNS.shape))))
    np.testing.assert_allclose(np.asarray(equal)[ENDS], [1] * 8, rtol=1e-6)


def test_whole_rounds_are_a_mean_over_a_multiple_of_rounds():
    mask, loss = jnp.asarray(TURNS >= 0), jnp.asarray(np.random.default_rng(0).normal(size=TURNS.shape), jnp.float32)
    kept = {1: 8, 3: 6, 8: 8, 5: 5, 9: 8}

    @jax.jit
    def weigh(key):
        found = {
            multiple: whole_rounds(mask, turns=jnp.asarray(TURNS), key=key, multiple=multiple) for multiple in kept
        }
        return {multiple: (weights, token_mean(weights * loss, mask)) for multiple, weights in found.items()}

    for multiple, (weights, found) in weigh(jax.random.key(1)).items():
        on = np.asarray(weights) > 0
        assert on[ENDS].sum() == kept[multiple] and on.sum() == 2 * kept[multiple]  # whole rounds
        rounds = [(row, TURNS[row] == turn) for row in range(4) for turn in range(3)]
        means = [np.asarray(loss)[row, here].mean() for row, here in rounds if on[row][here].any()]
        assert float(found.total / found.count) == pytest.approx(np.mean(means), rel=1e-5)
    ragged = np.array([[0, 1, 2, 3], [0, 0, -1, 1], [-1, -1, 0, 0], [0, 1, 2, 3]])  # also one round for each token
    there = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]], bool)  # a token is of no round
    every = np.asarray(whole_rounds(there, turns=jnp.asarray(ragged), key=jax.random.key(0)))
    sizes = np.where(there & (ragged >= 0), 1.0, 0.0)  # every round has one token left: nine in all, of ten tokens
    np.testing.assert_allclose(every, sizes * 10 / 9, rtol=1e-6)
    alone = np.asarray(whole_rounds(there & (ragged == 0), turns=jnp.asarray(ragged), key=jax.random.key(0)))
    np.testing.assert_allclose(alone, np.where(there & (ragged == 0), 1.0, 0.0), rtol=1e-6)
    none = whole_rounds(there & False, turns=jnp.asarray(ragged), key=jax.random.key(0))
    np.testing.assert_array_equal(none, 0.0)
    with pytest.raises(ValueError, match="multiple=0 must be at least 1"):
        whole_rounds(mask, turns=jnp.asarray(TURNS), key=jax.random.key(0), multiple=0)


def test_every_round_is_as_likely():
    mask, turns = jnp.asarray(TURNS >= 0), jnp.asarray(TURNS)
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = jax.jit(jax.vmap(lambda key: whole_rounds(mask, turns=turns, key=key, multiple=3) > 0))(keys)
    assert np.abs(np.asarray(drawn).mean(axis=0)[ENDS] - 6 / 8).max() < 0.09
