"""An environment with its reward replaced by a learned function."""

from collections.abc import Callable

import chex

from rl_jax.envs.protocol import Vector


def learned_reward(env: Vector, reward_fn: Callable) -> Vector:
    """`env` with the reward r(o, a), o being the observation that was acted on.

    It is called in every step. Training instead relabels its T B steps at once (control.reward_learning.by_reward).

    Args:
      env: Vector.
      reward_fn: (observations float32 [B, *shape], actions [B, ...] as the environment takes them) -> float32 [B].

    Returns:
      Vector.
    """

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        return (state, observation), observation

    def step(state, action: chex.Array, drawn):
        inner, before = state
        inner, observation, now = env.step(inner, action, drawn)
        return (inner, observation), observation, now._replace(reward=reward_fn(before, action))

    told = env.told and (lambda state: env.told(state[0]))
    return env._replace(reset=reset, step=step, told=told)
