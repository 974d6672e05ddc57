"""losses/contrastive.py and control/auxiliary.py: known values, and that a program trains with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from rl_jax.control import auxiliary
from rl_jax.losses import contrastive
from rl_jax.models.agents.features import make_net


def test_scores_that_say_nothing_give_the_log_of_the_batch():
    np.testing.assert_allclose(contrastive.info_nce(jnp.zeros((7, 7))), np.log(7), rtol=1e-6)
    np.testing.assert_allclose(contrastive.info_nce(50.0 * jnp.eye(7)), 0.0, atol=1e-5)
    scores = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    expected = [-np.log(np.exp(row[i]) / np.exp(row).sum()) for i, row in enumerate(scores)]
    np.testing.assert_allclose(contrastive.info_nce(scores), expected, rtol=1e-5)


def test_the_temperature_is_the_minimum_and_equal_scores_give_the_floor():
    find = jax.jit(lambda gaps: contrastive.temperature(gaps, rho=0.3, floor=0.05))
    np.testing.assert_allclose(find(jnp.full(5, -0.7)), 0.05, rtol=1e-5)
    gaps = np.random.default_rng(0).normal(size=5).astype(np.float32)

    def value(tau):
        return tau * np.log(np.mean(np.exp(gaps / tau))) + tau * 0.3

    best = scipy.optimize.minimize_scalar(value, bounds=(0.05, 10.0), method="bounded", options=dict(xatol=1e-8)).x
    np.testing.assert_allclose(find(gaps), best, rtol=1e-3)
    assert best > 0.1
    np.testing.assert_allclose(find(1000.0 * gaps), 10.0, rtol=1e-5)  # the ceiling


def test_each_anchor_has_its_own_temperature_and_the_exact_gradient():
    scores = np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)
    loss, taus = contrastive.robust(scores)
    for i in range(4):
        gaps = np.delete(scores[i] - scores[i, i], i)
        tau = float(contrastive.temperature(jnp.asarray(gaps), rho=0.3, floor=0.05))
        np.testing.assert_allclose(taus[i], tau, rtol=1e-4)
        np.testing.assert_allclose(loss[i], tau * np.log(np.mean(np.exp(gaps / tau))) + 0.3 * tau, rtol=1e-4)
    assert np.ptp(taus) > 0.05
    total = jax.jit(lambda s: jnp.sum(contrastive.robust(s)[0]))
    slope, eps = jax.grad(total)(scores), 1e-2
    step = eps * np.eye(4, dtype=np.float32)[0][:, None] * np.eye(4, dtype=np.float32)[2]
    np.testing.assert_allclose(slope[0, 2], (total(scores + step) - total(scores - step)) / (2 * eps), rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), [("temporal", {}), ("views", {}), ("views", dict(kind="robust"))])
def test_an_auxiliary_loss_falls_where_there_is_something_to_tell_apart(name, options):
    """A chain of 16 places, from about log 16 down; noise with other features hidden, of which one row is all 0."""
    known = dict(width=8, make_net=make_net) | (dict(action_size=2) if name == "temporal" else {})
    made = getattr(auxiliary, name)(**known, **options)
    torso = jax.random.normal(jax.random.key(1), (16, 8))
    places = np.arange(16)
    seen, after = np.eye(16, dtype=np.float32)[places], np.eye(16, dtype=np.float32)[(places * 5 + 1) % 16]
    if name == "views":
        seen = np.concatenate([np.random.default_rng(0).normal(size=(15, 16)), np.zeros((1, 16))]).astype(np.float32)
    actions = np.eye(2, dtype=np.float32)[places % 2]
    loss = jax.jit(
        jax.value_and_grad(lambda p, k: made.loss(p, lambda x: jnp.tanh(x @ torso), seen, actions, after, k))
    )
    params, first = made.init(jax.random.key(0)), None
    for step in range(100):
        value, slope = loss(params, jax.random.key(step % 5))
        first = value if first is None else first
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, slope)
    assert float(value) < float(first) - 0.1, (first, value)
    if name == "temporal":
        np.testing.assert_allclose(first, np.log(16), rtol=0.3)
        assert all(float(jnp.abs(x).max()) > 0 for x in jax.tree.leaves(slope))
    with pytest.raises(ValueError, match="kind='cosine' must be"):
        auxiliary.views(width=8, make_net=make_net, kind="cosine")
