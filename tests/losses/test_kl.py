"""losses/kl.py: values against the loop, expected values and gradients by exact enumeration of a small softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import kl
from tests.batches import ragged_batch
from tests.references import kl as reference

ESTIMATORS = ["k1", "k2", "k3"]
# Two 8-way softmaxes, far enough apart (KL 0.90 and 1.02) that the three gradients point in different directions.
LOGITS = np.array([1.2, -0.3, 0.8, -1.9, 0.1, -0.6, 1.7, -1.1])
REF_LOGITS = np.array([-0.4, 0.9, 1.1, 0.7, -0.8, 0.2, -0.5, 0.6])


def _enumerate(estimator, logits=LOGITS, ref_logits=REF_LOGITS):
    """(E[k], E[grad k]) under pi = softmax(logits): one row with every outcome, weighed by its constant probability."""
    probabilities = jax.nn.softmax(jnp.asarray(logits))
    everything = jnp.ones((1, logits.size), bool)

    def expectation(logits):
        log_probs, ref_log_probs = jax.nn.log_softmax(logits)[None], jax.nn.log_softmax(ref_logits)[None]
        return (probabilities[None] * getattr(kl, estimator)(log_probs, ref_log_probs, everything)).sum()

    return jax.value_and_grad(expectation)(jnp.asarray(logits))


def _divergence(first, second, differentiate):
    """KL(softmax(first) || softmax(second)) and its gradient in one of the two logits, both by distrax."""
    import distrax

    def divergence(first, second):
        return distrax.Categorical(logits=first).kl_divergence(distrax.Categorical(logits=second))

    return jax.value_and_grad(divergence, argnums=differentiate)(jnp.asarray(first), jnp.asarray(second))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_matches_the_loop(name):
    batch = ragged_batch(0)
    expected = reference.per_token(getattr(reference, name), batch.log_probs, batch.ref_log_probs, batch.mask)
    out = getattr(kl, name)(batch.log_probs, batch.ref_log_probs, batch.mask)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "name, derivative",
    [("k1", lambda d: np.ones_like(d)), ("k2", lambda d: d), ("k3", lambda d: 1 - np.exp(-d))],
)
def test_gradient_has_the_closed_form(name, derivative):
    batch = ragged_batch(1)
    gradient = jax.grad(lambda x: getattr(kl, name)(x, batch.ref_log_probs, batch.mask).sum())(batch.log_probs)
    expected = np.where(batch.mask, derivative(batch.log_probs - batch.ref_log_probs), 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_expected_value(name):
    with jax.enable_x64(True):
        value, _ = _enumerate(name)
        exact, _ = _divergence(LOGITS, REF_LOGITS, differentiate=0)
    if name == "k2":
        assert abs(float(value) - float(exact)) > 0.05  # k2 is biased as a value
    else:
        np.testing.assert_allclose(value, exact, rtol=1e-10)


def test_expected_gradients_are_three_different_things():
    with jax.enable_x64(True):
        gradients = {name: np.asarray(_enumerate(name)[1]) for name in ESTIMATORS}
        _, reverse = _divergence(LOGITS, REF_LOGITS, differentiate=0)
        _, forward = _divergence(REF_LOGITS, LOGITS, differentiate=1)
    np.testing.assert_allclose(gradients["k1"], 0.0, atol=1e-12)
    np.testing.assert_allclose(gradients["k2"], reverse, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients["k3"], forward, rtol=1e-9, atol=1e-12)

    # The pattern of shared/atlas/conventions.md 5.3: norm 0 / cosine and norm ratio 1 / clearly neither. Its own
    # .723 and 1.108 belong to logits that were not written down.
    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    reverse = np.asarray(reverse)
    np.testing.assert_allclose(cosine(gradients["k2"], reverse), 1.0, rtol=1e-9)
    assert cosine(gradients["k3"], reverse) < 0.95
    assert abs(np.linalg.norm(gradients["k3"]) / np.linalg.norm(reverse) - 1) > 0.05


def test_divergences_agree_with_torch():
    import torch

    logits = torch.tensor(LOGITS, requires_grad=True)
    ref = torch.distributions.Categorical(logits=torch.tensor(REF_LOGITS))
    torch.distributions.kl_divergence(torch.distributions.Categorical(logits=logits), ref).backward()
    reverse = logits.grad.numpy().copy()
    logits.grad = None
    torch.distributions.kl_divergence(ref, torch.distributions.Categorical(logits=logits)).backward()
    with jax.enable_x64(True):
        np.testing.assert_allclose(_enumerate("k2")[1], reverse, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(_enumerate("k3")[1], logits.grad.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_nothing_flows_into_the_reference(name):
    batch = ragged_batch(2)
    gradient = jax.grad(lambda ref: getattr(kl, name)(batch.log_probs, ref, batch.mask).sum())(batch.ref_log_probs)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_equal_policies_give_exactly_zero(name):
    batch = ragged_batch(3)
    np.testing.assert_array_equal(getattr(kl, name)(batch.log_probs, batch.log_probs, batch.mask), 0)


def test_k3_is_never_negative_and_keeps_small_values():
    # exp(x) - 1 in float32 is a multiple of 1.2e-7: at x = 1e-4 the naive formula gives 0, or 1.2e-7, or less than 0.
    difference = np.float32([[1e-4, -1e-4, 3e-4, 1e-3]])
    out = kl.k3(difference, np.zeros_like(difference), np.ones_like(difference, bool))
    np.testing.assert_allclose(out, np.square(difference) / 2, rtol=5e-2)
    assert (np.asarray(out) > 0).all()
    batch = ragged_batch(4)
    assert (np.asarray(kl.k3(batch.log_probs, batch.ref_log_probs, batch.mask)) >= 0).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_bad_input_is_refused(name):
    batch = ragged_batch(0)
    with pytest.raises(AssertionError):
        getattr(kl, name)(batch.log_probs, batch.ref_log_probs[:, 0], batch.mask)
    with pytest.raises(AssertionError):
        getattr(kl, name)(batch.log_probs, batch.ref_log_probs, batch.mask.astype(np.float32))
