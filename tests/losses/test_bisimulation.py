"""Bisimulation's loss: numpy's arithmetic, its gradient, and the metric that its minimum is, by value iteration."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.losses.bisimulation import bisimulation, norm, normal_loss, wasserstein


def drawn(seed=0, rows=5, width=3):
    rng = np.random.default_rng(seed)
    codes, means = rng.normal(size=(2, rows, width)).astype(np.float32)
    stds = np.exp(rng.normal(size=(rows, width))).astype(np.float32)
    return codes, rng.normal(size=rows).astype(np.float32), means, stds, np.array([2, 0, 1, 4, 4])


def test_it_is_the_formula():
    codes, rewards, means, stds, partners = drawn()
    wanted = []
    for i, j in enumerate(partners):
        ahead = np.sqrt(np.sum((means[i] - means[j]) ** 2) + np.sum((stds[i] - stds[j]) ** 2))
        gap = np.sqrt(np.sum((codes[i] - codes[j]) ** 2)) - abs(rewards[i] - rewards[j]) - 0.7 * ahead
        wanted.append(gap**2)
    found = bisimulation(*map(jnp.asarray, drawn()), discount=0.7)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found[4] == 0.0  # paired with itself


def test_codes_are_moved_and_the_model_is_data():
    """The gradient is that of the gap's square at a fixed target; equal codes have a finite one."""
    codes, rewards, means, stds, partners = drawn()
    codes[1] = codes[0]
    total = jax.jit(jax.grad(lambda *args: bisimulation(*args, partners).sum(), argnums=(0, 1, 2, 3)))
    slopes = total(codes, rewards, means, stds)
    wanted = np.zeros_like(codes)
    for i, j in enumerate(partners):
        away, ahead = codes[i] - codes[j], np.hypot(*(np.linalg.norm(x[i] - x[j]) for x in (means, stds)))
        far = np.linalg.norm(away)
        push = 2.0 * (far - abs(rewards[i] - rewards[j]) - ahead) * (away / far if far else away)
        wanted[i] += push
        wanted[j] -= push
    np.testing.assert_allclose(slopes[0], wanted, rtol=1e-4, atol=1e-5)
    assert all(np.all(x == 0) for x in slopes[1:])


def test_the_distance_of_gaussians():
    """W2 of one-dimensional normals is the root mean square gap of their quantiles."""
    from scipy.stats import norm as normal

    levels = (np.arange(20_000) + 0.5) / 20_000
    gap = normal.ppf(levels, 0.3, 0.5) - normal.ppf(levels, -1.0, 2.0)
    found = wasserstein(*(jnp.full((1, 1), x) for x in (0.3, 0.5, -1.0, 2.0)))
    np.testing.assert_allclose(found, np.sqrt(np.mean(gap**2)), rtol=1e-3)
    assert norm(jnp.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert np.isfinite(jax.grad(lambda x: norm(x).sum())(jnp.zeros((2, 3)))).all()
    logs = normal_loss(jnp.full((1, 1), 0.3), jnp.full((1, 1), 0.5), jnp.full((1, 1), 1.0))
    np.testing.assert_allclose(logs, -normal.logpdf(1.0, 0.3, 0.5) - 0.5 * np.log(2 * np.pi), rtol=1e-5)


@pytest.mark.parametrize("discount", [0.5, 0.8])
def test_its_minimum_is_the_bisimulation_metric(discount):
    """Free codes of a chain whose model is exact; states 1, 4 and 5 are three histories of one state.

    d(i, j) = |r_i - r_j| + gamma d(next_i, next_j) by iteration in numpy.
    """
    rewards, following = np.array([0.0, 0.2, 0.5, 1.0, 0.2, 0.2], np.float32), np.array([1, 2, 3, 3, 2, 2])
    metric = np.zeros((6, 6))
    for _ in range(200):
        metric = np.abs(rewards[:, None] - rewards[None]) + discount * metric[following][:, following]
    first, second = np.divmod(np.arange(36), 6)
    optimizer = optax.adam(0.02)

    def loss(codes):
        total = 0.0
        for shift in range(1, 6):
            partners = (jnp.arange(6) + shift) % 6
            ahead = codes[following]
            model = jnp.asarray(rewards), ahead, jnp.ones_like(ahead)
            total += bisimulation(codes, *model, partners, discount=discount).sum()
        return total

    def step(carry, _):
        codes, state = carry
        moves, state = optimizer.update(jax.grad(loss)(codes), state)
        return (optax.apply_updates(codes, moves), state), None

    codes = jax.random.normal(jax.random.key(0), (6, 2)) * 0.1
    codes = jax.jit(lambda codes: jax.lax.scan(step, (codes, optimizer.init(codes)), None, 1500)[0][0])(codes)
    found = np.linalg.norm(np.asarray(codes)[first] - np.asarray(codes)[second], axis=-1)
    np.testing.assert_allclose(found, metric.reshape(-1), atol=0.03)
    assert metric[1, 4] == 0.0 and metric[0, 3] > 1.0
