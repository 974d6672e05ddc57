"""The studies of the numbers between the runs and a table: what must come out where the answer is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.ablation import cli
from experiments.studies import statistics

LEARNER = dict(noise=1.0, group_size=8, steps=50)


@pytest.fixture(scope="module")
def bias():
    """Metrics of 32 small studies of tuning_seeds."""
    arms = {"tuning_seeds": "tuning", "test_seeds": "test"}
    sizes = dict(settings=8, learning_rates=(0.3, 30.0), tuning=2, test=8, further=32)
    return statistics.tuning_seeds(range(32), arms=arms, bandit=dict(arms=16), learner=LEARNER, **sizes).values


@pytest.mark.slow
def test_the_learner_learns_as_much_as_its_step_size_lets_it():
    means = jnp.array([1.0, 0.0, -0.5, -0.5])
    learn = jax.jit(jax.vmap(lambda key, rate: statistics.learn(key, means, rate, **LEARNER), (0, None)))
    keys = jax.random.split(jax.random.key(0), 32)
    still, slow, fast = (np.asarray(learn(keys, rate)) for rate in (0.0, 0.3, 3.0))
    np.testing.assert_allclose(still, 0.0, atol=1e-6)  # the uniform policy's reward
    assert 0.05 < slow.mean() < fast.mean() and np.median(fast) > 0.9 and fast.std() > 0.0
    scaled = np.asarray(statistics._bandit(jax.random.key(1), 16))
    assert scaled.max() == pytest.approx(1.0) and scaled.mean() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
def test_the_seeds_a_setting_was_chosen_on_flatter_it(bias):
    chosen, others = (np.asarray(bias[arm]["bias"]) for arm in ("tuning_seeds", "test_seeds"))
    assert chosen.mean() > 0.03 + abs(others.mean()) and abs(others.mean()) < 0.05
    np.testing.assert_allclose(  # both are of the same setting: one truth
        bias["tuning_seeds"]["score"] - chosen, bias["test_seeds"]["score"] - others, atol=1e-6
    )


@pytest.mark.slow
def test_the_best_of_one_seed_is_its_mean_and_of_more_is_above():
    arms = {f"{report}_{runs}": dict(report=report, runs=runs) for report in ("mean", "max") for runs in (1, 6)}
    rates = dict(careful=3.0, bold=10.0)
    found = statistics.best_of_seeds(
        range(32), arms=arms, learning_rates=rates, further=32, bandit=dict(arms=16), learner=LEARNER
    ).values
    for metric in ("bias", "bold_bias", "wrong"):
        np.testing.assert_array_equal(found["mean_1"][metric], found["max_1"][metric])
    assert (found["max_6"]["bias"] >= found["mean_6"]["bias"] - 1e-6).all()
    assert np.mean(found["max_6"]["bold_bias"]) > 0.1 > abs(np.mean(found["mean_6"]["bold_bias"]))
    assert np.mean(found["max_6"]["wrong"]) > np.mean(found["mean_6"]["wrong"]) + 0.2


def few(**settings):
    """(values, curves, note) of the ablation's study at its smoke size, with other settings."""
    paper = cli.load("iqm_few_seeds", smoke=True)
    paper.seeds = (0, 1, 2)
    for name, value in settings.items():
        del paper.settings[name]
        paper.settings[name] = value
    return cli.run_study(paper)


def test_without_the_files_the_scores_are_made_up_and_the_report_says_so():
    values, _, note = few(suites={"made_up": ("no/such.json.gz", "nor/this.json.gz")}, runs=(3, 30), draws=20)
    assert "no/such.json.gz is not here: the scores were made up" in note
    for arm, most in (("iqm", 0.5), ("mean", 0.5), ("median", 0.8)):  # of ten times the runs
        assert np.mean(values[arm]["width_30"]) < most * np.mean(values[arm]["width_3"])
    assert np.mean(values["iqm"]["covered_30"]) > 0.8
    for n in (3, 30):
        assert max(values["iqm"][f"shift_{n}"]) < 0.1 < min(values["mean"][f"shift_{n}"])
    assert all(0.0 <= x <= 1.0 for metrics in values.values() for x in metrics["wrong_3"])


def test_tables_that_do_not_vary_have_no_width():
    tables = [np.full((4, 3), 2.0), np.full((4, 3), 1.0)]
    drawn = statistics._draw(np.random.default_rng(0), np.arange(12.0).reshape(4, 3), (50, 2))
    assert drawn.shape == (50, 2, 3) and set(np.unique(drawn[:, :, 1])) == {1.0, 4.0, 7.0, 10.0}  # each task's own
    assert statistics._draw(np.random.default_rng(0), tables[0], (5, 2)).std() == 0.0
