"""Probe environments: each can be solved in seconds, and by an agent in which one certain thing works.

    value         one state, one step, reward 1: V must become 1
    observation   two states, one step, the reward is the state: V must read the observation
    discount      two steps, reward 1 at the end: V of the first state is gamma, not 1
    action        one state, one step, two actions, one pays: the policy must move
    matching      two states, two actions, the right one pays: the policy must read the observation
    corridor      walk right for `length` steps, paid at the end only: the reward must travel back
    endless       reward 1 for ever, cut off every few steps: V is 1 / (1 - gamma) only where truncation bootstraps
    aim           the action is a number in [-2, 2], the reward -(action - target(observation))^2

Each is a function that returns an Environment. Source of the idea: A. Jones, "Debugging RL, without the agonizing
pain"; in JAX, rejax's test environments.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

UNIT = Box(np.full(1, -1.0, np.float32), np.full(1, 1.0, np.float32))
NO = np.bool_(False)  # of numpy: no backend is to start with an import
YES = np.bool_(True)


def _observe(x: chex.Array) -> chex.Array:
    return jnp.asarray(x, jnp.float32).reshape(1)


def _sign(key: chex.PRNGKey) -> chex.Array:
    """-1 or 1, float32 []."""
    return jnp.where(jax.random.bernoulli(key), 1.0, -1.0)


def _one_step(reward, actions: int | Box = 1, *, two_states: bool = False) -> Environment:
    """Episodes of one step. reward: (state float32 [], action) -> float32 []; the state is 0, or -1 or 1."""

    def reset(key: chex.PRNGKey):
        state = _sign(key) if two_states else jnp.float32(0.0)
        return state, _observe(state)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        return state, Step(_observe(state), jnp.asarray(reward(state, action), jnp.float32), YES, NO)

    return Environment(reset, step, UNIT, Discrete(actions) if isinstance(actions, int) else actions)


def value() -> Environment:
    """One state, one action, reward 1."""
    return _one_step(lambda state, action: 1.0)


def observation() -> Environment:
    """The observation is -1 or 1, and so is the reward."""
    return _one_step(lambda state, action: state, two_states=True)


def discount() -> Environment:
    """Two steps, observations 0 and 1, reward 1 after the second."""

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), _observe(0.0)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        last = state == 1
        return state + 1, Step(_observe(1.0), last.astype(jnp.float32), last, NO)

    return Environment(reset, step, UNIT, Discrete(1))


def action() -> Environment:
    """Two actions: 0 costs 1, 1 pays 1."""
    return _one_step(lambda state, action: 2.0 * action - 1.0, 2)


def matching() -> Environment:
    """The observation is -1 or 1: action 1 is right where it is 1, action 0 where it is -1; 1 if right, else -1."""
    return _one_step(lambda state, action: state * (2.0 * action - 1.0), 2, two_states=True)


def aim() -> Environment:
    """A number in [-2, 2] is to be half the observation, which is -1 or 1: -(action - observation / 2)^2."""
    span = Box(np.full(1, -2.0, np.float32), np.full(1, 2.0, np.float32))
    return _one_step(lambda state, action: -jnp.square(action[0] - 0.5 * state), span, two_states=True)


def corridor(*, length: int = 12) -> Environment:
    """Places 0 .. length, from 0; action 1 goes right, 0 left; reward 1 at the end, cut off at 4 length.

    A random walk needs about length^2 steps, so the first rewards are rare and late.
    """

    def observe(place: chex.Array) -> chex.Array:
        return jax.nn.one_hot(place, length + 1)

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), observe(jnp.int32(0))

    def step(key: chex.PRNGKey, place: chex.Array, action: chex.Array):
        place = jnp.where(action == 1, place + 1, jnp.maximum(place - 1, 0))
        there = place == length
        return place, Step(observe(place), there.astype(jnp.float32), there, NO)

    space = Box(np.zeros(length + 1, np.float32), np.ones(length + 1, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(2)), 4 * length)


def endless(*, limit: int = 5) -> Environment:
    """Reward 1 a step without an end; each episode is truncated after `limit` steps. V = 1 / (1 - gamma)."""

    def reset(key: chex.PRNGKey):
        return jnp.int32(0), _observe(0.0)

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        return state, Step(_observe(0.0), jnp.float32(1.0), NO, NO)

    return time_limit(Environment(reset, step, UNIT, Discrete(1)), limit)
