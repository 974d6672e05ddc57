"""A tour: stops on a line that have to be visited in order, in episodes of a fixed length."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, stops: int = 4, gap: int = 4, horizon: int = 32) -> Environment:
    """Starts at place 0 of a line of 2 gap + 1 places around it; the stops are at gap and -gap by turns.

    1 / stops for each next stop. Nothing terminates: all of an episode counts.

    Args:
      stops: number of stops.
      gap: their distance from the start.
      horizon: steps of an episode; stops * 2 gap - gap are enough for all.
    """
    size = 2 * gap + 1

    def observe(state) -> chex.Array:
        place, reached = state
        return jnp.concatenate([jax.nn.one_hot(place + gap, size), jax.nn.one_hot(reached, stops + 1)])

    def reset(key: chex.PRNGKey):
        state = (jnp.int32(0), jnp.int32(0))
        return state, observe(state)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        place, reached = state
        place = jnp.clip(place + 2 * action - 1, -gap, gap).astype(jnp.int32)
        arrived = (place == jnp.where(reached % 2 == 0, gap, -gap)) & (reached < stops)
        state = (place, reached + arrived)
        return state, Step(observe(state), arrived.astype(jnp.float32) / stops, NO, NO)

    count = size + stops + 1
    space = Box(np.zeros(count, np.float32), np.ones(count, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), horizon)
