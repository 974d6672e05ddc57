"""A tour: stops on a line that have to be visited in order, in episodes of a fixed length."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(
    *, stops: int = 4, gap: int = 4, horizon: int = 32, distractors: int = 0, level: float = 1.0
) -> Environment:
    """Starts at place 0 of a line of 2 gap + 1 places around it; the stops are at gap and -gap by turns.

    1 / stops for each next stop. Nothing terminates: all of an episode counts.

    Args:
      stops: number of stops.
      gap: their distance from the start.
      horizon: steps of an episode; stops * 2 gap - gap are enough for all.
      distractors: numbers at the end of the observation that mean nothing, drawn anew in each step.
      level: they are uniform in [-level, level].

    Raises:
      ValueError: if the number of distractors or their level is negative.
    """
    if distractors < 0 or level < 0.0:
        raise ValueError(f"distractors={distractors} and level={level} must be 0 or more")
    size = 2 * gap + 1

    def observe(key: chex.PRNGKey, state) -> chex.Array:
        place, reached = state
        seen = jnp.concatenate([jax.nn.one_hot(place + gap, size), jax.nn.one_hot(reached, stops + 1)])
        if not distractors:
            return seen
        return jnp.concatenate([seen, jax.random.uniform(key, (distractors,), minval=-level, maxval=level)])

    def reset(key: chex.PRNGKey):
        state = (jnp.int32(0), jnp.int32(0))
        return state, observe(key, state)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        place, reached = state
        place = jnp.clip(place + 2 * action - 1, -gap, gap).astype(jnp.int32)
        arrived = (place == jnp.where(reached % 2 == 0, gap, -gap)) & (reached < stops)
        state = (place, reached + arrived)
        return state, Step(observe(key, state), arrived.astype(jnp.float32) / stops, NO, NO)

    count = size + stops + 1
    low, high = np.zeros(count + distractors, np.float32), np.ones(count + distractors, np.float32)
    low[count:], high[count:] = -level, level
    space = Box(low, high)
    return time_limit(Environment(reset, step, space, Discrete(2)), horizon)
