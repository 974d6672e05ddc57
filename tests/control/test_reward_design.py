"""control/reward_design.py: sums by loops, invariance by exact values on a chain and in rooms."""

import itertools

import numpy as np
import pytest

from rl_jax.control import reward_design
from rl_jax.envs.worlds import tabular

GAMMA = 0.9
WORLDS = {"chain": tabular.chain(length=5), "rooms": tabular.rooms(size=5), "slips": tabular.chain(length=4, slip=0.2)}


def teacher_of(world, **fields):
    table = WORLDS[world]
    return reward_design.Teacher(table.rewards, table.transition_probs, table.start_probs, discount=GAMMA, **fields)


def h_step_values(rewards, probs, policy, horizon):
    """Q_h^pi by its recursion, [S, A]."""
    q = np.zeros_like(rewards)
    for _ in range(horizon):
        q = rewards + GAMMA * probs @ q[np.arange(len(policy)), policy]
    return q


def best_actions(world, rewards):
    """bool [S, A]: the actions of some best policy, by value iteration."""
    probs = WORLDS[world].transition_probs.astype(np.float64)
    q = np.zeros_like(rewards)
    for _ in range(600):
        q = rewards + GAMMA * probs @ q.max(axis=1)
    return q.max(axis=1, keepdims=True) - q < 1e-5


def informativeness(world, target, rewards, horizons):
    """I(R) of ExpRD by loops."""
    probs = WORLDS[world].transition_probs.astype(np.float64)
    total = 0.0
    for horizon, state in itertools.product(horizons, range(len(rewards))):
        q = h_step_values(rewards, probs, target.policy, horizon)[state]
        behind = [q[target.policy[state]] - q[a] for a in np.flatnonzero(~target.best[state])]
        total -= max([0.0, *[target.gaps[state] - x for x in behind]])
    return total / (len(horizons) * len(rewards))


def test_the_target_is_that_of_value_iteration():
    for world, table in WORLDS.items():
        target = teacher_of(world).target
        np.testing.assert_array_equal(target.best, best_actions(world, table.rewards.astype(np.float64)))
        assert target.best[np.arange(len(target.policy)), target.policy].all() and (target.gaps[:-1] > 0).any()
    chain = teacher_of("chain").target
    # From the place k steps before the end: a step back costs two more, at the wall one more; the last is the goal.
    expected = [GAMMA**4 - GAMMA**5] + [GAMMA**k - GAMMA ** (k + 2) for k in (3, 2, 1, 0)] + [0.0]
    np.testing.assert_allclose(chain.gaps, expected, atol=1e-6)
    np.testing.assert_allclose(
        chain.occupancy, GAMMA ** np.array([0, 1, 2, 3, 4, np.inf]) / sum(GAMMA**k for k in range(5))
    )


def test_differences_are_of_sums_of_h_rewards():
    rng, table = np.random.default_rng(0), WORLDS["slips"]
    rewards, policy, size = rng.normal(size=(5, 2)), rng.integers(2, size=5), np.arange(5)
    probs = table.transition_probs.astype(np.float64)
    for horizon in (1, 3, None):
        q = h_step_values(rewards, probs, policy, horizon or 600)
        found = reward_design.differences(probs, policy, discount=GAMMA, horizon=horizon) @ rewards.reshape(-1)
        np.testing.assert_allclose(found.reshape(5, 2), q[size, policy][:, None] - q, atol=1e-9)


@pytest.mark.parametrize("world", WORLDS)
def test_designed_rewards_keep_the_target_and_tell_more(world):
    """Every best action of the designed rewards is one of the given ones, and the gaps are as large."""
    teacher, rng = teacher_of(world, horizons=(1, 3)), np.random.default_rng(0)
    student = rng.dirichlet(np.ones(WORLDS[world].rewards.shape[1]), size=len(teacher.given))
    designs = {
        "few": teacher.greedy(len(teacher.essential) + 1),
        "small": teacher.explicable(range(len(teacher.given)), size_cost=1e-4),
        "adaptive": teacher.adaptive(student),
    }
    for name, design in designs.items():
        assert not (best_actions(world, design.rewards) & ~teacher.target.best).any(), name
        assert np.abs(design.rewards).max() <= 1.0 + 1e-9
        assert not np.delete(design.rewards, design.states, axis=0).any()
        own = reward_design.differences(
            WORLDS[world].transition_probs, teacher.target.policy, discount=GAMMA
        ) @ design.rewards.reshape(-1)
        assert (own.reshape(teacher.given.shape) >= teacher.target.gaps[:, None] * ~teacher.target.best - 1e-5).all()
    given = informativeness(world, teacher.target, teacher.given, (1, 3))
    few = informativeness(world, teacher.target, designs["few"].rewards, (1, 3))
    np.testing.assert_allclose(few, designs["few"].informativeness, atol=1e-5)
    assert few > given + 1e-4 and designs["small"].informativeness > -1e-6
    assert (
        set(teacher.essential) < set(designs["few"].states) and len(designs["few"].states) == len(teacher.essential) + 1
    )
    weights = reward_design.adaptive_weights(
        teacher.target, student, WORLDS[world].transition_probs, WORLDS[world].start_probs, discount=GAMMA
    )
    assert np.sum(weights * designs["adaptive"].rewards) > max(np.sum(weights * teacher.given), 0.0)


def test_the_greedy_choice_is_the_best_single_state():
    teacher = teacher_of("chain", horizons=(1, 2))
    others = [teacher.explicable((4, state)).informativeness for state in range(4)]
    assert teacher.essential == (4,) and teacher.greedy(2).informativeness == pytest.approx(max(others))
    assert teacher.greedy(1).states == (4,)


def test_the_adaptive_weights_by_loops():
    table, rng = WORLDS["slips"], np.random.default_rng(1)
    target, student = teacher_of("slips").target, rng.dirichlet(np.ones(2), size=5)
    probs, rewards = table.transition_probs.astype(np.float64), rng.normal(size=(5, 2))
    visits, at = np.zeros(5), table.start_probs.astype(np.float64)
    for _ in range(600):
        visits, at = visits + at, GAMMA * np.einsum("s,sa,sat->t", at, student, probs)
    visits, total = visits / visits.sum(), 0.0
    for s, a in itertools.product(range(5), range(2)):
        ahead = target.advantages[s, a] - student[s] @ target.advantages[s]
        near = rewards[s, a] - student[s] @ rewards[s]
        total += visits[s] * student[s, a] * target.occupancy[s] * student[s, a] * ahead * near
    weights = reward_design.adaptive_weights(target, student, probs, table.start_probs, discount=GAMMA)
    np.testing.assert_allclose(np.sum(weights * rewards), total, atol=1e-9)
    np.testing.assert_allclose(weights.sum(axis=1), 0.0, atol=1e-12)  # a constant in a state says nothing


def test_what_is_refused():
    table = WORLDS["chain"]
    with pytest.raises(ValueError, match=r"rewards \(6,\)"):
        reward_design.target_of(table.rewards[:, 0], table.transition_probs, table.start_probs, discount=GAMMA)
    with pytest.raises(ValueError, match="discount=1.0"):
        reward_design.target_of(table.rewards, table.transition_probs, table.start_probs, discount=1.0)
    with pytest.raises(ValueError, match="largest=0.5"):
        teacher_of("chain", largest=0.5)
    with pytest.raises(ValueError, match="budget=0"):
        teacher_of("chain").greedy(0)
    with pytest.raises(ValueError, match="size_cost=-1"):
        teacher_of("chain").explicable((4,), size_cost=-1.0)
    with pytest.raises(ValueError, match=r"no rewards of at most 1 for states \[0\]"):
        teacher_of("chain").explicable((0,))
    with pytest.raises(ValueError, match="size=6"):
        tabular.rooms(size=6)
    with pytest.raises(ValueError, match="length=0"):
        tabular.chain(length=0)
