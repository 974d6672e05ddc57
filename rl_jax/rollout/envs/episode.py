"""One whole episode of one world, kept step by step, to be looked at."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.rollout.envs.steps import at_the_mode, collect, start


class Episode(NamedTuple):
    """One episode of at most T steps; what is at and behind `length` belongs to no step of it.

    observations: float32 [T, *shape], of the states in which the actions were taken. last: float32 [*shape], of the
        state that the last step has led to. actions: [T, ...], as the environment read them. rewards: float32 [T].
    length: int32 []. terminated, truncated: bool []. How it ended; neither where T came first.
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
    """The first episode of a world that starts anew: to its end, or max_steps of it.

    policy, distribution: as for steps.collect. env: an envs.Vector of one world. max_steps: T. greedy: the
    distribution's mode, no sample. memory: the agent's, empty. Raises ValueError for another number of worlds.
    """
    if env.num_envs != 1:
        raise ValueError(f"an episode is recorded in one world, not in {env.num_envs}")
    distribution = at_the_mode(distribution) if greedy else distribution
    reset_key, key = jax.random.split(key)
    # What a world does after the end of its first episode is stepped too, and not looked at: the scan is one size.
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
