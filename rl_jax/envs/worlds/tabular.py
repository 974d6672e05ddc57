"""Finite MDPs as arrays and as environments, small enough for exact solutions (rl_jax.control.tabular)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Table(NamedTuple):
    """A finite MDP of S states and A actions.

    Attributes:
      transition_probs: float32 [S, A, S]. The amount by which a row sums to less than 1 is the probability that the
        episode ends.
      rewards: float32 [S, A].
      start_probs: float32 [S].
      limit: steps after which an episode is truncated.
    """

    transition_probs: np.ndarray
    rewards: np.ndarray
    start_probs: np.ndarray
    limit: int


def environment(table: Table) -> Environment:
    """The MDP as an Environment; the observation is the state, one-hot float32 [S]."""
    states, actions = table.rewards.shape

    def observe(state: chex.Array) -> chex.Array:
        return jax.nn.one_hot(state, states)

    def reset(key: chex.PRNGKey):
        state = jax.random.categorical(key, jnp.log(table.start_probs))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        probs = jnp.asarray(table.transition_probs)[state, action]
        ending = jnp.maximum(1.0 - jnp.sum(probs), 0.0)
        following = jax.random.categorical(key, jnp.log(jnp.append(probs, ending)))
        ended = following == states
        reward = jnp.asarray(table.rewards)[state, action]
        state = jnp.where(ended, state, following)
        return state, Step(observe(state), reward, ended, NO)

    space = Box(np.zeros(states, np.float32), np.ones(states, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(actions)), table.limit)


def gridworld(*, size: int = 4, step_reward: float = 0.0, slip: float = 0.0, limit: int = 50) -> Table:
    """size x size places, actions up, down, left, right; a step into the last corner ends the episode.

    The reward of a step is the probability that it reaches the goal: 1 for the last step if nothing slips. An episode
    starts in a random place other than the goal.

    Args:
      size: places per side.
      step_reward: added to every step's reward.
      slip: probability of a random direction.
      limit: steps after which an episode is truncated.

    Returns:
      Table.
    """
    states = size * size
    probs, rewards = np.zeros((states, 4, states)), np.full((states, 4), step_reward)
    goal = states - 1
    moved = np.zeros((states, 4), int)
    for state in range(states):
        row, column = divmod(state, size)
        for action, (down, right) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
            next_cell = min(max(row + down, 0), size - 1), min(max(column + right, 0), size - 1)
            moved[state, action] = next_cell[0] * size + next_cell[1]
    for state in range(states):
        for action in range(4):
            for other in range(4):
                share = slip / 4 + (1 - slip) * (other == action)
                if moved[state, other] == goal or state == goal:
                    rewards[state, action] += share * (state != goal)
                else:
                    probs[state, action, moved[state, other]] += share
    start = np.ones(states) * (np.arange(states) != goal) / (states - 1)
    return Table(*(x.astype(np.float32) for x in (probs, rewards, start)), limit)
