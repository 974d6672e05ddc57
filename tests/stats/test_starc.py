"""stats/starc.py: what the canonical forms are blind to, distances with a known value, and solved MDPs."""

import itertools

import numpy as np
import pytest

from experiments.studies import reward_distances
from rl_jax.control import tabular
from rl_jax.stats import starc

S, A, GAMMA = 4, 3, 0.8
RNG = np.random.default_rng(0)
MOVES = RNG.dirichlet(np.ones(S), size=(S, A))
TRUE, OTHER = RNG.normal(size=(2, S, A, S))
CANONICAL = [starc.value_canonical, starc.minimal_canonical]
each = pytest.mark.parametrize("canonical", CANONICAL)


def shaped(rewards):
    """The same order of all policies: a potential, s'-rewards of mean 0, a scale."""
    potential, blind = RNG.normal(size=S), RNG.normal(size=(S, A, S))
    blind -= np.sum(blind * MOVES, axis=2, keepdims=True)
    return 7.0 * (rewards + GAMMA * potential[None, None] - potential[:, None, None] + blind)


def far(first, second, canonical):
    return starc.distance(first, second, MOVES, discount=GAMMA, canonical=canonical)


@each
def test_what_changes_no_policy_changes_no_distance(canonical):
    assert far(TRUE, shaped(TRUE), canonical) == pytest.approx(0.0, abs=1e-9)
    assert far(shaped(TRUE), OTHER, canonical) == pytest.approx(far(TRUE, OTHER, canonical), rel=1e-9)
    assert far(TRUE, -shaped(TRUE), canonical) == pytest.approx(2.0, rel=1e-9)
    constant = RNG.normal(size=S)
    trivial = GAMMA * constant[None, None] - constant[:, None, None] + np.zeros((S, A, S))
    assert far(TRUE, trivial, canonical) == pytest.approx(1.0, rel=1e-9) and far(trivial, trivial, canonical) == 0.0
    assert starc.distance(TRUE, shaped(TRUE), MOVES, discount=GAMMA, canonical=starc.no_canonical) > 0.1


@each
def test_the_scale_of_a_reward_does_not_matter(canonical):
    """However small: a reward is trivial by its share of its own norm."""
    assert far(1e-12 * TRUE, TRUE, canonical) == pytest.approx(0.0, abs=1e-9)
    assert far(1e-12 * TRUE, -1e12 * TRUE, canonical) == pytest.approx(2.0, rel=1e-9)
    assert far(0.0 * TRUE, TRUE, canonical) == pytest.approx(1.0, rel=1e-9)


@each
def test_it_is_a_distance(canonical):
    third = RNG.normal(size=(S, A, S))
    sides = [far(*pair, canonical) for pair in itertools.combinations((TRUE, OTHER, third), 2)]
    assert all(0 < side < 2 for side in sides) and sides[0] <= sides[1] + sides[2]
    assert far(OTHER, TRUE, canonical) == pytest.approx(sides[0])


def test_canonical_forms_are_what_they_say():
    """VAL is minus the regret-like advantage of the random policy, of mean 0; the minimal one has the least norm."""
    found = starc.value_canonical(TRUE, MOVES, discount=GAMMA)
    np.testing.assert_allclose(found.mean(axis=1), 0.0, atol=1e-12)
    least = starc.minimal_canonical(TRUE, MOVES, discount=GAMMA)
    for _ in range(20):
        potential = RNG.normal(size=S)
        moved = least + GAMMA * MOVES @ potential - potential[:, None]
        assert np.linalg.norm(moved) > np.linalg.norm(least)
    assert np.linalg.norm(least) <= np.linalg.norm(found)


def test_policies_are_solved_as_by_value_iteration():
    mean = np.sum(TRUE * MOVES, axis=2)
    policy = starc.best_policy(mean, MOVES, discount=GAMMA)
    q, v = tabular.solve(mean.astype(np.float32), MOVES.astype(np.float32), discount=GAMMA, iterations=200)
    np.testing.assert_array_equal(policy.argmax(axis=1), np.argmax(q, axis=1))
    np.testing.assert_allclose(starc.policy_values(mean, MOVES, policy, discount=GAMMA), v, rtol=1e-4)
    # Regret by all deterministic policies, listed.
    values = {
        choice: starc.policy_values(mean, MOVES, np.eye(A)[list(choice)], discount=GAMMA).mean()
        for choice in itertools.product(range(A), repeat=S)
    }
    proxy = starc.best_policy(np.sum(OTHER * MOVES, axis=2), MOVES, discount=GAMMA).argmax(axis=1)
    expected = (max(values.values()) - values[tuple(proxy)]) / (max(values.values()) - min(values.values()))
    assert starc.regret(TRUE, OTHER, MOVES, discount=GAMMA) == pytest.approx(expected, abs=1e-9)
    assert starc.regret(TRUE, shaped(TRUE), MOVES, discount=GAMMA) == 0.0
    assert starc.regret(TRUE, -TRUE, MOVES, discount=GAMMA) == pytest.approx(1.0)
    assert starc.regret(np.ones((S, A, S)), OTHER, MOVES, discount=GAMMA) == 0.0


def test_an_mdp_that_is_none_is_refused():
    with pytest.raises(ValueError, match="rows of transition_probs must add up to 1"):
        starc.regret(TRUE, OTHER, 2 * MOVES, discount=GAMMA)
    with pytest.raises(ValueError, match="of .S, A, S., found"):
        starc.distance(TRUE[:2], OTHER, MOVES, discount=GAMMA)
    with pytest.raises(ValueError, match="discount=1.0 must be in"):
        starc.distance(TRUE, OTHER, MOVES, discount=1.0)


def test_the_study_prefers_canonical_rewards():
    names = {"no_canonical": "no_canonical", "value": "value_canonical", "minimal": "minimal_canonical"}
    arms = {arm: dict(canonical=name) for arm, name in names.items()}
    found = reward_distances([0, 1], arms=arms, proxies=15).values
    means = {arm: metrics["correlation"].mean() for arm, metrics in found.items()}
    assert means["value"] > 0.6 and means["minimal"] > 0.6 and means["value"] > means["no_canonical"]
