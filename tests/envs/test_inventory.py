"""The store: plain numpy beside it, the closed form of the best level, gradients of a path's cost."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rl_jax.envs.worlds import inventory, probes
from rl_jax.envs.worlds.inventory import Store, base_stock_level, expected_cost, least_cost, poisson


def simulate(orders, demands, *, lead_time, holding, penalty, lost, start):
    """Costs of one store, period by period; all that is under way kept by its day of arrival."""
    on_hand, arrivals, costs = start[0], dict(enumerate(start[1:], start=1)), []
    for t, (order, demand) in enumerate(zip(orders, demands, strict=True)):
        on_hand += arrivals.pop(t, 0.0)
        if lead_time:
            arrivals[t + lead_time] = arrivals.get(t + lead_time, 0.0) + order
        else:
            on_hand += order
        costs.append(penalty * max(demand - on_hand, 0.0) + holding * max(on_hand - demand, 0.0))
        on_hand -= demand
        if lost:
            on_hand = max(on_hand, 0.0)
    return np.asarray(costs)


def path_costs(store, orders, demands, start):
    """The costs of a path by the store's own periods, float [T]."""

    def turn(stock, now):
        return inventory.period(store, stock, *now)

    return jax.lax.scan(turn, jnp.asarray(start), (jnp.asarray(orders), jnp.asarray(demands)))[1]


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("lead_time", [0, 1, 3])
def test_costs_and_their_gradients_are_numpys(lead_time, lost):
    rng = np.random.default_rng(lead_time)
    orders, demands = rng.uniform(0.0, 10.0, 12), rng.poisson(5.0, 12).astype(float)
    start = rng.uniform(0.0, 5.0, max(lead_time, 1))
    fields = dict(lead_time=lead_time, holding=0.7, penalty=4.0, lost=lost)
    store = Store(poisson(5.0), **fields)
    expected = simulate(orders, demands, start=start, **fields)
    with jax.enable_x64(True):
        np.testing.assert_allclose(path_costs(store, orders, demands, start), expected, rtol=1e-12)
        gradient = jax.grad(lambda orders: path_costs(store, orders, demands, start).sum())(jnp.asarray(orders))
    for t in range(12):
        step = 1e-6 * (np.arange(12) == t)
        up, down = (simulate(orders + sign * step, demands, start=start, **fields).sum() for sign in (1, -1))
        np.testing.assert_allclose(gradient[t], (up - down) / 2e-6, rtol=1e-6, atol=1e-6)
    assert (np.asarray(gradient)[12 - lead_time :] == 0.0).all()  # what arrives after the end has no effect


@pytest.mark.parametrize(("lead_time", "level", "cost"), [(0, 8, 4.22), (3, 26, 8.19)])
def test_the_published_levels(lead_time, level, cost):
    """Poisson(5), penalty 9, holding 1: the levels and costs that a simulation of 80,000 periods has found."""
    store = Store(poisson(5.0), lead_time)
    assert base_stock_level(store) == level == scipy.stats.poisson(5.0 * (lead_time + 1)).ppf(0.9)
    costs = [expected_cost(store, s, lead_time + 1) for s in (level - 1, level, level + 1)]
    assert costs[1] == min(costs)
    np.testing.assert_allclose(costs[1], cost, atol=0.05)
    rng = np.random.default_rng(0)
    demands, position, stock = rng.poisson(5.0, 20_000).astype(float), 0.0, [0.0] * max(lead_time, 1)
    orders = []
    for demand in demands:  # up to the level in each period
        orders.append(level - position)
        position = level - demand
    found = simulate(orders, demands, lead_time=lead_time, holding=1.0, penalty=9.0, lost=False, start=stock)
    np.testing.assert_allclose(found[100:].mean(), costs[1], rtol=0.03)


def test_poisson_is_scipys():
    found = poisson(5.0)
    np.testing.assert_allclose(found, scipy.stats.poisson(5.0).pmf(np.arange(len(found))), atol=1e-9)
    np.testing.assert_allclose(found.sum(), 1.0, rtol=1e-12)


@pytest.mark.parametrize("lead_time", [0, 2])
def test_an_episode_ordered_up_to_the_level_costs_the_least_cost(lead_time):
    env = probes.inventory(lead_time=lead_time, periods=20)
    store = Store(poisson(5.0), lead_time)
    level = base_stock_level(store)

    def turn(carry, key):
        state, observation = carry
        state, now = env.step(key, state, level - 5.0 * jnp.sum(observation, keepdims=True))
        return (state, now.observation), (now.reward, now.truncated)

    def episode(key):
        reset_key, key = jax.random.split(key)
        return jax.lax.scan(turn, env.reset(reset_key), jax.random.split(key, 20))[1]

    rewards, truncated = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 4000))
    np.testing.assert_allclose(-rewards.mean(), least_cost(store, 20), rtol=0.02)
    assert truncated[:, -1].all() and not truncated[:, :-1].any()


def test_the_demand_has_its_distribution():
    env = probes.inventory(mean=2.0)
    state, _ = env.reset(jax.random.key(0))
    step = jax.jit(jax.vmap(lambda key: env.step(key, state, jnp.zeros(1))[1].observation))
    demand = 2.0 - 2.0 * np.asarray(step(jax.random.split(jax.random.key(1), 20_000)))[:, 0]
    counts = np.bincount(np.rint(demand).astype(int), minlength=6)[:6] / 20_000
    np.testing.assert_allclose(counts, scipy.stats.poisson(2.0).pmf(np.arange(6)), atol=0.012)


def test_lost_demand_has_no_closed_form():
    with pytest.raises(ValueError, match="lost=True: the optimal base-stock level"):
        base_stock_level(Store(poisson(5.0), lost=True))
