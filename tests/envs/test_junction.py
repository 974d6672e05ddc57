"""The grid whose place is not seen (worlds.tabular.junction): what a memory is worth, by enumeration and by playing."""

import itertools

import jax
import numpy as np
import pytest

from rl_jax import envs
from rl_jax.envs.worlds import probes, scripted, tabular

LENGTH = 3
UP, DOWN, LEFT, RIGHT = range(4)


def returns_of(table, act) -> float:
    """The return of act(state, visited) -> action without discount, the mean over the starts; moves are certain."""
    found = []
    for start in np.flatnonzero(table.start_probs):
        state, total, visited = int(start), 0.0, [int(start)]
        for _ in range(table.limit):
            action = act(state, visited)
            total += table.rewards[state, action]
            following = table.transition_probs[state, action]
            if following.sum() < 0.5:
                break
            state = int(following.argmax())
            visited.append(state)
        found.append(total)
    return float(np.mean(found))


def test_a_memory_is_worth_a_half():
    table, features = tabular.junction(length=LENGTH)
    kinds, looks = np.unique(features, axis=0, return_inverse=True)
    assert len(kinds) == 4 and len(features) == 2 * (LENGTH + 1)  # two starts, the way, the junction
    every = itertools.product(range(4), repeat=len(kinds))
    best = max(returns_of(table, lambda state, visited, policy=policy: policy[looks[state]]) for policy in every)
    assert best == 0.5

    def remembers(state, visited):
        first, here = features[visited[0]], features[state]
        return RIGHT if not here[RIGHT] else (UP if first[4] > 0 else DOWN)

    assert returns_of(table, remembers) == 1.0
    assert returns_of(table, lambda state, visited: RIGHT) == 0.0  # stays at the wall
    script = scripted.controller("probes/junction")
    assert returns_of(table, lambda state, visited: int(script(features[state]))) == 0.5
    np.testing.assert_allclose(np.sort(table.start_probs)[-2:], 0.5)
    for state in range(2 * (LENGTH + 1)):
        place = state % (LENGTH + 1)
        ends = place == LENGTH
        np.testing.assert_array_equal(features[state, :4], [not ends, not ends, place == 0, ends])
        assert (features[state, 4] != 0) == (place == 0)
    with pytest.raises(ValueError, match="length=1: 2 or more"):
        tabular.junction(length=1)


def test_the_environment_shows_the_sign_once_and_pays_for_it():
    env, signs = probes.junction(length=LENGTH), set()
    reset, step = jax.jit(env.reset), jax.jit(env.step)
    assert env.observation_space.shape == (5,) and env.observation_space.low[4] == -1.0
    for seed, wrong in itertools.product(range(6), (False, True)):
        state, seen = reset(jax.random.key(seed))
        sign = float(seen[4])
        signs.add(sign)
        for place in range(1, LENGTH + 1):
            state, found = step(jax.random.key(place), state, RIGHT)
            np.testing.assert_array_equal(found.observation, [place < LENGTH] * 2 + [False, place == LENGTH, 0.0])
            assert not found.terminated and found.reward == 0
        found = step(jax.random.key(9), state, UP if (sign > 0) != wrong else DOWN)[1]
        assert found.terminated and found.reward == (not wrong)
    assert signs == {-1.0, 1.0} and envs.load_vector("probes/junction", 2).observation_space.shape == (5,)


def test_what_slips_goes_elsewhere():
    table, _ = tabular.junction(length=LENGTH, slip=0.4)
    np.testing.assert_allclose(table.transition_probs[1, RIGHT, [0, 1, 2]], [0.1, 0.2, 0.7], rtol=1e-6)
    junction = table.rewards[[LENGTH, 2 * LENGTH + 1]][:, [UP, DOWN]]
    np.testing.assert_allclose(junction, [[0.7, 0.1], [0.1, 0.7]], rtol=1e-6)
    np.testing.assert_allclose(1 - table.transition_probs[LENGTH, UP].sum(), 0.8, rtol=1e-6)
