"""What an environment is: pure functions on a pytree, termination apart from truncation, and many of them at once.

An `Environment` is one world without any reset of its own. A `Vector` is B of them that start again where an episode
ends; whatever it draws at random for the next T steps is drawn in one call before them (`ahead`), since a random
number costs a CPU more inside a loop of small steps than the step itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np


class Discrete(NamedTuple):
    """Actions 0 .. n - 1, int32 []. n: how many."""

    n: int


class Box(NamedTuple):
    """Arrays between two bounds. low, high: numpy arrays of the shape, infinite where there is no bound."""

    low: np.ndarray
    high: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element."""
        return np.shape(self.low)


class Step(NamedTuple):
    """What a step has led to. An environment's own has no leading axis, a Vector's has B first.

    observation: float32 [..., *shape] of the state that the step leads to, before any reset.
    reward: float32 [...].
    terminated: bool [...]. The episode has ended: no value follows.
    truncated: bool [...]. It was only cut off (a time limit): the value of `observation` follows.
    """

    observation: chex.Array
    reward: chex.Array
    terminated: chex.Array
    truncated: chex.Array

    @property
    def done(self) -> chex.Array:
        """bool [...]. The episode is over, for either reason."""
        return self.terminated | self.truncated


class Environment(NamedTuple):
    """One world as pure functions.

    reset: (key) -> (state, observation float32 [*shape]).
    step: (key, state, action) -> (state, Step).
    observation_space: Box. action_space: Discrete or Box.
    """

    reset: Callable
    step: Callable
    observation_space: Box
    action_space: Discrete | Box


class Vector(NamedTuple):
    """B worlds that start again by themselves.

    reset: (key) -> (state, observation float32 [B, *shape]).
    ahead: (key, T) -> a pytree with T first: all that T steps draw at random.
    step: (state, action [B, ...], one row of ahead) -> (state, observation [B, *shape] to act on next, Step with B
        first). Where an episode is over, the observation is the next one's first, and Step.observation its own last.
    num_envs: B. observation_space, action_space: of one world.
    pure: False where the worlds live on the host: such a Vector cannot be mapped over, restored or split.
    """

    reset: Callable
    ahead: Callable
    step: Callable
    num_envs: int
    observation_space: Box
    action_space: Discrete | Box
    pure: bool = True


def where(condition: chex.Array, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, for pytrees whose leaves have the condition's axes first."""

    def choose(x: chex.Array, y: chex.Array) -> chex.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)

    return jax.tree.map(choose, yes, no)


def vectorize(env: Environment, num_envs: int) -> Vector:
    """B = num_envs copies of `env`; the starts of the episodes that may begin in the next steps are drawn ahead.

    So a reset costs its memory, T B states, and no time inside the loop.
    """

    def reset(key: chex.PRNGKey):
        return jax.vmap(env.reset)(jax.random.split(key, num_envs))

    def ahead(key: chex.PRNGKey, num_steps: int):
        step_key, reset_key = jax.random.split(key)
        shape = (num_steps, num_envs)
        starts = jax.vmap(jax.vmap(env.reset))(jax.random.split(reset_key, shape))
        return jax.random.split(step_key, shape), starts

    def step(state, action: chex.Array, drawn):
        keys, (start_state, start_observation) = drawn
        state, now = jax.vmap(env.step)(keys, state, action)
        state = where(now.done, start_state, state)
        return state, where(now.done, start_observation, now.observation), now

    return Vector(reset, ahead, step, num_envs, env.observation_space, env.action_space)


class Timed(NamedTuple):
    """A state and the steps since its reset. state: the environment's own. time: int32 []."""

    state: Any
    time: chex.Array


def time_limit(env: Environment, max_steps: int) -> Environment:
    """`env`, truncated after max_steps steps where it has not terminated by then."""

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        return Timed(state, jnp.int32(0)), observation

    def step(key: chex.PRNGKey, state: Timed, action: chex.Array):
        inner, now = env.step(key, state.state, action)
        time = state.time + 1
        late = (time >= max_steps) & ~now.terminated
        return Timed(inner, time), now._replace(truncated=now.truncated | late)

    return env._replace(reset=reset, step=step)


def scale_reward(env: Environment, factor: float) -> Environment:
    """`env` with its rewards times `factor`."""

    def step(key: chex.PRNGKey, state, action: chex.Array):
        state, now = env.step(key, state, action)
        return state, now._replace(reward=now.reward * factor)

    return env._replace(step=step)
