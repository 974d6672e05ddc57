"""A single store that orders stock: a differentiable environment whose best policy is known in closed form.

Each period, in this order: the order is placed, the order of L periods before arrives, demand D is served from the
stock I on hand, and what is left or missing costs

    penalty max(D - I, 0) + holding max(I - D, 0);   I <- I - D, or max(I - D, 0) if unserved demand is lost.

With backlog the best policy orders up to a level: the stock on hand and on the way, including the order, should be

    S = F^{-1}(penalty / (penalty + holding)),   F the distribution of the demand of L + 1 periods (Karlin, Scarf 1958),

because an order placed now serves all demand up to the end of the period in which it arrives. Demand does not depend on
the orders, so the cost of a path is a piecewise linear function of them, with a gradient. Source: arXiv 2306.11246 and
its code, in which the on-hand stock of a period also includes what has arrived.
"""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Environment, Step, time_limit

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Store(NamedTuple):
    """The problem of one store.

    Attributes:
      demand: numpy float [K]. Probabilities of a demand of 0 .. K - 1 units, the same in each period.
      lead_time: L, in periods; 0 arrives at once.
      holding: cost per period of a unit that is left.
      penalty: cost per period of a unit that is missing.
      lost: whether unserved demand is lost instead of owed.
    """

    demand: np.ndarray
    lead_time: int = 0
    holding: float = 1.0
    penalty: float = 9.0
    lost: bool = False

    @property
    def mean(self) -> float:
        """Mean demand per period."""
        return float(np.arange(len(self.demand)) @ self.demand)


def poisson(mean: float, *, tail: float = 1e-9) -> np.ndarray:
    """Poisson probabilities, cut off when less than `tail` is left and rescaled to sum to 1. float64 [K]."""
    units = np.arange(int(mean + 12.0 * math.sqrt(mean) + 25.0))
    result = np.exp(units * math.log(mean) - mean - np.asarray([math.lgamma(k + 1.0) for k in units]))
    result = result[: 1 + int(np.searchsorted(np.cumsum(result), 1.0 - tail))]
    return result / result.sum()


def period(store: Store, stock: chex.Array, orders: chex.Array, demands: chex.Array) -> tuple[chex.Array, chex.Array]:
    """One period of many stores.

    Args:
      store: the problem.
      stock: float [..., max(L, 1)]. On hand, then what arrives in one, two, ... periods.
      orders: float [...].
      demands: float [...].

    Returns:
      (the stock of the next period, cost float [...]).
    """
    chex.assert_equal_shape([orders, demands, stock[..., 0]])
    on_hand = stock[..., 0] if store.lead_time else stock[..., 0] + orders
    left = on_hand - demands
    cost = store.penalty * jnp.maximum(-left, 0.0) + store.holding * jnp.maximum(left, 0.0)
    if store.lost:
        left = jnp.maximum(left, 0.0)
    if not store.lead_time:
        return left[..., None], cost
    coming = jnp.concatenate([stock[..., 1:], orders[..., None]], axis=-1)
    return coming.at[..., 0].add(left), cost


def environment(store: Store, *, max_order: float, periods: int) -> Environment:
    """The store as an Environment: reward -cost, truncated after `periods`.

    The action is the order, [1] in [0, max_order]; the observation is the stock in mean demands, float32 [max(L, 1)].
    An episode starts with one mean demand on hand and one in each place on the way.
    """
    size, cdf = max(store.lead_time, 1), np.cumsum(store.demand).astype(np.float32)
    mean = store.mean

    def reset(key: chex.PRNGKey):
        return jnp.full(size, mean), jnp.ones(size)

    def step(key: chex.PRNGKey, stock: chex.Array, action: chex.Array):
        # The last entry may round to less than 1, so leave it out: no demand beyond it.
        drawn = jnp.searchsorted(cdf[:-1], jax.random.uniform(key), side="right", method="compare_all")
        stock, cost = period(store, stock, action[0], jnp.asarray(drawn, float))
        return stock, Step(stock / mean, -cost, NO, NO)

    low, high = np.full(size, -np.inf, np.float32), np.full(size, np.inf, np.float32)
    orders = Box(np.zeros(1, np.float32), np.full(1, max_order, np.float32))
    return time_limit(Environment(reset, step, Box(low, high), orders), periods)


def base_stock_level(store: Store) -> int:
    """S, the smallest s with P(demand of L + 1 periods <= s) >= penalty / (penalty + holding); backlog only.

    Raises:
      ValueError: if demand is lost, for which no base-stock level is optimal.
    """
    if store.lost:
        raise ValueError(
            "lost=True: the optimal base-stock level has a closed form for backlogged demand (lost=False) only"
        )
    share = store.penalty / (store.penalty + store.holding)
    return int(np.searchsorted(np.cumsum(_demand_of(store, store.lead_time + 1)), share))


def expected_cost(store: Store, level: float, periods: int) -> float:
    """E[penalty max(D - level, 0) + holding max(level - D, 0)], D the demand of this many periods.

    With periods = L + 1 and backlog: the cost per period of ordering up to `level`, once the first order has arrived.
    """
    demand = _demand_of(store, periods)
    left = level - np.arange(len(demand))
    return float((store.penalty * np.maximum(-left, 0.0) + store.holding * np.maximum(left, 0.0)) @ demand)


def least_cost(store: Store, periods: int) -> float:
    """Mean cost per period of the best policy over an episode of `environment`; backlog only.

    In the first L periods no order has arrived yet: the initial stock, on hand and on the way, serves their demand.
    """
    start = [expected_cost(store, store.mean * (t + 1), t + 1) for t in range(min(store.lead_time, periods))]
    steady = expected_cost(store, base_stock_level(store), store.lead_time + 1)
    return (sum(start) + steady * (periods - len(start))) / periods


def _demand_of(store: Store, periods: int) -> np.ndarray:
    """Probabilities of the total demand of this many periods."""
    result = np.ones(1)
    for _ in range(periods):
        result = np.convolve(result, store.demand)
    return result
