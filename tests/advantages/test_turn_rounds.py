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


# The same rows, two to a group; the last group has one row with a turn.
PAIRS = np.concatenate([TURNS, TURNS[[1, 3]], np.full((1, 8), -1), TURNS[:1]])
NUMBERS = [[j for j in range(3) if (row == j).any()] for row in PAIRS]


def of_pairs(rows):
    """Lists of numbers of turns -> float32 [8, 8], on the last token of each; nan on its other tokens."""
    found = np.where(PAIRS >= 0, np.nan, 0.0).astype(np.float32)
    for row, values in enumerate(rows):
        for turn, value in enumerate(values):
            found[row, np.flatnonzero(PAIRS[row] == turn)[-1]] = value
    return jnp.asarray(found)


def on_pairs(values):
    """Numbers of turns on all of their tokens, float [8, 8]."""
    found = np.zeros(PAIRS.shape)
    for row, line in enumerate(values):
        for turn, value in enumerate(line):
            found[row, PAIRS[row] == turn] = value
    return found


def random_turns(seed, choices=None):
    rng = np.random.default_rng(seed)
    draw = (lambda: float(rng.choice(choices))) if choices else (lambda: float(rng.normal()))
    return [[draw() for _ in row] for row in NUMBERS]


def given_pairs(rows):
    totals = jnp.asarray([sum(row) for row in rows], jnp.float32)
    return (totals,), dict(turns=jnp.asarray(PAIRS), turn_rewards=of_pairs(rows), group_size=2)


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_eapo_group_by_group(scale):
    """gamma .995 to the last round, and one mean and std of a group's rounds; a row alone in its group has 0."""
    rows = [[scale * x for x in row] for row in random_turns(0)]
    args, named = given_pairs(rows)
    shares = [[sum(row) * 0.995 ** (len(row) - 1 - j) for j in range(len(row))] for row in rows]
    expected = []
    for pair in range(4):
        every = np.array(shares[2 * pair] + shares[2 * pair + 1])
        alone = not shares[2 * pair] or not shares[2 * pair + 1]
        expected += [
            [0.0 if alone else (x - every.mean()) / (every.std(ddof=1) + 1e-6) for x in shares[2 * pair + k]]
            for k in range(2)
        ]
    found = jax.jit(lambda: turn_rounds.eapo(*args, **named))()
    np.testing.assert_allclose(found, on_pairs(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_roles_of_all_groups_are_normalized_together(scale):
    rows, roles = random_turns(1), random_turns(2, [1.0, 2.0, 3.0])
    rows, roles = [[scale * x for x in row] for row in rows], roles if scale == 1.0 else [[3.0] * len(r) for r in roles]
    scores = random_turns(3, [0.0, 1.0, 1.6, 3.0, -1.0])
    args, named = given_pairs(rows)
    named |= dict(turn_role=of_pairs(roles), turn_score=of_pairs(scores))
    found = jax.jit(lambda: turn_rounds.zero_sum(*args, **named))()
    expected = zero_sum_loop(rows, roles, scores, (1, 2, 3), PAIRS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"best": False}, {"temperature": 0.5}], ids=str)
def test_reward_weights_state_by_state(settings):
    """Rewards whose exp is no float32; states that several rows of a group have met, and one that none has."""
    rows = [[1000.0 + x for x in row] for row in random_turns(4, [0.0, 0.25, 0.5, 1.0])]
    keys = random_turns(5, [-1.0, 3.0, 4.0])
    args, named = given_pairs(rows)
    named |= dict(state_keys=jnp.asarray(on_pairs(keys), jnp.int32)) | settings
    found = jax.jit(lambda: turn_rounds.reward_weighted(*args, **named))()
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]

    def is_best(i, j):
        peers = [rows[m][k] for m, k in places if m // 2 == i // 2 and keys[m][k] == keys[i][j] >= 0]
        return rows[i][j] >= max(peers, default=-np.inf)

    kept = [place for place in places if is_best(*place) or not settings.get("best", True)]
    weights = {(i, j): np.exp((rows[i][j] - 1000) / settings.get("temperature", 1.0)) for i, j in kept}
    mean = np.mean(list(weights.values()))
    expected = [[weights.get((i, j), 0.0) / mean for j in range(len(row))] for i, row in enumerate(rows)]
    np.testing.assert_allclose(found, on_pairs(expected), rtol=1e-4, atol=1e-6)


def test_a_single_response_weighs_one_and_what_is_refused():
    rows = [[0.5], *[[]] * 7]
    turns = np.full((8, 8), -1)
    turns[0, :2] = 0
    earned = np.zeros((8, 8), np.float32)
    earned[0, 1] = 0.5
    given = dict(turns=jnp.asarray(turns), turn_rewards=jnp.asarray(earned), state_keys=jnp.asarray(turns))
    totals = jnp.float32([sum(row) for row in rows])
    found = jax.jit(lambda: turn_rounds.reward_weighted(totals, **given, group_size=2))()
    np.testing.assert_allclose(found, turns >= 0, rtol=1e-6)
    for temperature in (0.0, -1.0):
        with pytest.raises(ValueError, match=f"temperature={temperature} must be positive"):
            turn_rounds.reward_weighted(jnp.zeros(8), **given, group_size=2, temperature=temperature)


def zero_sum_loop(rows, roles, scores, learn, turns=TURNS):
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
            tokens += [(row, place, paired.get(role, own)) for place in np.flatnonzero(turns[row] == turn)]
    found, values = np.zeros(turns.shape), np.array([value for *_, value in tokens])
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
    drawn = jax.jit(lambda mask: whole_rounds(mask, turns=jnp.asarray(ragged), key=jax.random.key(0)))
    every = np.asarray(drawn(there))
    sizes = np.where(there & (ragged >= 0), 1.0, 0.0)  # every round has one token left: nine in all, of ten tokens
    np.testing.assert_allclose(every, sizes * 10 / 9, rtol=1e-6)
    alone = np.asarray(drawn(there & (ragged == 0)))
    np.testing.assert_allclose(alone, np.where(there & (ragged == 0), 1.0, 0.0), rtol=1e-6)
    np.testing.assert_array_equal(drawn(there & False), 0.0)
    with pytest.raises(ValueError, match="multiple=0 must be at least 1"):
        whole_rounds(mask, turns=jnp.asarray(TURNS), key=jax.random.key(0), multiple=0)


def test_every_round_is_as_likely():
    mask, turns = jnp.asarray(TURNS >= 0), jnp.asarray(TURNS)
    keys = jax.random.split(jax.random.key(0), 400)
    drawn = jax.jit(jax.vmap(lambda key: whole_rounds(mask, turns=turns, key=key, multiple=3) > 0))(keys)
    assert np.abs(np.asarray(drawn).mean(axis=0)[ENDS] - 6 / 8).max() < 0.09
