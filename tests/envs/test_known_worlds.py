"""envs/worlds/{recovering,bidding,salesman,television,tour,errands}.py: bounds, exact values and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from experiments.tools import known_answers
from rl_jax.envs.worlds import bidding, recovering, television, tour
from rl_jax.envs.worlds import salesman as tours

REWARDS = ((0.5, 0.8, 0.95, 1.0), (0.3, 0.7, 1.0, 1.2))


def test_the_relaxation_is_the_linear_program_and_bounds_every_schedule():
    """max sum_i y . F_i over mixtures of periods, by scipy."""
    for rewards, pulls in ((REWARDS, 1), (REWARDS, 2), (((0.2, 0.9), (0.5, 0.6), (0.1, 1.5)), 1)):
        values, use, arms = [], [], len(rewards)
        for arm in rewards:
            values += [r / d for d, r in enumerate(arm, 1)]
            use += [1 / d for d in range(1, len(arm) + 1)]
        each = np.repeat(np.eye(arms), len(rewards[0]), axis=1)
        found = scipy.optimize.linprog(-np.array(values), np.vstack([use, each]), [pulls] + [1.0] * arms)
        np.testing.assert_allclose(recovering.relaxation(rewards, pulls=pulls), -found.fun, rtol=1e-6)
    bound = recovering.relaxation(REWARDS)
    best = [recovering.best_schedule(REWARDS, period=period)[0] for period in range(1, 6)]
    assert max(best) <= bound + 1e-9 and max(best) > best[0]
    # As many pulls as arms: each is pulled in every step.
    rising = ((0.5, 0.6), (0.3, 0.4))
    np.testing.assert_allclose(recovering.relaxation(rising, pulls=2), 0.8)


def test_the_environment_pays_a_schedule_what_it_is_worth():
    env = recovering.environment(rewards=REWARDS, horizon=12)
    (state, seen), key, paid = env.reset(jax.random.key(0)), jax.random.key(0), []
    for time in range(12):
        state, now = env.step(key, state, jnp.int32((0, 1, 1)[time % 3]))
        paid.append(float(now.reward))
    waits = [(0, 3), (1, 2), (1, 1)]
    np.testing.assert_allclose(paid[3:], [REWARDS[a][d - 1] for a, d in waits] * 3, rtol=1e-6)
    assert bool(now.truncated) and not bool(now.terminated) and seen.shape == (2,)


def test_values_of_a_campaign():
    world = bidding.market(largest=3)
    table = bidding.values(world, auctions=4, budget=14)
    mean = world.values @ world.value_probs
    np.testing.assert_array_equal(table[0], 0.0)
    np.testing.assert_allclose(table[4, 12:], 4 * mean)
    np.testing.assert_array_equal(table[:, 0], 0.0)
    assert (np.diff(table, axis=1) >= -1e-12).all() and (np.diff(table, axis=0) >= -1e-12).all()
    for left, money, theta in itertools.product((1, 2, 4), (0, 1, 2, 5), world.values):
        bids = [bidding.won(world, table[left - 1], money, theta, bid) for bid in range(min(money, 3) + 1)]
        bid = bidding.best_bid(table[left - 1], money, theta, 3)
        np.testing.assert_allclose(bids[bid], max(bids))
        assert all(bids[other] < bids[bid] - 1e-12 for other in range(bid + 1, len(bids)))


def test_the_best_bids_reach_the_value_in_the_environment():
    """Of 512 campaigns; bids of theta alone, or random ones, reach less."""
    auctions, budget, largest = 6, 6, 3
    env = bidding.environment(auctions=auctions, budget=budget, largest=largest)
    world = bidding.market(largest=largest)
    table = bidding.values(world, auctions=auctions, budget=budget)
    bids = np.array(
        [
            [
                [bidding.best_bid(table[max(t - 1, 0)], b, theta, largest) for theta in world.values]
                for b in range(budget + 1)
            ]
            for t in range(auctions + 1)
        ]
    )

    def play(key, best):
        reset_key, key = jax.random.split(key)
        state, _ = env.reset(reset_key)

        def step(state, key):
            left, money, theta = state
            kind = jnp.argmin(jnp.abs(jnp.asarray(world.values, jnp.float32) - theta))
            bid = jnp.where(best, jnp.asarray(bids)[left, money, kind], largest)
            state, now = env.step(key, state, bid)
            return state, (now.reward, now.terminated)

        _, (paid, ended) = jax.lax.scan(step, state, jax.random.split(key, auctions))
        return jnp.sum(paid), ended[-1] & ~ended[-2]

    keys = jax.random.split(jax.random.key(0), 512)
    whole = jax.jit(jax.vmap(play, in_axes=(0, None)))
    (best, ended), (greedy, _) = whole(keys, True), whole(keys, False)
    assert bool(jnp.all(ended))
    np.testing.assert_allclose(np.mean(best), table[auctions, budget], rtol=0.05)
    assert np.mean(greedy) < 0.93 * table[auctions, budget]


@pytest.mark.parametrize("seed", [0, 1])
def test_tours(seed):
    """The way that the environment pays is the tour's length; renaming the cities changes no observation."""
    n, rng = 6, np.random.default_rng(seed)
    env = tours.environment(cities=n)
    (places, visited, current), seen = env.reset(jax.random.key(seed))
    state, total, order = (places, visited, current), 0.0, [0]
    for _ in range(n - 1):
        action = int(rng.integers(n - 1))
        state, now = env.step(jax.random.key(0), state, jnp.int32(action))
        order.append(int(state[2]))
        total += float(now.reward)
    assert bool(now.terminated) and sorted(order) == list(range(n))
    cities = np.asarray(places)
    np.testing.assert_allclose(-total, tours.length(cities, tuple(order)), rtol=1e-5)
    best = tours.best_tour(cities)[0]
    assert best <= tours.length(cities, tours.nearest_tour(cities)) + 1e-9 and best <= -total + 1e-6
    renamed = np.concatenate([[0], 1 + rng.permutation(n - 1)])
    again = tours.observe(places[renamed], visited[renamed], jnp.int32(0), jnp.int32(0))
    np.testing.assert_allclose(again, seen, atol=1e-6)
    state = (places, visited, current)
    for _ in range(n - 1):  # action 0 is the nearest city
        state, _ = env.step(jax.random.key(0), state, jnp.int32(0))
    assert int(state[2]) == tours.nearest_tour(cities)[-1]


def test_the_screen_shows_noise_at_its_place_only():
    env = television.environment(length=4, channels=3)
    state, seen = env.reset(jax.random.key(0))
    np.testing.assert_array_equal(seen, [0, 0, 1, 0, 0, 0, 0])
    channels = set()
    for number in range(12):
        state, now = env.step(jax.random.key(number), state, jnp.int32(0))
        channels.add(int(jnp.argmax(now.observation[4:]))) if number else None
        assert number == 0 or (float(now.observation[4:].sum()) == 1.0 and now.reward == 0.0)
    assert channels == {0, 1, 2}


def test_a_tour_pays_the_stops_in_order():
    env = tour.environment(stops=3, gap=2, horizon=12)
    state, _ = env.reset(jax.random.key(0))
    paid = []
    for action in (0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1):
        state, now = env.step(jax.random.key(0), state, jnp.int32(action))
        paid.append(float(now.reward))
    np.testing.assert_allclose(np.nonzero(paid)[0], [5, 9])  # the left end first does not count
    assert bool(now.truncated) and not bool(now.terminated)


def test_distractors_are_noise_at_the_end_and_change_nothing_else():
    plain, noisy = (tour.environment(stops=3, gap=2, horizon=12, **x) for x in ({}, dict(distractors=40, level=2.0)))
    (state, first), (_, clear) = (env.reset(jax.random.key(0)) for env in (noisy, plain))
    now = noisy.step(jax.random.key(1), state, jnp.int32(1))[1]
    np.testing.assert_array_equal(first[:9], clear)
    noise = np.stack([first[9:], now.observation[9:]])
    assert (np.abs(noise) <= 2.0).all() and noise.std() > 0.9 and (noise[0] != noise[1]).all()
    low, high = noisy.observation_space
    assert low.shape == first.shape and low[-1] == -2.0 and high[-1] == 2.0 and high[0] == 1.0
    with pytest.raises(ValueError, match="distractors=-1 and level=1.0 must be 0 or more"):
        tour.environment(distractors=-1)


def test_the_table_of_known_answers(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["known_answers", "recovering", "bidding", "tours", "--seeds=2"])
    known_answers.main()
    text = capsys.readouterr().out
    assert "## recovering" in text and "| V(12, 0) | 0.0000 |" in text
    monkeypatch.setattr("sys.argv", ["known_answers", "casino"])
    with pytest.raises(SystemExit):
        known_answers.main()
