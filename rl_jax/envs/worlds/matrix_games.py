"""Games of two agents given by tables: one step, or QMIX's two steps; their best and their minimax values are known.

    stage       agent 0 takes row i, agent 1 column j; both get r_ij, or r_ij and -r_ij
    two_step    agent 0's first action leads to table A or B; the second actions are paid by that table

QMIX's tables (arXiv 1803.11485 section 5): all 7, and ((0, 1), (1, 8)). A sum of the agents' values fitted under
uniform exploration gives B's best pair 6.5, less than 7, so it ends with 7; a monotone mixture finds 8.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Agents, Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
YES = np.bool_(True)
# Claus and Boutilier (1998): the best pair is beside the worst ones.
CLIMBING = ((11.0, -30.0, 0.0), (-30.0, 7.0, 6.0), (0.0, 0.0, 5.0))
QMIX_TABLES = (((7.0, 7.0), (7.0, 7.0)), ((0.0, 1.0), (1.0, 8.0)))


def stage(payoffs: Sequence[Sequence[float]] = CLIMBING, *, common: bool = True) -> Environment:
    """A game of one step; the observation is 1.

    Args:
      payoffs: r of agent 0, [n][n].
      common: whether agent 1 gets r, too; if not, it gets -r.

    Raises:
      ValueError: if the table is not square.
    """
    table = np.asarray(payoffs, np.float32)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"agents/stage: env.payoffs has the shape {table.shape}: it must be square")
    signs = np.asarray([1.0, 1.0 if common else -1.0], np.float32)
    seen = np.ones((2, 2), np.float32)  # one feature of the agent, one of the state

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), jnp.asarray(seen)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        chex.assert_shape(action, (2,))
        reward = jnp.asarray(table)[action[0], action[1]] * jnp.asarray(signs)
        return state, Step(jnp.asarray(seen), reward, YES, NO)

    space = Box(np.zeros(2, np.float32), np.ones(2, np.float32))
    return Environment(reset, step, space, Discrete(len(table)), agents=Agents(2, 1, common))


def two_step(tables: Sequence[Sequence[Sequence[float]]] = QMIX_TABLES) -> Environment:
    """QMIX's game of two steps; every agent sees which of the three states it is in.

    Args:
      tables: common rewards of the second step after agent 0's first action, [2][2][2].
    """
    paid = np.asarray(tables, np.float32)
    chex.assert_shape(paid, (2, 2, 2))

    def observe(state: chex.Array) -> chex.Array:
        return jnp.tile(jax.nn.one_hot(state, 3), (2, 2))  # what an agent sees is the state

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        chex.assert_shape(action, (2,))
        first = state == 0
        found = jnp.asarray(paid)[jnp.maximum(state - 1, 0), action[0], action[1]]
        reward = jnp.where(first, 0.0, found)
        state = jnp.where(first, 1 + action[0], state)
        return state, Step(observe(state), jnp.full(2, reward), ~first, NO)

    space = Box(np.zeros(6, np.float32), np.ones(6, np.float32))
    return Environment(reset, step, space, Discrete(2), agents=Agents(2, 3, True))


def exploitability(payoffs: Sequence[Sequence[float]], row: np.ndarray, column: np.ndarray) -> float:
    """What both agents of a zero-sum game could gain by their best answers; 0 exactly at the minimax policies.

        max_i (R q)_i - min_j (p R)_j

    Args:
      payoffs: R, of agent 0, [n][n].
      row: p, agent 0's probabilities [n].
      column: q, agent 1's probabilities [n].
    """
    table = np.asarray(payoffs, np.float64)
    chex.assert_shape([row, column], (len(table),))
    return float(np.max(table @ column) - np.min(row @ table))
