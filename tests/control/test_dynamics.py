"""control/dynamics.py by hand, and the study of objective mismatch at its smallest size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


@pytest.mark.slow
def test_the_study_measures_every_arm_on_the_same_models():
    """Two arms of one scale are the same arm; the returns lie between standing still and the world's own planner's."""
    paper = cli.load("objective_mismatch", smoke=True)
    settings = paper.settings.to_dict() | {"arms": {"one": 0.5, "other": 0.5}}
    outcome = mismatch.objective_mismatch((0, 1), **settings)
    for metric in ("return", "correlation"):
        np.testing.assert_array_equal(outcome.values["one"][metric], outcome.values["other"][metric])
    assert (outcome.values["one"]["return"] >= -3.0).all() and (outcome.values["one"]["best"] > -3.0).all()
