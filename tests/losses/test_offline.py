"""losses/offline.py: values and gradients against loops in float64, the papers' numbers, and laws."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import offline
from tests.numpy_loops import offline as reference

RNG = np.random.default_rng(0)
V, Q = RNG.normal(size=7), 2.0 * RNG.normal(size=7)
V[0] = Q[0] + 0.5  # d < 0
V_LOSSES = {
    "expectile": dict(expectile=0.7),
    "gumbel": dict(beta=2.0, max_clip=1.0),
    "gumbel_plain": dict(beta=2.0),
    "chi2": dict(lam=0.7),
    "tv": dict(lam=0.7),
}


def slope(fn, x, step=1e-6):
    """d sum fn / dx by differences, float64."""
    x = np.asarray(x, np.float64)
    result = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[place] += step
        down[place] -= step
        result[place] = (np.sum(fn(up)) - np.sum(fn(down))) / (2 * step)
    return result


def f32(*arrays):
    return [jnp.asarray(x, jnp.float32) for x in arrays]


@pytest.mark.parametrize("name", V_LOSSES)
def test_losses_of_v_are_those_of_the_loop_and_only_v_is_differentiated(name):
    loss = functools.partial(getattr(offline, name), **V_LOSSES[name])
    wanted = functools.partial(getattr(reference, name), **V_LOSSES[name])
    v, q = f32(V, Q)
    np.testing.assert_allclose(loss(v, q), wanted(V, Q), rtol=1e-5, atol=1e-6)
    of_v, of_q = jax.grad(lambda v, q: loss(v, q).sum(), argnums=(0, 1))(v, q)
    frozen = functools.partial(wanted, top=reference.gumbel_top(V, Q, **V_LOSSES[name])) if name == "gumbel" else wanted
    np.testing.assert_allclose(of_v, slope(lambda v: frozen(v, Q), V), rtol=1e-4, atol=1e-5)
    assert (np.asarray(of_q) == 0).all()


def minimiser(loss, q):
    """The V of the smallest mean loss on a fine grid of float64 numbers of the loop."""
    grid = np.linspace(min(q) - 1.0, max(q) + 1.0, 40_001)
    return grid[np.argmin([np.mean(loss(np.full(len(q), v), q)) for v in grid[::20]]) * 20]


THREE = np.array([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
    ("name", "keywords", "value"),
    [
        ("gumbel_plain", dict(beta=1.0), 1.30899),  # log mean exp Q
        ("chi2", dict(lam=0.5), 0.5),
        ("chi2", dict(lam=0.7), 1.42857),
        ("chi2", dict(lam=0.9), 2.0),
        ("tv", dict(lam=0.7), 1.0),
        ("tv", dict(lam=0.9), 2.0),
        ("expectile", dict(expectile=0.5), 1.0),
    ],
)
def test_v_of_three_equally_likely_q(name, keywords, value):
    """The gradient changes its sign at the paper's V; XQL's clipped and scaled loss has the same minimum."""
    loss = functools.partial(getattr(offline, name), **keywords)
    (q,) = f32(THREE)

    def down(v):
        return float(jax.grad(lambda v: loss(jnp.full(3, v), q).mean())(jnp.float32(v)))

    assert down(value - 0.01) < 0 < down(value + 0.01)
    assert abs(minimiser(functools.partial(getattr(reference, name), **keywords), THREE) - value) < 2e-3
    if name == "gumbel_plain":
        assert (
            abs(minimiser(functools.partial(reference.gumbel, beta=1.0, max_clip=7.0, top=0.0), THREE) - value) < 2e-3
        )


def test_laws_of_v():
    """V moves with Q, a larger tau or lam gives a larger V, and the order of the rows is nothing."""
    v, q = f32(V, Q)
    for name, keywords in V_LOSSES.items():
        loss = functools.partial(getattr(offline, name), **keywords)
        np.testing.assert_allclose(loss(v + 3.0, q + 3.0), loss(v, q), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(loss(v[::-1], q[::-1]), loss(v, q)[::-1], rtol=1e-6)
    for name, keyword in (("expectile", "expectile"), ("chi2", "lam"), ("tv", "lam")):
        lows = [minimiser(functools.partial(getattr(reference, name), **{keyword: x}), Q) for x in (0.6, 0.9)]
        assert lows[0] < lows[1], name


def test_an_outlier_overflows_the_plain_gumbel_loss_only():
    v, q = f32(np.zeros(4), [0.0, 1.0, 2.0, 200.0])
    assert not np.isfinite(offline.gumbel_plain(v, q, beta=1.0)).all()
    for loss in (functools.partial(offline.gumbel, beta=1.0), offline.chi2, offline.tv, offline.expectile):
        value, gradient = jax.value_and_grad(lambda v, loss=loss: loss(v, q).sum())(v)
        assert np.isfinite(value) and np.isfinite(gradient).all()


def test_bellman_and_the_huber_loss():
    q, y = RNG.normal(size=(2, 5)) * 3, RNG.normal(size=5)
    np.testing.assert_allclose(offline.bellman(*f32(q, y)), np.square(q - y).sum(0), rtol=1e-5)
    np.testing.assert_allclose(offline.bellman(*f32(q, y), delta=1.0), reference.huber(q, y, 1.0), rtol=1e-5)
    of_q, of_y = jax.grad(lambda q, y: offline.bellman(q, y).sum(), argnums=(0, 1))(*f32(q, y))
    np.testing.assert_allclose(of_q, 2 * (q - y), rtol=1e-5)
    assert (np.asarray(of_y) == 0).all()


def test_weights_of_advantages():
    advantages = np.array([-1.0, 0.0, 1.0, 500.0])
    weights = offline.exp_advantage(*f32(advantages), beta=3.0, max_weight=100.0)
    np.testing.assert_allclose(weights, np.minimum(np.exp(np.minimum(3 * advantages, 50)), 100.0), rtol=1e-5)
    slopes = jax.grad(lambda a: offline.exp_advantage(a, max_weight=100.0).sum())(*f32(advantages))
    assert (np.asarray(slopes) == 0).all()


ACTIONS, TARGETS, Q_PI = RNG.uniform(-1, 1, (5, 2)), RNG.uniform(-1, 1, (5, 2)), RNG.normal(size=5) * 4


def test_td3_bc_and_its_gradients():
    def total(q, actions, targets):
        return offline.td3_bc(q, actions, targets, alpha=2.5).mean()

    args = f32(Q_PI, ACTIONS, TARGETS)
    np.testing.assert_allclose(total(*args), reference.td3_bc(Q_PI, ACTIONS, TARGETS, 2.5).mean(), rtol=1e-5)
    of_q, of_actions, of_targets = jax.grad(total, argnums=(0, 1, 2))(*args)
    np.testing.assert_allclose(of_q, np.full(5, -2.5 / np.abs(Q_PI).mean() / 5), rtol=1e-5)  # lambda is data
    np.testing.assert_allclose(of_actions, 2 * (ACTIONS - TARGETS) / 10, rtol=1e-4)
    assert (np.asarray(of_targets) == 0).all()
    np.testing.assert_allclose(offline.td3_bc(*args), reference.td3_bc(Q_PI, ACTIONS, TARGETS, 2.5), rtol=1e-5)
    scaled = offline.td3_bc(*f32(7 * Q_PI, ACTIONS, TARGETS))
    np.testing.assert_allclose(scaled, offline.td3_bc(*args), rtol=1e-4, atol=1e-5)  # Q's scale is nothing


def test_a2pr_with_weights_of_one_and_the_datas_actions_is_td3_bc():
    plain = offline.td3_bc(*f32(Q_PI, ACTIONS, TARGETS))
    np.testing.assert_array_equal(offline.td3_bc(*f32(Q_PI, ACTIONS, TARGETS), jnp.ones(5)), plain)
    ones = jnp.full(5, 0.5)  # A > 0 of the data's, A' < 0 of the proposals
    targets, weights = offline.a2pr_targets(*f32(TARGETS, ACTIONS), ones, -ones)
    np.testing.assert_array_equal(offline.td3_bc(*f32(Q_PI, ACTIONS), targets, weights), plain)


def test_a2pr_takes_the_better_action():
    own, other = f32([[0.0], [0.0], [0.0], [0.0]], [[1.0], [1.0], [1.0], [1.0]])
    targets, weights = offline.a2pr_targets(own, other, *f32([1.0, 0.5, -1.0, -1.0], [0.5, 0.5, 0.0, -2.0]))
    assert targets[:, 0].tolist() == [0.0, 1.0, 1.0, 0.0] and weights.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_the_autoencoders_loss():
    mean, log_std, weights = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3)), np.array([1.0, 0, 1, 0, 1])
    wanted = reference.vae(ACTIONS, TARGETS, mean, log_std, weights)
    np.testing.assert_allclose(offline.vae(*f32(ACTIONS, TARGETS, mean, log_std, weights)), wanted, rtol=1e-5)
    zeros = jnp.zeros((5, 3))
    assert float(offline.vae(*f32(ACTIONS, ACTIONS), zeros, zeros, jnp.ones(5)).sum()) == 0.0


def test_the_conservative_term():
    q, candidates = RNG.normal(size=(2, 4)), RNG.normal(size=(2, 4, 3))
    log_weights = RNG.normal(size=(4, 3))
    got = offline.conservative(*f32(q, candidates, log_weights))
    np.testing.assert_allclose(got, reference.conservative(q, candidates, log_weights), rtol=1e-5)
    of_q, of_candidates = jax.grad(lambda q, c: offline.conservative(q, c).sum(), argnums=(0, 1))(*f32(q, candidates))
    np.testing.assert_allclose(of_q, -np.ones((2, 4)))
    np.testing.assert_allclose(np.asarray(of_candidates).sum(-1), np.ones((2, 4)), rtol=1e-5)
    moved = offline.conservative(*f32(q + 5, candidates + 5))
    np.testing.assert_allclose(moved, offline.conservative(*f32(q, candidates)), rtol=1e-4)


def test_recoil_is_its_equation():
    """The codes' constants: 200 for the expert's steps, -2 + .99 V(s'), and -200 after the end."""
    q = np.float32([[10.0, -3.0, 50.0], [0.0, 4.0, 190.0]])
    values, going_on, expert = np.float32([5.0, 7.0, -1.0]), np.float32([1, 0, 1]), np.float32([0, 0, 1])
    targets = np.array([-2 + 0.99 * 5.0, -2 - 0.99 * 200.0, -2 - 0.99])
    expected = (0.5 * (q - targets) ** 2).mean(axis=1).sum() + (0.5 * (q[:, 2] - 200.0) ** 2).sum()
    found = offline.recoil(*map(jnp.asarray, (q, values, going_on, expert)), discount=0.99, reward=2.0)
    np.testing.assert_allclose(found.mean(), expected, rtol=1e-5)


PUBLISHED = {
    "expectile": dict(expectile=0.7),
    "gumbel": dict(beta=2.0, max_clip=7.0),
    "gumbel_plain": dict(beta=2.0),
    "chi2": dict(lam=0.7),
    "tv": dict(lam=0.7),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_numbers_and_values_far_above_and_below_all_q(name):
    """Below -1 the scale of gumbel's z is that of -1, and above 7 z is cut off."""
    for v, q in ((Q + 5.0, Q), (Q - 15.0, Q), (V, Q)):
        np.testing.assert_allclose(
            getattr(offline, name)(*f32(v, q)), getattr(reference, name)(v, q, **PUBLISHED[name]), rtol=2e-4, atol=1e-6
        )


def test_published_weights_of_advantages():
    found = offline.exp_advantage(*f32([-0.5, 1.0, 1.55, 9.0]))
    np.testing.assert_allclose(found, [np.exp(-1.5), np.exp(3.0), 100.0, 100.0], rtol=1e-5)


def test_weights_of_distances_are_data_and_q_of_zero_is_no_scale():
    q, weights = 0.01 * Q_PI, np.array([0.0, 0.5, 2.0, 1.0, 3.0])

    def total(q, actions, targets, weights):
        return offline.td3_bc(q, actions, targets, weights).sum()

    args = f32(q, ACTIONS, TARGETS, weights)
    expected = weights * np.square(ACTIONS - TARGETS).mean(1) - 2.5 / np.abs(q).mean() * q
    np.testing.assert_allclose(offline.td3_bc(*args), expected, rtol=1e-4, atol=1e-6)
    slopes = jax.grad(total, argnums=(1, 2, 3))(*args)
    np.testing.assert_allclose(slopes[0], weights[:, None] * (ACTIONS - TARGETS), rtol=1e-4, atol=1e-6)
    assert not np.asarray(slopes[1]).any() and not np.asarray(slopes[2]).any()
    # Below 1e-8 the mean of |Q| is that, so that a critic of zeros has the distance alone.
    small = offline.td3_bc(*f32(np.full(5, 1e-10), ACTIONS, TARGETS))
    np.testing.assert_allclose(small, np.square(ACTIONS - TARGETS).mean(1) - 0.025, rtol=1e-4)
    none = offline.td3_bc(*f32(np.zeros(5), ACTIONS, TARGETS))
    np.testing.assert_allclose(none, np.square(ACTIONS - TARGETS).mean(1), rtol=1e-5)


def slopes_of(fn, places, *args):
    return [np.asarray(x) for x in jax.grad(lambda *x: jnp.sum(fn(*x)), argnums=places)(*f32(*args))]


def test_what_is_data_has_no_gradient():
    advantages, proposed = np.array([0.3, -1.0, 0.2, 0.1, -0.5]), np.array([0.1, 0.5, 0.3, -0.2, -0.7])
    for place in (0, 1):  # the targets, the weights
        fn = lambda *x, place=place: offline.a2pr_targets(*x)[place]  # noqa: E731
        assert not any(x.any() for x in slopes_of(fn, (0, 1), ACTIONS, TARGETS, advantages, proposed))
    mean, log_std, weights = RNG.normal(size=(5, 3)), RNG.normal(size=(5, 3)), np.array([1.0, 0.5, 1, 0, 2])
    of = slopes_of(offline.vae, (0, 1, 2, 3, 4), ACTIONS, TARGETS, mean, log_std, weights)
    np.testing.assert_allclose(of[0], weights[:, None] * (ACTIONS - TARGETS), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(of[2], mean / 6, rtol=1e-4)
    np.testing.assert_allclose(of[3], (np.exp(2 * log_std) - 1) / 6, rtol=1e-4, atol=1e-6)
    assert not of[1].any() and not of[4].any()
    q, candidates, log_weights = RNG.normal(size=(2, 4)), RNG.normal(size=(2, 4, 3)), RNG.normal(size=(4, 3))
    of = slopes_of(offline.conservative, (1, 2), q, candidates, log_weights)
    soft = np.exp(candidates - log_weights)
    np.testing.assert_allclose(of[0], soft / soft.sum(-1, keepdims=True), rtol=1e-4)
    assert not of[1].any()


def test_recoil_moves_q_alone_and_a_batch_without_an_expert_pulls_nothing_up():
    q, values, going_on = RNG.normal(size=(2, 3)), RNG.normal(size=3), np.array([1.0, 0.0, 1.0])
    recoil = lambda *x: offline.recoil(*x, discount=0.9, reward=1.0)  # noqa: E731
    targets = -1 + 0.9 * (going_on * values - (1 - going_on) * 10)
    none = np.zeros(3)
    np.testing.assert_allclose(recoil(*f32(q, values, going_on, none)), 0.5 * np.square(q - targets).sum(0), rtol=1e-4)
    of_q, of_values = slopes_of(recoil, (0, 1), q, values, going_on, none)
    np.testing.assert_allclose(of_q, q - targets, rtol=1e-4)
    assert not of_values.any()
