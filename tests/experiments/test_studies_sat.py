"""The study behind saturn and success_half: its formulas and rates against brute force, and that it learns."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.ablation import cli
from experiments.studies import satisfiability as sat
from experiments.studies.base import seed_keys

VARIABLES, LONGEST = 5, 6
WORLD = dict(variables=VARIABLES, longest=LONGEST)


def holds(formula, values) -> bool:
    """Whether every used clause has a true literal, in words."""
    return all(any(x * v > 0 for x, v in zip(row, values, strict=True)) for row in formula if any(row))


@pytest.fixture(scope="module")
def formulas():
    make = jax.jit(lambda key: sat.make_formula(key, 4, **WORLD))
    return [np.asarray(make(key)) for key in seed_keys(range(40))]


def test_formulas_have_clauses_of_three_and_a_solution(formulas):
    everything = list(itertools.product([-1.0, 1.0], repeat=VARIABLES))
    agreeing = []
    for formula in formulas:
        assert formula.shape == (LONGEST, VARIABLES) and set(np.unique(formula)) <= {-1.0, 0.0, 1.0}
        assert np.abs(formula).sum(axis=1).tolist() == [3, 3, 3, 3, 0, 0]
        expected = [holds(formula, values) for values in everything]
        assert any(expected)
        np.testing.assert_array_equal(sat.satisfied(jnp.asarray(formula), jnp.asarray(everything)), expected)
        agreeing.append(np.mean(expected))
    # A uniform guess satisfies a clause with 7/8; what was drawn first makes it a little more.
    assert (7 / 8) ** 4 - 0.03 < np.mean(agreeing) < (7 / 8) ** 4 + 0.1


def test_the_rate_of_a_policy_is_exact(monkeypatch):
    monkeypatch.setattr(sat, "HELD_OUT", 6)
    params, key = sat.init_policy(jax.random.key(0), 4), jax.random.key(1)
    rates_of = jax.jit(lambda params: sat.pass_rates(params, key, 1, jnp.asarray([1, 4]), **WORLD))
    rates = rates_of(params)
    np.testing.assert_allclose(rates[0], 7 / 8, rtol=1e-5)  # every assignment is equally likely at first
    params, expected = params | {"last": jnp.ones(4)}, []
    make = jax.jit(lambda key: sat.make_formula(key, 4, **WORLD))
    for formula in map(make, jax.random.split(key, 6)):
        chance = 1 / (1 + np.exp(-np.asarray(sat.log_odds(params, formula, 1), np.float64)))
        drawn = itertools.product([-1.0, 1.0], repeat=VARIABLES)
        expected.append(sum(np.prod(np.where(np.array(v) > 0, chance, 1 - chance)) * holds(formula, v) for v in drawn))
    rates = rates_of(params)
    np.testing.assert_allclose(rates[1], np.mean(expected), rtol=1e-5)


def test_the_policy_does_not_see_the_order_of_clauses_or_the_names_of_variables(formulas):
    params = sat.init_policy(jax.random.key(0), 4) | {"last": jnp.ones(4)}
    formula, order, names = formulas[0], [2, 0, 3, 1, 4, 5], [4, 2, 0, 1, 3]
    odds = sat.log_odds(params, jnp.asarray(formula), 2)
    np.testing.assert_allclose(sat.log_odds(params, jnp.asarray(formula[order]), 2), odds, rtol=1e-5)
    np.testing.assert_allclose(
        sat.log_odds(params, jnp.asarray(formula[:, names]), 2), np.asarray(odds)[names], rtol=1e-5
    )


@pytest.mark.slow
def test_it_learns_and_its_rewards_are_those_of_the_formulas():
    recipe = sat.Recipe(groups=8, group_size=8, steps=0, learning_rate=0.02, width=8, rounds=1)
    tx = optax.adam(recipe.learning_rate)
    step = jax.jit(sat.make_step(recipe, tx, **WORLD))
    params = sat.init_policy(jax.random.key(0), recipe.width)
    state, clauses, rewards = tx.init(params), jnp.full(8, 6), []
    for number in range(60):
        params, state, reward = step(params, state, jax.random.key(number), clauses)
        assert reward.shape == (8, 8) and set(np.unique(reward)) <= {0.0, 1.0}
        rewards.append(float(reward.mean()))
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("key", ["saturn", "success_half"])
def test_the_claims_run_and_their_arms_start_alike(key, monkeypatch):
    monkeypatch.setattr(sat, "HELD_OUT", 6)
    values, curves, _ = cli.run_study(cli.load(key, smoke=True))
    assert set(curves) == {"hardest", "all"} and all(len(row["all"]) == 2 for row in values.values())
    starts = {lines[0][1] for lines in curves["all"].values()}
    assert len(starts) == 1, "equal policies and formulas in every arm"
    assert len({tuple(row["all"]) for row in values.values()}) == 2, "and other levels"
