"""jumanji's single-agent environments in our protocol (the optional extra `jumanji`)."""

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.envs.adapters.adapting import box, check_name, construct, unbounded
from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

try:
    import jumanji
    from jumanji import specs
except ImportError as error:
    raise ImportError("jumanji environments need the extra: pip install -e '.[jumanji]'") from error

NEVER = 2**31 - 1
DOWNLOADED = ("Sokoban-v0",)  # downloads its levels from a data hub on creation


class Masked(NamedTuple):
    """State of illegal="random".

    Attributes:
      state: jumanji's own.
      legal: bool [n]. The actions that may be taken now.
    """

    state: Any
    legal: chex.Array


def make(name: str, *, observation: str = "", illegal: str = "keep", **keywords) -> Environment:
    """jumanji.make(name, **keywords); its time_limit, if any, is a truncation.

    Args:
      name: registered with jumanji.
      observation: the field to observe, unchanged, such as "grid" of Snake-v1. "" flattens all fields, including
        action_mask, into one row.
      illegal: what happens to an action excluded by action_mask. "keep" is the environment's own rule (most end the
        episode); "random" replaces it by a uniformly random legal action, while the policy still sees its own choice.
      **keywords: of the environment, such as num_rows and time_limit.

    Returns:
      Environment.

    Raises:
      ValueError: if the name, field or keyword is unknown, there are several agents, or an action has several parts.
    """
    check_name("jumanji", name, set(jumanji.registered_environments()) - set(DOWNLOADED))
    env = construct(f"jumanji/{name}", lambda **given: jumanji.make(name, **given), **keywords)
    shapes = jax.eval_shape(env.reset, jax.random.key(0))[1]
    actions = action_space(name, env.action_spec)
    if shapes.reward.shape:
        raise ValueError(f"jumanji/{name} has several agents, rewards {shapes.reward.shape}: only one is supported")
    mask = getattr(shapes.observation, "action_mask", None)
    if illegal not in ("keep", "random") or (illegal == "random" and mask is None):
        raise ValueError(f"jumanji/{name}: illegal={illegal!r} must be 'keep', or 'random' if it has an action_mask")
    seen = observation_space(name, env.observation_spec, shapes.observation, observation)
    limit = getattr(env, "time_limit", None)
    if limit is not None:
        env.time_limit = NEVER  # else it ends an episode there as if the task had ended

    def observe(seen: Any) -> chex.Array:
        if observation:
            return jnp.asarray(getattr(seen, observation), jnp.float32)
        return jnp.concatenate([jnp.ravel(x).astype(jnp.float32) for x in jax.tree.leaves(seen)])

    def reset(key: chex.PRNGKey):
        state, first = env.reset(key)
        if illegal == "random":
            state = Masked(state, first.observation.action_mask)
        return state, observe(first.observation)

    def step(key: chex.PRNGKey, state: Any, action: chex.Array):
        if illegal == "random":
            other = jax.random.categorical(key, jnp.where(state.legal, 0.0, -jnp.inf))
            # If nothing is legal, the environment decides what follows.
            action = jnp.where(state.legal[action] | ~jnp.any(state.legal), action, other)
            state = state.state
        state, now = env.step(state, action)
        if illegal == "random":
            state = Masked(state, now.observation.action_mask)
        terminated = now.last() & (now.discount == 0)
        reward = jnp.asarray(now.reward, jnp.float32)
        return state, Step(observe(now.observation), reward, terminated, now.last() & ~terminated)

    adapted = Environment(reset, step, seen, actions)
    return adapted if limit is None else time_limit(adapted, limit)


def action_space(name: str, spec: specs.Array) -> Discrete | Box:
    """An action spec of jumanji in our types.

    Raises:
      ValueError: if an action has several parts.
    """
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(int(spec.num_values))
    if isinstance(spec, specs.BoundedArray) and jnp.issubdtype(spec.dtype, jnp.floating) and len(spec.shape) == 1:
        return box(spec.minimum, spec.maximum, spec.shape)
    supported = "one integer from 0 on, or a 1-D array of floats"
    raise ValueError(f"jumanji/{name} takes actions {spec}, but only {supported} is supported")


def observation_space(name: str, spec: specs.Spec, shapes: Any, field: str) -> Box:
    """The space of one field, or of all fields flattened into one row.

    Raises:
      ValueError: if the field is not an array.
    """
    if not field:
        return unbounded((sum(x.size for x in jax.tree.leaves(shapes)),))
    arrays = [known for known in vars(spec) if isinstance(getattr(spec, known), specs.Array)]
    if field not in arrays:
        raise ValueError(f"jumanji/{name}: observation={field!r} is none of {', '.join(arrays)}")
    result = getattr(spec, field)
    if isinstance(result, specs.BoundedArray):
        return box(result.minimum, result.maximum, result.shape)
    return unbounded(result.shape)
