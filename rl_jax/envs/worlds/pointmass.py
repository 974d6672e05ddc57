"""A point in the plane that should go to a goal: continuous actions, an exact and simple good policy.

    v' = inertia v + 0.2 a,   x' = clip(x + v', -1.5, 1.5),   r = -|x' - goal|

a in [-1, 1]^2. The observation is (x, v). An episode starts at rest in a random place and is cut off after `limit`
steps; it never terminates. The goal, the origin by default, is not observed: its places are tasks. With a delay the
action of `delay` steps ago acts, and the observation ends with those that wait; wind is an acceleration that changes at
random and is not observed (arXiv 2503.19267: delays, external factors).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

FORCE, EDGE = 0.2, 1.5
NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Point(NamedTuple):
    """The state: place, velocity and wind float32 [2]; waiting float32 [delay, 2], the next to act first.

    Without a delay waiting is (): an array without elements cannot be saved.
    """

    place: chex.Array
    velocity: chex.Array
    waiting: chex.Array | tuple[()]
    wind: chex.Array


def environment(
    *,
    inertia: float = 0.5,
    limit: int = 20,
    delay: int = 0,
    wind: float = 0.0,
    goal: tuple[float, float] = (0.0, 0.0),
) -> Environment:
    """The point as an Environment.

    Args:
      inertia: the share of the velocity that stays per step, from 0 to below 1.
      limit: steps after which an episode is truncated.
      delay: steps until an action acts.
      wind: deviation of its change per step; it decays by a tenth per step.
      goal: where the reward is 0.

    Raises:
      ValueError: if the inertia is out of range, or the delay or wind negative.
    """
    if not 0.0 <= inertia < 1.0:
        raise ValueError(f"inertia={inertia} must be from 0 to below 1")
    if delay < 0 or wind < 0.0:
        raise ValueError(f"delay={delay} and wind={wind} must be 0 or more")

    def observe(state: Point) -> chex.Array:
        waiting = [state.waiting.reshape(-1)] if delay else []
        return jnp.concatenate([state.place, state.velocity, *waiting])

    def reset(key: chex.PRNGKey):
        place = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = Point(place, jnp.zeros(2), jnp.zeros((delay, 2)) if delay else (), jnp.zeros(2))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Point, action: chex.Array):
        newest = jnp.clip(action, -1.0, 1.0)[None]
        queue = jnp.concatenate([state.waiting, newest]) if delay else newest
        blowing = state.wind
        if wind > 0.0:
            blowing = 0.9 * blowing + wind * jax.random.normal(key, (2,))
        velocity = inertia * state.velocity + FORCE * queue[0] + blowing
        place = jnp.clip(state.place + velocity, -EDGE, EDGE)
        state = Point(place, velocity, queue[1:] if delay else (), blowing)
        return state, Step(observe(state), reward(place, goal=goal), NO, NO)

    bound = FORCE / (1.0 - inertia)
    high = np.asarray([EDGE, EDGE, bound, bound] + [1.0] * (2 * delay), np.float32)
    actions = Box(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
    return time_limit(Environment(reset, step, Box(-high, high), actions), limit)


def reward(observations: chex.Array, *, goal: tuple[float, float] = (0.0, 0.0)) -> chex.Array:
    """-|x - goal| of observations [..., 2 or more] of what an action led to: float [...]."""
    places = observations[..., :2]
    gap = places - jnp.broadcast_to(jnp.asarray(goal, places.dtype), places.shape)
    return -jnp.sqrt(jnp.sum(jnp.square(gap), axis=-1) + 1e-12)


def controller(observations: chex.Array, *, inertia: float = 0.5, goal: tuple[float, float] = (0.0, 0.0)) -> chex.Array:
    """The action that brings the point to its goal in one step, as far as it may: [..., 4] -> [..., 2].

    Of observations [..., 2], the place alone, it is that of a point at rest.
    """
    place, velocity = observations[..., :2], observations[..., 2:4]
    velocity = velocity if velocity.shape[-1] else jnp.zeros_like(place)
    gap = place - jnp.broadcast_to(jnp.asarray(goal, place.dtype), place.shape)
    return jnp.clip(-(gap + inertia * velocity) / FORCE, -1.0, 1.0)
