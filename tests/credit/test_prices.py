"""credit/prices.py against a deque and numpy.percentile: the window, its quantiles, and the reward that they give."""

from collections import deque
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import agents_papers
from experiments.parts import policy, trackers
from rl_jax.core.types import Rollout, Turns
from rl_jax.credit import prices

SIZE = 5
KEY = jax.random.key(0)


def rows(costs):
    """8 rows of up to two turns of two tokens, whose costs are on their last tokens; None: a row that failed.

    One shape, so that nothing is compiled twice.
    """
    costs = [*costs, *[None] * (8 - len(costs))]
    turns, cost = np.full((len(costs), 6), -1, np.int32), np.full((len(costs), 6), np.nan, np.float32)
    for row, of_turns in enumerate(costs):
        for turn, value in enumerate(of_turns or ()):
            turns[row, 3 * turn : 3 * turn + 2] = turn
            cost[row, 3 * turn : 3 * turn + 2] = 0.0, value
    return {"turns": jnp.asarray(turns), "turn_cost": jnp.asarray(cost)}


STEPS = [
    [[36.0]],  # a window of one
    [[4.0, 5.0], None, [1.0]],
    [[16.0], [0.0], None, [9.0, 0.0]],
    [[2.0], [25.0, 11.0], [7.0]],
    [[float(n)] for n in range(8)],  # more than the window holds
]


def test_the_window_holds_the_last_costs_and_their_quantiles():
    tracker, kept = prices.cost_window(size=SIZE, low=0.05, high=0.95), deque(maxlen=SIZE)
    state = tracker.init()
    assert state.named()["cost_quantiles"].tolist() == [0, 0]
    assert tracker.update(state, jnp.zeros(8), **rows([None])).named()["cost_quantiles"].tolist() == [0, 0]
    for step in STEPS:
        state = tracker.update(state, jnp.zeros(8), **rows(step))
        kept.extend(np.sqrt(sum(of_turns)) for of_turns in step if of_turns is not None)
        np.testing.assert_allclose(state.named()["cost_quantiles"], np.percentile(kept, [5, 95]), rtol=1e-6)
        assert sorted(np.asarray(state.costs)[: len(kept)].tolist()) == pytest.approx(sorted(kept))
    failed = tracker.update(state, jnp.zeros(8), **rows([None]))
    jax.tree.map(np.testing.assert_array_equal, failed, state)
    for levels in ({"low": 0.9, "high": 0.1}, {"low": 0.5, "high": 0.5}, {"low": -0.1}, {"high": 1.1}, {"size": 0}):
        with pytest.raises(ValueError, match="size=.* must be at least 1, and 0 <= low=.* < high=.* <= 1"):
            prices.cost_window(**levels)
    assert prices.cost_window(low=0.0, high=1.0).init().costs.shape == (1000,)
    assert prices.cost_window(size=1).init().costs.shape == (1,)


def test_the_cheapest_earn_alpha_and_a_wrong_format_stays():
    costs, rewards = [[1.0], [4.0], [9.0, 16.0], [36.0], [1.0]], jnp.array([1.0, 0.0, 1.0, 0.0, -1.0, -1, -1, -1])

    def found(quantiles, weight=0.3):
        named = rows(costs) | {"cost_quantiles": jnp.asarray(quantiles)}
        return np.asarray(prices.priced(rewards, jnp.ones(8, int), jnp.zeros(8, bool), KEY, **named, weight=weight))

    shares = 1 - np.clip((np.array([1, 2, 5, 6, 1, 0, 0, 0]) - 1.5) / 4, 0, 1)
    wanted = np.where(np.asarray(rewards) < 0, -1, 0.7 * np.asarray(rewards) + 0.3 * shares)
    np.testing.assert_allclose(found([1.5, 5.5]), wanted, rtol=1e-6)
    np.testing.assert_allclose(
        found([2.0, 2.0]), [0.85, 0.15, 0.85, 0.15, -1, -1, -1, -1], rtol=1e-6
    )  # .5 if all cost the same
    near = [found([0.0, apart])[0] for apart in (0.95e-8, 1.05e-8)]  # the least that is a difference: 1e-8
    np.testing.assert_allclose(near, [0.7 + 0.3 * 0.5, 0.7], rtol=1e-6)
    np.testing.assert_allclose(found([1.5, 2.0])[:2], [0.7 + 0.3, 0.0], rtol=1e-6)
    np.testing.assert_allclose(found([1.5, 5.5], weight=0.0), rewards)  # without a price it is EM
    np.testing.assert_allclose(found([1.5, 5.5], weight=1.0)[:4], shares[:4], rtol=1e-6)  # the price alone
    for weight in (-0.1, 1.1, 2):
        with pytest.raises(ValueError, match=f"weight={weight} must be in"):
            found([1.0, 2.0], weight=weight)
    given, quantiles = (jnp.ones(8, int), jnp.zeros(8, bool), KEY), jnp.array([1.5, 5.5])
    price = lambda x: prices.priced(rewards, *given, **rows(costs), cost_quantiles=x)  # noqa: E731
    np.testing.assert_allclose(price(quantiles), found([1.5, 5.5], weight=0.5))  # alpha's default
    np.testing.assert_array_equal(jax.grad(lambda x: price(x).sum())(quantiles), 0.0)
    with pytest.raises(AssertionError):
        prices.priced(rewards[:7], *given, **rows(costs), cost_quantiles=quantiles)


def test_a_loop_gives_it_what_the_step_has_cost():
    """experiments.parts.trackers: the window sees a step's rows before they are priced."""
    config = agents_papers.get_config("router_r1,smoke")
    config.algorithm.trackers.reward_scale.size = SIZE
    estimators = trackers.make_trackers(config)
    named = rows([[1.0], [16.0], None])
    turns = Turns(np.asarray(named["turns"]), None, None, {"cost": np.asarray(named["turn_cost"])})
    rollout = Rollout(*[None] * 6)._replace(turns=turns)
    collected = SimpleNamespace(judged=SimpleNamespace(rollout=rollout))
    states = trackers.init(estimators)
    states = trackers.see_rewards(estimators, states, np.zeros(8, np.float32), trackers._counted(collected))
    quantiles = trackers.known(config, states)["cost_quantiles"]
    np.testing.assert_allclose(quantiles, np.percentile([1, 4], [5, 95]), rtol=1e-6)
    assert policy.turn_counts(config) == ["cost"]  # the environment is asked for it
