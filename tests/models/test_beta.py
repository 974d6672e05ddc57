"""The Beta policy: torch's log-probs, entropy and divergence, scipy's distribution of the samples, and its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import torch

from rl_jax.models.agents.distributions import beta, categorical, tanh_gaussian

QUICK = {"xla_backend_optimization_level": 0}  # what takes time here is LLVM
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)


def some_outputs(seed=0, rows=7):
    return jnp.asarray(np.random.default_rng(seed).normal(scale=3.0, size=(rows, 4)), jnp.float32)


def torch_beta(outputs):
    concentrations = 1.0 + torch.nn.functional.softplus(torch.tensor(np.asarray(outputs)))
    return torch.distributions.Beta(concentrations[:, :2], concentrations[:, 2:])


@pytest.mark.slow
def test_log_prob_entropy_and_kl_are_torchs():
    dist, outputs, others = beta(LOW, HIGH), some_outputs(), some_outputs(1)
    u = dist.sample(outputs, dist.noise(jax.random.key(0), (7,)))
    action = np.asarray(dist.to_env(u))
    assert (action >= LOW).all() and (action <= HIGH).all()
    x = torch.sigmoid(torch.tensor(np.asarray(u)))
    log_range = float(np.log(HIGH - LOW).sum())
    theirs, their_other = torch_beta(outputs), torch_beta(others)
    np.testing.assert_allclose(action, LOW + (HIGH - LOW) * x.numpy(), rtol=1e-4, atol=1e-5)
    expected = theirs.log_prob(x).sum(-1).numpy() - log_range
    parts = jax.jit(lambda: (dist.log_prob(outputs, u), dist.entropy(outputs), dist.kl(outputs, others)))
    log_prob, entropy, kl = parts()
    np.testing.assert_allclose(log_prob, expected, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(entropy, theirs.entropy().sum(-1) + log_range, rtol=1e-4, atol=1e-4)
    expected = torch.distributions.kl_divergence(theirs, their_other).sum(-1)
    np.testing.assert_allclose(kl, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("pair", [(-9.0, -9.0), (0.5, 2.0), (-4.0, 6.0), (40.0, 10.0)])
def test_samples_have_scipys_distribution(pair):
    """Kolmogorov and Smirnov's test on 20,000 samples; the wrong gamma shape gives p below 1e-10."""
    dist = beta(LOW[:1], HIGH[:1])
    outputs = jnp.broadcast_to(jnp.asarray(pair, jnp.float32), (20_000, 2))
    u = dist.sample(outputs, dist.noise(jax.random.key(3), (20_000,)))
    a, b = 1.0 + np.logaddexp(0.0, np.asarray(pair))
    found = scipy.stats.kstest(np.asarray(jax.nn.sigmoid(u))[:, 0], scipy.stats.beta(a, b).cdf)
    assert found.pvalue > 1e-3, found


@pytest.mark.slow
def test_gradients_are_those_of_finite_differences():
    dist = beta(LOW, HIGH)
    outputs = np.asarray(some_outputs(2, 1), np.float64)
    with jax.enable_x64(True):
        u = jnp.asarray([[0.3, -2.0]])
        for fn in (lambda o: dist.log_prob(o, u), dist.entropy, lambda o: dist.kl(o, jnp.zeros((1, 4)))):
            both = jax.jit(jax.value_and_grad(lambda o: fn(o).sum()), compiler_options=QUICK)  # noqa: B023
            found = both(outputs)[1]
            for i in range(4):
                step = 1e-5 * (np.arange(4) == i)
                slope = (both(outputs + step)[0] - both(outputs - step)[0]) / 2e-5
                np.testing.assert_allclose(found[0, i], slope, rtol=1e-5, atol=1e-8)


@pytest.mark.slow
def test_far_out_everything_is_finite_and_the_mode_is_the_mode():
    dist = beta(LOW[:1], HIGH[:1])
    outputs = jnp.asarray([[60.0, -60.0], [-60.0, 60.0], [-60.0, -60.0], [3.0, 5.0]])
    u = dist.sample(outputs, dist.noise(jax.random.key(0), (4,)))
    mode = dist.mode(outputs)
    value_and_gradient = jax.value_and_grad(lambda o: (dist.log_prob(o, u) + dist.entropy(o)).sum())
    for x in (u, mode, *jax.jit(value_and_gradient, compiler_options=QUICK)(outputs)):
        assert np.isfinite(x).all()
    # Of the action's density, not of u's.
    a, b = 1.0 + np.logaddexp(0.0, np.asarray(outputs[3]))
    np.testing.assert_allclose(jax.nn.sigmoid(mode[3]), (a - 1.0) / (a + b - 2.0), rtol=1e-5)
    with pytest.raises(ValueError, match="beta needs finite bounds"):
        beta(LOW, np.full(2, np.inf, np.float32))


DISTRIBUTIONS = dict(categorical=categorical(4), tanh_gaussian=tanh_gaussian(LOW, HIGH), beta=beta(LOW, HIGH))


@pytest.mark.slow
@pytest.mark.parametrize("dist", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_kl_is_the_mean_log_ratio(dist):
    """KL(p || q) = E_p (log p - log q), is 0 only at q = p, and its gradient there is 0."""
    p, q = 0.3 * some_outputs(3, 1), 0.3 * some_outputs(4, 1)
    rows = 20_000

    def sampled(p, q):
        p_rows, q_rows = (jnp.broadcast_to(x, (rows, 4)) for x in (p, q))
        actions = dist.sample(p_rows, dist.noise(jax.random.key(0), (rows,)))
        return dist.log_prob(p_rows, actions) - dist.log_prob(q_rows, actions)

    ratios = np.asarray(jax.jit(sampled, compiler_options=QUICK)(p, q))
    both = jax.jit(jax.value_and_grad(lambda x: dist.kl(p, x).sum()), compiler_options=QUICK)
    np.testing.assert_allclose(both(q)[0], ratios.mean(), atol=5.0 * ratios.std() / rows**0.5)
    for x in both(p):
        np.testing.assert_allclose(x, 0.0, atol=1e-4)
