"""Scripted policies of small environments, and mixtures of them with noise: data of known and mixed quality.

    expert    the controller of the environment
    medium    with probability .5 a random action
    poor      with probability .85 a random action
    random    random actions
    reversed  the worst of the controller's choices (the opposite force, or its mirror among the actions)

An action is random with the behaviour's probability, else the controller's.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.envs.protocol import Box, Discrete
from rl_jax.envs.worlds import pointmass, salesman

# name -> (probability of a random action, whether the controller is reversed)
BEHAVIOURS = {
    "expert": (0.0, False),
    "medium": (0.5, False),
    "poor": (0.85, False),
    "random": (1.0, False),
    "reversed": (0.0, True),
}


def gridworld(observations: chex.Array) -> chex.Array:
    """Down until the last row, then right: one-hot [..., S] -> int32 [...] (0 up, 1 down, 2 left, 3 right)."""
    states = observations.shape[-1]
    size = round(states**0.5)
    row = jnp.argmax(observations, axis=-1) // size
    return jnp.where(row < size - 1, 1, 3).astype(jnp.int32)


def junction(observations: chex.Array) -> chex.Array:
    """Right until the wall, then up, whatever the sign was: [..., 5] (walls, sign) -> int32 [...]."""
    return jnp.where(observations[..., 3] > 0.5, 0, 3).astype(jnp.int32)


def cartpole(observations: chex.Array) -> chex.Array:
    """Push towards where the pole falls: [..., 4] (x, x', angle, angle') -> int32 [...]."""
    x, velocity, angle, turning = (observations[..., i] for i in range(4))
    return (angle + 0.3 * turning + 0.02 * x + 0.05 * velocity > 0).astype(jnp.int32)


OPTIONS = ("inertia", "goal")  # of an environment that its script knows, too
CONTROLLERS: dict[str, Callable] = {
    "probes/pointmass": pointmass.controller,
    "probes/gridworld": gridworld,
    "probes/junction": junction,
    "probes/aim": lambda observations: 0.5 * observations,
    "probes/salesman": salesman.controller,
    "probes/matching": lambda observations: (observations[..., 0] > 0).astype(jnp.int32),
    "gymnax/CartPole-v1": cartpole,
}
REWARDS: dict[str, Callable] = {"probes/pointmass": pointmass.reward}


class Behaviour(NamedTuple):
    """One behaviour per row.

    Attributes:
      noise: float32 [B], the probability of a random action.
      reversed: bool [B].
    """

    noise: chex.Array
    reversed: chex.Array


def behaviour(names: tuple[str, ...]) -> Behaviour:
    """The behaviours of B rows, by name. Raises ValueError for an unknown name."""
    for name in names:
        if name not in BEHAVIOURS:
            raise ValueError(f"behaviour {name!r} is none of {', '.join(BEHAVIOURS)}")
    noise, turned = zip(*(BEHAVIOURS[name] for name in names), strict=True)
    return Behaviour(jnp.asarray(noise, jnp.float32), jnp.asarray(turned, bool))


def controller(name: str, **options) -> Callable:
    """observations [..., *shape] -> actions of the environment `name`. Raises ValueError if it has no script.

    options: keywords of the environment; its script takes those of OPTIONS.
    """
    if name not in CONTROLLERS:
        raise ValueError(
            f"env.name={name!r} has no scripted behaviour; there are some for {', '.join(CONTROLLERS)}. Give a file of "
            "transitions (dataset.path), recorded by control.ppo --config.record.path=FOLDER"
        )
    known = {key: value for key, value in options.items() if key in OPTIONS}
    return functools.partial(CONTROLLERS[name], **known) if known else CONTROLLERS[name]


def reward(name: str, **options) -> Callable:
    """next observations [..., D] -> rewards [...] of the environment `name`, for planners that know them.

    options: keywords of the environment. Raises ValueError if its reward is not written down here.
    """
    if name not in REWARDS:
        raise ValueError(f"env.name={name!r}: no planner knows its reward; it does of {', '.join(REWARDS)}")
    return functools.partial(REWARDS[name], **({"goal": options["goal"]} if "goal" in options else {}))


def actor(name: str, space: Box | Discrete, mixture: Behaviour, **options) -> Callable:
    """Makes (observations [B, ...], key) -> actions [B, ...] of the mixture's rows, in the environment's units.

    options: of `controller`.

    Raises:
      ValueError: if the environment has no script.
    """
    script = controller(name, **options)

    def act(observations: chex.Array, key: chex.PRNGKey) -> chex.Array:
        coin_key, action_key = jax.random.split(key)
        count = observations.shape[0]
        lost = jax.random.uniform(coin_key, (count,)) < mixture.noise
        best = script(observations)
        if isinstance(space, Discrete):
            mirrored = jnp.where(mixture.reversed, (space.n - 1) - best, best)
            return jnp.where(lost, jax.random.randint(action_key, (count,), 0, space.n), mirrored).astype(jnp.int32)
        low, high = (jnp.broadcast_to(jnp.asarray(x), best.shape) for x in (space.low, space.high))
        random = low + (high - low) * jax.random.uniform(action_key, best.shape)
        turned = jnp.where(mixture.reversed[:, None], low + high - best, best)
        return jnp.where(lost[:, None], random, turned).astype(jnp.float32)

    return act
