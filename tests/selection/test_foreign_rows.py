"""rl_jax/selection/foreign_rows.py: which rows are replaced, and how a row is laid out."""

import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.rollout.lm.engine import prompt_batch
from rl_jax.selection import critiques, foreign_rows


@pytest.mark.parametrize(
    ("replace", "count", "taken", "expected"),
    [
        ("worst", 1, (), [2]),  # of the equal ones the last
        ("worst", 3, (), [2, 0, 3]),
        ("worst", 2, (2,), [0, 3]),
        ("worst", 9, (), [2, 0, 3, 1]),
        ("last", 2, (), [3, 2]),
        ("last", 2, (3,), [2, 1]),
        ("group", 1, (), [0, 1, 2, 3]),
        ("group", 1, (1,), []),
    ],
)
def test_slots(replace, count, taken, expected):
    rewards, used = np.array([0.0, 2.0, 0.0, 1.0]), np.isin(np.arange(4), taken)
    assert foreign_rows.slots(rewards, used, count=count, replace=replace).tolist() == expected


def test_an_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="replace='first' is none of worst, last, group"):
        foreign_rows.slots(np.zeros(2), np.zeros(2, bool), count=1, replace="first")


def test_the_best_candidates_come_first_and_the_earlier_of_equal_ones():
    rewards, usable = np.array([1.0, 2.0, 2.0, 3.0]), np.array([True, True, True, False])
    assert foreign_rows.best(rewards, usable, 2).tolist() == [1, 2]
    assert foreign_rows.best(rewards, ~usable, 2).tolist() == [3]


def test_right_rows_are_those_above_the_threshold():
    rewards = np.array([0.0, 0.5, 1.0, 0.0, -1.0, 0.0])
    assert foreign_rows.right_rows(rewards, 3).tolist() == [2, 0]
    assert foreign_rows.right_rows(rewards, 3, above=0.5).tolist() == [1, 0]


def test_a_prefix_is_a_share_of_the_tokens():
    assert [foreign_rows.prefix([1, 2, 3, 4], level) for level in (0, 0.25, 0.5, 1)] == [[], [1], [1, 2], [1, 2, 3, 4]]
    with pytest.raises(ValueError, match="from 0 to 1, got 25"):
        foreign_rows.prefix([1], 25)


def test_rows_are_laid_out_as_a_sampler_does():
    tokens, mask = np.array([[0, 1, 5], [1, 5, 6]], np.int32), np.array([[False, True, True], [True] * 3])
    prompts = TokenBatch(*map(np.asarray, prompt_batch(tokens, mask)[:3]))
    found = foreign_rows.lay_out(
        prompts, [[7, 2], [7, 8, 9, 2]], 3, pad_id=0, eos_ids=(2,), log_probs=[[-1.0, -2.0], [-3.0] * 4]
    )
    np.testing.assert_array_equal(found.batch.tokens, [[0, 1, 5, 7, 2, 0], [1, 5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(found.batch.positions, [[0, 0, 1, 2, 3, 0], [0, 1, 2, 3, 4, 5]])
    np.testing.assert_array_equal(found.batch.segment_ids, [[0, 1, 1, 1, 1, 0], [1] * 6])
    np.testing.assert_array_equal(found.completion_mask, [[True, True, False], [True] * 3])
    np.testing.assert_array_equal(found.sampled_log_probs, [[-1, -2, 0], [-3, -3, -3]])
    np.testing.assert_array_equal(found.finished, [True, False])
    np.testing.assert_array_equal(found.truncated, [False, True])
    again = foreign_rows.lay_out(
        foreign_rows.prompts_of(found), *foreign_rows.sampled_of(found)[:1], 3, pad_id=0, eos_ids=(2,)
    )
    np.testing.assert_array_equal(again.batch.tokens, found.batch.tokens)
    np.testing.assert_array_equal(again.sampled_log_probs, np.float32(again.completion_mask))  # 1: unknown
    assert foreign_rows.sampled_of(found) == ([[7, 2], [7, 8, 9]], [[-1.0, -2.0], [-3.0] * 3])
    said = [[7, 8, 9, 6], [2]], [[-1.0] * 4, [-2.0]]  # longer than the prompts
    longer = foreign_rows.lay_out(prompts, said[0], 4, pad_id=0, eos_ids=(2,), log_probs=said[1])
    assert foreign_rows.sampled_of(longer) == said
    open_ended = foreign_rows.lay_out(prompts, [[7], [7, 2]], 3, pad_id=2, eos_ids=(2,))  # the pad is no end
    assert open_ended.finished.tolist() == [False, True] and open_ended.truncated.tolist() == [True, False]
    known = foreign_rows.with_own_log_probs(again, np.full((2, 3), -7.0, np.float32)).sampled_log_probs
    np.testing.assert_array_equal(known, [[-7, -7, 0], [-7] * 3])


def test_critiques():
    assert critiques.verdict("7", {}, False) == "It is wrong."
    assert critiques.verdict("8", {}, True) == "The answer is right."
    said = critiques.right_answer("8", {"sum": 8}, True, field="sum", text="{verdict}: {answer}")
    assert said == "right: 8"
    assert critiques.right_answer("7", {"answer": 8}, False) == "The answer is wrong. The right answer is 8."
    with pytest.raises(ValueError, match="info has no 'answer'; it has: sum"):
        critiques.right_answer("7", {"sum": 8}, False)


def test_a_hint_is_a_share_of_the_solution():
    assert [foreign_rows.prefix([7, 8, 9, 6], level) for level in (0, 0.5, 1)] == [[], [7, 8], [7, 8, 9, 6]]
    for level in (-0.1, 1.1):
        with pytest.raises(ValueError, match=f"from 0 to 1, got {level}"):
            foreign_rows.prefix([7, 8], level)
