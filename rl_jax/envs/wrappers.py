"""Observation wrappers: the last k observations stacked, or some features of each observation.

Both wrap a Vector, so they also work for environments on the host, and the starts that are sampled ahead do not grow.
"""

from typing import Any, NamedTuple

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Vector, where

AT_RESET = {"repeat": lambda first: first, "zeros": jnp.zeros_like}


class Stacked(NamedTuple):
    """State of `frame_stack`.

    Attributes:
      state: the Vector's own.
      frames: float32 [B, ..., (k - 1) C]. The observations that will precede the next one.
    """

    state: Any
    frames: chex.Array


def frame_stack(env: Vector, k: int, *, at_reset: str = "repeat") -> Vector:
    """Stacks the last k observations [B, ..., C] of the episode as [B, ..., k C], newest last.

    Source: arXiv 1312.5602, section 4.1.

    Args:
      env: Vector.
      k: number of observations. 1 returns env itself.
      at_reset: what fills the places before an episode's first observation: "repeat" (that observation) or "zeros".

    Returns:
      Vector.

    Raises:
      ValueError: if k < 1, or for another at_reset.
    """
    if k < 1 or at_reset not in AT_RESET:
        raise ValueError(f"frame_stack: k={k} must be at least 1, at_reset={at_reset!r} one of {', '.join(AT_RESET)}")
    if k == 1:
        return env
    size = env.observation_space.shape[-1]

    def begin(first: chex.Array) -> chex.Array:
        return jnp.concatenate([AT_RESET[at_reset](first)] * (k - 1) + [first], axis=-1)

    def reset(key: chex.PRNGKey):
        state, first = env.reset(key)
        stack = begin(first)
        return Stacked(state, stack[..., size:]), stack

    def step(state: Stacked, action: chex.Array, drawn: Any):
        inner, observation, now = env.step(state.state, action, drawn)
        last = jnp.concatenate([state.frames, now.observation], axis=-1)
        stack = where(now.done, begin(observation), last)
        return Stacked(inner, stack[..., size:]), stack, now._replace(observation=last)

    low, high = env.observation_space
    if at_reset == "zeros":
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    space = Box(*(np.concatenate([bound] * k, axis=-1) for bound in (low, high)))
    told = env.told and (lambda state: env.told(state.state))
    return env._replace(reset=reset, step=step, observation_space=space, told=told)


def select_features(env: Vector, indices: tuple[int, ...]) -> Vector:
    """`env` with only observation[..., indices] visible, e.g. (0, 2) of CartPole: positions without velocities.

    Args:
      env: Vector.
      indices: along the observation's last axis. () returns env itself.

    Returns:
      Vector.

    Raises:
      ValueError: if an index is out of range.
    """
    if not indices:
        return env
    size = env.observation_space.shape[-1]
    if not all(0 <= i < size for i in indices):
        raise ValueError(f"select_features: {tuple(indices)} are not indices of an observation of size {size}")
    kept = np.asarray(indices)

    def reset(key: chex.PRNGKey):
        state, first = env.reset(key)
        return state, first[..., kept]

    def step(state: Any, action: chex.Array, drawn: Any):
        state, observation, now = env.step(state, action, drawn)
        return state, observation[..., kept], now._replace(observation=now.observation[..., kept])

    space = Box(*(bound[..., kept] for bound in env.observation_space))
    return env._replace(reset=reset, step=step, observation_space=space)
