"""Rollouts in environments: T steps of B envs in one scan, and the evaluation of whole episodes.

Only the policy forward and the env step run inside the scan. Randomness is sampled beforehand. Quantities that no later
step needs (log-probs, values) are computed afterwards, for all T B steps in one matmul.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import Max, Mean


class Worlds(NamedTuple):
    """The state of B envs between two rollouts.

    Attributes:
      state: the Vector's.
      observation: float32 [B, *shape], as returned by the env.
      episode_return: float32 [B], of the current episodes; of K objectives [B, K].
      episode_length: int32 [B], of the current episodes.
      memory: of the agent, a pytree with B first; () if it has none. If episode_length is 0, it is still that of the
        previous episode.
    """

    state: Any
    observation: chex.Array
    episode_return: chex.Array
    episode_length: chex.Array
    memory: Any = ()


class Transitions(NamedTuple):
    """T steps of B envs; row b holds the steps of one of them.

    Attributes:
      observations: float32 [B, T, *shape], as returned by the env.
      next_observations: float32 [B, T, *shape], of the state that the step leads to, before any reset.
      outputs: [B, T, ...] of the policy.
      actions: [B, T, ...].
      rewards: float32 [B, T]; of K objectives [B, T, K].
      terminated: bool [B, T].
      truncated: bool [B, T].
    """

    observations: chex.Array
    next_observations: chex.Array
    outputs: chex.Array
    actions: chex.Array
    rewards: chex.Array
    terminated: chex.Array
    truncated: chex.Array


def start(env, key: chex.PRNGKey, memory: Any = ()) -> Worlds:
    """`env`, an envs.Vector, at the start of its first episodes. memory: the agent's, empty."""
    state, observation = env.reset(key)
    paid = jnp.zeros((env.num_envs, env.objectives) if env.objectives else env.num_envs)
    return Worlds(state, observation, paid, jnp.zeros(env.num_envs, jnp.int32), memory)


def memoryless(policy: Callable) -> Callable:
    """Wraps a policy of observations, [B, *shape] -> outputs [B, ...], for the functions of this file."""
    return lambda worlds: (policy(worlds.observation), worlds.memory)


def at_the_mode(distribution):
    """The distribution with `sample` replaced by its mode, for any noise."""
    return distribution._replace(sample=lambda outputs, noise: distribution.mode(outputs))


def collect(
    policy: Callable, distribution, env, worlds: Worlds, key: chex.PRNGKey, *, num_steps: int
) -> tuple[Worlds, Transitions, dict[str, Mean | Max]]:
    """num_steps steps of every env.

    Args:
      policy: Worlds -> (outputs [B, ...], memory), see `memoryless`.
      distribution: as in models.agents.distributions.
      env: an envs.Vector.
      worlds: the envs' current state.
      key: typed PRNG key.
      num_steps: T.

    Returns:
      (the envs' state afterwards, the steps, metrics of the episodes that ended; the return is summed over objectives).
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
        worlds = Worlds(state, observation, _where(done, 0.0, total), jnp.where(done, 0, length), memory)
        return worlds, (row, total, length, now.solved, env.told(state) if env.told else {})

    # Two steps per loop iteration: a third less time on a CPU, since an iteration costs as much as the step in it.
    drawn = (noise, env.ahead(env_key, num_steps))
    worlds, (rows, totals, lengths, solved, told) = jax.lax.scan(step, worlds, drawn, unroll=2)
    done = rows.terminated | rows.truncated
    ended = jnp.sum(done, dtype=jnp.float32)
    metrics = {
        "episode/return": Mean(jnp.sum(_where(done, totals, 0.0)), ended),
        "episode/length": Mean(jnp.sum(jnp.where(done, lengths, 0), dtype=jnp.float32), ended),
        "episode/truncated": Mean(jnp.sum(rows.truncated, dtype=jnp.float32), ended),
    }
    for k in range(env.objectives):
        metrics[f"episode/objective_{k}"] = Mean(jnp.sum(jnp.where(done, totals[..., k], 0.0)), ended)
    metrics |= {f"episode/{name}": Mean(jnp.sum(x), jnp.float32(x.size)) for name, x in told.items()}
    if env.tasks:
        metrics |= {f"episode/{name}": rate for name, rate in success_rates(env.tasks, solved, done).items()}
    return worlds, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), rows), metrics


def _where(condition: chex.Array, yes, no) -> chex.Array:
    """jnp.where; returns of several objectives have one axis more than the condition."""
    wide = max(jnp.ndim(yes), jnp.ndim(no)) > condition.ndim
    return jnp.where(condition[..., None] if wide else condition, yes, no)


def success_rates(tasks: tuple[str, ...], solved: chex.Array, ended: chex.Array) -> dict[str, Mean]:
    """Shares of the episodes that ended in which the task was solved at any step; Meta-World's measure.

    Sources: arXiv 1910.10897; metaworld.evaluation, which counts an episode as solved at its first success.

    Args:
      tasks: names of K tasks; environment i has task i mod K.
      solved: bool [..., B], as Step.solved.
      ended: bool [..., B], the last steps of episodes.

    Returns:
      {"success": of all episodes}, and of several tasks {"success/NAME": of one task}.
    """
    chex.assert_equal_shape([solved, ended])
    chex.assert_type([solved, ended], bool)

    def rate(solved: chex.Array, ended: chex.Array) -> Mean:
        return Mean(jnp.sum(solved & ended, dtype=jnp.float32), jnp.sum(ended, dtype=jnp.float32))

    count = len(tasks)
    each = {f"success/{name}": rate(solved[..., k::count], ended[..., k::count]) for k, name in enumerate(tasks)}
    return {"success": rate(solved, ended)} | (each if count > 1 else {})


class Outcome(NamedTuple):
    """Of one whole episode of each env.

    Attributes:
      returns: float32 [B]; of K objectives [B, K].
      lengths: int32 [B].
      solved: bool [B], whether the task was solved at any step; all False without Vector.tasks.
    """

    returns: chex.Array
    lengths: chex.Array
    solved: chex.Array


def evaluate(
    policy: Callable,
    distribution,
    env,
    key: chex.PRNGKey,
    *,
    max_steps: int,
    greedy: bool = False,
    memory: Any = (),
) -> Outcome:
    """One whole episode of each env, to its end or max_steps.

    The loop ends with the longest episode.

    Args:
      policy: Worlds -> (outputs [B, ...], memory), see `memoryless`.
      distribution: as in `collect`.
      env: an envs.Vector; it is reset first.
      key: typed PRNG key.
      max_steps: limit on the length of an episode.
      greedy: act by the distribution's mode instead of sampling.
      memory: the agent's, empty.

    Returns:
      Outcome.
    """
    reset_key, key = jax.random.split(key)
    distribution = at_the_mode(distribution) if greedy else distribution

    def unfinished(carry):
        return jnp.any(carry[2]) & (carry[0] < max_steps)

    def step(carry):
        time, worlds, alive, solved = carry
        noise_key, env_key = jax.random.split(jax.random.fold_in(key, time))
        outputs, memory = policy(worlds)
        actions = distribution.sample(outputs, distribution.noise(noise_key, (env.num_envs,)))
        ahead = jax.tree.map(lambda x: x[0], env.ahead(env_key, 1))
        state, observation, now = env.step(worlds.state, distribution.to_env(actions), ahead)
        total = worlds.episode_return + _where(alive, now.reward, 0.0)
        worlds = Worlds(state, observation, total, worlds.episode_length + alive, memory)
        solved = jnp.where(alive, now.solved, solved) if env.tasks else solved
        return time + 1, worlds, alive & ~now.done, solved

    alive = jnp.ones(env.num_envs, bool)
    carry = (jnp.int32(0), start(env, reset_key, memory), alive, jnp.zeros_like(alive))
    _, worlds, _, solved = jax.lax.while_loop(unfinished, step, carry)
    return Outcome(worlds.episode_return, worlds.episode_length, solved)
