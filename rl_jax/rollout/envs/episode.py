"""One whole episode of one environment, recorded step by step for inspection."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.rollout.envs.steps import at_the_mode, collect, start


class Episode(NamedTuple):
    """One episode of at most T steps; entries from `length` on are not part of it.

    Attributes:
      observations: float32 [T, *shape], of the states in which the actions were taken.
      last: float32 [*shape], of the state after the last step.
      actions: [T, ...], as the environment received them.
      rewards: float32 [T].
      length: int32 [].
      terminated: bool []. Whether the episode terminated; False for both if T came first.
      truncated: bool []. Whether the episode was truncated.
    """

    observations: chex.Array
    last: chex.Array
    actions: chex.Array
    rewards: chex.Array
    length: chex.Array
    terminated: chex.Array
    truncated: chex.Array


def record_episode(
    policy: Callable, distribution, env, key: chex.PRNGKey, *, max_steps: int, greedy: bool = False, memory: Any = ()
) -> Episode:
    """The first episode of a freshly reset environment: to its end, or max_steps of it.

    Args:
      policy: as in `steps.collect`.
      distribution: as in `steps.collect`.
      env: an envs.Vector of one environment; of several agents as rows (envs.agents.as_rows), the first is recorded.
      key: typed PRNG key.
      max_steps: T.
      greedy: act by the distribution's mode instead of sampling.
      memory: the agent's, empty.

    Raises:
      ValueError: if the number of environments is not 1.
    """
    if env.num_envs != 1 and (env.agents is None or env.num_envs != env.agents.count):
        raise ValueError(f"an episode is recorded in one environment: load it with num_envs=1, not {env.num_envs}")
    distribution = at_the_mode(distribution) if greedy else distribution
    reset_key, key = jax.random.split(key)
    # Steps after the end of the first episode are computed too, but not used: the scan has a fixed size.
    _, rows, _ = collect(policy, distribution, env, start(env, reset_key, memory), key, num_steps=max_steps)
    rows = jax.tree.map(lambda x: x[0], rows)
    done = rows.terminated | rows.truncated
    length = jnp.where(jnp.any(done), jnp.argmax(done).astype(jnp.int32) + 1, jnp.int32(max_steps))
    return Episode(
        observations=rows.observations,
        last=rows.next_observations[length - 1],
        actions=distribution.to_env(rows.actions),
        rewards=rows.rewards,
        length=length,
        terminated=rows.terminated[length - 1],
        truncated=rows.truncated[length - 1],
    )
