"""Errands: a line of places, and a task that needs the order of two visits: A at the left end, then B at the right one.

The reward is no function of where the agent is. `table` is the product with the task's machine, for exact solutions.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit
from rl_jax.envs.worlds.tabular import Table

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, length: int = 7, shown: bool = False) -> Environment:
    """Starts in the middle; actions left and right; 1 for reaching B after A, which ends the episode.

    Args:
      length: number of places; truncated after 4 length steps.
      shown: whether the observation says if A was visited.
    """

    def observe(state) -> chex.Array:
        place, visited = state
        seen = jax.nn.one_hot(place, length)
        return jnp.append(seen, visited.astype(jnp.float32)) if shown else seen

    def reset(key: chex.PRNGKey):
        state = (jnp.int32(length // 2), jnp.bool_(False))
        return state, observe(state)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        place, visited = state
        place = jnp.clip(place + 2 * action - 1, 0, length - 1).astype(jnp.int32)
        ended = visited & (place == length - 1)
        state = (place, visited | (place == 0))
        return state, Step(observe(state), ended.astype(jnp.float32), ended, NO)

    size = length + shown
    space = Box(np.zeros(size, np.float32), np.ones(size, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), 4 * length)


def table(*, length: int = 7) -> Table:
    """The same MDP with the visit to A in its states: state = place + length * visited; 2 length states."""
    probs, rewards = np.zeros((2 * length, 2, 2 * length), np.float32), np.zeros((2 * length, 2), np.float32)
    for state in range(2 * length):
        visited, place = divmod(state, length)
        for action in range(2):
            target = min(max(place + 2 * action - 1, 0), length - 1)
            if visited and target == length - 1:
                rewards[state, action] = 1.0
            else:
                probs[state, action, target + length * (visited or target == 0)] = 1.0
    start = np.zeros(2 * length, np.float32)
    start[length // 2] = 1.0
    return Table(probs, rewards, start, 4 * length)
