"""The environment protocol: pure functions on a pytree, with termination separate from truncation, and vectorisation.

An `Environment` is a single environment without automatic reset. A `Vector` is B of them that reset at the end of an
episode. All randomness for the next T steps is sampled in one call before them (`ahead`), because sampling inside a
loop of small steps costs a CPU more than the step itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np


class Discrete(NamedTuple):
    """Actions 0 .. n - 1, int32 []. n: number of actions."""

    n: int


class Joint(NamedTuple):
    """One action of each of A agents, int32 [A]. n: number of actions of each. agents: A."""

    n: int
    agents: int


class Agents(NamedTuple):
    """What an environment of several agents says of them.

    Attributes:
      count: A.
      own: D, how many features of an agent's observation it sees itself, the first ones. Those after them are the
        world's state, the same for all agents, for critics that are centralised.
      common: whether all agents always get the same reward.
    """

    count: int
    own: int
    common: bool


class Box(NamedTuple):
    """Arrays between two bounds. low, high: numpy arrays of the shape, infinite if unbounded."""

    low: np.ndarray
    high: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one element."""
        return np.shape(self.low)


class Step(NamedTuple):
    """The result of a step. An Environment's has no leading axis; a Vector's has B first.

    Attributes:
      observation: float32 [..., *shape]. Of the state that the step leads to, before any reset.
      reward: float32 [...]; of several objectives float32 [..., K].
      terminated: bool [...]. The episode has ended; its value is 0 from here on.
      truncated: bool [...]. The episode was only cut off (a time limit); bootstrap with the value of `observation`.
      solved: bool [...]. The episode has solved its task, in this step or before; None if there are no Vector.tasks.
    """

    observation: chex.Array
    reward: chex.Array
    terminated: chex.Array
    truncated: chex.Array
    solved: chex.Array | None = None

    @property
    def done(self) -> chex.Array:
        """bool [...]. The episode is over, for either reason."""
        return self.terminated | self.truncated


class Environment(NamedTuple):
    """A single environment as pure functions.

    Attributes:
      reset: (key) -> (state, observation float32 [*shape]).
      step: (key, state, action) -> (state, Step).
      observation_space: Box.
      action_space: Discrete or Box.
      objectives: K of rewards that are vectors; 0 if the reward is one number.
      agents: Agents, if several act at once: actions are int32 [A], observations float32 [A, *shape] and rewards [A],
        and an episode ends for all of them. The spaces are those of one agent. None for a single agent.
      noised: of chains of denoising steps (worlds.denoising): (noise, x_0, prompt, step) -> (observation, action) at
        a noised x_0, for methods that learn from given samples. None elsewhere.
    """

    reset: Callable
    step: Callable
    observation_space: Box
    action_space: Discrete | Box
    objectives: int = 0
    agents: Agents | None = None
    noised: Callable | None = None


class Vector(NamedTuple):
    """B environments that reset automatically.

    Attributes:
      reset: (key) -> (state, observation float32 [B, *shape]).
      ahead: (key, T) -> a pytree with T first: all random numbers of T steps.
      step: (state, action [B, ...], one row of ahead) -> (state, observation [B, *shape] to act on next, Step with B
        first). At the end of an episode the observation is the first of the next one, and Step.observation the last of
        the episode.
      num_envs: B.
      observation_space: of one environment.
      action_space: of one environment.
      pure: False if the environments live on the host. Such a Vector cannot be mapped over, restored or split.
      objectives: as an Environment's.
      agents: as an Environment's; envs.agents makes of it a Vector that the updaters take.
      noised: as an Environment's, for one sample.
      told: state -> {name: float [B]}, further numbers of the step that led to the state, which rollouts average as
        episode/NAME; None is none.
      tasks: names of K tasks, if the steps say whether they are solved; environment i has task i mod K. () is none.
    """

    reset: Callable
    ahead: Callable
    step: Callable
    num_envs: int
    observation_space: Box
    action_space: Discrete | Box | Joint
    pure: bool = True
    objectives: int = 0
    agents: Agents | None = None
    noised: Callable | None = None
    tasks: tuple[str, ...] = ()
    told: Callable | None = None


def where(condition: chex.Array, yes: Any, no: Any) -> Any:
    """Like jnp.where, for pytrees whose leaves have the condition's axes first."""

    def choose(x: chex.Array, y: chex.Array) -> chex.Array:
        return jnp.where(condition.reshape(condition.shape + (1,) * (x.ndim - condition.ndim)), x, y)

    return jax.tree.map(choose, yes, no)


def vectorize(env: Environment, num_envs: int) -> Vector:
    """B = num_envs copies of `env`; possible starts of episodes are sampled ahead for every step.

    So resets cost memory, T B states, but no time inside the loop.
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

    return Vector(
        reset, ahead, step, num_envs, *env[2:4], objectives=env.objectives, agents=env.agents, noised=env.noised
    )


class Timed(NamedTuple):
    """A state with its age. state: the environment's own. time: int32 [], steps since the reset."""

    state: Any
    time: chex.Array


def time_limit(env: Environment, max_steps: int) -> Environment:
    """`env`, truncated after max_steps steps unless it has terminated by then."""

    def reset(key: chex.PRNGKey):
        state, observation = env.reset(key)
        return Timed(state, jnp.int32(0)), observation

    def step(key: chex.PRNGKey, state: Timed, action: chex.Array):
        inner, now = env.step(key, state.state, action)
        time = state.time + 1
        late = (time >= max_steps) & ~now.terminated
        return Timed(inner, time), now._replace(truncated=now.truncated | late)

    return env._replace(reset=reset, step=step)
