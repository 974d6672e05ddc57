"""Several agents for updaters that know of one: agents as rows of a batch, or all of them as one agent.

    as_rows    row b A + a: o = (own observation of agent a, one-hot a, the world's state), its own reward
    as_one     o = (own observation and one-hot of every agent, the world's state), actions int32 [A], r = mean_a r_a

Both wrap a Vector whose observations are float32 [B, A, D + S] and whose rewards are float32 [B, A]. Rows share the
params of one network, which tells agents apart by the one-hot. Sources: IPPO, arXiv 2011.09533; MAPPO, arXiv
2103.01955, whose critic also sees the state; as_one is for mixers of values, arXiv 1803.11485.
"""

from typing import Any

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Agents, Box, Joint, Step, Vector


def as_rows(env: Vector, *, central: bool = False) -> Vector:
    """`env` with A rows for each world, which all updaters take.

    The actor of a centralised critic reads the first Agents.own features only (network.actor_features).

    Args:
      env: Vector of B worlds with A agents.
      central: whether the rows end with the world's state.

    Returns:
      Vector of B A rows; its `agents` counts the one-hot to an agent's own features.

    Raises:
      ValueError: if there is only one agent.
    """
    count, own, _ = _check(env)

    def rows(observations: chex.Array) -> chex.Array:
        seen = _with_ids(observations, own)
        kept = jnp.concatenate([seen, observations[..., own:]], axis=-1) if central else seen
        return kept.reshape(-1, kept.shape[-1])

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        return state, rows(observation)

    def step(state: Any, action: chex.Array, drawn: Any):
        state, observation, now = env.step(state, action.reshape(-1, count), drawn)
        ended = (jnp.repeat(x, count) for x in (now.terminated, now.truncated))
        return state, rows(observation), Step(rows(now.observation), now.reward.reshape(-1), *ended)

    low, high = env.observation_space
    ids = np.zeros(count, np.float32), np.ones(count, np.float32)
    low, high = (
        np.concatenate([x[:own], unit, x[own:] if central else x[:0]]) for x, unit in zip((low, high), ids, strict=True)
    )
    return env._replace(
        reset=reset,
        step=step,
        num_envs=env.num_envs * count,
        observation_space=Box(low, high),
        agents=env.agents._replace(own=own + count),
    )


def as_one(env: Vector) -> Vector:
    """`env` with one agent for each world, which takes the actions of all A and gets the team's reward.

    Args:
      env: Vector of B worlds with A agents that all get the same reward.

    Returns:
      Vector of B worlds; its actions are Joint, int32 [B, A].

    Raises:
      ValueError: if there is only one agent, or the agents get different rewards.
    """
    count, own, common = _check(env)
    if not common:
        raise ValueError("env.agents.fn='as_one' needs agents that share a reward; others are as_rows")

    def joined(observations: chex.Array) -> chex.Array:
        seen = _with_ids(observations, own)
        return jnp.concatenate([seen.reshape(len(seen), -1), observations[:, 0, own:]], axis=-1)

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        return state, joined(observation)

    def step(state: Any, action: chex.Array, drawn: Any):
        state, observation, now = env.step(state, action, drawn)
        seen, reward = joined(now.observation), jnp.mean(now.reward, axis=-1)
        return state, joined(observation), now._replace(observation=seen, reward=reward)

    low, high = env.observation_space
    ids = np.zeros(count, np.float32), np.ones(count, np.float32)
    low, high = (
        np.concatenate([np.tile(np.concatenate([x[:own], unit]), count), x[own:]])
        for x, unit in zip((low, high), ids, strict=True)
    )
    return env._replace(
        reset=reset,
        step=step,
        observation_space=Box(low, high),
        action_space=Joint(env.action_space.n, count),
        agents=env.agents._replace(own=own + count),
    )


def _check(env: Vector) -> Agents:
    if env.agents is None:
        raise ValueError("env.agents is for environments of several agents, and this one has a single one")
    return env.agents


def _with_ids(observations: chex.Array, own: int) -> chex.Array:
    """Each agent's own features and its one-hot: float [B, A, D + S] -> [B, A, D + A]."""
    chex.assert_rank(observations, 3)
    batch, count, _ = observations.shape
    ids = jnp.broadcast_to(jnp.eye(count), (batch, count, count))
    return jnp.concatenate([observations[..., :own], ids], axis=-1)
