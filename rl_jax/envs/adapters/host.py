"""Environments that live on the host, reached from the compiled program by a callback.

Their state is no part of a checkpoint (a resumed run starts new episodes), and they cannot be mapped over: one run a
program.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from rl_jax.envs.protocol import Box, Discrete, Step, Vector


class Host(Protocol):
    """B environments that start again where an episode ends.

    reset: (seed) -> observation float32 [B, *shape].
    step: (actions [B, ...]) -> the observation to act on next and the step's own last, float32 [B, *shape], reward
        float32 [B], terminated and truncated bool [B], never both; arrays that nobody writes into later.
    """

    observation_space: Box
    action_space: Discrete | Box

    def reset(self, seed: int) -> np.ndarray:
        """Starts all episodes."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step of each."""


def hosted(host: Host, num_envs: int) -> Vector:
    """The B = num_envs environments of `host` as a Vector."""
    observation = jax.ShapeDtypeStruct((num_envs, *host.observation_space.shape), jnp.float32)
    rows = jax.ShapeDtypeStruct((num_envs,), jnp.float32)
    flags = jax.ShapeDtypeStruct((num_envs,), jnp.bool_)

    def start(seed: np.ndarray) -> np.ndarray:
        return host.reset(int(seed))

    def advance(actions: jax.Array) -> tuple[np.ndarray, ...]:
        return host.step(np.asarray(actions))

    def reset(key: jax.Array):
        seed = jax.random.randint(key, (), 0, 2**31 - 1)
        return (), io_callback(start, observation, seed, ordered=True)

    def step(state: tuple, actions: jax.Array, drawn: tuple):
        results = io_callback(advance, (observation, observation, rows, flags, flags), actions, ordered=True)
        return state, results[0], Step(*results[1:])

    spaces = host.observation_space, host.action_space
    return Vector(reset, lambda key, num_steps: (), step, num_envs, *spaces, pure=False)
