"""envs/agents.py, worlds/{kitchen,matrix_games}.py: wrappers and moves by loops, best values by enumeration."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from rl_jax import envs
from rl_jax.envs import agents
from rl_jax.envs.worlds import kitchen, matrix_games

LANE, ONIONS, COOK = 2, 2, 1
PARTS = dict(lane=LANE, onions=ONIONS, cook=COOK)
FIRST = ((0, 0), (0, 0), (0,) * LANE, 0)


def turn(state, action):
    """One step by the rules as they are written at the head of the kitchen: (state, soups, shaped reward)."""
    cells, hands, counters, pot = list(state[0]), list(state[1]), list(state[2]), state[3]
    shaped, soups = 0.0, 0
    if ONIONS <= pot < ONIONS + COOK:
        pot += 1
    for cook in (0, 1):
        cell, move = cells[cook], action[cook]
        to_counter = kitchen.EAST if cook == 0 else kitchen.WEST
        if move == to_counter:
            if (hands[cook] == 0) != (counters[cell] == 0):
                hands[cook], counters[cell] = counters[cell], hands[cook]
        elif move == kitchen.UP:
            cells[cook] = max(cell - 1, 0)
        elif move == kitchen.DOWN:
            cells[cook] = min(cell + 1, LANE - 1)
        elif move != kitchen.STAY and cook == 0 and hands[0] == 0:
            if cell == 0:
                hands[0] = kitchen.ONION
            elif cell == LANE - 1:
                if pot >= ONIONS and kitchen.DISH not in (*counters, hands[1]):
                    shaped += 3 / 20
                hands[0] = kitchen.DISH
        elif move != kitchen.STAY and cook == 1:
            if cell == 0 and hands[1] == kitchen.ONION and pot < ONIONS:
                hands[1], pot, shaped = 0, pot + 1, shaped + 3 / 20
            elif cell == 0 and hands[1] == kitchen.DISH and pot == ONIONS + COOK:
                hands[1], pot, shaped = kitchen.SOUP, 0, shaped + 5 / 20
            elif cell == LANE - 1 and hands[1] == kitchen.SOUP:
                hands[1], soups = 0, 1
    return (tuple(cells), tuple(hands), tuple(counters), pot), soups, shaped


def reached(limit):
    """The most soups of episodes of 0 .. limit steps, over all that can be reached by the rules above."""
    best, found = {FIRST: 0}, [0]
    for _ in range(limit):
        following = {}
        for state, soups in best.items():
            for action in itertools.product(range(5), repeat=2):
                after, more, _ = turn(state, action)
                following[after] = max(following.get(after, 0), soups + more)
        best = following
        found.append(max(best.values()))
    return found


@pytest.mark.slow
def test_steps_in_the_kitchen_are_those_of_a_loop():
    step = jax.jit(functools.partial(kitchen.moved, **PARTS))
    rng, state, own, seen = np.random.default_rng(0), kitchen.start(LANE), FIRST, []
    for _ in range(1500):
        action = rng.integers(5, size=2)
        state, soups, shaped = step(state, jnp.asarray(action))
        own, *paid = turn(own, tuple(action))
        assert own == tuple(tuple(map(int, x)) if x.ndim else int(x) for x in jax.device_get(state))
        np.testing.assert_allclose([soups, shaped], paid, rtol=1e-6)
        seen.append(paid)
        if len(seen) % 300 == 0:  # counters fill up with what nobody needs
            state, own = kitchen.start(LANE), FIRST
    assert np.count_nonzero(np.array(seen)[:, 1]) > 5  # onions got into the pot


@pytest.mark.slow
def test_most_soups_are_those_of_a_search():
    expected = reached(14)
    first = expected.index(1)
    assert [kitchen.most_soups(**PARTS, limit=limit) for limit in (first - 1, first, 14)] == [0, 1, expected[14]]
    assert kitchen.most_soups(lane=2, onions=1, cook=2, limit=20) == 2
    with pytest.raises(ValueError, match="lane=1"):
        kitchen.environment(lane=1)


def test_a_cook_sees_neither_the_other_one_nor_from_the_left_the_pot():
    env = kitchen.environment(**PARTS)
    base = kitchen.start(LANE)
    state = base._replace(cells=jnp.array([0, 1]), hands=jnp.array([0, kitchen.DISH]), pot=jnp.int32(1))
    before, after = (np.asarray(kitchen.observed(x, **PARTS)) for x in (base, state))
    own = env.agents.own
    np.testing.assert_array_equal(before[0, :own], after[0, :own])
    assert (before[1, :own] != after[1, :own]).sum() == 6 and (before[0, own:] == before[1, own:]).all()
    assert before.shape == (2, *env.observation_space.shape)


@pytest.mark.slow
def test_rows_and_one_agent_are_the_same_world():
    count, worlds = 2, 3
    settings = dict(lane=2, limit=4, shaping=1.0)
    plain = envs.load_vector("agents/kitchen", worlds, **settings)
    own, size = plain.agents.own, plain.observation_space.shape[0]
    central, rows, one = agents.as_rows(plain, central=True), agents.as_rows(plain), agents.as_one(plain)
    assert (central.num_envs, one.num_envs, one.action_space) == (6, 3, envs.Joint(5, 2))
    key = jax.random.key(0)
    # Of different ages, so that they end at different times.
    states = [env.reset(key)[0]._replace(time=jnp.arange(worlds)) for env in (plain, central, rows, one)]
    steps = [jax.jit(env.step) for env in (plain, central, rows, one)]
    rng = np.random.default_rng(1)
    for drawn in range(6):
        ahead = jax.tree.map(lambda x: x[0], plain.ahead(jax.random.key(drawn), 1))
        action = jnp.asarray(rng.integers(5, size=(worlds, count)))
        found = [
            step(state, action.reshape(-1) if flat else action, ahead)
            for step, state, flat in zip(steps, states, (0, 1, 1, 0), strict=True)
        ]
        found = jax.device_get(found)
        states = [x[0] for x in found]
        seen, now = found[0][1:]
        for b, a in itertools.product(range(worlds), range(count)):
            mine = np.concatenate([seen[b, a, :own], np.eye(count)[a]])
            np.testing.assert_array_equal(found[2][1][b * count + a], mine)
            np.testing.assert_array_equal(found[1][1][b * count + a], np.concatenate([mine, seen[b, a, own:]]))
            np.testing.assert_array_equal(found[3][1][b, a * (own + count) : (a + 1) * (own + count)], mine)
            assert found[1][2].reward[b * count + a] == now.reward[b, a]
            assert found[1][2].truncated[b * count + a] == now.truncated[b] == ((drawn + b + 1) % 4 == 0)
        np.testing.assert_array_equal(found[3][1][:, count * (own + count) :], seen[:, 0, own:])
        np.testing.assert_allclose(found[3][2].reward, now.reward.mean(axis=1))
    for env in (central, rows, one):
        assert env.observation_space.shape == env.reset(key)[1].shape[1:]
    assert central.agents.own == own + count and central.observation_space.shape == (size + count,)


def test_wrappers_refuse_what_they_cannot_show():
    single = envs.load_vector("probes/matching", 2)
    for view in (agents.as_rows, agents.as_one):
        with pytest.raises(ValueError, match="a single one"):
            view(single)
    against = envs.load_vector("agents/stage", 2, payoffs=((1.0, -1.0), (-1.0, 1.0)), common=False)
    with pytest.raises(ValueError, match="share a reward"):
        agents.as_one(against)
    with pytest.raises(ValueError, match="must be square"):
        matrix_games.stage(((1.0, 2.0),))


def test_the_games_pay_by_their_tables():
    key, env = jax.random.key(0), matrix_games.two_step()
    paid = {}
    for actions in itertools.product((0, 1), repeat=4):
        state, seen = env.reset(key)
        state, first = env.step(key, state, jnp.array(actions[:2]))
        assert not first.terminated and not first.reward.any() and (np.asarray(seen)[:, :3] == np.eye(3)[0]).all()
        state, last = env.step(key, state, jnp.array(actions[2:]))
        assert last.terminated and (np.asarray(first.observation)[:, :3] == np.eye(3)[1 + actions[0]]).all()
        paid[actions] = float(last.reward[0])
    assert all(value == 7 for actions, value in paid.items() if actions[0] == 0)
    assert [paid[1, 0, i, j] for i in (0, 1) for j in (0, 1)] == [0, 1, 1, 8] and max(paid.values()) == 8
    against = matrix_games.stage(((2.0, -1.0), (-1.0, 1.0)), common=False)
    np.testing.assert_array_equal(against.step(key, 0, jnp.array([0, 1]))[1].reward, [-1.0, 1.0])


def test_exploitability_is_nothing_at_the_minimax_policies():
    """max_p min_j (p R)_j, by scipy."""
    table = np.array([[2.0, -1.0, 0.5], [-1.0, 1.0, 0.0], [0.3, -0.2, 0.1]])

    def best(rewards):
        size = len(rewards)
        found = scipy.optimize.linprog(
            np.append(np.zeros(size), -1.0),
            A_ub=np.hstack([-rewards.T, np.ones((size, 1))]), b_ub=np.zeros(size),
            A_eq=[[1.0] * size + [0.0]], b_eq=[1.0], bounds=[(0, None)] * size + [(None, None)],
        )  # fmt: skip
        return found.x[:size], -found.fun

    (row, value), (column, other) = best(table), best(-table.T)
    assert value == pytest.approx(-other)
    assert matrix_games.exploitability(table, row, column) == pytest.approx(0.0, abs=1e-9)
    assert matrix_games.exploitability(table, np.eye(3)[0], column) > 0.1
    row, value = best(table[:2, :2])
    assert value == pytest.approx(0.2) and row == pytest.approx([0.4, 0.6])  # configs/control/agents.py:zero_sum
