"""Environments that live on the host, called from the compiled program.

Their state is not part of a checkpoint (a resumed run starts new episodes), and they cannot be mapped over: one run per
program.
"""

from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from rl_jax.envs.protocol import Box, Discrete, Step, Vector


class Host(Protocol):
    """B environments with automatic reset."""

    observation_space: Box
    action_space: Discrete | Box

    def reset(self, seed: int) -> np.ndarray:
        """Starts all episodes from `seed`. Returns the observations, float32 [B, *shape]."""

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        """One step of each environment.

        Args:
          actions: [B, ...].

        Returns:
          (the observation to act on next float32 [B, *shape], the step's own last observation float32 [B, *shape],
          reward float32 [B], terminated bool [B], truncated bool [B]). terminated and truncated are never both True.
          With tasks also whether each episode has solved its task, bool [B]. The arrays must not be written to later.
        """


def hosted(host: Host, num_envs: int, tasks: tuple[str, ...] = ()) -> Vector:
    """The B = num_envs environments of `host` as a Vector. tasks: as Vector.tasks."""
    observation = jax.ShapeDtypeStruct((num_envs, *host.observation_space.shape), jnp.float32)
    rows = jax.ShapeDtypeStruct((num_envs,), jnp.float32)
    flags = jax.ShapeDtypeStruct((num_envs,), jnp.bool_)

    def start(seed: np.ndarray) -> np.ndarray:
        return host.reset(int(seed))

    def advance(actions: jax.Array) -> tuple[np.ndarray, ...]:
        return host.step(np.array(actions))  # a copy: JAX's array is read-only, and an environment may write into it

    def reset(key: jax.Array):
        seed = jax.random.randint(key, (), 0, 2**31 - 1)
        return (), io_callback(start, observation, seed, ordered=True)

    def step(state: tuple, actions: jax.Array, drawn: tuple):
        shapes = (observation, observation, rows, flags, flags, *([flags] if tasks else []))
        results = io_callback(advance, shapes, actions, ordered=True)
        return state, results[0], Step(*results[1:])

    spaces = host.observation_space, host.action_space
    return Vector(reset, lambda key, num_steps: (), step, num_envs, *spaces, pure=False, tasks=tasks)
