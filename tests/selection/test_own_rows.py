"""Rows made of a step's own answers: which one a verification shows, what a verdict earns, where one is cut."""

import jax
import numpy as np
import pytest

from rl_jax.selection import own_rows

GROUP = 4


def test_a_verification_shows_an_answer_of_a_group_that_stays():
    wanted = np.array([True, False, True, False, True, False] * 20)
    rows = own_rows.shown_answers(jax.random.key(0), wanted, GROUP)
    assert not wanted[rows // GROUP].any()
    assert set(rows % GROUP) == set(range(GROUP)) and len(set(rows // GROUP)) > 20
    few = np.arange(40) > 2  # three stay: each of them is shown
    assert set(own_rows.shown_answers(jax.random.key(1), few, GROUP) // GROUP) == {0, 1, 2}


def test_if_no_group_stays_each_shows_its_own():
    rows = own_rows.shown_answers(jax.random.key(0), np.ones(5, bool), GROUP)
    np.testing.assert_array_equal(rows // GROUP, np.arange(5))


def test_what_a_verdict_earns():
    """All of the table: both truths, both verdicts, and neither."""
    texts, right = ["1", " 0 ", "10", "1", "0", ""], np.array([True, True, True, False, False, False])
    found = own_rows.verdict_rewards(texts, right, verdicts=("1", "0"), paid=(1.0, -0.5, -1.0))
    np.testing.assert_array_equal(found, [1.0, -0.5, -1.0, -0.5, 1.0, -1.0])
    with pytest.raises(ValueError, match="shorter"):
        own_rows.verdict_rewards(texts, right[:2], verdicts=("1", "0"), paid=(1.0, -0.5, -1.0))
    with pytest.raises(ValueError, match="must be two different words"):
        own_rows.verdict_rewards(texts, right, verdicts=("1", "1"), paid=(1.0, 0.0, 0.0))


def test_an_answer_is_cut_anywhere_before_its_end():
    lengths = np.repeat([0, 1, 3], 300)
    cuts = own_rows.random_cuts(jax.random.key(0), lengths).reshape(3, -1)
    assert not cuts[0].any() and not cuts[1].any()
    np.testing.assert_allclose(np.bincount(cuts[2], minlength=3) / 300, 1 / 3, atol=0.1)


def test_a_state_is_the_start_or_comes_after_a_separator():
    """Of a row that ends in one, there is no state after the end; each of the others is as likely."""
    kinds = {(): [0], (5, 9): [0], (9, 5, 8, 5, 9): [0, 1, 3], (9, 9, 9): [0, 1, 2], (5, 5, 5): [0]}
    rows = [row for row in kinds for _ in range(300)]
    found = own_rows.random_states(jax.random.key(0), rows, separators=(9, 8)).reshape(len(kinds), 300)
    for drawn, states in zip(found, kinds.values(), strict=True):
        values, counts = np.unique(drawn, return_counts=True)
        assert values.tolist() == states
        np.testing.assert_allclose(counts / 300, 1 / len(states), atol=0.1)
