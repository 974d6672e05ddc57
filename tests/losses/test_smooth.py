"""losses/policy/smooth.py: values and gradients against the loops, verl, TRL, finite differences and limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import aggregate, policy
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import weighted as reference
from tests.oracles import trl, verl

CASES = [
    ("sapo", {"tau_positive": 1.0, "tau_negative": 1.05}),
    ("sapo", {"tau_positive": 3.0, "tau_negative": 0.5}),
    ("dro", {"tau": 0.1}),
    ("dro", {"tau": 2.0}),
    ("kl_cov", {"coef": 1.0}),
    ("kl_cov", {"coef": 0.1}),
]
NAMES = ("sapo", "dro", "kl_cov")


def _selected(batch, seed=0):
    """Some tokens, a few of them behind the mask."""
    return np.random.default_rng(seed).random(batch.mask.shape) < 0.4


def _bound(name, batch, **keywords):
    return functools.partial(
        getattr(policy, name), **({"selected": _selected(batch)} if name == "kl_cov" else {}), **keywords
    )


def _run(name, batch, **keywords):
    fn = _bound(name, batch, **keywords)

    def total(log_probs):
        out = fn(log_probs, batch.old_log_probs, batch.advantages, batch.mask)
        return out.loss.sum(), out

    (_, out), gradient = jax.value_and_grad(total, has_aux=True)(batch.log_probs)
    return out, gradient


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name, keywords", CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_matches_the_loop(name, keywords, seed):
    batch = ragged_batch(seed)
    out, gradient = _run(name, batch, **keywords)
    extras = {"selected": _selected(batch)} if name == "kl_cov" else {}
    expected = getattr(reference, name)(*batch[:3], batch.mask, **extras, **keywords)
    np.testing.assert_allclose(out.loss, expected.loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected.gradient, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(out.ratio, expected.ratio, rtol=1e-5)
    assert not out.clipped_low.any() and not out.clipped_high.any()
    assert out.clipped_low.dtype == out.clipped_high.dtype == bool


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize(
    "keywords", [{"tau_positive": 1.0, "tau_negative": 1.05}, {"tau_positive": 2, "tau_negative": 3}]
)
def test_sapo_matches_verl(keywords, seed):
    batch = ragged_batch(seed)

    def ours(log_probs):
        out = policy.sapo(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords)
        return aggregate.seq_mean_token_mean(out.loss, batch.mask).value()

    settings = {"tau_pos": keywords["tau_positive"], "tau_neg": keywords["tau_negative"]}
    _assert_equal_verl(ours, "sapo", batch, **settings)


@pytest.mark.parametrize("seed", [2, 3])
def test_sapo_matches_trl(seed):
    batch = ragged_batch(seed)

    def ours(log_probs):
        out = policy.sapo(log_probs, batch.old_log_probs, batch.advantages, batch.mask)
        return aggregate.seq_mean_token_mean(out.loss, batch.mask).value()

    value, gradient = jax.value_and_grad(ours)(batch.log_probs)
    their_value, their_gradient = trl.grpo_loss(*batch[:3], batch.mask, loss_type="sapo")
    np.testing.assert_allclose(value, their_value, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("seed", [2, 3])
def test_dro_matches_verl(seed):
    batch = ragged_batch(seed)

    def ours(log_probs):
        out = policy.dro(log_probs, batch.old_log_probs, batch.advantages, batch.mask, tau=0.7)
        return aggregate.token_mean(out.loss, batch.mask).value()

    _assert_equal_verl(ours, "dro", batch, dro_beta=0.7)


@pytest.mark.parametrize("seed", [2, 3])
def test_kl_cov_matches_verl(seed):
    """verl picks the k tokens of the largest covariance itself; the same ones are given to ours."""
    batch, share = ragged_batch(seed), 0.3
    a, x = batch.advantages[batch.mask], batch.log_probs[batch.mask]
    covariance = np.full(batch.mask.shape, -np.inf)
    covariance[batch.mask] = (a - a.mean()) * (x - x.mean())
    k = int(share * batch.mask.sum())
    selected = covariance >= np.sort(covariance.ravel())[-k]
    assert selected.sum() == k > 1

    def ours(log_probs):
        out = policy.kl_cov(log_probs, batch.old_log_probs, batch.advantages, batch.mask, selected=selected, coef=0.3)
        return aggregate.token_mean(out.loss, batch.mask).value()

    _assert_equal_verl(ours, "kl_cov", batch, kl_cov_ratio=share, ppo_kl_coef=0.3)


def _assert_equal_verl(ours, name, batch, **settings):
    value, gradient = jax.value_and_grad(ours)(batch.log_probs)
    their_value, their_gradient = verl.policy_loss(name, *batch[:3], batch.mask, **settings)
    np.testing.assert_allclose(value, their_value, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, their_gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name, keywords", [CASES[1], CASES[3], CASES[4]])
def test_gradient_matches_finite_differences(name, keywords):
    batch, h = ragged_batch(4, rows=4, length=5, dtype=np.float64), 1e-6
    with jax.enable_x64(True):
        _, gradient = _run(name, batch, **keywords)
        up, _ = _run(name, batch._replace(log_probs=batch.log_probs + h), **keywords)
        down, _ = _run(name, batch._replace(log_probs=batch.log_probs - h), **keywords)
        slope = np.asarray(up.loss - down.loss) / (2 * h)  # a token's loss depends on its own log-prob only
    np.testing.assert_allclose(gradient, slope, rtol=1e-6, atol=1e-8)


# --- Laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_the_gradient_is_minus_a(name):
    """Also for the tokens that KL-Cov has selected: the kink of |x| at 0 must not push them."""
    batch = ragged_batch(5)
    batch = batch._replace(old_log_probs=batch.log_probs)
    out, gradient = _run(name, batch)
    np.testing.assert_allclose(_run("kl_cov", batch)[0].loss, _run("importance_sampling", batch)[0].loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, np.where(batch.mask, -batch.advantages, 0), rtol=1e-6)
    np.testing.assert_array_equal(out.ratio, 1.0)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_padding_reaches_nothing(name, poison):
    batch = ragged_batch(6)
    clean = _run(name, batch)
    poisoned = batch._replace(**{f: np.where(batch.mask, getattr(batch, f), poison) for f in batch._fields[:3]})
    out, gradient = _run(name, poisoned)
    for ours, theirs in zip((*out, gradient), (*clean[0], clean[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert not np.asarray(out.loss)[~batch.mask].any() and not np.asarray(gradient)[~batch.mask].any()
    assert (np.asarray(out.ratio)[~batch.mask] == 1).all()


@pytest.mark.parametrize("name", NAMES)
def test_padding_makes_no_nan_on_the_way(name):
    """Who looks for a nan with jax.debug_nans finds none that padding has made."""
    batch = ragged_batch(6)
    poisoned = batch._replace(**{f: np.where(batch.mask, getattr(batch, f), np.nan) for f in batch._fields[:3]})
    with jax.debug_nans(True):
        _run(name, poisoned)


@pytest.mark.parametrize("name", NAMES)
def test_data_and_diagnostics_carry_no_gradient(name):
    batch = ragged_batch(7)
    fn = _bound(name, batch)

    def ratio(log_probs):
        return fn(log_probs, batch.old_log_probs, batch.advantages, batch.mask).ratio.sum()

    def loss(old_log_probs, advantages):
        return fn(batch.log_probs, old_log_probs, advantages, batch.mask).loss.sum()

    np.testing.assert_array_equal(jax.grad(ratio)(batch.log_probs), 0)
    for gradient in jax.grad(loss, argnums=(0, 1))(batch.old_log_probs, batch.advantages):
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", NAMES)
def test_bad_input_is_refused(name):
    batch = ragged_batch(8)
    fn, good = _bound(name, batch), [*batch[:3], batch.mask]
    for i, bad in ((0, batch.log_probs[:, :3]), (1, batch.old_log_probs[:3]), (2, batch.advantages[:, 0])):
        with pytest.raises(AssertionError):
            fn(*good[:i], bad, *good[i + 1 :])
    with pytest.raises(AssertionError):
        fn(*good[:3], batch.mask.astype(np.float32))
    with pytest.raises(AssertionError):
        fn(*good[:2], np.ones(batch.mask.shape, np.int32), batch.mask)


def test_bad_settings_are_refused():
    batch = ragged_batch(8)
    for keywords in ({"tau_positive": 0.0}, {"tau_negative": -1.0}):
        with pytest.raises(AssertionError):
            _run("sapo", batch, **keywords)
    for selected in (_selected(batch).astype(np.float32), _selected(batch)[:, :2]):
        with pytest.raises(AssertionError):
            policy.kl_cov(*batch[:3], batch.mask, selected=selected)
    with pytest.raises(TypeError, match="selected"):
        policy.kl_cov(*batch[:3], batch.mask)


# --- Limits: one method becomes another ------------------------------------------------------------------------------


def test_sapo_without_a_temperature_is_importance_sampling():
    batch = ragged_batch(9)
    _, gradient = _run("sapo", batch, tau_positive=1e-3, tau_negative=1e-3)
    _, expected = _run("importance_sampling", batch)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    _, softer = _run("sapo", batch)
    assert (np.abs(softer) <= np.abs(expected) * (1 + 1e-6)).all()  # the soft clip only ever takes weight away


def test_each_temperature_serves_its_sign():
    batch = ragged_batch(10)
    _, gradient = _run("sapo", batch)
    for tau, change in (("tau_positive", batch.advantages < 0), ("tau_negative", batch.advantages > 0)):
        _, other = _run("sapo", batch, **{tau: 4.0})
        np.testing.assert_array_equal(np.asarray(gradient == other)[batch.mask], change[batch.mask])


@pytest.mark.parametrize("scale", [0.02, 1e-6])
def test_the_size_of_an_advantage_does_not_choose_its_temperature(scale):
    batch = ragged_batch(10)
    _, gradient = _run("sapo", batch)
    _, small = _run("sapo", batch._replace(advantages=np.float32(scale) * batch.advantages))
    np.testing.assert_allclose(small, scale * gradient, rtol=1e-5)


def test_sapo_of_a_ratio_beyond_float32():
    """r = e^100 is inf; the sigmoid is flat there, so the token has no gradient, and not 0 * inf."""
    batch = ragged_batch(10)
    far = batch._replace(old_log_probs=batch.log_probs - np.float32(100.0))
    out, gradient = _run("sapo", far)
    np.testing.assert_array_equal(gradient, 0)
    tau = np.where(batch.advantages > 0, 1.0, 1.05)
    np.testing.assert_allclose(out.loss, np.where(batch.mask, -batch.advantages * 4 / tau, 0), rtol=1e-6)


def test_dro_is_least_at_old_plus_a_over_tau():
    batch, tau = ragged_batch(11), 0.4
    best = batch._replace(log_probs=batch.old_log_probs + batch.advantages / np.float32(tau))
    out, gradient = _run("dro", best, tau=tau)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)
    for step in (-0.1, 0.1):
        away, _ = _run("dro", best._replace(log_probs=best.log_probs + np.float32(step)), tau=tau)
        np.testing.assert_allclose((away.loss - out.loss)[batch.mask], tau / 2 * step**2, rtol=2e-2)


def test_dro_without_tau_is_reinforce():
    batch = ragged_batch(12)
    (out, gradient), (expected, expected_gradient) = _run("dro", batch, tau=0.0), _run("reinforce", batch)
    np.testing.assert_allclose(out.loss, expected.loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)


def test_kl_cov_without_its_penalty_is_importance_sampling():
    batch = ragged_batch(13)
    expected, expected_gradient = _run("importance_sampling", batch)
    nothing = policy.kl_cov(*batch[:3], batch.mask, selected=jnp.zeros_like(batch.mask))
    out, gradient = _run("kl_cov", batch, coef=0.0)
    np.testing.assert_allclose(out.loss, expected.loss, rtol=1e-6)
    np.testing.assert_allclose(nothing.loss, expected.loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-6)


def test_kl_cov_pulls_the_selected_tokens_back():
    batch = ragged_batch(14)
    _, with_penalty = _run("kl_cov", batch, coef=0.5)
    _, without = _run("kl_cov", batch, coef=0.0)
    expected = np.where(batch.mask & _selected(batch), 0.5 * np.sign(batch.log_probs - batch.old_log_probs), 0)
    np.testing.assert_allclose(with_penalty - without, expected, atol=1e-6)
