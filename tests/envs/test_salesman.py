"""envs/worlds/salesman.py: shortest ways by dynamic programming, and parts of tours as instances of their own."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.worlds import salesman

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
CITIES = 6


@functools.cache
def compiled(name):
    return jax.jit(jax.vmap(getattr(salesman, name)), compiler_options=QUICK)


def enumerated(origin, cities, left, destination):
    """The length of the shortest way, by going through all orders."""
    orders = itertools.permutations(np.flatnonzero(left))
    return min(way(origin, cities[list(order)], destination) for order in orders)


def way(origin, path, destination):
    points = np.concatenate([origin[None], path, destination[None]])
    return np.linalg.norm(np.diff(points, axis=0), axis=1).sum()


def test_the_shortest_way_is_that_of_enumeration():
    """Of none to five cities between the ends, which are two or one; the order has the length that is said."""
    rng = np.random.default_rng(0)
    rows = 24
    origin, cities, destination = (rng.uniform(size=(rows, *shape)) for shape in ((2,), (CITIES - 1, 2), (2,)))
    destination[::3] = origin[::3]
    left = rng.uniform(size=(rows, CITIES - 1)) < 0.7
    left[:3], left[3] = True, False
    lengths, orders = compiled("shortest_path")(*(jnp.asarray(x) for x in (origin, cities, left, destination)))
    for i in range(rows):
        assert lengths[i] == pytest.approx(enumerated(origin[i], cities[i], left[i], destination[i]), rel=1e-5)
        order = np.asarray(orders[i])[: left[i].sum()]
        assert sorted(order) == np.flatnonzero(left[i]).tolist() and not orders[i][left[i].sum() :].any()
        assert lengths[i] == pytest.approx(way(origin[i], cities[i][order], destination[i]), rel=1e-5)
    with pytest.raises(ValueError, match="17 cities are too many for an exact answer"):
        salesman.shortest_path(jnp.zeros(2), jnp.zeros((16, 2)), jnp.ones(16, bool), jnp.zeros(2))


@functools.cache
def lived(seeds=8):
    """(cities [B, n, 2], observations [B, n - 1, 3 n - 1], actions [B, n - 1], rewards) of the best tours."""
    env = salesman.environment(cities=CITIES)

    def play(key):
        state, seen = env.reset(key)

        def step(carry, _):
            state, seen = carry
            action = salesman.controller(seen)
            after, now = env.step(key, state, action)
            return (after, now.observation), (seen, action, now.reward)

        return state[0], *jax.lax.scan(step, (state, seen), None, CITIES - 1)[1]

    return jax.jit(jax.vmap(play), compiler_options=QUICK)(jax.random.split(jax.random.key(0), seeds))


def test_the_controllers_tours_are_the_shortest_and_can_be_read_from_what_was_seen():
    cities, seen, _, rewards = (np.asarray(x) for x in lived())
    tours = compiled("tour_of")(seen)
    for own, tour, paid in zip(cities, np.asarray(tours), rewards, strict=True):
        best = salesman.best_tour(own.astype(np.float64))[0]
        np.testing.assert_allclose(-paid.sum(), best, rtol=1e-5)
        np.testing.assert_allclose(salesman.length(tour, tuple(range(CITIES))), best, rtol=1e-5)
        np.testing.assert_allclose(sorted(map(tuple, tour + own[0])), sorted(map(tuple, own)), atol=1e-6)


def test_the_rest_of_a_tour_is_the_part_that_ends_where_it_does():
    """What is left after k moves is an instance of its own: the same observation, and the same best action."""
    _, seen, actions, _ = lived()
    tours = compiled("tour_of")(seen)
    for k in range(CITIES - 1):
        first, count = jnp.full(len(tours), k), jnp.full(len(tours), CITIES - 1 - k)
        parts, steps = compiled("path_of")(tours, first, count, jnp.ones(len(tours), bool))
        np.testing.assert_allclose(parts, seen[:, k], atol=1e-5)
        np.testing.assert_array_equal(steps, actions[:, k])


def test_every_part_of_a_shortest_tour_is_a_shortest_way():
    """From each city, of each size, in both directions: no other way between its ends is shorter."""
    _, seen, _, _ = lived()
    tour = np.asarray(compiled("tour_of")(seen))[0]
    cases = list(itertools.product(range(CITIES), range(1, CITIES), (False, True)))
    first, count, forward = (jnp.asarray(x) for x in zip(*cases, strict=True))
    parts, steps = compiled("path_of")(jnp.broadcast_to(tour, (len(cases), *tour.shape)), first, count, forward)
    for (start, size, onwards), part, action in zip(cases, np.asarray(parts), np.asarray(steps), strict=True):
        rows, turn = part[2:].reshape(-1, 3), 1 if onwards else -1
        assert (rows[:, 2] == (np.arange(CITIES - 1) < size)).all()
        path = np.roll(tour[::turn], -start if onwards else start + 1, axis=0)
        path = path - path[0]
        np.testing.assert_allclose(rows[action, :2], path[1], atol=1e-6)
        np.testing.assert_allclose(part[:2], path[(size + 1) % CITIES], atol=1e-6)
        shortest = enumerated(np.zeros(2), rows[:, :2], rows[:, 2] > 0, part[:2])
        np.testing.assert_allclose(way(np.zeros(2), path[1 : size + 1], part[:2]), shortest, rtol=1e-5)
