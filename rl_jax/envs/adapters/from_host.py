"""Plain objects (rl_jax.envs.host_worlds) in our protocol: "host/thoughts", or "host/my_module:make" of your own.

They are stepped one after the other, called from the compiled program; see rl_jax.envs.adapters.host for what follows
from that.
"""

import numpy as np

from rl_jax.envs.adapters.host import hosted
from rl_jax.envs.host_worlds import HostEnv, load_host_env
from rl_jax.envs.protocol import Discrete, Vector


class Row:
    """B HostEnvs with automatic reset. solving: whether they have a task, and `step` also returns who has solved it."""

    def __init__(self, envs: list[HostEnv], *, solving: bool = False):
        self.envs, self.solving = envs, solving
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space

    def reset(self, seed: int) -> np.ndarray:
        self._rng = np.random.default_rng(seed)  # of the seeds of all episodes
        return np.stack([self._first(env) for env in self.envs])

    def _first(self, env) -> np.ndarray:
        return np.asarray(env.reset(int(self._rng.integers(2**31 - 1))), np.float32)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        whole = isinstance(self.action_space, Discrete)
        results = [env.step(int(a) if whole else a) for env, a in zip(self.envs, actions, strict=True)]
        last, rewards, terminated, truncated = (np.asarray(x) for x in zip(*results, strict=True))
        solved = [np.asarray([env.solved for env in self.envs])] if self.solving else []  # before any reset
        following = np.array(last, np.float32)
        for i in np.flatnonzero(terminated | truncated):
            following[i] = self._first(self.envs[i])
        return following, last.astype(np.float32), rewards.astype(np.float32), terminated, truncated, *solved


def make_vector(name: str, num_envs: int, **keywords) -> Vector:
    """num_envs copies of a HostEnv.

    Args:
      name: of rl_jax.envs.host_worlds without its "host/", or "module:function" of one's own.
      num_envs: B.
      **keywords: of the environment.

    Returns:
      Vector.

    Raises:
      ValueError: if the name or a keyword is unknown.
    """
    name = name if ":" in name else f"host/{name}"
    return hosted(Row([load_host_env(name, **keywords) for _ in range(num_envs)]), num_envs)
