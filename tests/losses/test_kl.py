"""losses/kl.py: against loops, verl and TRL; expected values and gradients by exact enumeration of a small softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import binding
from rl_jax.losses import kl
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import kl as reference

ESTIMATORS = sorted(binding.public_functions(kl))
WEIGHTED = ["ratio_k1", "ratio_k3", "sequence_ratio_k3"]  # those that look at the old policy
CLAMPED = ["k3_clamped", "k3_plus", "on_policy_k3_clamped"]
UNBIASED_VALUE = ["k1", "k3", "k1_plus", "ratio_k1", "ratio_k3", "sequence_ratio_k3"]
all_estimators = pytest.mark.parametrize("name", ESTIMATORS)

# The instance of shared/atlas/conventions.md 5.3, found again: torch.manual_seed(0), then twice torch.randn(8). KL .82.
LOGITS = np.array([1.540996, -0.2934289, -2.1787894, 0.5684313, -1.0845223, -1.3985954, 0.4033468, 0.8380263])
REF_LOGITS = np.array([-0.7192576, -0.4033435, -0.5966354, 0.1820365, -0.8566746, 1.1006042, -1.0711874, 0.1227012])


def _estimate(name, log_probs, old_log_probs=None, *, ref_log_probs, mask, **hypers):
    """kl.<name>, given the old log-probs where it asks for them; without any it is on-policy."""
    old = jax.lax.stop_gradient(log_probs) if old_log_probs is None else old_log_probs
    extras = {"old_log_probs": old} if name in WEIGHTED else {}
    return getattr(kl, name)(log_probs, ref_log_probs, mask, **extras, **hypers)


def _value_and_gradient(name, batch, **hypers):
    """The values [B, T] and the gradient of their sum, off-policy."""

    def total(log_probs):
        arrays = {"ref_log_probs": batch.ref_log_probs, "mask": batch.mask}
        out = _estimate(name, log_probs, batch.old_log_probs, **arrays, **hypers)
        return out.sum(), out

    (_, values), gradient = jax.value_and_grad(total, has_aux=True)(batch.log_probs)
    return np.asarray(values), np.asarray(gradient)


def _apart(batch, *differences):
    """The batch with these differences logp - ref_logp on the first tokens of its first row."""
    ref_log_probs = batch.ref_log_probs.copy()
    ref_log_probs[0, : len(differences)] = batch.log_probs[0, : len(differences)] - np.float32(differences)
    return batch._replace(ref_log_probs=ref_log_probs)


def _one(name, difference, **hypers):
    """(value, derivative) of a single token, on-policy."""

    def value(log_prob):
        everything = jnp.ones((1, 1), bool)
        arrays = {"ref_log_probs": jnp.full((1, 1), -50.0), "mask": everything}
        return _estimate(name, log_prob[None, None], **arrays, **hypers)[0, 0]

    return jax.value_and_grad(value)(jnp.float32(difference - 50))


def _enumerate(name, length=1, logits=LOGITS, ref_logits=REF_LOGITS):
    """(E[k], E[grad k]) under pi = softmax(logits), on-policy: every sequence of `length` independent tokens is a row,
    weighed by its constant probability; k is the mean over the tokens."""
    rows = np.stack(np.meshgrid(*[np.arange(logits.size)] * length, indexing="ij"), axis=-1).reshape(-1, length)
    probabilities = np.exp(np.log(np.exp(logits) / np.exp(logits).sum())[rows].sum(axis=1))

    def expectation(logits):
        log_probs, ref_log_probs = (jax.nn.log_softmax(z)[rows] for z in (logits, ref_logits))
        out = _estimate(name, log_probs, ref_log_probs=ref_log_probs, mask=jnp.ones(rows.shape, bool))
        return (jnp.asarray(probabilities) * out.mean(axis=1)).sum()

    value, gradient = jax.value_and_grad(expectation)(jnp.asarray(logits))
    return float(value), np.asarray(gradient)


def _divergence(first, second, differentiate):
    """KL(softmax(first) || softmax(second)) and its gradient in one of the two logits, both by distrax."""
    import distrax

    def divergence(first, second):
        return distrax.Categorical(logits=first).kl_divergence(distrax.Categorical(logits=second))

    return jax.value_and_grad(divergence, argnums=differentiate)(jnp.asarray(first), jnp.asarray(second))


def _compared(gradient, exact):
    """(cosine, ratio of norms) of a gradient with the exact one."""
    norms = [np.linalg.norm(x) for x in (gradient, exact)]
    return gradient @ exact / norms[0] / norms[1], norms[0] / norms[1]


# --- Values and gradients, token by token ----------------------------------------------------------------------------


def _expected(name, batch, **hypers):
    """(values, gradient) of the loop."""
    if name in ("k1", "k2", "k3"):
        arrays = (batch.log_probs, batch.ref_log_probs, batch.mask)
        slopes = reference.per_token(functools.partial(reference.derivative, name), *arrays)
        return reference.per_token(getattr(reference, name), *arrays), slopes
    if name == "sequence_ratio_k3":
        return reference.sequence_ratio_k3(batch.log_probs, batch.ref_log_probs, batch.old_log_probs, batch.mask)
    arrays = (batch.log_probs, batch.ref_log_probs) + ((batch.old_log_probs,) if name in WEIGHTED else ())
    estimator = functools.partial(getattr(reference, name), **hypers)
    return reference.value_and_gradient(estimator, batch.mask, *arrays)


@all_estimators
def test_matches_the_loop(name):
    batch = ragged_batch(0)
    batch.mask[3] = False
    values, gradient = _value_and_gradient(name, batch)
    expected, expected_gradient = _expected(name, batch)
    np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CLAMPED)
def test_clamps_match_the_loop(name):
    batch = _apart(ragged_batch(1), -30.0, -3.0, -0.4, 0.7, 12.0, 30.0)
    for hypers in ({}, {"max_difference": 2.0, "max_value": 3.0}, {"max_difference": 2.5, "max_value": 1e12}):
        values, gradient = _value_and_gradient(name, batch, **hypers)
        expected, expected_gradient = _expected(name, batch, **hypers)
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CLAMPED)
def test_defaults_of_the_clamps(name):
    for difference, value in [(-2.5, np.exp(2.5) - 3.5), (-2.7, 10.0), (10.9, 9.9), (11.1, 10.0), (-1e6, 10.0)]:
        np.testing.assert_allclose(_one(name, difference)[0], value, rtol=1e-4)
        assert np.isfinite(_one(name, difference)[1])
    np.testing.assert_allclose(_one(name, -25.0, max_value=1e12)[0], np.exp(20.0), rtol=1e-5)
    np.testing.assert_allclose(_one(name, 25.0, max_value=1e12)[0], 19.0, rtol=1e-5)
    straight_through = name == "k3_plus"
    for difference, hypers in [(-2.7, {}), (12.0, {}), (25.0, {"max_value": 1e12}), (-25.0, {"max_value": 1e12})]:
        np.testing.assert_allclose(_one(name, difference, **hypers)[1], difference * straight_through, rtol=1e-5)


@pytest.mark.parametrize(
    "name, kind",
    [("k1", "k1"), ("k2", "k2"), ("absolute", "abs"), ("k3_clamped", "k3"), ("k1_plus", "k1+"), ("k3_plus", "k3+")],
)
def test_matches_verl(name, kind):
    from tests.oracles import verl

    for seed in range(2):
        batch = _apart(ragged_batch(seed), 25.0, -25.0, -2.9, 0.0, 12.0)  # both clamps on both sides, and no difference
        values, gradient = _value_and_gradient(name, batch)
        expected, expected_gradient = verl.kl_penalty(batch.log_probs, batch.ref_log_probs, kind)
        np.testing.assert_allclose(values, np.where(batch.mask, expected, 0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(gradient, np.where(batch.mask, expected_gradient, 0), rtol=1e-4, atol=1e-6)
    if name != "k3_clamped":  # without a clamp the plain k3 is verl's as well
        batch = ragged_batch(2)
        expected = verl.kl_penalty(batch.log_probs, batch.ref_log_probs, "low_var_kl")
        for ours, theirs in zip(_value_and_gradient("k3", batch), expected, strict=True):
            np.testing.assert_allclose(ours, np.where(batch.mask, theirs, 0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name, settings",
    [
        ("k3", {"use_bias_correction_kl": False}),
        ("ratio_k3", {}),  # TRL's default since 1.12
        ("sequence_ratio_k3", {"importance_sampling_level": "sequence"}),
    ],
)
def test_matches_trl(name, settings):
    """Without advantages TRL's loss is beta times the mean over rows of the token mean of its KL."""
    from tests.oracles import trl

    batch = ragged_batch(3, rows=6)
    lengths = batch.mask.sum(axis=1, keepdims=True)
    value, gradient = trl.grpo_loss(
        *(batch.log_probs, batch.old_log_probs, np.zeros(6), batch.mask),
        ref_log_probs=batch.ref_log_probs,
        beta=0.5,
        loss_type="grpo",
        **settings,
    )

    def ours(log_probs):
        arrays = {"ref_log_probs": batch.ref_log_probs, "mask": batch.mask}
        return 0.5 * (_estimate(name, log_probs, batch.old_log_probs, **arrays) / lengths).sum() / 6

    np.testing.assert_allclose(ours(batch.log_probs), value, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(ours)(batch.log_probs), gradient, rtol=1e-4, atol=1e-7)


def test_absolute_is_still_at_zero():
    assert _one("absolute", 0.0) == (0.0, 0.0)
    np.testing.assert_allclose([_one("absolute", d) for d in (0.5, -0.5)], [(0.5, 1.0), (0.5, -1.0)])


@all_estimators
def test_nothing_flows_into_the_data(name):
    batch = ragged_batch(2)

    def total(ref_log_probs, old_log_probs):
        return _estimate(name, batch.log_probs, old_log_probs, ref_log_probs=ref_log_probs, mask=batch.mask).sum()

    for gradient in jax.grad(total, argnums=(0, 1))(batch.ref_log_probs, batch.old_log_probs):
        np.testing.assert_array_equal(gradient, 0)


@all_estimators
def test_contents_of_the_padding_change_nothing(name):
    batch = ragged_batch(4)
    expected = _value_and_gradient(name, batch)
    assert np.isfinite(expected).all()
    for poison in (np.nan, np.inf, -np.inf):
        fields = ("log_probs", "ref_log_probs", "old_log_probs")
        poisoned = {field: np.where(batch.mask, getattr(batch, field), np.float32(poison)) for field in fields}
        np.testing.assert_array_equal(_value_and_gradient(name, batch._replace(**poisoned)), expected)


@all_estimators
def test_equal_policies_give_exactly_zero(name):
    batch = ragged_batch(3)
    values, gradient = _value_and_gradient(name, batch._replace(ref_log_probs=batch.log_probs))
    np.testing.assert_array_equal(values, 0)
    if name not in ("k1", "ratio_k1"):
        np.testing.assert_array_equal(gradient, 0)


@all_estimators
def test_bad_input_is_refused(name):
    batch = ragged_batch(0)
    arrays = {"log_probs": batch.log_probs, "ref_log_probs": batch.ref_log_probs, "mask": batch.mask}
    arrays |= {"old_log_probs": batch.old_log_probs} if name in WEIGHTED else {}
    for field, bad in [
        ("ref_log_probs", batch.ref_log_probs[:, 0]),
        ("log_probs", batch.log_probs.astype(np.int32)),
        ("mask", batch.mask.astype(np.float32)),
        ("old_log_probs", batch.old_log_probs[:, :-1]),
    ]:
        if field in arrays:
            with pytest.raises(AssertionError):
                getattr(kl, name)(**arrays | {field: bad})


def test_k3_is_never_negative_and_keeps_small_values():
    # exp(x) - 1 in float32 is a multiple of 1.2e-7: at x = 1e-4 the naive formula gives 0, or 1.2e-7, or less than 0.
    difference = np.float32([[1e-4, -1e-4, 3e-4, 1e-3]])
    zeros, everything = np.zeros_like(difference), np.ones_like(difference, bool)
    for name in [name for name in ESTIMATORS if "k3" in name]:
        out = _estimate(name, difference, difference, ref_log_probs=zeros, mask=everything)
        np.testing.assert_allclose(out, np.square(difference) / 2, rtol=5e-2)
        assert (np.asarray(out) > 0).all()
        batch = ragged_batch(4)
        assert (_value_and_gradient(name, batch)[0] >= 0).all()


# --- Expectations ----------------------------------------------------------------------------------------------------


@all_estimators
def test_expected_value(name):
    with jax.enable_x64(True):
        value, _ = _enumerate(name)
        exact, _ = _divergence(LOGITS, REF_LOGITS, differentiate=0)
    np.testing.assert_allclose(exact, 0.82, atol=0.005)
    if name in UNBIASED_VALUE:
        np.testing.assert_allclose(value, exact, rtol=1e-10)
    else:
        assert abs(value - float(exact)) > 0.05


def test_expected_gradients_are_three_different_things():
    with jax.enable_x64(True):
        gradients = {name: _enumerate(name)[1] for name in ("k1", "k2", "k3")}
        _, reverse = _divergence(LOGITS, REF_LOGITS, differentiate=0)
        _, forward = _divergence(REF_LOGITS, LOGITS, differentiate=1)
    np.testing.assert_allclose(gradients["k1"], 0.0, atol=1e-12)
    np.testing.assert_allclose(gradients["k2"], reverse, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(gradients["k3"], forward, rtol=1e-9, atol=1e-12)


# shared/atlas/conventions.md 5.3: (cosine, ratio of norms) with the exact reverse-KL gradient; None: no direction.
TABLE = {
    "k1": (None, 0.000),
    "k2": (1.000, 1.000),
    "k3": (0.723, 1.108),
    "k3_clamped": (0.946, 0.482),
    "k1_plus": (1.000, 1.000),
    "k3_plus": (1.000, 1.000),
    "ratio_k3": (1.000, 1.000),
    "on_policy_k3_clamped": (0.990, 0.951),
    "ratio_k1": (1.000, 1.000),
    "absolute": (0.745, 0.766),
    "sequence_ratio_k3": (1.000, 1.000),  # of a single token; longer rows are below
}


def test_the_table_has_every_estimator():
    assert set(TABLE) == set(ESTIMATORS)


@all_estimators
def test_the_table_of_expected_gradients(name):
    with jax.enable_x64(True):
        _, gradient = _enumerate(name)
        _, exact = _divergence(LOGITS, REF_LOGITS, differentiate=0)
        k3 = kl.k3(*(jax.nn.log_softmax(jnp.asarray(z))[None] for z in (LOGITS, REF_LOGITS)), np.ones((1, 8), bool))
        np.testing.assert_allclose(k3.max(), 14.3, atol=0.05)
    cosine, norm = TABLE[name]
    if cosine is None:
        np.testing.assert_allclose(gradient, 0.0, atol=1e-12)
    elif (cosine, norm) == (1.0, 1.0):
        np.testing.assert_allclose(gradient, exact, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_allclose(_compared(gradient, np.asarray(exact)), (cosine, norm), atol=6e-4)


def test_the_sequence_ratio_loses_its_correction_with_the_length():
    """The last row of the table: k3's gradient plus 1 / T of what the token ratio adds; enumerated for T = 1, 2, 3."""
    with jax.enable_x64(True):
        exact, k3 = _enumerate("ratio_k3")[1], _enumerate("k3")[1]
        for length in (1, 2, 3):
            _, gradient = _enumerate("sequence_ratio_k3", length)
            np.testing.assert_allclose(gradient, k3 + (exact - k3) / length, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(_enumerate("ratio_k3", length)[1], exact, rtol=1e-9, atol=1e-12)
    for length, cosine, norm in [(2, 0.920, 0.98), (8, 0.777, 1.06), (64, 0.730, 1.10), (512, 0.724, 1.11)]:
        measured = _compared(k3 + (exact - k3) / length, exact)
        np.testing.assert_allclose(measured[0], cosine, atol=6e-4)
        np.testing.assert_allclose(measured[1], norm, atol=6e-3)


@pytest.mark.parametrize("name, unbiased", [("ratio_k1", True), ("ratio_k3", True), ("k2", False), ("k3", False)])
def test_off_policy_only_the_ratio_keeps_the_estimate(name, unbiased):
    """Samples of another policy, enumerated: E_old[r k] and its gradient are KL(pi || ref) and its gradient."""
    old_logits = LOGITS + np.array([0.5, -0.8, 0.3, 0.9, -0.2, 0.4, -0.6, 0.1])
    with jax.enable_x64(True):
        old = jax.nn.log_softmax(jnp.asarray(old_logits))[None]

        def expectation(logits):
            log_probs, ref_log_probs = (jax.nn.log_softmax(z)[None] for z in (logits, REF_LOGITS))
            arrays = {"ref_log_probs": ref_log_probs, "mask": jnp.ones((1, 8), bool)}
            return (jnp.exp(old) * _estimate(name, log_probs, old, **arrays)).sum()

        value, gradient = jax.value_and_grad(expectation)(jnp.asarray(LOGITS))
        exact, exact_gradient = _divergence(LOGITS, REF_LOGITS, differentiate=0)
    if unbiased:
        np.testing.assert_allclose(value, exact, rtol=1e-9)
        np.testing.assert_allclose(gradient, exact_gradient, rtol=1e-9, atol=1e-12)
    else:
        assert np.abs(gradient - exact_gradient).max() > 0.01


def test_k1_in_the_reward_is_k2_in_the_loss():
    """E[k1 grad logp], the score with k1 as a constant, is E[grad k2]: the penalty may go into the reward instead."""
    with jax.enable_x64(True):
        difference = jax.nn.log_softmax(jnp.asarray(LOGITS)) - jax.nn.log_softmax(jnp.asarray(REF_LOGITS))
        probabilities = jax.nn.softmax(jnp.asarray(LOGITS))
        score = jax.grad(lambda z: (probabilities * difference * jax.nn.log_softmax(z)).sum())(jnp.asarray(LOGITS))
        np.testing.assert_allclose(score, _enumerate("k2")[1], rtol=1e-9, atol=1e-12)


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
