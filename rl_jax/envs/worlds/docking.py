"""A point that is pushed to the origin of a plane, and a controller that misses it: a base policy to correct."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

NO = np.bool_(False)


def environment(*, periods: int = 40, radius: float = 0.0) -> Environment:
    """Position and velocity in a plane, v' = .8 v + .2 a, p' = p + .3 v', reward -|p'|^2, actions in [-1, 1]^2.

    Args:
      periods: steps after which an episode is truncated.
      radius: above 0, the reward is 1 where |p'| is less, which ends the episode, and 0 elsewhere.
    """

    def reset(key: chex.PRNGKey):
        state = jnp.concatenate([jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0), jnp.zeros(2)])
        return state, state

    def step(key: chex.PRNGKey, state: chex.Array, action: chex.Array):
        velocity = 0.8 * state[2:] + 0.2 * action
        place = jnp.clip(state[:2] + 0.3 * velocity, -2.0, 2.0)
        state = jnp.concatenate([place, velocity])
        squared = jnp.sum(jnp.square(place))
        if radius:
            there = squared < radius**2
            return state, Step(state, there.astype(jnp.float32), there, NO)
        return state, Step(state, -squared, NO, NO)

    wide = np.full(4, 2.0, np.float32)
    unit = np.ones(2, np.float32)
    return time_limit(Environment(reset, step, Box(-wide, wide), Box(-unit, unit)), periods)


def biased_pd(observations: chex.Array, *, bias: float = 0.3) -> chex.Array:
    """A proportional-derivative controller that aims beside the origin, at (bias, bias): float [N, 4] -> [N, 2].

    a = clip(-2 (p - bias) - 1.5 v, -1, 1)
    """
    return jnp.clip(-2.0 * (observations[:, :2] - bias) - 1.5 * observations[:, 2:], -1.0, 1.0)


def demonstrations(
    key: chex.PRNGKey, *, episodes: int = 16, periods: int = 40, bias: float = 0.3
) -> tuple[chex.Array, chex.Array]:
    """What `biased_pd` sees and does in whole episodes: (observations float [N, 4], actions [N, 2]), N = episodes T.

    Args:
      key: for the starts.
      episodes: their number.
      periods: T.
      bias: of biased_pd; 0 is its best.
    """
    env = environment(periods=periods)
    states, observations = jax.vmap(env.reset)(jax.random.split(key, episodes))

    def step(carry, _):
        states, observations = carry
        actions = biased_pd(observations, bias=bias)
        states, found = jax.vmap(env.step, (None, 0, 0))(key, states, actions)  # a step draws nothing
        return (states, found.observation), (observations, actions)

    seen, actions = jax.lax.scan(step, (states, observations), None, periods)[1]
    return seen.reshape(-1, 4), actions.reshape(-1, 2)


def guide(observations: chex.Array, *, margin: float = 0.0) -> tuple[chex.Array, chex.Array]:
    """Somebody who watches: (the controller's actions without its bias [N, 2], whether they take over, bool [N]).

    They do while the point moves away from the origin: p . v > margin.

    Args:
      observations: float [N, 4].
      margin: of p . v.
    """
    away = jnp.sum(observations[:, :2] * observations[:, 2:], axis=1)
    return biased_pd(observations, bias=0.0), away > margin


def demonstrator(observations: chex.Array, *, bias: float = 0.3) -> tuple[chex.Array, chex.Array]:
    """Somebody who has shown what they do and then only watches: (`biased_pd`'s actions [N, 2], False [N]).

    Args:
      observations: float [N, 4].
      bias: of biased_pd; 0 is its best.
    """
    return biased_pd(observations, bias=bias), jnp.zeros(len(observations), bool)
