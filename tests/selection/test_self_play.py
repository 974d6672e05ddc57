"""Absolute Zero's executor, questions, rewards and TRR++, by hand and beside plain loops."""

import numpy as np
import pytest

from rl_jax.selection import self_play
from rl_jax.selection.self_play import Question, question

LIMITS = dict(digits=2, operands=3)


@pytest.mark.parametrize(
    ("text", "value"), [("12+7", 19), ("12+7-30", -11), ("5", None), ("", None), ("1++2", None), ("1+2=", None)]
)
def test_what_is_executed(text, value):
    assert self_play.execute(text) == value


def test_a_proposal_is_asked_in_two_ways():
    assert question("12+7-3", "deduction", **LIMITS) == Question("12+7-3=", 16)
    assert question("12+7-3", "abduction", **LIMITS) == Question("+7-3=16=", 12)
    assert question("99+10-88", "deduction", **LIMITS) == Question("99+10-88=", 21)  # at both limits
    assert question("1+2", "abduction", digits=1, operands=2) == Question("+2=3=", 1)
    for text in ("123+1", "1+2+3+4", "12", "a+1"):
        assert question(text, "deduction", **LIMITS) is None
    with pytest.raises(ValueError, match="kind='induction' is none of deduction, abduction"):
        question("1+1", "induction", **LIMITS)


def test_a_proposal_is_worth_what_can_be_learned_from_it():
    texts = ["1+1"] * 4 + ["123+1", "nothing"]
    asked = [Question("1+1=", 2)] * 4 + [None, None]
    found = self_play.proposer_rewards(texts, asked, np.array([0.0, 0.125, 0.75, 1.0, 9.0, 9.0]))
    np.testing.assert_allclose(found, [0.0, 0.875, 0.25, 0.0, -0.5, -1.0])


def test_a_solution_is_right_wrong_or_no_number():
    np.testing.assert_array_equal(self_play.solver_rewards(["2", "-3", "", "2=2"], [2, 2, 2, 2]), [1, -0.5, -1, -1])
    with pytest.raises(ValueError, match="shorter"):
        self_play.solver_rewards(["2", "2"], [2])
    with pytest.raises(ValueError, match="shorter"):
        self_play.proposer_rewards(["1+1", "2"], [Question("1+1=", 2)], np.zeros(2))
    with pytest.raises(ValueError, match="shorter"):
        self_play.proposer_rewards(["1+1", "2"], [Question("1+1=", 2), None], np.zeros(1))


def test_each_task_and_role_has_its_own_mean_and_std():
    """Token by token, as REINFORCE++ whitens; with one role it is REINFORCE++."""
    rng = np.random.default_rng(0)
    rewards, lengths, roles = rng.normal(size=30), rng.integers(1, 6, 30), rng.integers(0, 4, 30)
    found = self_play.whitened_by_role(rewards, lengths, roles)
    for role in range(4):
        tokens = [rewards[i] for i in range(30) if roles[i] == role for _ in range(lengths[i])]
        for i in np.flatnonzero(roles == role):
            expected = (rewards[i] - np.mean(tokens)) / np.sqrt(np.var(tokens, ddof=1) + 1e-8)
            np.testing.assert_allclose(found[i], expected, rtol=1e-5)
    assert self_play.whitened_by_role(np.ones(1), np.ones(1, int), np.zeros(1, int)) == 0
    assert self_play.whitened_by_role(rewards, lengths, roles).dtype == np.float32


def test_a_role_of_almost_equal_rewards_has_small_advantages():
    """The variance, 5e-9, is beside the 1e-8 below the root."""
    found = self_play.whitened_by_role(np.array([0.0, 1e-4]), np.ones(2, int), np.zeros(2, int))
    np.testing.assert_allclose(found, np.array([-0.5e-4, 0.5e-4]) / np.sqrt(1.5e-8), rtol=1e-5)
