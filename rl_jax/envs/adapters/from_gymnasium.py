"""gymnasium's environments in our protocol: stepped on the host, called from the compiled program.

Any environment registered with gymnasium works whose spaces are Discrete from 0 or Box, and whose reward is one number:
"CartPole-v1", or "my_module:MyEnv-v0", which imports the module first. Observations that are Discrete there are one-hot
vectors here. Actions of a Box are flat here, whatever their shape there.
For the consequences of living on the host see rl_jax.envs.adapters.host.
"""

import difflib
from collections.abc import Callable

import numpy as np

from rl_jax.envs.adapters.adapting import box
from rl_jax.envs.adapters.host import hosted
from rl_jax.envs.protocol import Box, Discrete, Vector

try:
    import gymnasium
except ImportError as error:
    raise ImportError("gymnasium environments need the extra: pip install -e '.[control]'") from error


def _made(make: Callable, name: str, **options):
    """make(name, **options). Raises ValueError if gymnasium knows no such name, or the module before ":" is missing."""
    try:
        return make(name, **options)
    except gymnasium.error.UnregisteredEnv as error:
        near = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
        said = f"the nearest: {', '.join(f'gymnasium/{other}' for other in near)}" if near else str(error)
        raise ValueError(
            f"env.name='gymnasium/{name}': gymnasium has no such environment; {said}. One of your own is "
            "gymnasium/MODULE:NAME, of a module that registers it"
        ) from error
    except ModuleNotFoundError as error:
        module, missing = name.rpartition(":")[0], error.name or getattr(error.__cause__, "name", None)
        if not module or missing != module:
            raise
        raise ValueError(
            f"env.name='gymnasium/{name}': there is no module {module!r}, which is to register the environment"
        ) from error


class _Host:
    """B gymnasium environments with automatic reset."""

    def __init__(self, name: str, num_envs: int, mode: str, keywords: dict):
        ours = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        if mode == "async":
            ours["context"] = "forkserver"  # a fork of this process, whose JAX has threads, may wait for ever
        options = {"num_envs": num_envs, "vectorization_mode": mode, "vector_kwargs": ours}
        self.envs = _made(gymnasium.make_vec, name, **options, **keywords)
        self.observation_space, self._observe = observations(self.envs.single_observation_space)
        self.action_space = flat_space(self.envs.single_action_space)

    def reset(self, seed: int) -> np.ndarray:
        return self._observe(self.envs.reset(seed=seed)[0])

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, ...]:
        theirs = self.envs.action_space
        actions = np.asarray(actions, theirs.dtype).reshape(theirs.shape)
        observation, reward, terminated, truncated, info = self.envs.step(actions)
        last = self._observe(observation)
        for i in np.flatnonzero(info.get("_final_obs", ())):
            last[i] = self._observe(info["final_obs"][i])
        results = self._observe(observation), last, np.array(reward, np.float32)
        return *results, np.array(terminated, bool), np.array(truncated & ~terminated)


def make_vector(name: str, num_envs: int, *, mode: str = "sync", **keywords) -> Vector:
    """num_envs copies of gymnasium.make(name, **keywords).

    Args:
      name: registered with gymnasium.
      num_envs: B.
      mode: "sync" steps them one after the other, "async" in one process each; these import the main module anew, so
        what a script runs must be under `if __name__ == "__main__"`.
      **keywords: of the environment.

    Returns:
      Vector.

    Raises:
      ValueError: if the name is unknown (names the nearest ones), or a space is neither Discrete nor Box, or actions
        are a Box of whole numbers.
    """
    return hosted(_Host(name, num_envs, mode, keywords), num_envs)


def space(theirs) -> Discrete | Box:
    """A gymnasium space in our types.

    Raises:
      ValueError: if it is neither Discrete nor Box.
    """
    if isinstance(theirs, gymnasium.spaces.Discrete) and theirs.start == 0:
        return Discrete(int(theirs.n))
    if not isinstance(theirs, gymnasium.spaces.Box):
        raise ValueError(f"space {theirs}: only Box, and Discrete from 0, are supported")
    return Box(np.asarray(theirs.low, np.float32), np.asarray(theirs.high, np.float32))


def flat_space(theirs) -> Discrete | Box:
    """The same, a Box as one of a single axis: the policies' actions are vectors.

    Raises:
      ValueError: as `space`, and for a Box of whole numbers: rounding down real ones would never give the largest.
    """
    ours = space(theirs)
    if isinstance(ours, Box) and not np.issubdtype(theirs.dtype, np.floating):
        raise ValueError(f"actions {theirs}: a Box of {theirs.dtype}, only Discrete and a Box of floats are supported")
    return ours if isinstance(ours, Discrete) else Box(ours.low.reshape(-1), ours.high.reshape(-1))


def observations(theirs) -> tuple[Box, Callable]:
    """The Box of our observations, and (theirs, of any leading axes) -> ours, a new float32 array.

    Discrete observations are one-hot vectors. The copy is because their vectors reuse the buffer.

    Raises:
      ValueError: as `space`.
    """
    ours = space(theirs)
    if isinstance(ours, Box):
        return ours, lambda observation: np.array(observation, np.float32)
    return box(0.0, 1.0, (ours.n,)), lambda observation: np.eye(ours.n, dtype=np.float32)[np.asarray(observation)]


class _Single:
    """One gymnasium environment as a host_worlds.HostEnv."""

    def __init__(self, env):
        self._env = env
        self.observation_space, self._observe = observations(env.observation_space)
        self.action_space = flat_space(env.action_space)

    def reset(self, seed: int) -> np.ndarray:
        return self._observe(self._env.reset(seed=seed)[0])

    def step(self, action) -> tuple[np.ndarray, float, bool, bool]:
        if isinstance(self.action_space, Discrete):
            action = int(action)
        else:
            action = np.asarray(action, np.float32).reshape(self._env.action_space.shape)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._observe(observation), float(reward), bool(terminated), bool(truncated and not terminated)


def make_single(name: str, **keywords) -> _Single:
    """gymnasium.make(name, **keywords) as one host_worlds.HostEnv, for actors (rl_jax.rollout.actors).

    Args:
      name: registered with gymnasium.
      **keywords: of the environment.

    Raises:
      ValueError: if the name is unknown (names the nearest ones), or a space is neither Discrete nor Box, or actions
        are a Box of whole numbers.
    """
    return _Single(_made(gymnasium.make, name, **keywords))
