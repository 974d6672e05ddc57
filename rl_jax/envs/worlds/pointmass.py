"""A point in the plane that should go to the origin: continuous actions, an exact and simple good policy.

    v' = inertia v + 0.2 a,   x' = clip(x + v', -1.5, 1.5),   r = -|x'|

a in [-1, 1]^2. The observation is (x, v). An episode starts at rest in a random place and is cut off after `limit`
steps; it never terminates.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

FORCE, EDGE = 0.2, 1.5
NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, inertia: float = 0.5, limit: int = 20) -> Environment:
    """The point as an Environment.

    Args:
      inertia: the share of the velocity that stays per step, from 0 to below 1.
      limit: steps after which an episode is truncated.

    Raises:
      ValueError: if the inertia is out of range.
    """
    if not 0.0 <= inertia < 1.0:
        raise ValueError(f"inertia={inertia} must be from 0 to below 1")

    def reset(key: chex.PRNGKey):
        place = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        state = jnp.concatenate([place, jnp.zeros(2)])
        return state, state

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        velocity = inertia * state[2:] + FORCE * jnp.clip(action, -1.0, 1.0)
        place = jnp.clip(state[:2] + velocity, -EDGE, EDGE)
        state = jnp.concatenate([place, velocity])
        return state, Step(state, -jnp.sqrt(jnp.sum(jnp.square(place)) + 1e-12), NO, NO)

    bound = FORCE / (1.0 - inertia)
    high = np.asarray([EDGE, EDGE, bound, bound], np.float32)
    actions = Box(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
    return time_limit(Environment(reset, step, Box(-high, high), actions), limit)


def controller(observations: chex.Array, *, inertia: float = 0.5) -> chex.Array:
    """The action that brings the point to the origin in one step, as far as it may: [..., 4] -> [..., 2]."""
    place, velocity = observations[..., :2], observations[..., 2:]
    return jnp.clip(-(place + inertia * velocity) / FORCE, -1.0, 1.0)
