"""advantages/turn_arrays.py by hand: what stands on the ends of turns and rows, moments by id, numbers of states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.advantages import turn_arrays, turn_trees, turns

episodes = jax.jit(turn_arrays.episodes, static_argnums=3)
TURNS = np.int32([[0, -1, 1, 1], [0, 1, 2, -1], [-1, -1, -1, -1], [0, 0, 0, -1]])
REWARDS = np.float32([1.0, 3.0, 0.0, 2.0])


def test_of_a_row_only_its_last_end_is_read():
    """Whatever x is elsewhere, on other turns' ends too; groups of two, of which the second has one row with a turn."""
    at = episodes(REWARDS, TURNS, np.zeros(TURNS.shape, np.float32), 2)
    x = np.arange(1.0, 17.0, dtype=np.float32).reshape(4, 4)
    np.testing.assert_array_equal(turn_arrays.on_rows(x, at), [[4, 0, 4, 4], [7, 7, 7, 0], [0] * 4, [0] * 4])
    whole, place = turn_arrays.whole_rows(at)
    np.testing.assert_array_equal(place, [[0, 0, 0, 1], [0, 0, 1, 0], [0] * 4, [0, 0, 1, 0]])
    np.testing.assert_array_equal(whole, [[0, 0, 0, 1], [0, 0, 3, 0], [0] * 4, [0, 0, 2, 0]])
    last = np.bool_([[0, 0, 1, 1], [0, 0, 1, 0], [0] * 4, [1, 1, 1, 0]])
    np.testing.assert_array_equal(at.last_turn, last)
    np.testing.assert_array_equal(at.company, np.bool_([[1], [1], [0], [0]]))
    assert at.number == 16
    for wrong in (REWARDS[:2], REWARDS[:, None]):
        with pytest.raises(AssertionError):
            turn_arrays.episodes(wrong, TURNS, np.zeros(TURNS.shape, np.float32), 2)
    with pytest.raises(AssertionError):
        turn_arrays.episodes(REWARDS, TURNS, np.zeros((4, 3), np.float32), 2)


STEP = 2.0**-23
RESTS = [  # (rewards of two turns, that of the row, what the last turn has then)
    ([0.0, 1.0], 1 + 16 * STEP, 1.0),  # .95e-6 of its terms: rounding
    ([0.0, 1.0], 1 + 18 * STEP, 1 + 18 * STEP),  # 1.07e-6
    ([0.0, -1.0], -1 - 16 * STEP, -1.0),
    ([0.0, -1.0], -1 - 18 * STEP, -1 - 18 * STEP),
    ([1.0, -1.0], 3.0, 2.0),
    ([1.0, -1.0], -3.0, -4.0),
    ([0.0, 0.0], 0.5, 0.5),
    ([1e8, -1e8], 50.0, -1e8),  # nothing beside its terms
]


def test_the_rest_of_a_row_belongs_to_its_last_turn_unless_it_is_rounding():
    earned = np.full((8, 4), np.nan, np.float32)
    earned[:, [1, 3]] = [turns for turns, _, _ in RESTS]
    turns = np.tile(np.int32([0, 0, 1, 1]), (8, 1))
    rewards = np.float32([row for _, row, _ in RESTS])
    found = episodes(rewards, turns, earned, 4).rewards
    expected = [[0.0, first, 0.0, last] for ([first, _], _, last) in RESTS]
    np.testing.assert_array_equal(found, np.float32(expected))


@pytest.mark.parametrize("settings", [{}, {"ddof": 0, "relative_tolerance": 0.5}], ids=str)
def test_moments_are_numpys_by_id(settings):
    """Single values, pairs, equal ones, spreads about the tolerance, both signs; nothing is read off `where`."""
    ddof, tolerance = settings.get("ddof", 1), settings.get("relative_tolerance", 1e-6)
    rng = np.random.default_rng(0)
    ids, where = rng.integers(0, 9, size=(6, 10)), rng.random((6, 10)) < 0.8
    x = rng.normal(size=ids.shape).astype(np.float32)
    x[ids == 1] = 0.1
    x[ids == 2] = -5.0
    x[ids == 3] = -7.0 + np.arange((ids == 3).sum()) % 2 * 2.0**-21  # neighbours in float32
    ids[0, :3], where[0, :3], x[0, :3] = [20, 19, 19], True, [4.0, 0.25, -3.0]  # alone, and a pair
    found = jax.jit(lambda: turn_arrays.moments(np.where(where, x, np.nan), where, ids, 21, **settings))()
    expected = np.zeros((6, *ids.shape))
    for i in set(ids[where].tolist()):
        at = where & (ids == i)
        values = x[at].astype(float)
        shifted = values - values.min()
        std = values.std(ddof=ddof) if len(values) > 1 else 0.0
        uneven = std > tolerance * np.abs(values).max()
        columns = len(values), shifted.sum(), shifted, shifted.mean(), std, uneven
        for field, value in enumerate(columns):
            expected[field][at] = value
    for name, ours, theirs in zip(turn_arrays.Moments._fields, found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_spread_is_more_than_a_millionth_of_the_largest():
    spreads = jax.jit(lambda x: turn_arrays.moments(x, x != 0, np.zeros((1, 3), int), 1, ddof=0).uneven)
    for steps, uneven in ((9, True), (8, False)):  # a std of 1.07e-6, and of .95e-6
        x = np.float32([[-1.0, -1.0 - 2 * steps * STEP, 0.0]])
        assert spreads(x)[0].tolist() == [uneven, uneven, False]


def test_states_have_the_same_number_if_owner_and_key_are_the_same():
    rng = np.random.default_rng(1)
    owners, keys = rng.integers(0, 3, size=(5, 8)), rng.integers(-1, 4, size=(5, 8))
    where = rng.random((5, 8)) < 0.8
    number = jax.jit(turn_arrays.state_ids)
    apart = number(np.arange(40).reshape(5, 8), np.full((5, 8), 3), np.ones((5, 8), bool))  # one key, 40 owners
    assert sorted(np.ravel(apart).tolist()) == list(range(40))
    found = np.asarray(number(owners, keys, where)).reshape(-1)
    known = (where & (keys >= 0)).reshape(-1)
    pairs = list(zip(owners.reshape(-1), keys.reshape(-1), strict=True))
    for i in range(40):
        for j in range(40):
            assert (found[i] == found[j]) == (i == j or bool(known[i] and known[j] and pairs[i] == pairs[j])), (i, j)
    assert found.min() >= 0 and found.max() < 40


def test_what_was_last_is_held_to_the_bit():
    """Numbers of states are not rounded: float32 has no 2^24 + 1."""
    starts = np.bool_([[0, 1, 0, 1, 0], [0] * 5, [1, 0, 0, 0, 1]])
    numbers = 2**24 + np.arange(1, 16, dtype=np.int32).reshape(3, 5)
    found = turn_arrays.held(numbers, starts)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [[0, *numbers[0, [1, 1, 3, 3]]], [0] * 5, numbers[2, [0, 0, 0, 0, 4]]])
    slope = jax.grad(lambda x: turn_arrays.held(x, starts).sum())(jnp.full((3, 5), jnp.nan).at[starts].set(1.0))
    np.testing.assert_array_equal(slope, [[0, 2, 0, 2, 0], [0] * 5, [4, 0, 0, 0, 1]])


def test_sums_over_turns_with_holes():
    on = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]], bool)
    ends = np.array([[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]], bool)
    x = np.where(on, np.float32([1, 2, 3, 4, 5, 6]), np.nan).astype(np.float32)
    found = turn_arrays.sums_of_turns(x, on, ends)
    np.testing.assert_array_equal(found, [[0, 0, 4, 0, 0, 10], [0] * 6])
    slope = jax.grad(lambda x: turn_arrays.sums_of_turns(x, on, ends).sum())(jnp.asarray(x))
    np.testing.assert_array_equal(slope, on)
    with pytest.raises(AssertionError):
        turn_arrays.sums_of_turns(x[:, 1:], on, ends)


def test_turns_without_a_token_push_numbers_past_the_columns_and_stay_in_their_group():
    numbers = jnp.array([[2, 3], [2, 3], [0, 1], [0, 1]])
    rewards, zeros = jnp.array([1.0, 3.0, 10.0, 40.0]), jnp.zeros((4, 2))
    found = turns.turn_return_loo(rewards, turns=numbers, turn_rewards=zeros, group_size=2)
    apart = turns.turn_return_loo(rewards, turns=numbers % 2, turn_rewards=zeros, group_size=2)
    np.testing.assert_allclose(found, apart)
    np.testing.assert_allclose(found, [[-2, -2], [2, 2], [-30, -30], [30, 30]])


def test_a_row_whose_first_turn_has_no_token_shares_no_family():
    numbers = jnp.array([[0, 1], [0, 1], [-1, 1], [0, 1]])
    branches = jnp.array([[0, 1], [0, 2], [-1, 3], [4, 5]])
    rewards, zeros = jnp.array([1.0, 3.0, 10.0, 40.0]), jnp.zeros((4, 2))
    given = dict(turns=numbers, turn_rewards=zeros, branches=branches, group_size=4)
    found = turn_trees.branch_return_loo(rewards, **given)
    np.testing.assert_allclose(found[:2, 1], [-2.0, 2.0], rtol=1e-6)  # against each other, the only ones of one family
    np.testing.assert_allclose(found[2, 1], 10.0 - (1 + 3 + 40) / 3, rtol=1e-6)


def test_what_stands_off_the_turns_raises_nothing_where_nan_is_an_error():
    numbers = jnp.array([[-1, 0, 0, -1], [-1, -1, -1, -1]])
    with jax.debug_nans(True):
        found = turns.turn_return_loo(
            jnp.array([1.0, 2.0]), turns=numbers, turn_rewards=jnp.zeros((2, 4)), group_size=2
        )
        by_branch = turn_trees.branch_return_loo(
            jnp.array([1.0, 2.0]), turns=numbers, turn_rewards=jnp.zeros((2, 4)), branches=numbers, group_size=2
        )
    assert np.isfinite(found).all() and np.isfinite(by_branch).all()
