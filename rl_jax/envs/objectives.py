"""Wrappers of environments with several objectives: one reward of fixed weights, or weights that the agent sees.

    scalarized    r = w . r_k, for any updater
    conditioned   o = (o, w), with a w for each episode: one policy for all preferences

Both wrap a Vector whose rewards are float32 [B, K].
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Vector, where
from rl_jax.stats import pareto

KINDS = ("weights", "directions")
OWN_KEY = 2**31 - 2  # in place of an environment's number: split(key, B)[b] is fold_in(key, b)


class Preferring(NamedTuple):
    """State of `conditioned`. state: the Vector's own. weights: float32 [B, K], of the current episodes."""

    state: Any
    weights: chex.Array


def scalarized(env: Vector, weights: Sequence[float] = ()) -> Vector:
    """`env` with the reward w . r, float32 [B].

    Args:
      env: Vector with K objectives.
      weights: w, K numbers; () is their sum.

    Raises:
      ValueError: if there are not K of them.
    """
    used = jnp.asarray(pareto.check_weights("env.weights", weights, env.objectives))

    def step(state: Any, action: chex.Array, drawn: Any):
        state, observation, now = env.step(state, action, drawn)
        return state, observation, now._replace(reward=now.reward @ used)

    return env._replace(step=step, objectives=0)


def conditioned(env: Vector, *, kind: str = "weights", parts: int = 10, drawn: bool = True) -> Vector:
    """`env` whose observations end with K weights of the objectives.

    Args:
      env: Vector with K objectives and flat observations.
      kind: "weights" are at least 0 and sum to 1; "directions" have length 1 (arXiv 2402.18571).
      parts: of the grid (`preference_grid`).
      drawn: whether each episode draws its own weights; if not, environment b has those in row b of the grid, over and
        over.

    Raises:
      ValueError: for another kind, parts below 1, without objectives, or if the observations are not flat.
    """
    size = env.objectives
    if not size or len(env.observation_space.shape) != 1:
        raise ValueError(f"env.preferences: needs several objectives and flat observations, not K={size}")
    grid = jnp.asarray(preference_grid(size, kind, parts))
    fixed = grid[jnp.arange(env.num_envs) % len(grid)]

    def draw(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
        if kind == "directions":
            found = jnp.abs(jax.random.normal(key, (*shape, size)))
            return found / jnp.linalg.norm(found, axis=-1, keepdims=True)
        return jax.random.dirichlet(key, jnp.ones(size), shape)

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        weights = draw(jax.random.fold_in(key, OWN_KEY), (env.num_envs,)) if drawn else fixed
        return Preferring(state, weights), jnp.concatenate([observation, weights], axis=-1)

    def ahead(key: chex.PRNGKey, num_steps: int):
        weights = draw(jax.random.fold_in(key, OWN_KEY), (num_steps, env.num_envs)) if drawn else ()
        return env.ahead(key, num_steps), weights

    def step(state: Preferring, action: chex.Array, noise: Any):
        inner, observation, now = env.step(state.state, action, noise[0])
        seen = jnp.concatenate([now.observation, state.weights], axis=-1)
        weights = where(now.done, noise[1], state.weights) if drawn else state.weights
        following = jnp.concatenate([observation, weights], axis=-1)
        return Preferring(inner, weights), following, now._replace(observation=seen)

    low, high = env.observation_space
    space = Box(np.append(low, np.zeros(size, np.float32)), np.append(high, np.ones(size, np.float32)))
    told = env.told and (lambda state: env.told(state.state))
    return env._replace(reset=reset, ahead=ahead, step=step, observation_space=space, told=told)


def preference_grid(objectives: int, kind: str = "weights", parts: int = 10) -> np.ndarray:
    """All preferences of a grid, float32 [W, K]: i / parts that sum to 1, or the same scaled to length 1.

    Raises:
      ValueError: for a kind that is not in KINDS, or parts below 1.
    """
    if kind not in KINDS:
        raise ValueError(f"env.preferences.kind={kind!r} is none of {', '.join(KINDS)}")
    grid = pareto.weight_grid(objectives, parts, name="env.preferences.parts")
    if kind == "directions":  # two objectives: evenly spaced angles
        angles = np.pi / 2 * grid[:, 1]
        grid = np.stack([np.cos(angles), np.sin(angles)], 1) if objectives == 2 else grid
        grid = grid / np.linalg.norm(grid, axis=1, keepdims=True)
    return grid.astype(np.float32)
