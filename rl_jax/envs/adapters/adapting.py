"""What the adapters of other libraries share: names, parameters, spaces, and brax's interface."""

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

SHOWN = 40  # names that an error lists; of more, those nearest to what was asked for


def check_name(library: str, name: str, names: Iterable[str]) -> None:
    """Raises ValueError, with names that exist, unless `name` is among the `names` of `library`."""
    names = sorted(names)
    if name not in names:
        near = names if len(names) <= SHOWN else difflib.get_close_matches(name, names, n=8, cutoff=0.0)
        among = "it has" if len(names) <= SHOWN else f"the nearest of its {len(names)} names are"
        raise ValueError(f"{library} has no {name!r}; {among}: {', '.join(near)}")


def with_fields(name: str, settings: Any, fields: Mapping[str, Any]) -> Any:
    """A dataclass of parameters with other `fields`. Raises ValueError for one that it does not have."""
    known = {field.name for field in dataclasses.fields(settings)}
    if set(fields) - known:
        raise ValueError(f"{name} has no parameter {sorted(set(fields) - known)}; it has: {', '.join(sorted(known))}")
    return settings.replace(**fields)


def construct(name: str, make: Callable, **keywords) -> Any:
    """make(**keywords). Raises ValueError, with the name, for keywords that it does not take."""
    try:
        return make(**keywords)
    except TypeError as error:
        raise ValueError(f"{name}: {error}; given were {sorted(keywords)}") from error


def box(low: Any, high: Any, shape: tuple[int, ...]) -> Box:
    """The Box of that shape between two bounds, numbers or arrays."""
    return Box(*(np.broadcast_to(np.asarray(bound, np.float32), shape) for bound in (low, high)))


def unbounded(shape: tuple[int, ...]) -> Box:
    """The Box of that shape that holds all numbers."""
    return box(-np.inf, np.inf, shape)


def from_brax_interface(name: str, env: Any, episode_length: int, observation: str) -> Environment:
    """An environment whose reset(key) and step(state, action) give a state with .obs, .reward and .done.

    Brax and MuJoCo playground have this interface. Actions are in [-1, 1], as their own training has them.
    Physics that is no longer finite terminates with a reward of 0 and an observation of zeros: one world of thousands
    would otherwise carry its NaN into the gradient of all.
    episode_length: steps after which an episode is cut off, which is truncation.
    observation: which entry is observed, where they are a dictionary. Raises ValueError for one that is not there.
    """
    start = jax.eval_shape(env.reset, jax.random.key(0))
    shapes = start.obs
    if isinstance(shapes, Mapping):
        if observation not in shapes:
            raise ValueError(f"{name}: observation={observation!r} is none of {', '.join(sorted(shapes))}")
        shapes = shapes[observation]
    leaves, treedef = jax.tree.flatten(start)

    def pack(state: Any) -> tuple[chex.Array, ...]:
        """Its arrays with the dtypes of a start, those without an entry left out: no checkpoint can hold them."""
        return tuple(_as(x, leaf) for x, leaf in zip(treedef.flatten_up_to(state), leaves, strict=True) if leaf.size)

    def unpack(packed: tuple[chex.Array, ...]) -> Any:
        """Containers of its own each time: a step writes into the dictionaries of the state that it is given."""
        found = iter(packed)
        return treedef.unflatten([next(found) if x.size else jnp.zeros(x.shape, x.dtype) for x in leaves])

    def observe(state: Any) -> chex.Array:
        found = state.obs[observation] if isinstance(state.obs, Mapping) else state.obs
        return jnp.asarray(found, jnp.float32)

    def reset(key: chex.PRNGKey):
        state = env.reset(key)
        return pack(state), observe(state)

    def step(key: chex.PRNGKey, state: tuple, action: chex.Array):
        after = env.step(unpack(state), action)
        seen, reward = observe(after), jnp.asarray(after.reward, jnp.float32)
        finite = jnp.all(jnp.isfinite(seen)) & jnp.isfinite(reward)
        seen, reward = jnp.where(finite, seen, 0.0), jnp.where(finite, reward, 0.0)
        terminated = (after.done > 0.5) | ~finite
        return pack(after), Step(seen, reward, terminated, jnp.zeros_like(terminated))

    limits = box(-1.0, 1.0, (env.action_size,))
    return time_limit(Environment(reset, step, unbounded(shapes.shape), limits), episode_length)


def _as(new: Any, old: jax.ShapeDtypeStruct) -> chex.Array:
    """`new` with the dtype of `old`: what a loop carries must keep it."""
    return new if getattr(new, "dtype", None) == old.dtype else jnp.asarray(new, old.dtype)
