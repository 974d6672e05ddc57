"""A planar quadrotor that should hover at the origin, and the terms of its reward: a small form of a Crazyflie.

    r_i' = r_i + (dt / tau) (a_i - r_i)                             two rotors, as deviations from the hovering thrust
    v'   = v + dt (g (1 + m) (-sin th, cos th) - (0, g) + f),  m = (r_1 + r_2) / 2
    w'   = w + dt spin (r_1 - r_2) / 2,   x' = x + dt v',   th' = th + dt w'
    r    = constant - scale sum_i w_i c_i,   0 in the step that ends it

The costs c: |x|^2, sin(th / 2)^2 (1 - q_w^2 of the quaternion), |v|^2, |a|^2. An episode ends at a distance of 0.6
along an axis or upside down. f is a force of the episode that is not observed.

The observation ends with the true state (x, v, th, w, r, f), for a critic; what is before it, for the actor, is
(x, v, th, w) with noise and the last actions. Source: arXiv 2311.13081 and its code (arplaboratory/learning-to-fly),
there in space; the costs, weights, noise, and what is observed by whom are those of the code.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

TERMS = ("position", "orientation", "velocity", "action")  # the order of the weights
GRAVITY, SPIN, DT, LAG, EDGE = 9.81, 40.0, 0.04, 0.08, 0.6
CONSTANT, SCALE = 2.0, 0.5
TARGET = (40.0, 5.0, 1.0, 1.0)  # the weights that the curriculum leads towards
STATE = 10
NOISE = np.asarray([1e-3, 1e-3, 2e-3, 2e-3, 1e-3, 2e-3], np.float32)
NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Hovering(NamedTuple):
    """The true state float32 [10], and the last actions float32 [history, 2], the newest last."""

    true: chex.Array
    history: chex.Array


def advance(true: chex.Array, actions: chex.Array) -> chex.Array:
    """The true state after a step. true: float32 [..., 10]. actions: float32 [..., 2], clipped to [-1, 1]."""
    place, velocity, tilt, turning = true[..., :2], true[..., 2:4], true[..., 4], true[..., 5]
    rotors, force = true[..., 6:8], true[..., 8:]
    rotors = rotors + DT / LAG * (jnp.clip(actions, -1.0, 1.0) - rotors)
    thrust = GRAVITY * (1.0 + jnp.mean(rotors, axis=-1))
    push = jnp.stack([-thrust * jnp.sin(tilt), thrust * jnp.cos(tilt) - GRAVITY], axis=-1)
    velocity = velocity + DT * (push + force)
    turning = turning + DT * SPIN * (rotors[..., 0] - rotors[..., 1]) / 2
    place, tilt = place + DT * velocity, tilt + DT * turning
    return jnp.concatenate([place, velocity, tilt[..., None], turning[..., None], rotors, force], axis=-1)


def fallen(true: chex.Array) -> chex.Array:
    """Whether a true state [..., 10] ends the episode: bool [...]."""
    return jnp.any(jnp.abs(true[..., :2]) > EDGE, axis=-1) | (jnp.abs(true[..., 4]) > np.pi / 2)


def costs(true: chex.Array, actions: chex.Array) -> chex.Array:
    """The costs of TERMS, float32 [..., 4], of true states [..., 10] and actions [..., 2] in them."""
    squares = [
        jnp.sum(jnp.square(true[..., :2]), axis=-1),
        jnp.square(jnp.sin(true[..., 4] / 2)),
        jnp.sum(jnp.square(true[..., 2:4]), axis=-1),
        jnp.sum(jnp.square(actions), axis=-1),
    ]
    return jnp.stack(squares, axis=-1)


def reward(observations: chex.Array, actions: chex.Array, weights: chex.Array) -> chex.Array:
    """The reward of a step under these weights: constant - scale w . c, 0 where the step ends the episode.

    Args:
      observations: float32 [..., D], which end with the true state.
      actions: float32 [..., 2].
      weights: float32 [4], of TERMS.

    Returns:
      float32 [...].
    """
    chex.assert_shape(weights, (len(TERMS),))
    true, actions = observations[..., -STATE:], jnp.clip(actions, -1.0, 1.0)
    paid = CONSTANT - SCALE * (costs(true, actions) @ weights)
    return jnp.where(fallen(advance(true, actions)), 0.0, paid)


def environment(
    *, weights: tuple[float, ...] = TARGET, history: int = 4, noise: float = 1.0, force: float = 0.5, limit: int = 100
) -> Environment:
    """The quadrotor as an Environment.

    Args:
      weights: of TERMS, in the reward that the environment itself pays.
      history: last actions that the actor sees, 1 or more.
      noise: of what the actor sees, in units of the published deviations.
      force: deviation of the force, in m / s^2; g / 20 published.
      limit: steps after which an episode is truncated.

    Raises:
      ValueError: if the history is too short, or there is not a weight for each term.
    """
    if history < 1 or len(weights) != len(TERMS):
        raise ValueError(f"hover: history={history} must be 1 or more, and weights={weights} one for each of {TERMS}")
    own = np.asarray(weights, np.float32)

    def observe(key: chex.PRNGKey, state: Hovering) -> chex.Array:
        seen = state.true[:6] + noise * NOISE * jax.random.normal(key, (6,))
        return jnp.concatenate([seen, state.history.reshape(-1), state.true])

    def reset(key: chex.PRNGKey):
        start_key, force_key, seen_key = jax.random.split(key, 3)
        spread = np.asarray([0.2, 0.2, 0.5, 0.5, 0.5, 0.5], np.float32)
        start = spread * jax.random.uniform(start_key, (6,), minval=-1.0, maxval=1.0)
        blowing = force * jax.random.normal(force_key, (2,))
        state = Hovering(jnp.concatenate([start, jnp.zeros(2), blowing]), jnp.zeros((history, 2)))
        return state, observe(seen_key, state)

    def step(key: chex.PRNGKey, state: Hovering, action: chex.Array):
        paid = reward(state.true, action, own)
        action = jnp.clip(action, -1.0, 1.0)
        state = Hovering(advance(state.true, action), jnp.concatenate([state.history[1:], action[None]]))
        return state, Step(observe(key, state), paid, fallen(state.true), NO)

    high = np.full(6 + 2 * history + STATE, np.inf, np.float32)
    unit = np.ones(2, np.float32)
    return time_limit(Environment(reset, step, Box(-high, high), Box(-unit, unit)), limit)
