"""A noisy television: a line of places, at whose left end a screen shows a random channel in every step.

What cannot be predicted there cannot be learned either: a bonus for prediction errors stays there for ever.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, length: int = 8, channels: int = 8) -> Environment:
    """Starts in the middle; actions left and right; 1 at the right end, which ends the episode.

    Args:
      length: number of places; the screen is at place 0; truncated after 4 length steps.
      channels: of the screen. The observation is the place, one-hot, then the channel, one-hot; 0 away from the screen.
    """

    def observe(key: chex.PRNGKey, place: chex.Array) -> chex.Array:
        shown = jax.nn.one_hot(jax.random.randint(key, (), 0, channels), channels) * (place == 0)
        return jnp.concatenate([jax.nn.one_hot(place, length), shown])

    def reset(key: chex.PRNGKey):
        return jnp.int32(length // 2), observe(key, jnp.int32(length // 2))

    def step(key: chex.PRNGKey, place: chex.Array, action: chex.Array):
        place = jnp.clip(place + 2 * action - 1, 0, length - 1).astype(jnp.int32)
        ended = place == length - 1
        return place, Step(observe(key, place), ended.astype(jnp.float32), ended, NO)

    size = length + channels
    space = Box(np.zeros(size, np.float32), np.ones(size, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), 4 * length)
