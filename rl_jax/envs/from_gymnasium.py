"""gymnasium's environments in our protocol: stepped on the host, reached from the compiled program by a callback.

Any environment that is registered with gymnasium runs as it is: "CartPole-v1", or "my_module:MyEnv-v0", which imports
the module first. Its state lives on the host. So it is no part of a checkpoint (a resumed run starts new episodes), and
it cannot be mapped over: one run a program.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from rl_jax.envs.protocol import Box, Discrete, Step, Vector

try:
    import gymnasium
except ImportError as error:
    raise ImportError("gymnasium environments need the extra: pip install 'rl_jax[control]'") from error


class _Host:
    """B environments of gymnasium that start again where an episode ends."""

    def __init__(self, name: str, num_envs: int, mode: str, keywords: dict):
        same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        self.envs = gymnasium.make_vec(
            name, num_envs=num_envs, vectorization_mode=mode, vector_kwargs=same_step, **keywords
        )

    def reset(self, seed: np.ndarray) -> np.ndarray:
        observation, _ = self.envs.reset(seed=int(seed))
        return np.asarray(observation, np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        space = self.envs.action_space
        observation, reward, terminated, truncated, info = self.envs.step(np.asarray(actions, space.dtype))
        last = np.array(observation, np.float32)  # a copy: the vector writes into its own next time
        for i in np.flatnonzero(info.get("_final_obs", ())):
            last[i] = info["final_obs"][i]
        results = (np.array(x, np.float32) for x in (observation, last, reward))
        return *results, np.array(terminated, bool), np.array(truncated & ~terminated)


def make_vector(name: str, num_envs: int, *, mode: str = "sync", **keywords) -> Vector:
    """num_envs copies of gymnasium.make(name, **keywords).

    mode: "sync", one after the other, or "async", a process each. Raises gymnasium.error.Error for an unknown name, and
    ValueError for spaces that are neither Discrete nor Box.
    """
    host = _Host(name, num_envs, mode, keywords)
    observation_space, action_space = (
        space(found) for found in (host.envs.single_observation_space, host.envs.single_action_space)
    )
    observation = jax.ShapeDtypeStruct((num_envs, *observation_space.shape), jnp.float32)
    rows = jax.ShapeDtypeStruct((num_envs,), jnp.float32)
    flags = jax.ShapeDtypeStruct((num_envs,), jnp.bool_)

    def reset(key: jax.Array):
        seed = jax.random.randint(key, (), 0, 2**31 - 1)
        return (), io_callback(host.reset, observation, seed, ordered=True)

    def step(state: tuple, actions: jax.Array, drawn: tuple):
        results = io_callback(host.step, (observation, observation, rows, flags, flags), actions, ordered=True)
        return state, results[0], Step(*results[1:])

    return Vector(reset, lambda key, num_steps: (), step, num_envs, observation_space, action_space, pure=False)


def space(found) -> Discrete | Box:
    """A gymnasium space in our terms. Raises ValueError for one that is neither Discrete nor Box."""
    if isinstance(found, gymnasium.spaces.Discrete) and found.start == 0:
        return Discrete(int(found.n))
    if not isinstance(found, gymnasium.spaces.Box):
        raise ValueError(f"space {found}: only Box, and Discrete from 0, are known")
    return Box(np.asarray(found.low, np.float32), np.asarray(found.high, np.float32))
