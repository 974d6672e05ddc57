"""control/sqirl.py against loops: exact tables, what is regressed, and corridors that need a known number of steps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import studies
from experiments.studies.horizons import corridor
from rl_jax.control import sqirl


def world(seed=0, states=4, actions=2):
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(states, actions)).astype(np.float32)
    moves = rng.dirichlet(np.ones(states), (states, actions)).astype(np.float32)
    return rewards, moves, rng.dirichlet(np.ones(states)).astype(np.float32)


def plain_values(rewards, moves, horizon, k):
    """Q^k, a step and an iteration at a time."""
    states, actions = rewards.shape
    random = np.zeros((horizon + 1, states))
    q = np.zeros((horizon + 1, states, actions))
    for t in reversed(range(horizon)):
        for s, a in itertools.product(range(states), range(actions)):
            q[t, s, a] = rewards[s, a] + moves[s, a] @ random[t + 1]
        random[t] = q[t].mean(axis=1)
    for _ in range(k - 1):
        new = np.zeros_like(q)
        for t, s, a in itertools.product(range(horizon), range(states), range(actions)):
            new[t, s, a] = rewards[s, a] + (moves[s, a] @ q[t + 1].max(axis=1))
        q = new
    return q[:horizon]


def test_exact_tables_are_those_of_the_loops_and_end_at_the_optimum():
    rewards, moves, starts = world()
    for k in (1, 2, 3):
        found = sqirl.exact_values(rewards, moves, horizon=3, k=k)
        np.testing.assert_allclose(found, plain_values(rewards, moves, 3, k), rtol=1e-5, atol=1e-6)
    best = sqirl.expected_return(jnp.argmax(found, axis=2), rewards, moves, starts)
    returns = []  # of all 2^12 policies
    chosen = np.array(list(itertools.product(range(2), repeat=12))).reshape(-1, 3, 4)
    for policy in chosen:
        chances, total = starts, 0.0
        for t in range(3):
            total += chances @ rewards[range(4), policy[t]]
            chances = chances @ moves[range(4), policy[t]]
        returns.append(total)
    assert max(returns) == pytest.approx(float(best), rel=1e-5)


@pytest.mark.parametrize("t, k", [(0, 1), (0, 3), (1, 2), (2, 4)])
def test_what_is_fitted_is_the_mean_of_the_visits(t, k):
    rng, horizon, episodes = np.random.default_rng(1), 4, 40
    states = rng.integers(0, 3, (horizon + 1, episodes))
    actions, paid = rng.integers(0, 2, (horizon, episodes)), rng.normal(size=(horizon, episodes)).astype(np.float32)

    def q_of(step, left):
        """Q^left at a step, by the definition."""
        q = np.zeros((3, 2))
        for s, a in itertools.product(range(3), range(2)):
            here = (states[step] == s) & (actions[step] == a)
            if not here.any():
                continue
            if left == 1 or step == horizon - 1:
                targets = paid[step:, here].sum(axis=0)
            else:
                targets = paid[step, here] + q_of(step + 1, left - 1).max(axis=1)[states[step + 1, here]]
            q[s, a] = targets.mean()
        return q

    found = sqirl._fitted(*map(jnp.asarray, (states, actions, paid)), (3, 2), t, k)
    np.testing.assert_allclose(found, q_of(t, k), rtol=1e-4, atol=1e-5)


def test_episodes_follow_the_policy_and_then_chance():
    rewards, moves, starts = world(2)
    policy = jnp.asarray(np.random.default_rng(3).integers(0, 2, (4, 4)))
    states, actions, paid = sqirl._play(rewards, jnp.asarray(moves), starts, policy, 2, jax.random.key(0), 4000)
    np.testing.assert_array_equal(actions[:2], policy[jnp.arange(2)[:, None], states[:2]])
    assert abs(float(actions[2:].mean()) - 0.5) < 0.03
    np.testing.assert_array_equal(paid, rewards[states[:-1], actions])
    np.testing.assert_allclose(np.bincount(states[0], minlength=4) / 4000, starts, atol=0.04)
    here = (states[2] == 1) & (actions[2] == 0)
    np.testing.assert_allclose(np.bincount(states[3][here], minlength=4) / here.sum(), moves[1, 0], atol=0.08)


def test_corridors_need_as_many_steps_as_their_near_reward_hides():
    needed = [sqirl.steps_needed(*corridor(4, 3, near, 0.1), horizon=4) for near in (0.02, 0.08, 0.2, 0.5)]
    assert needed == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="k=0"):
        sqirl.sqirl(*corridor(2, 3, 0.5, 0.0), jax.random.key(0), horizon=2, episodes=1, k=0)


@pytest.mark.slow
def test_sqirl_solves_a_corridor_with_enough_steps_and_not_with_one_fewer():
    found = studies.effective_horizon(
        (0, 1, 2), arms=dict(k1=1, k2=2, k3=3), depth=3, actions=3, slip=0.1, near=dict(a=0.2, b=0.5), episodes=200
    )
    assert found.note.endswith("a 2, b 3")
    solved = {arm: {name: shares.min() > 0.99 for name, shares in row.items()} for arm, row in found.values.items()}
    assert solved == {"k1": dict(a=False, b=False), "k2": dict(a=True, b=False), "k3": dict(a=True, b=True)}
    assert found.values["k1"]["a"].max() < 0.8 and found.values["k2"]["b"].max() < 0.8
