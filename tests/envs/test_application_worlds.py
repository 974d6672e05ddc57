"""envs/worlds/{branching,mapping,passage,recommender}.py: their environments against enumeration and recursions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.csgraph

from rl_jax.envs.worlds import branching, mapping, passage, recommender


def test_a_tree_of_the_environment_is_as_large_as_the_recursion_says():
    """All trees of one knapsack, by going through every choice of variables with the environment's own step."""
    known = branching.instances(count=8, items=4, seed=3)
    sizes = [branching.smallest(*(x[i] for x in known)) for i in range(8)]
    env, which = branching.environment(count=8, items=4, seed=3), int(np.argmax(sizes))
    many = jax.jit(jax.vmap(jax.vmap(env.step, (None, None, 0)), (None, 0, None)))
    states = [(np.full((5, 4), branching.FREE, np.int32), 1)]
    found, largest = [], 256
    for branched in range(1, 16):
        count = len(states)
        assert count <= largest
        rows = states + states[:1] * (largest - count)  # one program for all rounds
        stack, size = np.stack([x for x, _ in rows]), np.array([x for _, x in rows])
        before = branching.Tree(np.full(largest, which), stack, size, np.full(largest, branched - 1))
        after, now = jax.device_get(many(jax.random.key(0), before, jnp.arange(4)))
        assert (now.reward[:count] == np.where(now.terminated[:count], -branched, 0)).all()
        found += [branched] * int(now.terminated[:count].sum())
        # What lies above the top of a stack is of no use: trees are the same where their open nodes are.
        kept = {}
        for i, j in itertools.product(range(count), range(4)):
            if not now.terminated[i, j]:
                kept[after.stack[i, j][: after.size[i, j]].tobytes()] = (after.stack[i, j], after.size[i, j])
        states = list(kept.values())
        if not states:
            break
    assert not states and min(found) == sizes[which] and max(found) > min(found)


def test_the_environment_saves_what_the_best_mapping_saves():
    sizes = dict(steps=5, cells=4)
    known = mapping.programs(count=6, tensors=5, seed=1, **sizes)
    env, key = mapping.environment(count=6, tensors=5, seed=1, **sizes), jax.random.key(0)

    def played(program, actions):
        state = mapping.Memory(program, jnp.int32(0), jnp.zeros((5, 4), bool))
        _, now = jax.lax.scan(lambda state, action: env.step(key, state, action), state, actions)
        return now.reward.sum(), now.terminated

    every = np.array(list(itertools.product(range(3), repeat=5)))
    saved, ended = jax.device_get(jax.jit(jax.vmap(jax.vmap(played, (None, 0)), (0, None)))(np.arange(6), every))
    best = [mapping.best(*(x[i] for x in known), **sizes) for i in range(6)]
    np.testing.assert_allclose(saved.max(axis=1), [value for value, _ in best], rtol=1e-5)
    assert ended[..., -1].all() and not ended[..., :-1].any()
    for program, (value, actions) in enumerate(best):
        np.testing.assert_allclose(saved[program, (every == actions).all(axis=1)], value, rtol=1e-5)
    low = saved[:, np.flatnonzero((every == mapping.LOW).all(axis=1))[0]]
    assert np.mean(low) < 0.95 * np.mean(saved.max(axis=1))  # what is taken now is missing later


def test_a_passage_pays_the_way_and_its_planner_is_scipys():
    known = passage.passages(count=4, length=6)
    for free, steps, start in zip(known.free, known.steps, known.starts, strict=True):
        cells = np.argwhere(free)
        near = np.abs(cells[:, None] - cells[None]).sum(-1) == 1
        goal = int(np.flatnonzero(steps[tuple(cells.T)] == 0)[0])
        expected = scipy.sparse.csgraph.shortest_path(near, unweighted=True, indices=goal)
        np.testing.assert_array_equal(steps[tuple(cells.T)], np.where(np.isfinite(expected), expected, -1))
        assert steps[tuple(start)] >= 5
    env = passage.environment(count=4, length=6, cost=0.02, limit=60)

    def walk(key, lost):
        def turn(carry, key):
            state, seen, alive = carry
            move = jnp.where(lost, jax.random.uniform(key, (3,), minval=-1.0), passage.follower(seen))
            state, now = env.step(key, state, move)
            return (state, now.observation, alive & ~now.done), (jnp.where(alive, now.reward, 0), alive, now, state)

        state, seen = env.reset(key)
        return state, jax.lax.scan(turn, (state, seen, jnp.bool_(True)), jax.random.split(key, 60))[1]

    walks = jax.jit(jax.vmap(walk))(jax.random.split(jax.random.key(0), 8), np.arange(8) % 2 == 1)
    first, (paid, alive, now, states) = jax.device_get(walks)
    for i in range(8):
        last, which = int(alive[i].sum()) - 1, int(first.state.passage[i])
        assert i % 2 or now.terminated[i, last]
        steps, place = known.steps[which], states.state.place[i, last]
        way = known.following[which][tuple(np.floor(place + 0.5).astype(int))]
        left = np.linalg.norm(place - way) + steps[tuple(way)]
        expected = steps[tuple(known.starts[which])] - left - 0.02 * (last + 1) + now.terminated[i, last]
        np.testing.assert_allclose(paid[i].sum(), expected, rtol=1e-4)
        for cell in np.floor(states.state.place[i, : last + 1] + 0.5).astype(int):
            assert known.free[which][tuple(cell)]  # no wall was crossed


def test_a_session_is_worth_what_the_recursion_says():
    """One session of two recommendations: all policies of (first new?, new after a click?, new after none?)."""
    small = dict(topics=3, length=2, novelty=0.1, diversity=0.3)
    for kind, seek in enumerate(recommender.SEEK):
        values = []
        for first, *then in itertools.product((0, 1), repeat=3):
            value = 0.0
            for intent, weight in ((0, 1 - seek), (1, seek)):
                odds = [x[intent] for x in (recommender.CLICKS_OLD, recommender.CLICKS_NEW)]
                for click, second in ((0, then[0]), (1, then[1])):
                    chance = weight * (odds[first] if click else 1 - odds[first])
                    value += chance * (click + odds[second] + 0.1 * (first + second) + 0.1 * (1 + first + second))
            values.append(value)
        np.testing.assert_allclose(recommender.best(kind, **small), max(values), rtol=1e-6)
    with pytest.raises(ValueError, match="topics=4 must be more than length=4"):
        recommender.environment(topics=4)
    env = recommender.environment(sessions=1, **small)

    def play(key, topics):
        state, _ = env.reset(key)
        kind = state.kind

        def turn(state, now):
            state, step = env.step(now[0], state, now[1])
            return state, (step.reward[1], step.terminated)

        actions = jnp.stack([jnp.array([1, 0, 0]), topics], axis=1)
        _, (paid, ended) = jax.lax.scan(turn, state, (jax.random.split(key, 3), actions))
        return kind, paid.sum(), ended

    # Always the new: its exact value, of 4,096 sessions.
    keys = jax.random.split(jax.random.key(0), 4096)
    kinds, paid, ended = jax.device_get(jax.jit(jax.vmap(play, (0, None)))(keys, np.array([0, 1, 2])))
    assert ended[:, 2].all() and not ended[:, :2].any()
    for kind, seek in enumerate(recommender.SEEK):
        odds = seek * recommender.CLICKS_NEW[1] + (1 - seek) * recommender.CLICKS_NEW[0]
        assert np.mean(paid[kinds == kind]) == pytest.approx(2 * odds + 0.2 + 0.3, abs=0.05)
