"""Finite MDPs as arrays and as environments, small enough for exact solutions (rl_jax.control.tabular)."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right, as (down, right)
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


def environment(table: Table, features: np.ndarray | None = None) -> Environment:
    """The MDP as an Environment; the observation is the state, one-hot float32 [S], or what `features` show of it.

    Args:
      table: of S states.
      features: float32 [S, D]; states with equal rows look alike.
    """
    states, actions = table.rewards.shape
    shown = np.eye(states, dtype=np.float32) if features is None else np.asarray(features, np.float32)

    def observe(state: chex.Array) -> chex.Array:
        return jnp.asarray(shown)[state]

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

    space = Box(np.minimum(shown.min(axis=0), 0.0), np.maximum(shown.max(axis=0), 1.0))
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
    cells = np.ones((size, size), bool)
    start = np.ones(cells.size) * (np.arange(cells.size) != cells.size - 1) / (cells.size - 1)
    return _maze(cells, start, step_reward=step_reward, slip=slip, limit=limit)


def chain(*, length: int = 8, slip: float = 0.0, limit: int = 0) -> Table:
    """Places 0 .. length in a line, actions left and right; starts at the left end, paid 1 for reaching the right one.

    Source: the line worlds of reward design (arXiv 2503.21949), without their keys and subgoals.

    Args:
      length: steps from the start to the goal, 1 or more.
      slip: probability of a random direction.
      limit: steps after which an episode is truncated; 0 is 4 length.

    Raises:
      ValueError: if there is no place beside the goal.
    """
    if length < 1:
        raise ValueError(f"length={length}: 1 or more")
    cells = np.ones((1, length + 1), bool)
    return _maze(cells, np.eye(length + 1)[0], slip=slip, limit=limit or 4 * length, moves=MOVES[2:])


def rooms(*, size: int = 7, slip: float = 0.05, limit: int = 0) -> Table:
    """Four rooms, a gate between each two neighbours; starts in the first corner, the goal is the last one.

    Source: RoomsNavEnv of arXiv 2503.21949 (7 x 7, slip .05), with gates in the middle of the walls.

    Args:
      size: cells per side with the walls; odd, 5 or more.
      slip: probability of a random direction.
      limit: steps after which an episode is truncated; 0 is 10 size.

    Raises:
      ValueError: if the size is even or below 5.
    """
    if size < 5 or size % 2 == 0:
        raise ValueError(f"size={size}: an odd number, 5 or more")
    cells, wall = np.ones((size, size), bool), size // 2
    cells[wall], cells[:, wall] = False, False
    for gate in (wall // 2, wall + 1 + wall // 2):
        cells[wall, gate] = cells[gate, wall] = True
    return _maze(cells, np.eye(int(cells.sum()))[0], slip=slip, limit=limit or 10 * size)


def junction(*, length: int = 4, slip: float = 0.0, limit: int = 0) -> tuple[Table, np.ndarray]:
    """A grid whose place is not seen: a way to the right, then up or down, and a sign at its start that says which.

    Actions are MOVES. A step into either end ends the episode, and the one that the sign named pays 1. Seen are the
    walls around, so that all places between the start and the junction look alike, and the sign, at the start only. An
    agent that reads the last observation cannot do better than 1/2; one that remembers the first gets 1.

    Args:
      length: steps from the start to the junction, 2 or more.
      slip: probability of a random direction.
      limit: steps after which an episode is truncated; 0 is 10 length.

    Returns:
      (Table of 2 (length + 1) states: the places of either sign; features float32 [S, 5]: walls as 0 or 1, the sign as
      1 for up, -1 for down, 0 where there is none).

    Raises:
      ValueError: if length is below 2: no two places would look alike.
    """
    if length < 2:
        raise ValueError(f"length={length}: 2 or more")
    places, half = range(length + 1), length + 1
    probs, rewards = np.zeros((2 * half, 4, 2 * half)), np.zeros((2 * half, 4))
    features = np.zeros((2 * half, 5), np.float32)
    for sign, place in ((sign, place) for sign in (0, 1) for place in places):
        state, moved = sign * half + place, {}
        for action, (down, right) in enumerate(MOVES):
            if place == length and down:
                moved[action] = None  # an end
            else:
                moved[action] = min(max(place + right, 0), length)
            features[state, action] = moved[action] == place
        features[state, 4] = (1.0 - 2.0 * sign) * (place == 0)
        for action, other in ((action, other) for action in range(4) for other in range(4)):
            share = slip / 4 + (1 - slip) * (other == action)
            if moved[other] is None:
                rewards[state, action] += share * (other == sign)  # up is 0, down 1
            else:
                probs[state, action, sign * half + moved[other]] += share
    start = np.zeros(2 * half)
    start[[0, half]] = 0.5
    table = Table(*(x.astype(np.float32) for x in (probs, rewards, start)), limit or 10 * length)
    return table, features


def _maze(cells: np.ndarray, start: np.ndarray, *, step_reward=0.0, slip=0.0, limit: int, moves=MOVES) -> Table:
    """A Table of the open cells, bool [H, W], row by row; a step into the last of them ends the episode and pays 1.

    A step into a wall stays. start: float [S]. Other arguments as for `gridworld`; moves: (down, right) of each action.
    """
    places = np.argwhere(cells)
    index = {tuple(place): i for i, place in enumerate(places.tolist())}
    states, actions, goal = len(places), len(moves), len(places) - 1
    probs, rewards = np.zeros((states, actions, states)), np.full((states, actions), step_reward)
    moved = np.zeros((states, actions), int)
    for state, (row, column) in enumerate(places.tolist()):
        for action, (down, right) in enumerate(moves):
            moved[state, action] = index.get((row + down, column + right), state)
    for state in range(states):
        for action in range(actions):
            for other in range(actions):
                share = slip / actions + (1 - slip) * (other == action)
                if moved[state, other] == goal or state == goal:
                    rewards[state, action] += share * (state != goal)
                else:
                    probs[state, action, moved[state, other]] += share
    return Table(*(x.astype(np.float32) for x in (probs, rewards, start)), limit)
