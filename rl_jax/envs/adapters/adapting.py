"""Shared by the adapters of other libraries: names, parameters, spaces, and brax's interface."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

SHOWN = 40  # names that an error lists; if there are more, it lists those nearest to the given one


def check_name(library: str, name: str, names: Iterable[str]) -> None:
    """Checks that `name` is among the `names` of `library`.

    Raises:
      ValueError: if it is not; the message lists names that exist.
    """
    names = sorted(names)
    if name not in names:
        near = names if len(names) <= SHOWN else difflib.get_close_matches(name, names, n=8, cutoff=0.0)
        among = "it has" if len(names) <= SHOWN else f"the nearest of its {len(names)} names are"
        raise ValueError(f"{library} has no {name!r}; {among}: {', '.join(near)}")


def with_fields(name: str, settings: Any, fields: Mapping[str, Any]) -> Any:
    """A dataclass of parameters with some fields replaced.

    Raises:
      ValueError: if a field does not exist.
    """
    known = {field.name for field in dataclasses.fields(settings)}
    if set(fields) - known:
        raise ValueError(f"{name} has no parameter {sorted(set(fields) - known)}; it has: {', '.join(sorted(known))}")
    return settings.replace(**fields)


def construct(name: str, make: Callable, **keywords) -> Any:
    """make(**keywords), with a clear error.

    Raises:
      ValueError: if `make` does not accept the keywords; the message contains the name.
    """
    try:
        return make(**keywords)
    except TypeError as error:
        raise ValueError(f"{name}: {error}; the keywords given are {sorted(keywords)}") from error


def box(low: Any, high: Any, shape: tuple[int, ...]) -> Box:
    """The Box of this shape between two bounds, numbers or arrays."""
    return Box(*(np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (low, high)))


def unbounded(shape: tuple[int, ...]) -> Box:
    """The Box of this shape without bounds."""
    return box(-np.inf, np.inf, shape)


def from_brax_interface(name: str, env: Any, episode_length: int, observation: str, repeat: int = 1) -> Environment:
    """Adapts an environment whose reset(key) and step(state, action) return a state with .obs, .reward and .done.

    Brax and MuJoCo playground have this interface. Actions are in [-1, 1], as in their own training. A physics state
    that is no longer finite terminates the episode with reward 0 and an observation of zeros: otherwise one environment
    of thousands would put its NaN into everyone's gradient.

    Args:
      name: for error messages.
      env: theirs.
      episode_length: steps of theirs after which an episode is truncated.
      observation: which entry to observe, if observations are a dictionary.
      repeat: theirs in one of our steps, as brax's EpisodeWrapper repeats an action: rewards are added, what the last
        one says is kept, and all of them count for episode_length.

    Returns:
      Environment.

    Raises:
      ValueError: if that entry does not exist, or repeat is below 1.
    """
    if repeat < 1:
        raise ValueError(f"{name}: action_repeat={repeat} must be 1 or more")
    start = jax.eval_shape(env.reset, jax.random.key(0))
    shapes = start.obs
    if isinstance(shapes, Mapping):
        if observation not in shapes:
            raise ValueError(f"{name}: observation={observation!r} is none of {', '.join(sorted(shapes))}")
        shapes = shapes[observation]
    leaves, treedef = jax.tree.flatten(start)

    def pack(state: Any) -> tuple[chex.Array, ...]:
        """Its arrays with the dtypes of a start, without the empty ones, which no checkpoint can hold."""
        return tuple(_as(x, leaf) for x, leaf in zip(treedef.flatten_up_to(state), leaves, strict=True) if leaf.size)

    def unpack(packed: tuple[chex.Array, ...]) -> Any:
        """New containers each time: a step writes into the dictionaries of the state it is given."""
        leaves_left = iter(packed)
        return treedef.unflatten([next(leaves_left) if x.size else jnp.zeros(x.shape, x.dtype) for x in leaves])

    def observe(state: Any) -> chex.Array:
        seen = state.obs[observation] if isinstance(state.obs, Mapping) else state.obs
        return jnp.asarray(seen, jnp.float32)

    def reset(key: chex.PRNGKey):
        state = env.reset(key)
        return pack(state), observe(state)

    def step(key: chex.PRNGKey, state: tuple, action: chex.Array):
        def once(state: tuple, _: Any):
            after = env.step(unpack(state), action)
            return pack(after), (observe(after), jnp.asarray(after.reward, jnp.float32), after.done)

        if repeat == 1:
            state, (seen, reward, done) = once(state, None)
        else:
            state, (seen, reward, done) = jax.lax.scan(once, state, length=repeat)
            seen, reward, done = seen[-1], reward.sum(0), done[-1]
        finite = jnp.all(jnp.isfinite(seen)) & jnp.isfinite(reward)
        seen, reward = jnp.where(finite, seen, 0.0), jnp.where(finite, reward, 0.0)
        terminated = (done > 0.5) | ~finite
        return state, Step(seen, reward, terminated, jnp.zeros_like(terminated))

    limits = box(-1.0, 1.0, (env.action_size,))
    return time_limit(Environment(reset, step, unbounded(shapes.shape), limits), -(-episode_length // repeat))


def _as(new: Any, old: jax.ShapeDtypeStruct) -> chex.Array:
    """`new` with the dtype of `old`, since the carry of a loop must keep its dtype."""
    return new if getattr(new, "dtype", None) == old.dtype else jnp.asarray(new, old.dtype)
