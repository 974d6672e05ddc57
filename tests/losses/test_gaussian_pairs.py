"""losses/reward_model/gaussian.py: against a numpy loop, its limits, and what sigma learns from wrong labels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.losses.reward_model.gaussian import gaussian_pairs

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
quick = functools.partial(jax.jit, compiler_options=QUICK)
RNG = np.random.default_rng(0)
MEANS, LOG_STDS = RNG.normal(size=(3, 2, 4)).astype(np.float32), RNG.normal(-1, 0.3, (3, 2, 4)).astype(np.float32)
MASK, LABELS = np.arange(4) < RNG.integers(1, 5, (3, 2, 1)), np.array([1.0, 0.2, 0.5], np.float32)


def crossed(sums, probs):
    chance = 1.0 / (1.0 + np.exp(-(sums[:, 0] - sums[:, 1])))
    return -probs * np.log(chance) - (1.0 - probs) * np.log(1.0 - chance)


def test_the_loss_is_the_loops():
    key, options = jax.random.key(1), dict(samples=3, sample_coef=0.7, entropy_coef=0.2, floor=1.5)
    noise, expected = np.asarray(jax.random.normal(key, (3, *MEANS.shape))), crossed((MEANS * MASK).sum(-1), LABELS)
    for e in noise:
        expected = expected + 0.7 / 3 * crossed(((MEANS + np.exp(LOG_STDS) * e) * MASK).sum(-1), LABELS)
    entropy = (LOG_STDS[MASK] + 0.5 * np.log(2 * np.pi * np.e)).mean()
    assert entropy < 1.5
    means = np.where(MASK, MEANS, np.nan)  # what is masked may be anything
    loss = quick(lambda m, s, p: gaussian_pairs(m, s, MASK, p, key, **options))(means, LOG_STDS, LABELS)
    np.testing.assert_allclose(loss.value(), expected.mean() + 0.2 * (1.5 - entropy), rtol=1e-5)
    assert loss.count == 3.0


def test_without_samples_and_entropy_it_is_bradley_terry_with_soft_labels():
    def loss(means, log_stds, labels):
        return gaussian_pairs(
            means, log_stds, MASK, labels, jax.random.key(0), sample_coef=0.0, entropy_coef=0.0
        ).value()

    value, (of_means, of_stds, of_labels) = quick(jax.value_and_grad(loss, (0, 1, 2)))(MEANS, LOG_STDS, LABELS)
    sums = (MEANS * MASK).sum(-1)
    np.testing.assert_allclose(value, crossed(sums, LABELS).mean(), rtol=1e-5)
    slope = (1.0 / (1.0 + np.exp(-(sums[:, 0] - sums[:, 1]))) - LABELS) / 3
    np.testing.assert_allclose(of_means, np.stack([slope, -slope], 1)[..., None] * MASK, rtol=1e-4, atol=1e-7)
    assert not np.asarray(of_stds).any() and not np.asarray(of_labels).any()


def test_the_entropy_pulls_sigma_up_to_the_floor_and_no_further():
    def loss(level, floor):
        stds = jnp.full((3, 2, 4), level)
        return gaussian_pairs(MEANS, stds, MASK, LABELS, jax.random.key(0), sample_coef=0.0, floor=floor).value()

    slope = quick(jax.grad(loss))
    below = 0.5 * np.log(2 * np.pi * np.e)  # the entropy at log sigma = 0
    np.testing.assert_allclose(slope(0.0, below + 0.1), -0.1, rtol=1e-5)
    assert slope(0.0, below - 0.1) == 0.0
