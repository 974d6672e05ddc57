"""A road with a car in front, and two forms of a driving reward: a product, or a sum of terms.

CaRL's reward states the goal and not the way: the progress along the route, times a factor below 1 for each rule that
is bent, and termination with a penalty if a rule is broken,

    r_t = (route completion_t - route completion_{t-1}) prod_k f_k - penalty 1[infraction];

so a faultless drive sums to 100, and only progress is rewarded. The sum of terms, from nuPlan's score and from CaRL's
code as the alternative, also rewards each step in which a rule is kept,

    r_t = (w_0 progress + sum_k w_k 1[f_k = 1] 100 / length) / sum w - penalty 1[infraction]:

a car that stops before its goal is rewarded for as long as it stands still. Source: arXiv 2504.17838 and its code.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend
SECONDS = 0.5  # per step
LIMIT, TOP = 10.0, 15.0  # speed limit and top speed of the car, m/s
CAR = 5.0  # length of a car, m
HARSH = 2.0  # m/s^2; stronger acceleration or braking is uncomfortable


def product_of_factors(
    progress: chex.Array, factors: chex.Array, infraction: chex.Array, *, penalty: float = 1.0
) -> chex.Array:
    """progress prod_k f_k - penalty 1[infraction].

    Source: arXiv 2504.17838.

    Args:
      progress: float [...]. Route completion gained, in percent.
      factors: float [..., K] in [0, 1].
      infraction: bool [...]. A violated rule that ends the episode.
      penalty: for an infraction.

    Returns:
      float [...].
    """
    _check(progress, factors, infraction)
    return progress * jnp.prod(factors, axis=-1) - penalty * infraction


def sum_of_terms(
    progress: chex.Array,
    factors: chex.Array,
    infraction: chex.Array,
    *,
    weights: tuple[float, ...] = (5.0, 5.0, 4.0, 2.0),
    length: float = 60.0,
    penalty: float = 1.0,
) -> chex.Array:
    """(w_0 progress + sum_k w_k 1[f_k = 1] 100 / length) / sum w - penalty 1[infraction].

    Args:
      progress: as for `product_of_factors`.
      factors: as for `product_of_factors`.
      infraction: as for `product_of_factors`.
      weights: of progress, time to collision, speed and comfort, as in nuPlan.
      length: approximate steps of an episode that reaches its goal; each of its terms then sums to 100.
      penalty: for an infraction.

    Returns:
      float [...].
    """
    _check(progress, factors, infraction)
    scale = np.asarray(weights[1:], np.float32) * (100.0 / length)
    kept = jnp.sum(jnp.where(factors >= 1.0, jnp.broadcast_to(scale, factors.shape), 0.0), axis=-1)
    return (weights[0] * progress + kept) / sum(weights) - penalty * infraction


def overspeed_factor(speed: chex.Array, limit: float, *, margin: float = 2.23) -> chex.Array:
    """max(0, 1 - over / margin), over = max(speed - limit, 0) in m/s. float [...] -> float [...]."""
    return jnp.maximum(1.0 - jnp.maximum(speed - limit, 0.0) / margin, 0.0)


def _check(progress: chex.Array, factors: chex.Array, infraction: chex.Array) -> None:
    chex.assert_equal_shape([progress, factors[..., 0], infraction])
    chex.assert_type([progress, factors, infraction], [float, float, bool])


REWARDS = {"product": product_of_factors, "sum": sum_of_terms}


class Road(NamedTuple):
    """State of the road.

    Attributes:
      position: float32 [], m.
      speed: float32 [], m/s.
      lead: float32 [], m. Position of the car in front.
      lead_speed: float32 [], m/s.
      held: int32 []. Steps for which the last too short time to collision still lowers the reward.
    """

    position: chex.Array
    speed: chex.Array
    lead: chex.Array
    lead_speed: chex.Array
    held: chex.Array


def road(*, reward: str = "product", length: float = 200.0, hold: int = 10, max_steps: int = 200) -> Environment:
    """A straight road after another car; the action is the acceleration, [1] in m/s^2.

    Factors: .5 for `hold` steps after a time to collision below 2 s, the overspeed factor, .5 for a harsh step. A
    collision is an infraction and ends the episode. Reaching the goal ends it without a penalty; max_steps truncate it.

    Args:
      reward: "product" or "sum".
      length: of the road, m.
      hold: steps, see above.
      max_steps: time limit.

    Returns:
      Environment.

    Raises:
      ValueError: for another reward.
    """
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r} is none of {', '.join(REWARDS)}")

    def observe(state: Road) -> chex.Array:
        gap = state.lead - state.position
        near = state.held > 0
        left = (length - state.position) / length
        features = [state.speed / LIMIT, jnp.minimum(gap / 50.0, 2.0), state.lead_speed / LIMIT, left, near]
        return jnp.stack([jnp.asarray(x, jnp.float32) for x in features])

    def reset(key: chex.PRNGKey):
        gap_key, speed_key = jax.random.split(key)
        lead = CAR + jax.random.uniform(gap_key, minval=10.0, maxval=40.0)
        lead_speed = jax.random.uniform(speed_key, minval=3.0, maxval=9.0)
        state = Road(jnp.float32(0.0), jnp.float32(0.0), lead, lead_speed, jnp.int32(0))
        return state, observe(state)

    def step(key: chex.PRNGKey, state: Road, action: chex.Array):
        change_key, speed_key = jax.random.split(key)
        speed = jnp.clip(state.speed + SECONDS * action[0], 0.0, TOP)
        position = state.position + SECONDS * 0.5 * (state.speed + speed)
        lead = state.lead + SECONDS * state.lead_speed
        drawn = jax.random.uniform(speed_key, minval=3.0, maxval=9.0)
        lead_speed = jnp.where(jax.random.bernoulli(change_key, 0.05), drawn, state.lead_speed)
        gap = lead - position - CAR
        collision = gap <= 0.0
        close = gap < 2.0 * (speed - state.lead_speed)
        held = jnp.where(close, hold, jnp.maximum(state.held - 1, 0))
        harsh = jnp.abs(action[0]) > HARSH
        halves = [jnp.where(held > 0, 0.5, 1.0), overspeed_factor(speed, LIMIT), jnp.where(harsh, 0.5, 1.0)]
        progress = (jnp.minimum(position, length) - state.position) * (100.0 / length)
        reached = (position >= length) & ~collision
        paid = REWARDS[reward](progress, jnp.stack(halves), collision)
        state = Road(position, speed, lead, lead_speed, held)
        return state, Step(observe(state), paid, collision | reached, NO)

    low, high = np.zeros(5, np.float32), np.asarray([1.5, 2.0, 1.0, 1.0, 1.0], np.float32)
    pedals = Box(np.full(1, -4.0, np.float32), np.full(1, 3.0, np.float32))
    return time_limit(Environment(reset, step, Box(low, high), pedals), max_steps)
