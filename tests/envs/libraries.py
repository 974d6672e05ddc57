"""Where the tests find the libraries of environments, and what each one says of its own stepping."""

import contextlib
import importlib
import os
import pathlib
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

OVERLAY = pathlib.Path(sys.prefix, "environments")  # requirements-environments.txt
if OVERLAY.is_dir() and str(OVERLAY) not in sys.path:
    sys.path.append(str(OVERLAY))


def adapter(library: str) -> types.ModuleType:
    """rl_jax.envs.from_<library>. Without the library it skips the test, and fails it where the variable CI is set."""
    with foreign(), _without_wandb() if library == "navix" else contextlib.nullcontext():
        try:
            return importlib.import_module(f"rl_jax.envs.adapters.from_{library}")
        except ImportError as error:
            if os.environ.get("CI"):
                pytest.fail(str(error))
            pytest.skip(str(error))


@contextlib.contextmanager
def foreign():
    """Other people's code: its warnings are its own business, and so is how it broadcasts."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _without_wandb():
    """navix imports wandb for a trainer of its own, which nobody needs here."""
    missing = [name for name in ("wandb", "wandb.util") if name not in sys.modules]
    for name in missing:
        sys.modules[name] = types.ModuleType(name)
    yield
    for name in missing:
        del sys.modules[name]


class Row(NamedTuple):
    """A library's environment, and two worlds of it.

    keywords: such that an episode is cut off after `limit` steps. own: () -> (reset(key) -> (state, observation),
        step(key, state, action) -> (state, observation, reward, done)), by the library itself.
    actions: [limit, 2]; world 0 lives to the limit, and world 1 terminates before it, if `dies`.
    harm: makes a state of the library's one after which the next step terminates.
    compiled: () -> (class of the library's environment, its methods that reset and step).
    """

    keywords: dict
    limit: int
    own: Callable
    actions: np.ndarray
    dies: bool = True
    harm: Callable[[Any], Any] | None = None
    compiled: Callable | None = None


def _rows(first, second, limit: int) -> np.ndarray:
    """Two sequences of actions, repeated to `limit` steps, side by side."""
    return np.stack([np.resize(np.asarray(x), (limit, *np.shape(x)[1:])) for x in (first, second)], axis=1)


def _brax_env():
    import brax.envs

    return brax.envs.get_environment("inverted_pendulum", backend="spring")


def _playground_env():
    from mujoco_playground import registry

    return registry.load("CartpoleBalance", config_overrides={"impl": "jax"})


def _of_states(env, limit: int):
    """As brax's EpisodeWrapper ends episodes: it loops over each step, which would be compiled once more."""

    def reset(key):
        state = env.reset(key)
        return (state, 0), state.obs

    def step(key, counted, action):
        state, count = env.step(counted[0], action), counted[1] + 1
        return (state, count), state.obs, state.reward, (state.done == 1.0) | (count >= limit)

    return reset, step


def _methods(make):
    """() -> (class of an environment of brax's interface, its methods)."""
    return lambda: (type(make()), ("reset", "step"))


def _craftax_methods():
    from craftax.craftax_env import make_craftax_env_from_name

    kind = type(make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False))
    return kind, ("reset_env", "step_env")


def _jumanji():
    import jumanji

    env = jumanji.make("Snake-v1", num_rows=5, num_cols=5, time_limit=8)

    def reset(key):
        state, first = env.reset(key)
        return state, first.observation.grid

    def step(key, state, action):
        state, now = env.step(state, action)
        return state, now.observation.grid, now.reward, now.last()

    return reset, step


def _craftax():
    from craftax.craftax_env import make_craftax_env_from_name

    env = make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False)
    params = env.default_params.replace(max_timesteps=3)

    def reset(key):
        return env.reset_env(key, params)[::-1]

    def step(key, state, action):
        observation, state, reward, done, _ = env.step_env(key, state, action, params)
        return state, observation, reward, done

    return reset, step


def _navix():
    import navix

    env = navix.make("Navix-Empty-Random-5x5-v0", max_steps=10)

    def reset(key):
        timestep = env.reset(key)
        return timestep, timestep.observation

    def step(key, timestep, action):
        timestep = env.step(timestep, action)
        return timestep, timestep.observation, timestep.reward, timestep.is_done()

    return reset, step


ROWS = {
    "jumanji/Snake-v1": Row(
        dict(observation="grid", num_rows=5, num_cols=5, time_limit=8), 8, _jumanji, _rows([0, 1, 2, 3], [0], 8)
    ),
    "navix/Navix-Empty-Random-5x5-v0": Row(dict(max_steps=10), 10, _navix, _rows([0], [2, 2, 1], 10)),
}
# Compiling a step of these takes seconds, and twice as long of two worlds: the methods are compiled, of one world, and
# what is around them, ours and theirs, is not. What rl_jax.envs.vectorize adds is held by test_protocol.py and by ROWS.
ALONE = {
    "brax/inverted_pendulum": Row(
        dict(backend="spring", episode_length=12), 12, lambda: _of_states(_brax_env(), 12),
        _rows([[0.0]], [[1.0]], 12).astype(np.float32), compiled=_methods(_brax_env),
    ),
    "playground/CartpoleBalance": Row(
        dict(episode_length=3), 3, lambda: _of_states(_playground_env(), 3),
        _rows([[0.5]], [[-1.0]], 3).astype(np.float32), dies=False, compiled=_methods(_playground_env),
    ),
    "craftax/Craftax-Classic-Symbolic-v1": Row(
        dict(max_timesteps=3), 3, _craftax, _rows([0, 1], [2, 3], 3), dies=False,
        harm=lambda state: state.replace(player_health=jnp.zeros_like(state.player_health)), compiled=_craftax_methods,
    ),
}  # fmt: skip
