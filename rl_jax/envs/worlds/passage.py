"""A narrow passage in three dimensions: a planner's waypoints, and a reward for coming nearer to them (2403.03848).

    the planner      breadth-first search over the free cells: w(cell), the next cell of the shortest way to the goal
    D(p)             |p - w| + steps from w to the goal
    r = D(p) - D(p') - cost,  1 more at the goal

What is paid sums to D at the start less the time: no way around is worth more. The agent is a point whose moves are
stopped by walls, floor and ceiling, a stand-in for a legged robot: it sees the cells around it and the way to the
waypoint, as the paper's low level sees heights and a local goal of a classical planner.
"""

import collections
import functools
import itertools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
SPEED = 0.5  # cells per step along each axis
MOVES = tuple(x for x in itertools.product((-1, 0, 1), repeat=3) if sum(map(abs, x)) == 1)


class Passages(NamedTuple):
    """K passages of L x W x H cells; the goal is in the last slice.

    Attributes:
      free: bool [K, L, W, H].
      steps: int32 [K, L, W, H]. Moves to the goal along free cells; -1 where it is not reached.
      following: int32 [K, L, W, H, 3]. The next cell of a shortest way; the goal's own is the goal.
      starts: int32 [K, 3].
    """

    free: np.ndarray
    steps: np.ndarray
    following: np.ndarray
    starts: np.ndarray


def plan(free: np.ndarray, goal: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """(steps int [L, W, H], following int [L, W, H, 3]) of breadth-first search from the goal, as in Passages.

    Args:
      free: bool [L, W, H].
      goal: a free cell.
    """
    steps, following = np.full(free.shape, -1, np.int32), np.zeros((*free.shape, 3), np.int32)
    steps[goal], following[goal], queue = 0, goal, collections.deque([goal])
    while queue:
        cell = queue.popleft()
        for move in MOVES:
            near = tuple(np.add(cell, move))
            inside = all(0 <= x < size for x, size in zip(near, free.shape, strict=True))
            if inside and free[near] and steps[near] < 0:
                steps[near], following[near] = steps[cell] + 1, cell
                queue.append(near)
    return steps, following


@functools.cache
def passages(
    *, count: int = 16, length: int = 8, width: int = 3, height: int = 3, dead_ends: int = 4, seed: int = 0
) -> Passages:
    """Random passages: a walk of single cells from the first slice to the last, and some cells that lead nowhere.

    Args:
      count: K.
      length: L.
      width: W.
      height: H.
      dead_ends: further free cells beside the walk.
      seed: of numpy's generator.
    """
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        free, cell = np.zeros((length, width, height), bool), np.array([0, rng.integers(width), rng.integers(height)])
        start = cell.copy()
        free[tuple(cell)] = True
        while cell[0] < length - 1:
            axis = rng.integers(3)
            move = 1 if axis == 0 else rng.choice((-1, 1))
            cell[axis] = np.clip(cell[axis] + move, 0, free.shape[axis] - 1)
            free[tuple(cell)] = True
        goal = tuple(int(x) for x in cell)
        for _ in range(dead_ends):
            beside = np.argwhere(free)[rng.integers(free.sum())] + MOVES[rng.integers(6)]
            if (beside >= 0).all() and (beside < free.shape).all():
                free[tuple(beside)] = True
        found.append((free, *plan(free, goal), start))
    free, steps, following, starts = (np.stack(x) for x in zip(*found, strict=True))
    return Passages(free, steps, following, starts.astype(np.int32))


class Body(NamedTuple):
    """State. passage: int32 []. place: float32 [3], in cells; cell c reaches from c - .5 to c + .5."""

    passage: chex.Array
    place: chex.Array


def environment(
    *,
    count: int = 16,
    length: int = 8,
    width: int = 3,
    height: int = 3,
    cost: float = 0.02,
    limit: int = 80,
    seed: int = 0,
) -> Environment:
    """A random one of `count` passages; the action is a move, [3] in [-1, 1], half a cell per step along each axis.

    A move along an axis that would leave the free cells is stopped, the axes one after the other. Observations: the
    27 cells around (1 if free), the place in its cell, the way to the waypoint.

    Args:
      count: passages.
      length: of a passage, in cells.
      width: in cells.
      height: in cells.
      cost: of a step.
      limit: steps after which an episode is truncated.
      seed: of the passages.
    """
    known = passages(count=count, length=length, width=width, height=height, seed=seed)
    padded = np.pad(known.free, ((0, 0), (1, 1), (1, 1), (1, 1)))

    def at(table: np.ndarray, passage: chex.Array, cell: chex.Array) -> chex.Array:
        return jnp.asarray(table)[(passage, cell[0], cell[1], cell[2])]

    def cell_of(place: chex.Array) -> chex.Array:
        return jnp.floor(place + 0.5).astype(jnp.int32)

    def left(state: Body) -> chex.Array:
        waypoint = at(known.following, state.passage, cell_of(state.place))
        return jnp.linalg.norm(state.place - waypoint) + at(known.steps, state.passage, waypoint)

    def observe(state: Body) -> chex.Array:
        cell = cell_of(state.place)
        around = jax.lax.dynamic_slice(jnp.asarray(padded)[state.passage], cell, (3, 3, 3))
        waypoint = at(known.following, state.passage, cell)
        parts = (around.reshape(-1).astype(jnp.float32), state.place - cell, waypoint - state.place)
        return jnp.concatenate(parts)

    def reset(key: chex.PRNGKey):
        passage = jax.random.randint(key, (), 0, count)
        state = Body(passage, jnp.asarray(known.starts)[passage].astype(jnp.float32))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Body, action: chex.Array):
        place, move = state.place, SPEED * jnp.clip(action, -1.0, 1.0)
        for axis in range(3):
            tried = place.at[axis].add(move[axis])
            inside = at(padded, state.passage, cell_of(tried) + 1)
            place = jnp.where(inside, tried, place)
        after = Body(state.passage, place)
        ended = at(known.steps, state.passage, cell_of(place)) == 0
        paid = left(state) - left(after) - cost + ended
        return after, Step(observe(after), paid, ended, NO)

    wide = np.concatenate([np.ones(27), np.full(3, 0.5), np.full(3, 1.5)]).astype(np.float32)
    unit = np.ones(3, np.float32)
    return time_limit(Environment(reset, step, Box(-wide, wide), Box(-unit, unit)), limit)


def follower(observations: chex.Array) -> chex.Array:
    """Straight to the waypoint, first to the middle of the cell on the other axes: float [N, 33] -> [N, 3] of moves."""
    here, way = observations[..., 27:30], observations[..., 30:]
    ahead = jnp.abs(way + here) > 0.5  # the axis of the next cell
    aside = jnp.where(ahead, 0.0, -here)
    centred = jnp.max(jnp.abs(aside), axis=-1, keepdims=True) < 0.25
    return jnp.clip(jnp.where(ahead & centred, way, aside) / SPEED, -1.0, 1.0)
