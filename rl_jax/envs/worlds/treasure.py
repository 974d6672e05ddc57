"""Worlds of two objectives whose fronts are known: deep sea treasure by shortest paths, and a bandit by a formula.

Deep sea treasure: a submarine starts at the surface, in the corner, and each column has a treasure at its bottom;
r = (treasure, -1 a step). The further the treasure, the larger. `convex` is the map of Yang et al. (1908.08342),
`concave` Vamplew et al.'s (2011), where weighted sums find the two ends of the front only. Values and moves are
MO-Gymnasium's.

The bandit (Fonseca and Fleming, 1995) pays r_k = exp(-|a - g_k|^2) for an action a of D numbers, with
g = +-span / sqrt(D): its front is the way between the two, and again weighted sums find its ends.
"""

from collections import deque
from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit
from rl_jax.stats import pareto

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
YES = np.bool_(True)
DEPTHS = (1, 2, 3, 4, 4, 4, 7, 7, 9, 10)
MAPS = {
    "convex": (0.7, 8.2, 11.5, 14.0, 15.1, 16.1, 19.6, 20.3, 22.4, 23.7),
    "concave": (1.0, 2.0, 3.0, 5.0, 8.0, 16.0, 24.0, 50.0, 74.0, 124.0),
}
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)], np.int32)  # up, down, left, right; rows count downwards


def sea(name: str = "convex", columns: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """(treasure of each cell, 0 is none, float32 [R, C]; whether it is rock, bool [R, C]) of a map's first columns.

    Raises:
      ValueError: for another map, or more columns than 10.
    """
    if name not in MAPS or not 1 <= columns <= len(DEPTHS):
        known = f"{', '.join(MAPS)}; columns from 1 to {len(DEPTHS)}"
        raise ValueError(f"treasure: sea={name!r}, columns={columns}, but there are the maps {known}")
    depths = DEPTHS[:columns]
    shape = (max(depths) + 1, min(columns + 1, 11))
    values, rock = np.zeros(shape, np.float32), np.zeros(shape, bool)
    for column, (depth, value) in enumerate(zip(depths, MAPS[name], strict=False)):
        values[depth, column] = value
        rock[depth + 1 :, column] = True
    return values, rock


def environment(*, name: str = "convex", columns: int = 10, limit: int = 100) -> Environment:
    """The map as an Environment of two objectives; the observation is one-hot, of the row and of the column.

    Args:
      name: of the map.
      columns: how many of its 10 columns with a treasure.
      limit: steps until an episode is cut off.
    """
    values, rock = sea(name, columns)
    (rows, width), treasures, rocks = values.shape, jnp.asarray(values), jnp.asarray(rock)

    def observe(place: chex.Array) -> chex.Array:
        return jnp.concatenate([jax.nn.one_hot(place[0], rows), jax.nn.one_hot(place[1], width)])

    def reset(key: chex.PRNGKey):
        place = jnp.zeros(2, jnp.int32)
        return place, observe(place)

    def step(key: chex.PRNGKey, place: chex.Array, action: chex.Array):
        onward = place + jnp.asarray(MOVES)[action]
        inside = jnp.all((onward >= 0) & (onward < jnp.array([rows, width])))
        onward = jnp.clip(onward, 0, jnp.array([rows - 1, width - 1]))
        place = jnp.where(inside & ~rocks[onward[0], onward[1]], onward, place)
        found = treasures[place[0], place[1]]
        return place, Step(observe(place), jnp.stack([found, jnp.float32(-1.0)]), found > 0, NO)

    space = Box(np.zeros(rows + width, np.float32), np.ones(rows + width, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(4), objectives=2), limit)


def returns_of_all(name: str = "convex", columns: int = 10) -> np.ndarray:
    """(treasure, -steps of the shortest way) of each treasure, by breadth first search: float [N, 2]."""
    values, rock = sea(name, columns)
    steps, waiting, found = {(0, 0): 0}, deque([(0, 0)]), []
    while waiting:
        place = waiting.popleft()
        if values[place]:
            found.append((float(values[place]), -float(steps[place])))
            continue  # the episode is over
        for move in MOVES:
            onward = (place[0] + int(move[0]), place[1] + int(move[1]))
            if all(0 <= x < n for x, n in zip(onward, values.shape, strict=True)) and not rock[onward]:
                if onward not in steps:
                    steps[onward] = steps[place] + 1
                    waiting.append(onward)
    return np.round(np.asarray(found), 4)


def front(name: str = "convex", columns: int = 10) -> np.ndarray:
    """The returns that no policy without chance beats in both objectives, float [F, 2]."""
    points = returns_of_all(name, columns)
    return points[pareto.front(points)]


def two_aims(*, size: int = 2, span: float = 1.0) -> Environment:
    """Fonseca and Fleming's problem as a bandit: one state, one step, an action of `size` numbers in [-2, 2].

    Args:
      size: D.
      span: half the distance of the two aims; above 1 / sqrt(2) the front is not concave.
    """
    aims = np.array([[1.0], [-1.0]]) * span / np.sqrt(size) * np.ones((2, size))
    bounds = Box(np.full(size, -2.0, np.float32), np.full(size, 2.0, np.float32))

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), jnp.zeros(1)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        reward = jnp.exp(-jnp.sum(jnp.square(action[None] - jnp.asarray(aims, jnp.float32)), axis=-1))
        return state, Step(jnp.zeros(1), reward, YES, NO)

    unit = np.ones(1, np.float32)
    return Environment(reset, step, Box(-unit, unit), bounds, objectives=2)


def two_aims_front(points: int = 2001, *, span: float = 1.0) -> np.ndarray:
    """The front of `two_aims`, float [points, 2]: actions on the way between the aims."""
    along = np.linspace(span, -span, points)
    return np.exp(-np.square(np.stack([along - span, along + span], axis=1)))


def arms(*, rewards: Sequence[Sequence[float]] = ((1.0, 0.0), (0.6, 0.55), (0.0, 1.0))) -> Environment:
    """A bandit of several objectives: one state, one step; arm a pays rewards[a], K numbers."""
    table = np.asarray(rewards, np.float32)
    unit = np.ones(1, np.float32)

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), jnp.zeros(1)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        return state, Step(jnp.zeros(1), jnp.asarray(table)[action], YES, NO)

    return Environment(reset, step, Box(-unit, unit), Discrete(len(table)), objectives=table.shape[1])
