"""Recovering bandits (2106.14813): an arm pays R_i(tau) after tau steps without a pull, so it is worth waiting.

Pulling arm i every d steps pays R_i(d) / d a step. With x = 1 / d that is F_i(x) = x R_i(1 / x), and

    max sum_i cav F_i(x_i)  subject to  sum_i x_i <= K,  0 <= x_i <= 1                    `relaxation`

bounds the long-run mean of every policy from above, as cav F is the least concave function above F. Periods that are
near these rates and fit into a schedule, and an algorithm that learns R, are in `recovering_plans`.
"""

import itertools
from collections.abc import Sequence

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


def environment(*, rewards: Sequence[Sequence[float]], horizon: int = 64) -> Environment:
    """One pull per step; the observation is each arm's idle time, over the largest one.

    Args:
      rewards: R_i(tau) of tau = 1, 2, ..., nondecreasing; longer waits pay as the last: [N][D].
      horizon: steps of an episode.
    """
    table = np.asarray(rewards, np.float32)
    arms, longest = table.shape

    def observe(idle: chex.Array) -> chex.Array:
        return idle.astype(jnp.float32) / longest

    def reset(key: chex.PRNGKey):
        idle = jnp.full(arms, longest, jnp.int32)
        return idle, observe(idle)

    def step(key: chex.PRNGKey, idle: chex.Array, action: chex.Array):
        paid = jnp.asarray(table)[action, idle[action] - 1]
        idle = jnp.minimum(jnp.where(jnp.arange(arms) == action, 1, idle + 1), longest)
        return idle, Step(observe(idle), paid, NO, NO)

    space = Box(np.zeros(arms, np.float32), np.ones(arms, np.float32))
    return time_limit(Environment(reset, step, space, Discrete(arms)), horizon)


def envelope(rewards: np.ndarray) -> list[tuple[float, float]]:
    """The corners (x, cav F(x)) of one arm, x rising from 0. rewards: R(tau), float [D]."""
    waits = np.arange(1, len(rewards) + 1)
    points = [(0.0, 0.0), *((1.0 / d, float(rewards[d - 1]) / d) for d in waits[::-1])]
    hull: list[tuple[float, float]] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) <= _slope(hull[-2], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(left: tuple[float, float], right: tuple[float, float]) -> float:
    return (right[1] - left[1]) / (right[0] - left[0])


def relaxed_rates(rewards: Sequence[Sequence[float]], *, pulls: int = 1) -> tuple[float, np.ndarray]:
    """The bound and the rates x_i that reach it, float [N]: at most one arm is between two corners of its envelope.

    The pieces of all envelopes are filled in the order of their slopes, which is exact for this program.

    Args:
      rewards: R_i(tau), [N][D].
      pulls: K per step.
    """
    pieces = []
    for arm, table in enumerate(np.asarray(rewards, float)):
        corners = envelope(table)
        pieces += [(_slope(a, b), b[0] - a[0], arm) for a, b in itertools.pairwise(corners)]
    left, total, rates = float(pulls), 0.0, np.zeros(len(rewards))
    for slope, width, arm in sorted(pieces, reverse=True):
        used = min(width, left)
        if slope <= 0:
            break
        total, left = total + slope * used, left - used
        rates[arm] += used
    return total, rates


def relaxation(rewards: Sequence[Sequence[float]], *, pulls: int = 1) -> float:
    """The bound on the long-run mean of every policy. Arguments as in `relaxed_rates`."""
    return relaxed_rates(rewards, pulls=pulls)[0]


def best_schedule(rewards: Sequence[Sequence[float]], *, period: int) -> tuple[float, tuple[int, ...]]:
    """The best of all schedules of this period by enumeration: (mean reward of a step, arms). One pull per step."""
    table = np.asarray(rewards, float)
    arms, longest = table.shape
    best = (-np.inf, ())
    for schedule in itertools.product(range(arms), repeat=period):
        last, total = {}, 0.0
        for time, arm in enumerate(schedule * 2):
            wait = time - last.get(arm, -longest)
            total += table[arm, min(wait, longest) - 1] if time >= period else 0.0
            last[arm] = time
        best = max(best, (total / period, schedule))
    return best
