"""The laws of advantages of groups: (rewards float [B], *, group_size) -> float [B], the rows of a group neighbours."""

from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np

from rl_jax.testing import holding
from rl_jax.testing.holding import law


class AdvantageCase(NamedTuple):
    """An estimator, and a plain loop (rewards, group_size) -> float [B] that it must equal; None if there is none."""

    name: str  # shown in messages
    fn: Callable
    loop: Callable | None = None


def advantage_case(estimator: Callable, loop: Callable | None = None, *, name: str = "") -> AdvantageCase:
    """The case of a function of rl_jax.advantages, or of a user's own."""
    return AdvantageCase(name or holding.name_of(estimator), estimator, loop)


def check_advantage(estimator: Callable, loop: Callable | None = None, *, except_for: Collection[str] = ()) -> None:
    """Holds an estimator of advantages within groups to all laws of this module.

    Args:
      estimator: (rewards float [B], *, group_size) -> float [B].
      loop: a reference, written from the formula: (rewards, group_size) -> float [B]. None: no values are compared.
      except_for: names of laws that it breaks on purpose (a median is not taken off to sum to zero).
    Raises:
      AssertionError: if it breaks a law; it names the function, the law and the argument at fault.
      ValueError: if `except_for` names no law.
    """
    holding.check(advantage_case(estimator, loop), LAWS, except_for=except_for)


def rewards_of(seed: int, size: int = 12) -> np.ndarray:
    """float32 [size], normal."""
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@law
def matches_the_loop(case: AdvantageCase, group_size: int = 3) -> None:
    """Values, shape and dtype against the plain loop."""
    if case.loop is None:
        return
    rewards = rewards_of(group_size)
    out = case.fn(rewards, group_size=group_size)
    assert out.shape == rewards.shape and out.dtype == np.float32, f"rewards: the result is {out.dtype} {out.shape}"
    says = f"rewards, group_size={group_size}: not what the loop gives"
    np.testing.assert_allclose(out, case.loop(rewards, group_size), rtol=1e-5, atol=1e-6, err_msg=says)


@law
def equal_rewards_give_exactly_zero(case: AdvantageCase, group_size: int = 3) -> None:
    """In float32 the mean of three 0.1 is not 0.1; a residue over a residue's std would be +-1, not 0."""
    for reward in (0.0, 1.0, 0.1, 0.7, -3.3, 100.1, 10000.3):
        out = case.fn(np.full(2 * group_size, reward, np.float32), group_size=group_size)
        np.testing.assert_array_equal(out, 0.0, err_msg=f"rewards, all {reward}, group_size={group_size}")


@law
def a_shift_of_the_rewards_changes_nothing(case: AdvantageCase, shift: float = 0.25) -> None:
    """Only differences within a group count."""
    rewards = rewards_of(1)
    shifted = case.fn(rewards + np.float32(shift), group_size=4)
    says = f"rewards, all of them {shift} more"
    np.testing.assert_allclose(shifted, case.fn(rewards, group_size=4), rtol=1e-4, atol=2e-5, err_msg=says)


@law
def a_group_sums_to_zero(case: AdvantageCase) -> None:
    """What is taken off is the mean."""
    sums = np.asarray(case.fn(rewards_of(3), group_size=4)).reshape(3, 4).sum(axis=1)
    np.testing.assert_allclose(sums, 0.0, atol=1e-5, err_msg="rewards: the sum of each group's advantages")


@law
def samples_of_a_group_and_whole_groups_may_change_places(case: AdvantageCase) -> None:
    """A permutation of the samples of each group and of the groups permutes the advantages."""
    rewards = rewards_of(4).reshape(3, 4)
    out = np.asarray(case.fn(rewards.reshape(-1), group_size=4)).reshape(3, 4)
    within, groups = [2, 0, 3, 1], [1, 2, 0]
    permuted = case.fn(rewards[groups][:, within].reshape(-1), group_size=4)
    np.testing.assert_allclose(
        np.asarray(permuted).reshape(3, 4),
        out[groups][:, within],
        rtol=1e-5,
        atol=1e-6,
        err_msg="rewards, samples and groups in another order",
    )


@law
def bad_input_is_refused(case: AdvantageCase) -> None:
    """Integers, a second axis, rewards that do not divide into groups, and groups of none (chex, groups.grouped)."""
    _refused(case, np.array([1, 0, 0, 1]), 4, AssertionError, "integers")
    _refused(case, np.ones((2, 4), np.float32), 4, AssertionError, "two axes")
    says = "10 rewards do not divide into groups of group_size=4"
    _refused(case, rewards_of(0, 10), 4, ValueError, "10 rewards in groups of 4", says)
    _refused(case, rewards_of(0, 4), 0, ValueError, "group_size=0", "group_size=0")


def _refused(case: AdvantageCase, rewards, group_size: int, error: type[Exception], what: str, says: str = "") -> None:
    try:
        case.fn(rewards, group_size=group_size)
    except error as raised:
        assert says in str(raised), f"rewards, {what}: the error does not say {says!r} but {str(raised)!r}"
        return
    raise AssertionError(f"rewards, {what}: they do not raise {error.__name__}")


LAWS = {
    fn.__name__: fn
    for fn in (
        matches_the_loop,
        equal_rewards_give_exactly_zero,
        a_shift_of_the_rewards_changes_nothing,
        a_group_sums_to_zero,
        samples_of_a_group_and_whole_groups_may_change_places,
        bad_input_is_refused,
    )
}
