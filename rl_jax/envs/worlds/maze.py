"""A square with two walls and one small place that pays: a sparse reward behind a detour.

    p' = p + speed clip(a, -1, 1), unless the way crosses a wall or the edge: then p' = p
    r  = max(0, 1 - |p - goal| / radius)     at the last step of the episode, else 0

The start is below the lower wall, left; the gap of the lower wall is right, that of the upper one left, and the goal is
between them, left, behind the start's wall. The observation is p. The mazes of arXiv 2203.01027 have a robot with
sensors; this one is of our own.
"""

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

START, GOAL = (0.15, 0.15), (0.25, 0.5)
WALLS = ((1.0 / 3.0, 0.0, 0.75), (2.0 / 3.0, 0.25, 1.0))  # (height, from, to)
NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, radius: float = 0.15, speed: float = 0.08, limit: int = 50) -> Environment:
    """The maze as an Environment; nothing in it is random.

    Args:
      radius: of the place that pays.
      speed: largest step in each direction.
      limit: steps after which an episode is truncated, and paid.

    Raises:
      ValueError: if a number is not above 0.
    """
    if min(radius, speed, limit) <= 0:
        raise ValueError(f"maze: radius={radius}, speed={speed} and limit={limit} must be above 0")

    def reset(key: chex.PRNGKey):
        place = jnp.asarray(START, jnp.float32)
        return (place, jnp.int32(0)), place

    def step(key: chex.PRNGKey, state, action: chex.Array):
        place, time = state
        place = moved(place, place + speed * jnp.clip(action, -1.0, 1.0))
        gap = jnp.linalg.norm(place - jnp.asarray(GOAL, jnp.float32))
        paid = jnp.where(time + 1 >= limit, jnp.maximum(0.0, 1.0 - gap / radius), 0.0)
        return (place, time + 1), Step(place, paid, NO, NO)

    unit = np.ones(2, np.float32)
    return time_limit(Environment(reset, step, Box(0 * unit, unit), Box(-unit, unit)), limit)


def picture(places: chex.Array, cells: int = 12) -> chex.Array:
    """What a camera above sees of the point: a spot on cells x cells pixels.

    exp(-|c - p|^2 cells^2 / 2) for the pixel around c: the spot is about two pixels wide.

    Args:
      places: float [N, 2], p.
      cells: along each side.

    Returns:
      float [N, cells^2].
    """
    chex.assert_shape(places, (None, 2))
    along = (np.arange(cells, dtype=np.float32) + 0.5) / cells
    x, y = (jnp.exp(-0.5 * jnp.square((places[:, i, None] - along[None]) * cells)) for i in range(2))
    return (x[:, :, None] * y[:, None, :]).reshape(len(places), cells**2)


def moved(place: chex.Array, wanted: chex.Array) -> chex.Array:
    """Where a step ends: at `wanted`, or where it began if it would cross a wall or the edge. Both float [2]."""
    blocked = jnp.any((wanted < 0.0) | (wanted > 1.0))
    for height, left, right in WALLS:
        crosses = (place[1] - height) * (wanted[1] - height) <= 0.0
        rise = jnp.where(wanted[1] == place[1], 1.0, wanted[1] - place[1])
        at = place[0] + (wanted[0] - place[0]) * (height - place[1]) / rise
        blocked = blocked | (crosses & (at >= left) & (at <= right))
    return jnp.where(blocked, place, wanted)
