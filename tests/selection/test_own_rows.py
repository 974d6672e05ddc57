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


def test_if_no_group_stays_each_shows_its_own():
    rows = own_rows.shown_answers(jax.random.key(0), np.ones(5, bool), GROUP)
    np.testing.assert_array_equal(rows // GROUP, np.arange(5))


def test_what_a_verdict_earns():
    """All of the table: both truths, both verdicts, and neither."""
    texts, right = ["1", " 0 ", "10", "1", "0", ""], np.array([True, True, True, False, False, False])
    found = own_rows.verdict_rewards(texts, right, verdicts=("1", "0"), paid=(1.0, -0.5, -1.0))
    np.testing.assert_array_equal(found, [1.0, -0.5, -1.0, -0.5, 1.0, -1.0])
    with pytest.raises(ValueError, match="must be two different words"):
        own_rows.verdict_rewards(texts, right, verdicts=("1", "1"), paid=(1.0, 0.0, 0.0))


def test_an_answer_is_cut_anywhere_before_its_end():
    lengths = np.repeat([0, 1, 3], 300)
    cuts = own_rows.random_cuts(jax.random.key(0), lengths).reshape(3, -1)
    assert not cuts[0].any() and not cuts[1].any()
    np.testing.assert_allclose(np.bincount(cuts[2], minlength=3) / 300, 1 / 3, atol=0.1)
