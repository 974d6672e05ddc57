"""envpool's environments in our protocol (the optional extra `envpool`): many environments in C++ threads on the host.

For the consequences of living on the host see rl_jax.envs.adapters.host.
"""

import numpy as np

from rl_jax.envs.adapters.adapting import check_name, construct
from rl_jax.envs.adapters.from_gymnasium import observations, space
from rl_jax.envs.adapters.host import hosted
from rl_jax.envs.protocol import Vector

try:
    import envpool
except ImportError as error:
    raise ImportError("envpool environments need the extra: pip install -e '.[envpool]'") from error


class _Host:
    """A pool that resets an environment in the step that ends its episode; envpool itself uses the next step."""

    def __init__(self, name: str, num_envs: int, keywords: dict):
        self.make = lambda **given: envpool.make(name, env_type="gymnasium", num_envs=num_envs, **keywords, **given)
        self.pool = construct(f"envpool/{name}", self.make)
        self.observation_space, self.observe = observations(self.pool.observation_space)
        self.action_space = space(self.pool.action_space)
        if len(self.observation_space.shape) > 1:
            raise ValueError(
                f"envpool/{name}: observations of shape {self.observation_space.shape} are frames with channels "
                "first, which the networks would read as height; only flat observations are supported"
            )

    def reset(self, seed: int) -> np.ndarray:
        self.pool = self.make(seed=seed)  # a pool can be seeded only when it is created
        observation, _ = self.pool.reset()
        return self.observe(observation)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        last, reward, terminated, truncated, _ = self.pool.step(actions)
        last = self.observe(last)
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)  # its buffers
        observation, over = last, np.flatnonzero(terminated | truncated).astype(np.int32)
        if over.size:
            observation = last.copy()
            observation[over] = self.observe(self.pool.reset(over)[0])
        return observation, last, np.array(reward, np.float32), terminated, truncated & ~terminated


def make_vector(name: str, num_envs: int, **keywords) -> Vector:
    """num_envs copies of envpool.make(name, **keywords), such as "Ant-v4", num_threads=2.

    Raises:
      ValueError: if the name or a keyword is unknown, a space is neither Discrete nor Box, or observations are frames.
    """
    check_name("envpool", name, envpool.list_all_envs())
    return hosted(_Host(name, num_envs, keywords), num_envs)
