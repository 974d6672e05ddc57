"""Bidding in real time (1701.02490): t auctions left, a budget b, a click probability theta, an unknown price.

    V(0, b) = 0
    V(t, b) = E_theta max_{a <= b} sum_{p <= a} m(p) (theta + V(t - 1, b - p)) + sum_{p > a} m(p) V(t - 1, b)

The best bid is the largest price p <= b with theta + V(t - 1, b - p) - V(t - 1, b) >= 0. The paper's code
(han-cai/rlb-dp) has the mean of theta in V; this V is that of the best bid for each theta, which is never below it.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.envs.protocol import Box, Discrete, Environment, Step

NO = np.bool_(False)  # numpy, so that the import starts no jax backend


class Market(NamedTuple):
    """A market of second-price auctions.

    Attributes:
      prices: float [P]. m(p), the probability that the highest other bid is p = 0 .. P - 1.
      values: float [K]. Values of theta.
      value_probs: float [K].
    """

    prices: np.ndarray
    values: np.ndarray
    value_probs: np.ndarray


def market(*, largest: int = 5) -> Market:
    """Prices 1 .. largest, dear ones rarer; theta is 0.1, 0.4 or 0.9."""
    prices = np.concatenate([[0.0], 1.0 / np.arange(1, largest + 1)])
    return Market(prices / prices.sum(), np.array([0.1, 0.4, 0.9]), np.array([0.5, 0.3, 0.2]))


def values(world: Market, *, auctions: int, budget: int) -> np.ndarray:
    """V, float [auctions + 1, budget + 1], by dynamic programming.

    Args:
      world: Market.
      auctions: largest t.
      budget: largest b.
    """
    table = np.zeros((auctions + 1, budget + 1))
    for left in range(1, auctions + 1):
        for money in range(budget + 1):
            best = [
                max(won(world, table[left - 1], money, theta, bid) for bid in range(money + 1))
                for theta in world.values
            ]
            table[left, money] = world.value_probs @ best
    return table


def won(world: Market, after: np.ndarray, money: int, theta: float, bid: int) -> float:
    """What a bid is worth: sum_{p <= bid} m(p) (theta + V(b - p)) + sum_{p > bid} m(p) V(b). after: V(t - 1, .)."""
    total = 0.0
    for price, prob in enumerate(world.prices):
        total += prob * (theta + after[money - price] if price <= bid else after[money])
    return total


def best_bid(after: np.ndarray, money: int, theta: float, largest: int) -> int:
    """The largest price p <= money that still pays: theta + V(t - 1, b - p) >= V(t - 1, b). after: V(t - 1, .)."""
    return max(p for p in range(min(money, largest) + 1) if theta + after[money - p] - after[money] >= -1e-12)


def environment(*, auctions: int = 12, budget: int = 12, largest: int = 5) -> Environment:
    """An episode is a campaign of so many auctions; the action is the bid, cut to the budget; a won auction pays theta.

    The observation is (t / auctions, b / budget, theta).

    Args:
      auctions: per episode.
      budget: at the start.
      largest: price, and bid.
    """
    world = market(largest=largest)

    def draw(key: chex.PRNGKey) -> chex.Array:
        return jax.random.choice(key, jnp.asarray(world.values, jnp.float32), p=jnp.asarray(world.value_probs))

    def observe(state) -> chex.Array:
        left, money, theta = state
        return jnp.stack([left / auctions, money / budget, theta]).astype(jnp.float32)

    def reset(key: chex.PRNGKey):
        state = (jnp.int32(auctions), jnp.int32(budget), draw(key))
        return state, observe(state)

    def step(key: chex.PRNGKey, state, action: chex.Array):
        left, money, theta = state
        price_key, value_key = jax.random.split(key)
        price = jax.random.choice(price_key, len(world.prices), p=jnp.asarray(world.prices))
        wins = price <= jnp.minimum(action, money)
        state = (left - 1, money - jnp.where(wins, price, 0).astype(jnp.int32), draw(value_key))
        return state, Step(observe(state), jnp.where(wins, theta, 0.0), left == 1, NO)

    space = Box(np.zeros(3, np.float32), np.ones(3, np.float32))
    return Environment(reset, step, space, Discrete(largest + 1))
