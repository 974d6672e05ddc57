"""Tours through all cities (BQ-NCO, 2301.03313): the state is where one is, where one ends, and what is unvisited.

What was visited before does not matter for what is best from here: the observation has the unvisited cities only, each
relative to the current one and in the order of their distances, so that the names of the cities do not matter either.

The best way on is exact, by dynamic programming over sets of cities (Held and Karp, 1962):

    V(S, j) = min over k in S of |j - k| + V(S without k, k),   V({}, j) = |j - destination|
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
MOST_CITIES = 16  # that are solved exactly: the table has 2 ** 15 rows of 15 numbers


def ordered(cities: chex.Array, visited: chex.Array, current: chex.Array) -> chex.Array:
    """The cities by their distance from the current one, the visited ones last: int [n].

    Args:
      cities: float [n, 2].
      visited: bool [n].
      current: int [].
    """
    gaps = jnp.linalg.norm(cities - jnp.broadcast_to(cities[current], cities.shape), axis=1)
    return jnp.argsort(jnp.where(visited, jnp.inf, gaps))


def observe(cities: chex.Array, visited: chex.Array, current: chex.Array, start: chex.Array) -> chex.Array:
    """float32 [3 n - 1]: the start relative to here, then (dx, dy, 1) of each unvisited city, nearest first, 0 after.

    Arguments as in `ordered`; start: int [], where the tour ends.
    """
    order = ordered(cities, visited, current)[: len(cities) - 1]
    here = cities[current]
    relative = cities[order] - jnp.broadcast_to(here, (len(order), 2))
    left = jnp.where(visited[order], 0.0, 1.0)
    rows = jnp.concatenate([relative, jnp.ones((len(order), 1))], axis=1) * left[:, None]
    return jnp.concatenate([cities[start] - here, rows.reshape(-1)])


def environment(*, cities: int = 7) -> Environment:
    """A tour of random cities in the unit square; action k goes to the k-th nearest unvisited city, the last of them
    if there are fewer. The reward is minus the way; the last step closes the tour.

    Args:
      cities: number of cities.
    """

    def reset(key: chex.PRNGKey):
        places = jax.random.uniform(key, (cities, 2))
        visited = jnp.arange(cities) == 0
        return (places, visited, jnp.int32(0)), observe(places, visited, jnp.int32(0), jnp.int32(0))

    def step(key: chex.PRNGKey, state, action: chex.Array):
        places, visited, current = state
        left = cities - jnp.sum(visited)
        target = ordered(places, visited, current)[jnp.minimum(action, left - 1)].astype(jnp.int32)
        way = jnp.linalg.norm(places[target] - places[current])
        visited = visited | (jnp.arange(cities) == target)
        ended = left == 1
        way += jnp.where(ended, jnp.linalg.norm(places[target] - places[0]), 0.0)
        state = (places, visited, target)
        return state, Step(observe(places, visited, target, jnp.int32(0)), -way, ended, NO)

    size = 3 * cities - 1
    space = Box(np.full(size, -1.0, np.float32), np.full(size, 1.0, np.float32))
    return Environment(reset, step, space, Discrete(cities - 1))


def length(cities: np.ndarray, tour: tuple[int, ...]) -> float:
    """The way around a tour. cities: float [n, 2]; tour: a permutation of 0 .. n - 1."""
    order = cities[list(tour)]
    return float(np.linalg.norm(order - np.roll(order, -1, axis=0), axis=1).sum())


def best_tour(cities: np.ndarray) -> tuple[float, tuple[int, ...]]:
    """(length, tour) of the shortest tour by enumeration; for n <= 8 or so."""
    tours = ((0, *rest) for rest in itertools.permutations(range(1, len(cities))))
    return min((length(cities, tour), tour) for tour in tours)


def nearest_tour(cities: np.ndarray) -> tuple[int, ...]:
    """The tour that always goes to the nearest unvisited city."""
    tour = [0]
    while len(tour) < len(cities):
        gaps = np.linalg.norm(cities - cities[tour[-1]], axis=1)
        tour.append(min((i for i in range(len(cities)) if i not in tour), key=lambda i: gaps[i]))
    return tuple(tour)


def shortest_path(
    origin: chex.Array, cities: chex.Array, left: chex.Array, destination: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """The shortest way from `origin` through all cities that are left to `destination`, by dynamic programming.

    V as at the head of this file; its table has a row for each of the 2^m sets of cities.

    Args:
      origin: float [2].
      cities: float [m, 2].
      left: bool [m]. The cities to visit.
      destination: float [2]. The origin itself makes the way a tour.

    Returns:
      (length float [], order int32 [m]: the cities in their order, after the last of them 0).

    Raises:
      ValueError: if there are more than MOST_CITIES - 1 cities.
    """
    chex.assert_shape([origin, destination], (2,))
    chex.assert_shape(cities, (len(left), 2))
    chex.assert_type(left, bool)
    count = len(left)
    if count >= MOST_CITIES:
        raise ValueError(f"shortest_path: {count + 1} cities are too many for an exact answer, {MOST_CITIES} the most")
    bits, each = 1 << np.arange(count), np.arange(count)

    def gaps(points: chex.Array, others: chex.Array) -> chex.Array:
        return jnp.sqrt(jnp.sum(jnp.square(points[:, None] - others[None]), axis=-1))

    def onwards(table: chex.Array, subset: chex.Array, steps: chex.Array) -> chex.Array:
        """|j - k| + V(subset without k, k) for each k of the subset, else inf. steps: |j - k| [..., m]."""
        costs = steps + jnp.broadcast_to(table[subset ^ bits, each], steps.shape)
        return jnp.where(jnp.broadcast_to((subset & bits) > 0, steps.shape), costs, jnp.inf)

    between, size = gaps(cities, cities), 1 << count

    def fill(table: chex.Array, subset: chex.Array):
        return table.at[subset].set(jnp.min(onwards(table, subset, between), axis=1)), None

    table = jnp.zeros((size, count)).at[0].set(gaps(cities, destination[None])[:, 0])
    table, _ = jax.lax.scan(fill, table, jnp.arange(1, size))

    def go(carry, _):
        here, subset = carry
        costs = onwards(table, subset, gaps(here[None], cities)[0])
        best = jnp.argmin(costs).astype(jnp.int32)
        going = subset > 0
        after = (jnp.where(going, cities[best], here), jnp.where(going, subset ^ jnp.asarray(bits)[best], subset))
        return after, (jnp.where(going, best, 0), costs[best])

    subset = jnp.sum(jnp.where(left, bits, 0))
    order, costs = jax.lax.scan(go, (origin, subset), None, count)[1]
    return jnp.where(subset > 0, costs[0], gaps(origin[None], destination[None])[0, 0]), order


def rest_of(observation: chex.Array) -> tuple[chex.Array, chex.Array]:
    """`shortest_path` of what is observed, float [3 n - 1]: (its length, its order as actions)."""
    chex.assert_rank(observation, 1)
    rows = observation[2:].reshape(-1, 3)
    return shortest_path(jnp.zeros(2), rows[:, :2], rows[:, 2] > 0.5, observation[:2])


def controller(observations: chex.Array) -> chex.Array:
    """The action that goes to the next city of the shortest way, from what is observed: [..., 3 n - 1] -> int32 [...].

    Raises ValueError as `shortest_path`.
    """
    chex.assert_axis_dimension_gteq(observations, -1, 5)
    flat = observations.reshape(-1, observations.shape[-1])
    return jax.vmap(lambda observation: rest_of(observation)[1][0])(flat).reshape(observations.shape[:-1])


def tour_of(observations: chex.Array) -> chex.Array:
    """The cities of a tour in its order, relative to the first: float [n, 2].

    Args:
      observations: float [n - 1, 3 n - 1], of the whole tour; the start relative to here is minus here, and the last
        city is the only one that is left in the last of them.
    """
    chex.assert_shape(observations, (None, 3 * len(observations) + 2))
    here = -observations[:, :2]
    return jnp.concatenate([here, here[-1:] + observations[-1:, 2:4]])


def path_of(
    tour: chex.Array, first: chex.Array, count: chex.Array, forward: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """An instance of its own: the way along a tour from one of its cities to another, and its first step.

    A part of a shortest tour is the shortest way between its ends through the same cities.

    Args:
      tour: float [n, 2], in order.
      first: int []. The city where the way begins.
      count: int []. Cities between its ends, from 1; n - 1 is the whole tour, which ends where it began.
      forward: bool []. In the tour's direction, or against it.

    Returns:
      (observation float32 [3 n - 1], action int32 []).
    """
    chex.assert_shape(tour, (None, 2))
    steps = np.arange(len(tour))
    path = tour[(first + jnp.where(forward, steps, -steps)) % len(tour)]
    visited = (steps == 0) | (steps > count)
    zero = jnp.int32(0)
    action = jnp.argmax(ordered(path, visited, zero) == 1).astype(jnp.int32)
    return observe(path, visited, zero, (count + 1) % len(tour)), action
