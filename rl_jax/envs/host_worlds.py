"""Environments that are plain objects on the host, one at a time: the small `host/shuttle`, or any of gymnasium's.

They are what actors step (rl_jax.rollout.actors). An environment must be a function of its seed and its actions: that
is how a run that resumes, or an actor that comes back, finds its episodes again (the actions are given once more).
"""

from typing import Any, Protocol

import numpy as np

from rl_jax.core.binding import bind
from rl_jax.envs import protocol
from rl_jax.envs.protocol import Box, Discrete
from rl_jax.envs.subtasks import subtasks
from rl_jax.envs.thoughts import thoughts


class HostEnv(Protocol):
    """One environment, without automatic reset. One with a task also has `solved`: bool, in this episode so far."""

    observation_space: Box
    action_space: Discrete | Box

    def reset(self, seed: int) -> np.ndarray:
        """Starts the episode of this seed. Returns its first observation, float32 [*shape]."""

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """One step. Returns (observation, reward, terminated, truncated), never terminated and truncated."""


class Shuttle:
    """A walk on a line to the end that a light shows: +1 there, -1 at the other end. A random walk gets 0, the best 1.

    Observation: (position, light), both from -1 to 1. Actions: 0 left, 1 right. The seed decides start and light.

    Args:
      length: cells from the middle to each end.
      max_steps: after so many steps an episode is truncated.
    """

    def __init__(self, length: int = 4, max_steps: int = 40):
        if length < 2 or max_steps < 1:
            raise ValueError(f"host/shuttle: length={length} must be 2 or more, max_steps={max_steps} 1 or more")
        self.length, self.max_steps = length, max_steps
        self.observation_space = Box(np.full(2, -1.0, np.float32), np.full(2, 1.0, np.float32))
        self.action_space = Discrete(2)

    def reset(self, seed: int) -> np.ndarray:
        """Starts the episode of this seed. Returns its first observation, float32 [2]."""
        rng = np.random.default_rng(seed)
        self._light = 1 if rng.random() < 0.5 else -1
        self._position, self._time = int(rng.integers(-1, 2)), 0
        return self._observation()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """One cell to the left (0) or to the right (1)."""
        self._position += 1 if int(action) else -1
        self._time += 1
        at_end = abs(self._position) >= self.length
        reward = float(np.sign(self._position) * self._light) if at_end else 0.0
        return self._observation(), reward, at_end, not at_end and self._time >= self.max_steps

    def _observation(self) -> np.ndarray:
        return np.asarray([self._position / self.length, self._light], np.float32)


def shuttle(*, length: int = 4, max_steps: int = 40) -> Shuttle:
    """A Shuttle of these sizes."""
    return Shuttle(length, max_steps)


HOST_WORLDS = {"shuttle": shuttle, "thoughts": thoughts, "subtasks": subtasks}


def load_host_env(name: str, **keywords) -> HostEnv:
    """The environment of this name.

    Args:
      name: "host/shuttle", "gymnasium/NAME", "metaworld/TASK", or "module:function" of one's own, which returns a
        HostEnv.
      **keywords: of the environment.

    Raises:
      ValueError: if the name or a keyword is unknown.
      ImportError: if a library is needed and not installed; the message says what to install.
    """
    library, _, rest = name.partition("/")
    if library == "gymnasium":
        from rl_jax.envs.adapters.from_gymnasium import make_single  # only where it is installed

        return make_single(rest, **keywords)
    if library == "metaworld":
        from rl_jax.envs.adapters.from_metaworld import make_task  # only where it is installed

        return make_task(rest, **keywords)
    if library == "host" and rest in HOST_WORLDS:
        return bind({"fn": HOST_WORLDS[rest], **keywords}, protocol)()
    if ":" in name:
        return bind({"fn": name, **keywords}, protocol)()
    known = ", ".join(
        [f"host/{name}" for name in HOST_WORLDS] + ["gymnasium/NAME", "metaworld/TASK", "module:function"]
    )
    raise ValueError(f"env.name={name!r} is no environment that actors can step: it must be one of {known}")
