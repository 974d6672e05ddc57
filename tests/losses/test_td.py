"""losses/td.py, value_heads.py and actor.py against loops over the equations, rlax, and their gradients."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax

from rl_jax.losses import actor, td, value_heads

N, A, K = 5, 3, 7


def data(seed=0):
    rng = np.random.default_rng(seed)
    actions = rng.integers(0, A, N)
    rewards, discounts = rng.normal(size=N), 0.9 * (rng.random(N) < 0.7)
    return actions, rewards.astype(np.float32), discounts.astype(np.float32), rng


def test_q_learning_is_rlaxs_with_and_without_double():
    actions, rewards, discounts, rng = data()
    q, target, choosing = rng.normal(size=(3, N, A)).astype(np.float32)
    head = value_heads.scalar()
    for select, theirs in ((choosing, rlax.double_q_learning), (target, rlax.q_learning)):
        following = target[np.arange(N), select.argmax(1)]
        loss, errors = head.loss(q[np.arange(N), actions][:, None], rewards, discounts, following[:, None])
        more = (select,) if theirs is rlax.double_q_learning else ()
        expected = jax.vmap(theirs)(q, actions, rewards, discounts, target, *more)
        np.testing.assert_allclose(loss, 0.5 * np.square(expected), rtol=1e-5)
        np.testing.assert_allclose(errors, np.abs(expected), rtol=1e-5)


def test_huber_is_a_loop_and_its_gradient_is_the_clipped_error():
    values, targets = np.float32([-3.0, -0.5, 0.0, 0.7, 5.0]), np.float32([0.0, 0.0, 0.0, 0.0, 1.0])
    error = values - targets
    expected = [0.5 * e * e if abs(e) <= 2 else 2 * (abs(e) - 1) for e in error]
    np.testing.assert_allclose(td.huber(values, targets, delta=2.0), expected, rtol=1e-6)
    ours = jax.grad(lambda v, y: jnp.sum(td.huber(v, y, delta=2.0)), argnums=(0, 1))(values, targets)
    np.testing.assert_allclose(ours[0], np.clip(error, -2, 2), rtol=1e-6)
    assert not ours[1].any()
    np.testing.assert_allclose(td.huber(values, targets, delta=math.inf), td.squared(values, targets), rtol=1e-6)


def test_the_projection_is_a_loop_and_rlaxs():
    _, rewards, discounts, rng = data()
    atoms = np.linspace(-1.0, 2.0, K).astype(np.float32)
    probs = rng.dirichlet(np.ones(K), N).astype(np.float32)
    ours = np.asarray(td.project(atoms, probs, rewards, discounts))
    expected = np.zeros((N, K))
    for n in range(N):
        for j in range(K):
            place = (np.clip(rewards[n] + discounts[n] * atoms[j], -1.0, 2.0) + 1.0) / 0.5
            low = min(int(place), K - 2)
            expected[n, low] += probs[n, j] * (low + 1 - place)
            expected[n, low + 1] += probs[n, j] * (place - low)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    moved = rewards[:, None] + discounts[:, None] * atoms
    np.testing.assert_allclose(
        ours, jax.vmap(rlax.categorical_l2_project, (0, 0, None))(moved, probs, atoms), atol=1e-5
    )
    np.testing.assert_allclose(ours.sum(1), 1.0, rtol=1e-5)


def test_c51_is_rlaxs_double_q_learning():
    actions, rewards, discounts, rng = data(1)
    q, target = rng.normal(size=(2, N, A, K)).astype(np.float32)
    choosing = rng.normal(size=(N, A)).astype(np.float32)
    head = value_heads.categorical(low=-2.0, high=2.0, num_atoms=K)
    atoms = jnp.linspace(-2.0, 2.0, K)
    own, following = q[np.arange(N), actions], target[np.arange(N), choosing.argmax(1)]
    theirs = jax.vmap(rlax.categorical_double_q_learning, (None, 0, 0, 0, 0, None, 0, 0))
    expected = theirs(atoms, q, actions, rewards, discounts, atoms, target, choosing)
    loss, kl = head.loss(own, rewards, discounts, following)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert (kl >= 0).all() and (kl <= loss + 1e-6).all()
    softmax = np.exp(own) / np.exp(own).sum(1, keepdims=True)
    np.testing.assert_allclose(head.values(own), softmax @ np.asarray(atoms), rtol=1e-4, atol=1e-6)
    # The gradient is softmax(logits) - p, and the target has none.
    by_logits, by_target = jax.grad(lambda x, y: jnp.sum(head.loss(x, rewards, discounts, y)[0]), (0, 1))(
        own, following
    )
    p = td.project(atoms, jax.nn.softmax(following), rewards, discounts)
    np.testing.assert_allclose(by_logits, softmax - p, atol=1e-5)
    assert not by_target.any()


@pytest.mark.parametrize("kappa", [0.0, 0.7])
def test_quantile_regression_is_a_loop_and_rlaxs(kappa):
    actions, rewards, discounts, rng = data(2)
    q, target = rng.normal(size=(2, N, K, A)).astype(np.float32)
    choosing = rng.normal(size=(N, K, A)).astype(np.float32)
    levels = (np.arange(K) + 0.5) / K
    best = choosing.mean(1).argmax(1)
    own, following = q[np.arange(N), :, actions], target[np.arange(N), :, best]
    loss, errors = value_heads.quantile(num_quantiles=K, kappa=kappa).loss(own, rewards, discounts, following)
    theirs = jax.vmap(lambda *x: rlax.quantile_q_learning(*x, huber_param=kappa), (0, None, 0, 0, 0, 0, 0))
    expected = theirs(q, np.float32(levels), actions, rewards, discounts, choosing, target)
    np.testing.assert_allclose(loss, expected / (kappa or 1.0), rtol=1e-5)  # rlax does not divide
    wanted = rewards[:, None] + discounts[:, None] * following
    slow = 0.0
    for i in range(K):
        for j in range(K):
            u = float(wanted[0, j] - own[0, i])
            size = abs(u) if not kappa else (0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)) / kappa
            slow += abs(levels[i] - (u < 0)) * size / K
    np.testing.assert_allclose(loss[0], slow, rtol=1e-5)
    np.testing.assert_allclose(errors, np.abs(wanted.mean(1) - own.mean(1)), rtol=1e-4, atol=1e-6)


def test_sums_over_n_steps_are_a_loop():
    rng = np.random.default_rng(3)
    rewards = rng.normal(size=(40, 4)).astype(np.float32)
    ended, cut = rng.random((2, 40, 4)) < 0.15
    total, discounts, last = td.n_step(rewards, jnp.asarray(ended), jnp.asarray(cut & ~ended), 0.9)
    for n in range(40):
        value, m = 0.0, 0
        for k in range(4):
            value, m = value + 0.9**k * rewards[n, k], k
            if ended[n, k] or cut[n, k]:
                break
        np.testing.assert_allclose(total[n], value, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(discounts[n], 0.0 if ended[n, m] else 0.9 ** (m + 1), rtol=1e-5)
        assert last[n] == m
    whole = rlax.n_step_bootstrapped_returns(rewards[0], np.float32([0.9] * 4), np.float32([0, 0, 0, 2.0]), 4)
    total, discounts, _ = td.n_step(rewards[:1], jnp.zeros((1, 4), bool), jnp.zeros((1, 4), bool), 0.9)
    np.testing.assert_allclose(total + discounts * 2.0, whole[:1], rtol=1e-5)


def test_actor_losses_are_their_equations():
    rng = np.random.default_rng(4)
    logits, values = rng.normal(size=(2, N, A)).astype(np.float32)
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    probs, alpha = np.exp(log_probs), 0.3
    np.testing.assert_allclose(
        actor.soft(log_probs[:, 0], values[:, 0], alpha), alpha * log_probs[:, 0] - values[:, 0], rtol=1e-5
    )
    expected = (probs * (alpha * log_probs - values)).sum(1)
    np.testing.assert_allclose(actor.soft_discrete(log_probs, values, alpha), expected, rtol=1e-5)
    np.testing.assert_allclose(actor.soft_value(log_probs, values, alpha), -expected, rtol=1e-5)
    # The best policy is the softmax of the values: no gradient there.
    best = lambda x: jnp.sum(actor.soft_discrete(jax.nn.log_softmax(x), jnp.asarray(values), alpha))  # noqa: E731
    np.testing.assert_allclose(jax.grad(best)(values / alpha), 0.0, atol=1e-5)
    # Neither the temperature nor the values of choices are moved by the actor's loss.
    moved = jax.grad(lambda a, q: jnp.sum(actor.soft_discrete(log_probs, q, a)), (0, 1))(jnp.float32(alpha), values)
    assert not moved[0] and not moved[1].any()
    np.testing.assert_array_equal(actor.deterministic(values[:, 0]), -values[:, 0])


def test_the_temperature_falls_where_the_entropy_is_above_its_target():
    slope = jax.grad(lambda x, h: jnp.mean(actor.temperature(x, h, 0.5)), (0, 1))
    high, by_entropy = slope(jnp.float32(-1.0), jnp.float32([0.9, 0.7]))
    np.testing.assert_allclose(high, 0.3, rtol=1e-5)
    assert not by_entropy.any() and slope(jnp.float32(-1.0), jnp.float32([0.1]))[0] < 0


def test_a_histogram_needs_ends_in_order():
    with pytest.raises(ValueError, match="low=1.0 must be below high=1.0"):
        value_heads.categorical(low=1.0, high=1.0)
