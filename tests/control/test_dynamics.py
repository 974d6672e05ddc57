"""control/dynamics.py by hand, and the study of objective mismatch at its smallest size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from experiments.ablation import cli
from experiments.studies import mismatch
from rl_jax.control import dynamics


def test_the_likelihood_is_the_normals():
    rng = np.random.default_rng(0)
    means, log_stds, targets = rng.normal(size=(3, 5, 2)).astype(np.float32)
    density = np.exp(-0.5 * ((targets - means) / np.exp(log_stds)) ** 2) / np.sqrt(2 * np.pi) / np.exp(log_stds)
    np.testing.assert_allclose(
        dynamics.gaussian_nll(*map(jnp.asarray, (means, log_stds, targets))), -np.log(density).sum(1), rtol=1e-4
    )


def test_weights_fall_with_the_distance_and_without_a_scale_are_the_plain_likelihood():
    rng = np.random.default_rng(1)
    points, trajectory = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    near = np.array([min(np.linalg.norm(p - t) for t in trajectory) for p in points])
    expected = np.exp(-near / 0.5)
    found = dynamics.trajectory_weights(jnp.asarray(points), jnp.asarray(trajectory), scale=0.5)
    np.testing.assert_allclose(found, expected / expected.mean(), rtol=1e-4)
    plain = dynamics.trajectory_weights(jnp.asarray(points), jnp.asarray(trajectory), scale=jnp.inf)
    np.testing.assert_allclose(plain, np.ones(6), rtol=1e-6)


def test_cem_finds_the_best_plan_within_the_bounds():
    goal = jnp.array([[0.3], [-0.6], [1.7]])
    found = dynamics.cem(
        lambda plans: -jnp.sum(jnp.square(plans - goal[None]), axis=(1, 2)), jnp.zeros((3, 1)), jax.random.key(0),
        rounds=12, samples=64, elites=8, std=0.8,
    )  # fmt: skip
    np.testing.assert_allclose(found, [[0.3], [-0.6], [1.0]], atol=0.05)
    with pytest.raises(ValueError, match="elites=9 must be from 1 to samples=8"):
        dynamics.cem(None, jnp.zeros((3, 1)), jax.random.key(0), rounds=1, samples=8, elites=9, std=1.0)


def test_the_rank_correlation_is_spearmans_and_knows_ties():
    rng = np.random.default_rng(0)
    said, returns = rng.normal(size=12).astype(np.float32), np.maximum(rng.normal(size=12), 0.3).astype(np.float32)
    assert (returns == returns.min()).sum() > 3
    expected = scipy.stats.spearmanr(said, returns).statistic
    np.testing.assert_allclose(mismatch.rank_correlation(jnp.asarray(said), jnp.asarray(returns)), expected, rtol=1e-5)
    assert np.isnan(mismatch.rank_correlation(jnp.asarray(said), jnp.zeros(12))), "by index it would be a number"


@pytest.mark.slow
def test_the_correlation_is_of_one_arms_models_and_no_key_is_used_twice(monkeypatch):
    """Stand-ins: a model is (its weights' share of rows near the origin, a number); the likelihood is the number.

    The return is the number too for the plainly fitted, and falls with it for the others, whose share is larger: over
    the models of both arms the ranks would not agree.
    """
    seen, real = {"draw": [], "fit": [], "plan": []}, mismatch.drawn

    def kept(name, key):
        jax.debug.callback(lambda data: seen[name].append(tuple(np.asarray(data))), jax.random.key_data(key))

    def drawn(key, **options):
        kept("draw", key)
        return real(key, **options)

    def fitted(key, batch, count, weights, **options):
        kept("fit", key)
        near = jnp.linalg.norm(batch[0], axis=1) < 1.5
        return jnp.stack([jnp.sum(weights * near) / jnp.sum(weights), batch[0][0, 0]])

    def controlled(step, key, **options):
        kept("plan", key)
        params = step(None, None)
        value = 0.0 if params is None else 0.3 * jnp.where(params[0] < 0.5, params[1], -params[1])
        return jnp.zeros((4, 2)), jnp.zeros((4, 1)), value

    for name, stand_in in dict(
        drawn=drawn, fitted=fitted, controlled=controlled, network=lambda params, states, actions: (params, None),
        slope_world=lambda states, actions, **options: states, likelihood=lambda params, batch, weights: params[1],
    ).items():  # fmt: skip
        monkeypatch.setattr(mismatch, name, stand_in)
    settings = cli.load("objective_mismatch", smoke=True).settings.to_dict() | dict(models=8)
    values = mismatch.objective_mismatch((0,), **settings).values
    jax.effects_barrier()
    for arm in ("likelihood", "reweighted"):
        np.testing.assert_allclose(values[arm]["correlation"], 1.0, rtol=1e-5)
    found = {name: set(drawn) for name, drawn in seen.items()}
    assert {name: len(drawn) for name, drawn in found.items()} == {"draw": 9, "fit": 8, "plan": 9}, "and test, expert"
    assert len(set.union(*found.values())) == 26


@pytest.mark.slow
def test_the_study_measures_every_arm_on_the_same_models():
    """Two arms of one scale are the same arm; the returns lie between standing still and the world's own planner's."""
    paper = cli.load("objective_mismatch", smoke=True)
    settings = paper.settings.to_dict() | {"arms": {"one": 0.5, "other": 0.5}}
    outcome = mismatch.objective_mismatch((0, 1), **settings)
    for metric in ("return", "correlation"):
        np.testing.assert_array_equal(outcome.values["one"][metric], outcome.values["other"][metric])
    assert (outcome.values["one"]["return"] >= -3.0).all() and (outcome.values["one"]["best"] > -3.0).all()
