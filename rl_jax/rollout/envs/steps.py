"""Rollouts in environments: T steps of B worlds in one scan, and the evaluation of whole episodes.

In the loop stand only the policy's forward and the environment's step. What is random was drawn before it, and what no
later step reads (log-probs, values) is computed after it, for all T B steps in one matmul.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import Max, Mean


class Worlds(NamedTuple):
    """Where B environments stand between two rollouts.

    state: the Vector's. observation: float32 [B, *shape], as the environment gives it.
    episode_return: float32 [B]. episode_length: int32 [B]. Of the episodes that are under way.
    memory: of the agent, a pytree with B first; () where it has none. Where episode_length is 0, it is still that of
        the episode before.
    """

    state: Any
    observation: chex.Array
    episode_return: chex.Array
    episode_length: chex.Array
    memory: Any = ()


class Transitions(NamedTuple):
    """T steps of B environments, row b the steps of one of them.

    observations, next_observations: float32 [B, T, *shape], as the environment gave them; the latter of the state that
        the step leads to, before any reset.
    outputs: [B, T, ...] of the policy. actions: [B, T, ...].
    rewards: float32 [B, T]. terminated, truncated: bool [B, T].
    """

    observations: chex.Array
    next_observations: chex.Array
    outputs: chex.Array
    actions: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    truncated: chex.Array


def start(env, key: chex.PRNGKey, memory: Any = ()) -> Worlds:
    """The worlds of `env`, an envs.Vector, at the start of their first episodes. memory: the agent's, empty."""
    state, observation = env.reset(key)
    return Worlds(state, observation, jnp.zeros(env.num_envs), jnp.zeros(env.num_envs, jnp.int32), memory)


def memoryless(policy: Callable) -> Callable:
    """A policy of observations, [B, *shape] -> outputs [B, ...], as the functions of this file take one."""
    return lambda worlds: (policy(worlds.observation), worlds.memory)


def at_the_mode(distribution):
    """The distribution that samples its mode, whatever the noise."""
    return distribution._replace(sample=lambda outputs, noise: distribution.mode(outputs))


def collect(
    policy: Callable, distribution, env, worlds: Worlds, key: chex.PRNGKey, *, num_steps: int
) -> tuple[Worlds, Transitions, dict[str, Mean | Max]]:
    """num_steps steps of every world -> (where they stand then, the steps, metrics of the episodes that ended).

    policy: Worlds -> (outputs [B, ...], memory), see `memoryless`. distribution: as of models.distributions.
    env: an envs.Vector.
    """
    noise_key, env_key = jax.random.split(key)
    noise = distribution.noise(noise_key, (num_steps, env.num_envs))

    def step(worlds: Worlds, drawn):
        noise, ahead = drawn
        outputs, memory = policy(worlds)
        actions = distribution.sample(outputs, noise)
        state, observation, now = env.step(worlds.state, distribution.to_env(actions), ahead)
        total, length = worlds.episode_return + now.reward, worlds.episode_length + 1
        done = now.done
        row = Transitions(
            worlds.observation, now.observation, outputs, actions, now.reward, now.terminated, now.truncated
        )
        worlds = Worlds(state, observation, jnp.where(done, 0.0, total), jnp.where(done, 0, length), memory)
        return worlds, (row, total, length)

    # Two steps a turn of the loop: a third less time on a CPU, where a turn costs as much as the step in it.
    drawn = (noise, env.ahead(env_key, num_steps))
    worlds, (rows, totals, lengths) = jax.lax.scan(step, worlds, drawn, unroll=2)
    done = rows.terminated | rows.truncated
    ended = jnp.sum(done, dtype=jnp.float32)
    metrics = {
        "episode/return": Mean(jnp.sum(jnp.where(done, totals, 0.0)), ended),
        "episode/length": Mean(jnp.sum(jnp.where(done, lengths, 0), dtype=jnp.float32), ended),
        "episode/truncated": Mean(jnp.sum(rows.truncated, dtype=jnp.float32), ended),
    }
    return worlds, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows), metrics


def evaluate(
    policy: Callable,
    distribution,
    env,
    key: chex.PRNGKey,
    *,
    max_steps: int,
    greedy: bool = False,
    memory: Any = (),
) -> tuple[chex.Array, chex.Array]:
    """The returns and lengths of one whole episode of each world, to its end or max_steps: float32 and int32 [B].

    policy: Worlds -> (outputs [B, ...], memory), see `memoryless`. env: an envs.Vector, started anew. greedy: the
    distribution's mode, no sample. memory: the agent's, empty. The loop ends with the longest episode.
    """
    reset_key, key = jax.random.split(key)
    distribution = at_the_mode(distribution) if greedy else distribution

    def unfinished(carry):
        return jnp.any(carry[2]) & (carry[0] < max_steps)

    def step(carry):
        time, worlds, alive = carry
        noise_key, env_key = jax.random.split(jax.random.fold_in(key, time))
        outputs, memory = policy(worlds)
        actions = distribution.sample(outputs, distribution.noise(noise_key, (env.num_envs,)))
        ahead = jax.tree.map(lambda x: x[0], env.ahead(env_key, 1))
        state, observation, now = env.step(worlds.state, distribution.to_env(actions), ahead)
        total = worlds.episode_return + jnp.where(alive, now.reward, 0.0)
        worlds = Worlds(state, observation, total, worlds.episode_length + alive, memory)
        return time + 1, worlds, alive & ~now.done

    carry = (jnp.int32(0), start(env, reset_key, memory), jnp.ones(env.num_envs, bool))
    _, worlds, _ = jax.lax.while_loop(unfinished, step, carry)
    return worlds.episode_return, worlds.episode_length
