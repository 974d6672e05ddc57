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


def test_swept_numbers_of_a_head_are_plain_ones():
    """Traced, the losses and gradients of each value are those of the number itself, kappa = 0 and errors of 0 too."""
    _, rewards, discounts, rng = data(6)
    own, after = rng.normal(size=(2, N, K)).astype(np.float32)
    after[0], rewards[0], discounts[0] = own[0], 0.0, 1.0

    def found(make, value):
        head = make(value)
        loss, slope = jax.value_and_grad(lambda x: jnp.sum(head.loss(x, rewards, discounts, after)[0]))(own)
        return loss, slope, head.values(own)

    makers = {
        lambda kappa: value_heads.quantile(num_quantiles=K, kappa=kappa): [0.0, 0.7, 2.0],
        lambda high: value_heads.categorical(low=-2.0, high=high, num_atoms=K): [0.5, 2.0],
        lambda low: value_heads.categorical(low=low, high=1.0, num_atoms=K): [-2.0, -0.5],
    }
    for make, values in makers.items():
        swept = jax.jit(jax.vmap(lambda value, make=make: found(make, value)))(jnp.float32(values))
        for i, value in enumerate(values):
            for traced, plain in zip(swept, found(make, value), strict=True):
                np.testing.assert_allclose(traced[i], plain, rtol=1e-5, atol=1e-6)
    for make, value in zip(list(makers)[1:], (-2.0, 1.0), strict=True):  # the ends are equal
        assert np.isnan(jax.jit(lambda value, make=make: found(make, value)[1])(jnp.float32(value))).all()


def test_what_is_data_is_not_differentiated():
    _, rewards, discounts, rng = data(5)
    values, targets, following = rng.normal(size=(3, N)).astype(np.float32)
    total = lambda fn: lambda *x: jnp.sum(fn(*x))  # noqa: E731
    assert not any(x.any() for x in jax.grad(total(td.td_target), (0, 1, 2))(rewards, discounts, following))
    of_values, of_targets = jax.grad(total(td.squared), (0, 1))(values, targets)
    np.testing.assert_allclose(of_values, values - targets, rtol=1e-5)
    assert not of_targets.any()
    logits, theta = rng.normal(size=(2, N, K)).astype(np.float32)
    probs = np.array(jax.nn.softmax(logits))
    atoms = np.linspace(-1.0, 2.0, K).astype(np.float32)
    for moved in jax.grad(total(td.project), (1, 2, 3))(atoms, probs, rewards, discounts):
        assert not moved.any()
    assert not jax.grad(total(td.cross_entropy), 1)(logits, probs).any()
    assert not jax.grad(total(td.quantile_huber), 1)(logits, theta).any()


def test_published_numbers():
    """Huber's losses have their bend at 1; C51 has 51 atoms, QR-DQN 32 quantiles here; no bend for one number."""
    values, zeros = np.float32([0.5, 1.05, -3.0]), np.zeros(3, np.float32)
    np.testing.assert_allclose(td.huber(values, zeros), [0.125, 0.55, 2.5], rtol=1e-5)
    np.testing.assert_allclose(td.quantile_huber(zeros[:, None], values[:, None]), [0.0625, 0.275, 1.25], rtol=1e-5)
    head = value_heads.scalar()
    loss, error = head.loss(10 * values[:, None], zeros, zeros, zeros[:, None])
    np.testing.assert_allclose(loss, 50 * values**2, rtol=1e-5)
    np.testing.assert_allclose(error, 10 * np.abs(values), rtol=1e-5)
    bent = value_heads.scalar(delta=2.0).loss(10 * values[:, None], zeros, zeros, zeros[:, None])[0]
    np.testing.assert_allclose(bent, 2 * (10 * np.abs(values) - 1), rtol=1e-5)
    heads = [head, value_heads.categorical(low=-1.0, high=1.0), value_heads.quantile()]
    assert [x.num_outputs for x in heads] == [1, 51, 32]
    own, after = np.random.default_rng(6).normal(size=(2, 3, 32)).astype(np.float32)
    rest = (values, zeros + 0.9, after)
    np.testing.assert_allclose(
        heads[2].loss(own, *rest)[0], value_heads.quantile(num_quantiles=32, kappa=1.0).loss(own, *rest)[0]
    )
    np.testing.assert_allclose(
        heads[2].loss(own, *rest)[0], td.quantile_huber(own, values[:, None] + np.float32(0.9) * after), rtol=1e-5
    )


def test_values_are_of_any_shape_and_errors_are_data():
    rng = np.random.default_rng(7)
    rewards, discounts = rng.normal(size=N).astype(np.float32), np.float32([0.9, 0.0, 0.9, 0.5, 0.9])
    atoms = np.linspace(-2.0, 2.0, K)
    reads = {
        value_heads.scalar(): lambda x: x[..., 0],
        value_heads.categorical(low=-2.0, high=2.0, num_atoms=K): lambda x: np.array(jax.nn.softmax(x)) @ atoms,
        value_heads.quantile(num_quantiles=K): lambda x: x.mean(-1),
    }
    for head, read in reads.items():
        outputs = rng.normal(size=(2, 3, head.num_outputs)).astype(np.float32)
        np.testing.assert_allclose(head.values(outputs), read(outputs), rtol=1e-4, atol=1e-5)
        own, after = rng.normal(size=(2, N, head.num_outputs)).astype(np.float32)
        error = lambda *x, head=head: jnp.sum(head.loss(*x)[1])  # noqa: E731
        assert not any(x.any() for x in jax.grad(error, (0, 1, 2, 3))(own, rewards, discounts, after))
        loss = lambda *x, head=head: jnp.sum(head.loss(*x)[0])  # noqa: E731
        assert not any(x.any() for x in jax.grad(loss, (1, 2, 3))(own, rewards, discounts, after))
    # C51's error is the KL from the projection, which has entries of 0 where the task has ended.
    head = value_heads.categorical(low=-2.0, high=2.0, num_atoms=K)
    own, after = rng.normal(size=(2, N, K)).astype(np.float32)
    p = np.array(td.project(jnp.float32(atoms), jax.nn.softmax(after), rewards, discounts), np.float64)
    q = np.array(jax.nn.softmax(own), np.float64)
    expected = [sum(a * np.log(a / b) for a, b in zip(*rows, strict=True) if a > 0) for rows in zip(p, q, strict=True)]
    assert (p == 0).any()
    np.testing.assert_allclose(head.loss(own, rewards, discounts, after)[1], expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(ValueError, match="num_atoms=1 2 or more"):
        value_heads.categorical(low=0.0, high=1.0, num_atoms=1)
    assert value_heads.categorical(low=0.0, high=1.0, num_atoms=2).num_outputs == 2


def test_sacs_actor_moves_the_policy_and_not_the_temperature():
    log_probs, values = np.random.default_rng(8).normal(size=(2, N)).astype(np.float32)
    of = jax.grad(lambda *x: jnp.sum(actor.soft(*x)), (0, 1, 2))(log_probs, values, jnp.float32(0.3))
    np.testing.assert_allclose(of[0], 0.3, rtol=1e-6)
    np.testing.assert_array_equal(of[1], -1.0)
    assert of[2] == 0
