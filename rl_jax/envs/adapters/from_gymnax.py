"""gymnax's environments in our protocol (the optional extra `control`)."""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from rl_jax.envs.adapters.adapting import box
from rl_jax.envs.protocol import Box, Discrete, Environment, Step

try:
    import gymnax
except ImportError as error:
    raise ImportError("gymnax environments need the extra: pip install -e '.[control]'") from error


def make(name: str, **params) -> Environment:
    """gymnax.make(name) without its automatic reset; its time limit is a truncation.

    Observations that are Discrete there are one-hot vectors here.

    Args:
      name: registered with gymnax.
      **params: fields of the environment's parameters to set, such as max_steps_in_episode.

    Returns:
      Environment.

    Raises:
      ValueError: if the name or a field is unknown.
    """
    if name not in gymnax.registration.registered_envs:
        raise ValueError(f"gymnax has no {name!r}; it has: {', '.join(gymnax.registration.registered_envs)}")
    env, settings = gymnax.make(name)
    known = {field.name for field in dataclasses.fields(settings)}
    if set(params) - known:
        raise ValueError(f"{name} has no parameter {sorted(set(params) - known)}; it has: {', '.join(sorted(known))}")
    settings = settings.replace(**params)

    seen = space(env.observation_space(settings))
    states = seen.n if isinstance(seen, Discrete) else 0

    def observe(observation: chex.Array) -> chex.Array:
        return jax.nn.one_hot(observation, states) if states else jnp.asarray(observation, jnp.float32)

    def reset(key: chex.PRNGKey):
        observation, state = env.reset_env(key, settings)
        return state, observe(observation)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        observation, state, reward, terminated, _ = env.step_env(key, state, action, settings)
        terminated = jnp.asarray(terminated, bool)
        truncated = jnp.asarray(env.is_truncated(state, settings), bool) & ~terminated
        reward = jnp.asarray(reward, jnp.float32).reshape(())
        return state, Step(observe(observation), reward, terminated, truncated)

    seen = box(0.0, 1.0, (states,)) if states else seen
    return Environment(reset, step, seen, space(env.action_space(settings)))


def space(theirs) -> Discrete | Box:
    """A gymnax space in our types.

    Raises:
      ValueError: if it is neither Discrete nor Box.
    """
    if isinstance(theirs, gymnax.environments.spaces.Discrete):
        return Discrete(int(theirs.n))
    if not isinstance(theirs, gymnax.environments.spaces.Box):
        raise ValueError(f"a space of type {type(theirs).__name__}: only Discrete and Box are supported")
    return box(theirs.low, theirs.high, theirs.shape)
