"""envs/worlds/recovering_plans.py: roundings beside enumeration and the bound, schedules that fit, and regret."""

import itertools

import numpy as np
import pytest

from rl_jax.envs.worlds import recovering
from rl_jax.envs.worlds import recovering_plans as plans

LEARNED = np.array([[0.1, 0.5, 0.6, 0.7], [0.2, 0.3, 0.8, 0.9], [0.3, 0.35, 0.4, 0.45], [0.05, 0.1, 0.1, 0.1]])


def random_rewards(seed, arms, waits):
    return np.sort(np.random.default_rng(seed).uniform(size=(arms, waits)), axis=1)


def mean_reward(table, pulled_at, steps):
    """The mean of the second half, step by step: no periods."""
    idle, total = np.full(len(table), table.shape[1]), 0.0
    for time in range(2 * steps):
        for arm in pulled_at(time):
            total += table[arm, idle[arm] - 1] if time >= steps else 0.0
            idle[arm] = 0
        idle = np.minimum(idle + 1, table.shape[1])
    return total / steps


def best_cycle(table, pulls, period):
    sets = [s for size in range(pulls + 1) for s in itertools.combinations(range(len(table)), size)]
    cycles = itertools.product(sets, repeat=period)
    return max(mean_reward(table, lambda time, c=cycle: c[time % period], period * 2) for cycle in cycles)


@pytest.mark.parametrize(("arms", "pulls", "waits"), [(1, 1, 3), (4, 1, 5), (5, 2, 6), (12, 4, 8)])
def test_a_plan_fits_and_pays_what_it_says(arms, pulls, waits):
    for seed in range(3):
        table = random_rewards(seed, arms, waits)
        found = plans.plan(table, pulls=pulls, draws=2, seed=seed)
        cycle = int(np.lcm.reduce(np.maximum(found.periods, 1)))
        at = [found.arms(time) for time in range(cycle)]
        assert max(map(len, at)) <= pulls
        for arm in np.flatnonzero(found.periods):
            times = [time for time in range(cycle) if arm in at[time]]
            np.testing.assert_array_equal(times, np.arange(found.phases[arm], cycle, found.periods[arm]))
        np.testing.assert_allclose(mean_reward(table, lambda time, at=at: at[time % len(at)], cycle), found.value)
        assert 0.5 * recovering.relaxation(table, pulls=pulls) < found.value


def test_between_the_plan_and_the_bound_is_the_best_cycle():
    for seed in range(4):
        table = random_rewards(seed, 2, 3)
        best = max(best_cycle(table, 1, period) for period in (1, 2, 3, 4))
        assert best >= max(recovering.best_schedule(table, period=p)[0] for p in (1, 2, 3, 4)) - 1e-9  # always pulls
        found = plans.plan(table)
        assert 0.8 * best <= found.value <= best + 1e-9, (seed, found, best)
        assert best <= recovering.relaxation(table) + 1e-9
    table = random_rewards(0, 3, 2)
    best = max(best_cycle(table, 2, period) for period in (1, 2))
    assert 0.9 * best <= plans.plan(table, pulls=2).value <= recovering.relaxation(table, pulls=2) + 1e-9


def test_as_many_pulls_as_arms_and_arms_that_need_no_rest():
    table = np.array([[0.5, 0.6], [0.3, 0.4], [0.2, 0.2]])
    found = plans.plan(table, pulls=3)
    np.testing.assert_array_equal(found.periods, 1)
    np.testing.assert_allclose(found.value, 1.0)
    constant = np.repeat([[0.2], [0.9], [0.4], [0.7]], 3, axis=1)
    found = plans.plan(constant, pulls=2)
    np.testing.assert_array_equal(found.periods, [0, 1, 0, 1])


def test_the_share_of_the_bound_rises_with_the_pulls():
    shares = []
    for arms, pulls in ((4, 1), (36, 16)):
        tables = [random_rewards(seed, arms, 8) for seed in range(3)]
        pairs = [(plans.plan(t, pulls=pulls, draws=1).value, recovering.relaxation(t, pulls=pulls)) for t in tables]
        shares.append(np.mean([value / bound for value, bound in pairs]))
    assert shares[0] < shares[1] and shares[1] > 0.95, shares


def test_rounding_with_coins_keeps_the_mean_rate():
    np.testing.assert_array_equal(plans.grid((1, 3), 7), [1, 2, 3, 4, 6, 8, 12])
    table, rates = np.ones((2, 4)), np.array([0.3, 0.0])
    assert list(plans.rounded(table, rates, (1,))) == [4, 0]
    rng = np.random.default_rng(0)
    drawn = np.array([plans.rounded(table, rates, (1,), rng=rng)[0] for _ in range(2000)])
    assert set(drawn) == {2, 4}
    np.testing.assert_allclose(np.mean(1.0 / drawn), 0.3, atol=0.01)


def test_upper_bounds_are_above_the_means_and_do_not_fall():
    counts, sums = np.array([[4.0, 100.0, 0.0]]), np.array([[2.0, 10.0, 0.0]])
    mean, width = np.array([0.5, 0.1, 1.0]), np.sqrt(2.0 * np.log(50) / np.array([4.0, 100.0, np.inf]))
    raw = np.minimum(1.0, mean + width)
    expected = [min(raw), raw[1], 1.0]
    np.testing.assert_allclose(plans.optimistic(counts, sums, steps=50)[0], expected)
    exact = plans.optimistic(np.full((1, 3), 10.0), 10.0 * np.array([[0.2, 0.4, 0.6]]), steps=50, bonus=0.0)
    np.testing.assert_allclose(exact, [[0.2, 0.4, 0.6]])


def test_a_learner_with_upper_bounds_comes_near_the_plan_and_one_without_stays_away():
    offline = plans.plan(LEARNED).value
    regret = {
        bonus: offline - np.stack([plans.learn(LEARNED, steps=4000, bonus=bonus, seed=seed) for seed in range(4)])
        for bonus in (0.0, 0.5)
    }
    first, last = (np.mean(regret[0.5][:, part], axis=1) for part in (slice(None, 1000), slice(3000, None)))
    assert np.max(last) < 0.05 and np.mean(last) < 0.2 * np.mean(first), (first, last)
    assert np.mean(regret[0.0][:, 3000:]) > 0.1
    assert not np.array_equal(regret[0.5][0], regret[0.5][1])
    np.testing.assert_array_equal(regret[0.5][0], offline - plans.learn(LEARNED, steps=4000, bonus=0.5, seed=0))


def test_what_is_refused():
    for change in (dict(pulls=0), dict(rewards=[[0.5, 0.4]]), dict(rewards=[[-0.1, 0.4]])):
        with pytest.raises(ValueError, match="plan needs"):
            plans.plan(**(dict(rewards=[[0.1, 0.2]]) | change))
    for change in (dict(rewards=[[0.5, 1.4]]), dict(epoch=0), dict(steps=0)):
        with pytest.raises(ValueError, match="learn needs"):
            plans.learn(**(dict(rewards=[[0.1, 0.2]], steps=3) | change))
