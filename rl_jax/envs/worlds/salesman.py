"""Tours through all cities (BQ-NCO, 2301.03313): the state is where one is, where one ends, and what is unvisited.

What was visited before does not matter for what is best from here: the observation has the unvisited cities only, each
relative to the current one and in the order of their distances, so that the names of the cities do not matter either.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


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
