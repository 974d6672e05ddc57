"""Control programs as arms: what is set, run and read; and the MDPs of the preference models by hand."""

import jax
import numpy as np
import pytest

from experiments.studies import regrets, worlds

FIELDS = dict(train=dict(total_steps=1024 * 6), algorithm=dict(relabel=dict(coef=0.25)))
ARMS = {"rdd": dict(config="rewards:rdd", fields=FIELDS)}


def test_metrics_are_read_at_equal_distances(monkeypatch):
    seen = []

    class Program:
        def init(self):
            return 0

        def advance(self, state):
            return state + 1, {"eval/return": np.array([[1.0, 4.0, 3.0], [0.0, 0.0, 6.0]])[:, state]}

    def make(config, make_run):
        seen.append((config, make_run))
        return Program()

    monkeypatch.setattr(worlds.control_runs, "make_program", make)
    outcome = worlds.trained_in_worlds((5, 7), arms=ARMS, metrics={"found": "eval/return"}, points=3)
    config, make_run = seen[0]
    assert make_run is worlds.control_runs.make_run and config.algorithm.relabel.coef == 0.25
    assert (config.log_every, config.group, config.runs) == (2, 2, ((5, ()), (7, ())))
    found = outcome.values["rdd"]
    np.testing.assert_allclose(found["found"], [3.0, 6.0])
    np.testing.assert_allclose(found["mean_found"], [8 / 3, 2.0])
    np.testing.assert_allclose(found["highest_found"], [4.0, 6.0])
    assert outcome.curves["found"]["rdd"] == [(2.0, 0.5), (4.0, 2.0), (6.0, 4.5)]


def test_points_divide_the_updates():
    with pytest.raises(ValueError, match="rdd: 6 updates do not divide into 4 points"):
        worlds.trained_in_worlds((0,), arms=ARMS, metrics={"found": "eval/return"}, points=4)


@pytest.mark.slow
def test_walks_go_where_their_actions_may_lead():
    made = regrets.make_walks(jax.random.key(0), states=5, actions=2, outcomes=2, segment=3, walks=40)
    rewards, probs, at, chosen = map(np.asarray, made)
    assert rewards.shape == (5, 2) and ((probs > 0).sum(axis=2) == 2).all()
    np.testing.assert_allclose(probs.sum(axis=2), 1.0, rtol=1e-5)
    assert at.shape == chosen.shape == (40, 3) and set(np.unique(chosen)) == {0, 1}
    assert (probs[at[:, :-1], chosen[:, :-1], at[:, 1:]] > 0).all()
    policy, discount = np.random.default_rng(0).dirichlet(np.ones(2), 5), 0.8
    law, total = np.full(5, 0.2), 0.0
    for step in range(80):
        total += discount**step * np.einsum("s,sa,sa->", law, policy, rewards)
        law = np.einsum("s,sa,sat->t", law, policy, probs)
    assert float(regrets.expected_return(policy, rewards, probs, discount)) == pytest.approx(total, rel=1e-4)
