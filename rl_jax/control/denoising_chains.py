"""Chains of denoising steps for control.denoising: sampling with branches, their scores, and which of them are kept."""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import Mean

EPS = 1e-4
PROMPT, GAIN = slice(2, 4), 5  # places in the observation of worlds.denoising


class Chains(NamedTuple):
    """B chains of T steps.

    Attributes:
      observations: float32 [B, T, 9].
      actions: float32 [B, T, 2].
      means: float32 [B, T, 2], of the policy that sampled.
      rewards: float32 [B], of x_0.
      ends: float32 [B, 2], x_0.
    """

    observations: chex.Array
    actions: chex.Array
    means: chex.Array
    rewards: chex.Array
    ends: chex.Array


def means_at(policy: Callable, observations: chex.Array) -> chex.Array:
    """The policy's means, float32 [..., 2], at observations [..., 9]. policy: observations [N, 9] -> [N, 2]."""
    flat = observations.reshape(-1, observations.shape[-1])
    return policy(flat).reshape(*observations.shape[:-1], -1)


def sample_chains(
    policy: Callable,
    env,
    key: chex.PRNGKey,
    *,
    num_steps: int,
    branch_at: chex.Array,
    branches: int,
    prompts: chex.Array | None = None,
) -> Chains:
    """B chains from new starts that share a prefix in groups.

    Args:
      policy: observations [B, 9] -> means [B, 2].
      env: an envs.Vector of worlds.denoising.
      key: typed PRNG key.
      num_steps: T.
      branch_at: number of steps that the chains of a group share, int32 []; they always share start and prompt.
      branches: G.
      prompts: directions of the chains in place of the env's own, float32 [B, 2].
    """
    start_key, noise_key, ahead_key = jax.random.split(key, 3)
    first = (jnp.arange(env.num_envs) // branches) * branches
    noises = jax.random.normal(noise_key, (num_steps, env.num_envs, 2))

    def step(carry, drawn):
        state, observation = carry
        index, noise, ahead = drawn
        # Up to the branch all chains of a group draw the same noise from the same start, so they are one chain.
        noise = jnp.where(index < branch_at, noise[first], noise)
        means = policy(observation)
        actions = means + noise
        state, following, now = env.step(state, actions, ahead)
        return (state, following), (observation, actions, means, now.reward, now.observation)

    state, observation = jax.tree.map(lambda x: x[first], env.reset(start_key))
    if prompts is not None:
        state, observation = state._replace(direction=prompts), observation.at[:, PROMPT].set(prompts)
    drawn = (jnp.arange(num_steps), noises, env.ahead(ahead_key, num_steps))
    _, (observations, actions, means, rewards, following) = jax.lax.scan(step, (state, observation), drawn)
    observations, actions, means = (jnp.swapaxes(x, 0, 1) for x in (observations, actions, means))
    return Chains(observations, actions, means, jnp.sum(rewards, axis=0), following[-1, :, :2])


def prompt_scores(
    rewards: chex.Array, prompts: chex.Array, seen: chex.Array, seen_prompts: chex.Array, filled: chex.Array
) -> chex.Array:
    """(r - mean) / (std + 1e-4) over all rewards of the same prompt, float32 [B]; the std divides by n - 1.

    Args:
      rewards: float32 [B].
      prompts: float32 [B, 2].
      seen: rewards to compare with, these included, float32 [N].
      seen_prompts: float32 [N, 2].
      filled: 1 for entries of `seen` that count, float32 [N].
    """
    chex.assert_equal_shape([seen, filled])
    same = jnp.all(jnp.abs(prompts[:, None] - seen_prompts[None]) < 1e-3, axis=-1) * filled[None]
    count = jnp.sum(same, axis=1)
    mean = same @ seen / jnp.maximum(count, 1.0)
    square = jnp.sum(same * jnp.square(seen[None] - mean[:, None]), axis=1)
    return (rewards - mean) / (jnp.sqrt(square / jnp.maximum(count - 1.0, 1.0)) + EPS)


def keep_extremes(scores: chex.Array, *, high: float, low: float) -> chex.Array:
    """Of each group the best chain if its score is at least `high` and the worst if it is below `low`: 1 or 0.

    Args:
      scores: float32 [groups, G].
      high: B2-DiffuRL has 0.5.
      low: -0.5.
    """
    size = scores.shape[-1]
    best = jax.nn.one_hot(jnp.argmax(scores, axis=-1), size) * (scores >= high)
    worst = jax.nn.one_hot(jnp.argmin(scores, axis=-1), size) * (scores < low)
    return jnp.maximum(best, worst)


def steps_trained(count: chex.Array, *, first: int, last: int, growth: int) -> chex.Array:
    """n after `count` updates: first + floor(count (last - first + 1) / growth), at most last. int32 []."""
    level = count * (last - first + 1) // growth
    return jnp.minimum(first + level, last).astype(jnp.int32)


def prompts_of(chains: Chains) -> chex.Array:
    """The prompt of each chain: its direction, float32 [B, 2]."""
    return chains.observations[:, 0, PROMPT]


def chain_metrics(chains: Chains) -> dict[str, Mean]:
    """episode/return, episode/length, and episode/spread: the variance of x_0 within a prompt, per coordinate."""
    count, prompts = jnp.float32(len(chains.rewards)), prompts_of(chains)
    same = jnp.all(jnp.abs(prompts[:, None] - prompts[None]) < 1e-3, axis=-1).astype(jnp.float32)
    centers = same @ chains.ends / jnp.sum(same, axis=1)[:, None]
    return {
        "episode/return": Mean(jnp.sum(chains.rewards), count),
        "episode/length": Mean(count * chains.actions.shape[1], count),
        "episode/spread": Mean(jnp.sum(jnp.mean(jnp.square(chains.ends - centers), axis=-1)), count),
    }
