"""The study behind veto_hacking: its terms against counts in words, its rewards against sums, and that arms differ."""

import jax
import numpy as np
import pytest

from experiments.ablation import cli
from experiments.studies import criteria
from experiments.studies.policy_world import Layout

LAYOUT = Layout(4, 3)
WORLD = dict(prompts=200, plain=2, share=0.6, missed=0.1, alarms=0.2)


@pytest.fixture(scope="module")
def terms():
    made = jax.jit(lambda key: criteria.make_terms(key, LAYOUT, **WORLD))(jax.random.key(0))
    return {name: np.asarray(term) for name, term in made.items()}


@pytest.fixture(scope="module")
def counts():
    return np.array([row.count(3) for row in np.asarray(LAYOUT.completions()).tolist()])


def test_compliments_are_counted_and_take_the_place_of_the_others(terms, counts):
    assert set(terms) == {"plain_0", "plain_1", "polite", "calm", "detector"}
    assert (terms["polite"] == counts).all() and (terms["calm"] == (counts <= 1)).all()
    for name in ("plain_0", "plain_1"):
        found = [terms[name][:, counts == count].mean() for count in range(4)]
        np.testing.assert_allclose(found, [0.6, 0.4, 0.2, 0.0], atol=0.03)


def test_the_detector_errs_as_often_as_it_says(terms, counts):
    wrong = terms["detector"] != terms["calm"]
    np.testing.assert_allclose([wrong[:, counts > 1].mean(), wrong[:, counts <= 1].mean()], [0.1, 0.2], atol=0.02)


def test_the_arms_rewards_are_their_compositions(terms):
    arms = cli.load("veto_hacking").settings.arms.to_dict()
    plain = terms["plain_0"] + terms["plain_1"]
    total = plain + terms["polite"] + terms["detector"]
    expected = {
        "sum": total,
        "veto": np.where(terms["detector"] == 1, total, 0.0),
        "veto_exact": np.where(terms["calm"] == 1, total, 0.0),
        "saturation": plain + terms["detector"] + 1 - np.exp(-terms["polite"]),
        "without": plain + terms["detector"],
    }
    assert set(arms) == set(expected)
    for name, arm in arms.items():
        reward = criteria.composed(terms, criteria.weights_of(arm["weights"], 2), arm["compose"])
        np.testing.assert_allclose(reward, expected[name], rtol=1e-6, err_msg=name)


@pytest.mark.slow
def test_the_claim_runs_and_its_arms_start_alike():
    values, curves, _ = cli.run_study(cli.load("veto_hacking", smoke=True))
    assert set(curves) == {"quality", "hacked"}
    assert len({tuple(row["first"]) for row in values.values()}) == 1, "equal policies and terms in every arm"
    assert len({tuple(row["quality"]) for row in values.values()}) == 5, "and other rewards"
