"""selection/deep_cfr.py and game_values.py: fits, traversals and gaps against numpy, tables and enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.envs.text import kuhn, kuhn_talk, werewolf_talk
from rl_jax.selection import deep_cfr, game_values
from rl_jax.selection import latent_strategies as latent
from rl_jax.selection.deep_cfr import Memory, Reservoir

KUHN, WOLF = kuhn_talk.tree(), werewolf_talk.tree()
PURE = dict.fromkeys(kuhn.equilibrium(), np.eye(2))


def random_policy(root, seed):
    dice = np.random.default_rng(seed)
    return {name: dice.dirichlet(np.ones(count)) for name, (_, count) in latent.infosets(root).items()}


def test_a_network_begins_he_normal_and_with_0():
    (weights, bias), last = deep_cfr.init(jax.random.key(0), (50, 200, 3))
    assert weights.shape == (50, 200) and bias.shape == (200,) and not np.any(bias)
    assert np.std(weights) == pytest.approx((2 / 50) ** 0.5, rel=0.05), "of 10,000, known to 1 %"
    assert last[0].shape == (200, 3) and not np.any(last[0]) and not np.any(last[1])


def test_the_loss_and_its_gradient_are_numpys():
    dice = np.random.default_rng(0)
    outputs, targets = dice.normal(size=(2, 4, 3))
    valid, weights = np.array([[1, 1, 0]] * 2 + [[1, 1, 1]] * 2, bool), np.array([1.0, 2.0, 3.0, 0.0])
    targets[~valid] = np.nan  # of strategies that there are not
    batch = Memory(np.zeros((4, 2)), targets, valid, weights)
    mean = deep_cfr.fit_loss(jnp.asarray(outputs), batch)
    errors = [sum((targets[n, k] - outputs[n, k]) ** 2 for k in range(3) if valid[n, k]) for n in range(4)]
    np.testing.assert_allclose([mean.total, mean.count], [np.dot(weights, errors), 6.0], rtol=1e-6)
    gradient = jax.grad(lambda x: deep_cfr.fit_loss(x, batch).value())(jnp.asarray(outputs))
    expected = np.where(valid, 2 * weights[:, None] * (outputs - np.nan_to_num(targets)) / 6, 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    with pytest.raises(AssertionError):
        deep_cfr.fit_loss(jnp.zeros((4, 2)), batch)


def test_a_fit_comes_to_the_weighted_mean_of_each_input():
    """One-hot inputs and no hidden layer: least squares are the means of the targets, weighted by t."""
    kept = Reservoir(8, 2, 2, np.random.default_rng(0))
    for place, target, weight in ((0, (1.0, 2.0), 1.0), (0, (4.0, -1.0), 2.0), (1, (5.0,), 3.0)):
        kept.add(np.eye(2)[place], np.asarray(target), weight)
    options = dict(sizes=(2, 2), updates=400, batch_size=32, learning_rate=0.1)
    params = deep_cfr.fit(kept.memory, np.int32(kept.count), jax.random.key(0), **options)
    found = deep_cfr.apply(params, np.eye(2, dtype=np.float32))
    np.testing.assert_allclose(found[0], [3.0, 0.0], atol=0.15)
    assert found[1, 0] == pytest.approx(5.0, abs=0.1)


def test_a_reservoir_keeps_each_sample_alike():
    counts = np.zeros(20)
    for seed in range(300):
        kept = Reservoir(5, 1, 1, np.random.default_rng(seed))
        for number in range(20):
            kept.add(np.array([number]), np.zeros(1), 1.0)
        counts[kept.memory.inputs[:, 0].astype(int)] += 1
    assert kept.count == 5 and counts.sum() == 1500 and abs(counts - 75).max() < 30
    np.testing.assert_allclose(deep_cfr.matched(np.array([3.0, -1.0, 1.0])), [0.75, 0, 0.25])
    np.testing.assert_allclose(deep_cfr.matched(np.array([-3.0, -1.0, -2.0])), [0, 1, 0])


@pytest.mark.parametrize("seed", [0])
def test_traversals_give_the_counterfactual_regret_of_a_round(seed):
    """Their mean, summed over visits, is what CFR adds in its first round, where all strategies are even."""
    effects = dict.fromkeys(PURE, np.array([[0.9, 0.1], [0.3, 0.7]]))
    even, dice, count = {name: np.full(2, 0.5) for name in PURE}, np.random.default_rng(seed), 1500
    expected, found, met = latent.solve(KUHN, effects, rounds=1).regrets, dict.fromkeys(PURE, 0.0), set()
    for player, _ in itertools.product(range(2), range(count)):

        def own(name, regrets):
            found[name] = found[name] + regrets / count

        deep_cfr.traverse(KUHN, player, even, effects, dice, own, lambda name, sigma: met.add(name))
    assert met == set(PURE)
    np.testing.assert_allclose([found[name] for name in PURE], [expected[name] for name in PURE], atol=0.03)
    assert max(abs(regrets).max() for regrets in expected.values()) > 0.1


def test_networks_come_near_to_what_tables_find():
    options = dict(features=kuhn_talk.features, rounds=15, traversals=30, updates=60, batch_size=64, hidden=(32,))
    found = deep_cfr.solve(KUHN, PURE, **options, capacity=1_000, learning_rate=0.03, most=3)
    assert all(p.shape == (2,) and p.sum() == pytest.approx(1) for p in found.policy.values())
    assert game_values.gap(KUHN, found.policy) < 0.35, "11/12 if all moves are even"
    tables = latent.solve(KUHN, PURE, rounds=60)
    sure = [name for name, regrets in tables.regrets.items() if abs(regrets[0] - regrets[1]) > 0.07]
    assert len(sure) >= 4
    assert [found.regrets[n].argmax() for n in sure] == [tables.regrets[n].argmax() for n in sure]
    with pytest.raises(ValueError, match="the information set 'J' needs effects of its 2 actions"):
        deep_cfr.solve(KUHN, {**PURE, "J": np.eye(3)}, features=kuhn_talk.features)
    with pytest.raises(ValueError, match="most=1 is less than the 2 strategies"):
        deep_cfr.solve(KUHN, PURE, features=kuhn_talk.features, most=1)


def test_values_and_gains_are_those_of_kuhn_poker():
    for seed in range(2):
        policy = random_policy(KUHN, seed)
        chances = {name: p[1] for name, p in policy.items()}
        assert game_values.value(KUHN, policy) == pytest.approx(kuhn.value(chances))
        for seat, sign in enumerate((1, -1)):
            expected = kuhn.best_response(chances, seat) - sign * kuhn.value(chances)
            assert game_values.gain(KUHN, policy, seat) == pytest.approx(expected)
        assert game_values.gap(KUHN, policy) == pytest.approx(kuhn_talk.gap(policy))


def test_a_node_without_a_probability_for_each_child_is_refused():
    short = latent.Chance((0.5, 0.5), (1.0,))
    for policy in ({"I": [0.5, 0.25, 0.25]}, {"I": [1.0]}):
        with pytest.raises(ValueError, match="zip"):
            game_values.value(latent.Decision(0, "I", (1.0, 2.0)), policy)
    with pytest.raises(ValueError, match="zip"):
        game_values.value(short, {})
    # Where the reach is 0 by rounding alone, and no policy goes, the best answer is the only one to come there.
    rare = latent.Chance((1e-200, 1.0), (latent.Chance((1e-200, 1.0), (short, 0.0)), 0.0))
    with pytest.raises(ValueError, match="zip"):
        game_values.gain(latent.Decision(0, "I", (rare, 1.0)), {"I": [0.0, 1.0]}, 0)


def test_a_seats_gain_in_werewolf_is_the_best_of_all_its_plans():
    """Seat a as wolf or seer has three information sets; its gain as villager is left out by a fixed vote and word."""
    policy = random_policy(WOLF, 0)
    policy |= {name: np.eye(len(p))[0] for name, p in policy.items() if name.startswith("aV")}
    mean, own = game_values.value(WOLF, policy), ("aW", "aSl", "aSr")
    best = -np.inf
    for plan in itertools.product(range(3), repeat=3):
        other = policy | {name: np.eye(3)[word] for name, word in zip(own, plan, strict=True)}
        as_wolf = game_values.value(WOLF, policy | {"aW": other["aW"]})
        as_seer = game_values.value(WOLF, policy | {name: other[name] for name in own[1:]})
        best = max(best, (mean - as_wolf) + (as_seer - mean))
    villager = [{**policy, "aV": np.eye(3)[word]} for word in range(3)]
    votes = [name for name in policy if name.startswith("aV") and name.endswith("?")]
    of_word = []
    for one in villager:  # the votes after one word are at different information sets: each alone is the best
        worth = game_values.value(WOLF, one)
        of_word.append(worth + sum(max(0.0, game_values.value(WOLF, one | {n: np.eye(2)[1]}) - worth) for n in votes))
    assert game_values.gain(WOLF, policy, 0) == pytest.approx(best + max(of_word) - mean)


def test_cfr_finds_an_equilibrium_of_three_seats():
    sets = latent.infosets(WOLF)
    even = {name: np.full(count, 1 / count) for name, (_, count) in sets.items()}
    found = latent.solve(WOLF, {name: np.eye(count) for name, (_, count) in sets.items()}, rounds=60)
    assert game_values.gap(WOLF, even) == pytest.approx(71 / 108) and game_values.value(WOLF, even) == -1 / 9
    assert game_values.gap(WOLF, found.policy) < 0.25 and 0.35 < game_values.value(WOLF, found.policy) < 0.6
    assert found.policy["cSl.."][1] > 0.95 and found.policy["aW"][0] < 0.1, "a seer tells, a wolf bluffs"
