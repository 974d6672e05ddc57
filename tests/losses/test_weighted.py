"""losses/policy/weighted.py and dppo.py: values, gradients, clip flags against loops, verl, TRL and closed forms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.binding import bind, supply
from rl_jax.losses import aggregate, policy
from rl_jax.losses.policy import gates
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import weighted as reference
from tests.oracles import trl, verl

# name -> keywords that put tokens on both sides of every bound (ratios of ragged_batch are 0.4 to 2.5).
CASES = [
    ("reinforce", {}),
    ("importance_sampling", {}),
    ("cispo", {"ratio_min": 0.8, "ratio_max": 1.28}),
    ("cispo", {"ratio_min": 0.0, "ratio_max": 1.5}),
    ("truncated_is", {"ratio_max": 1.0}),
    ("aipo", {"ratio_max": 1.4}),
    ("topr", {"sequence_ratio": True}),
    ("topr", {"sequence_ratio": False}),
    ("rec_one_side", {"clip_low": 0.2, "clip_high": 0.28}),
    ("vespo", {"k_positive": 2.0, "lambda_positive": 3.0, "k_negative": 3.0, "lambda_negative": 2.0}),
    ("dppo_tv", {"divergence_low": 0.15, "divergence_high": 0.1, "ratio_max": 1.8}),
    ("dppo_kl", {"divergence_low": 0.05, "divergence_high": 0.03, "ratio_max": 1.8}),
]
NAMES = sorted({name for name, _ in CASES})
NEVER_CLIPS = ("reinforce", "importance_sampling", "vespo")


def _batch(seed, **sizes):
    """A ragged batch of real log-probs: all of them are negative, so that every p is a probability."""
    batch = ragged_batch(seed, **sizes)
    fields = ("log_probs", "old_log_probs", "ref_log_probs")
    return batch._replace(**{field: getattr(batch, field) - np.float32(1.0) for field in fields})


def _extras(name, batch):
    """The arrays that `name` asks for; the sampler's log-probs are those of the reference policy of the batch."""
    return {"behavior_log_probs": batch.ref_log_probs} if name == "aipo" else {}


def _loss_and_gradient(fn, batch, **keywords):
    def total(log_probs):
        out = fn(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords)
        return out.loss.sum(), out

    (_, out), gradient = jax.value_and_grad(total, has_aux=True)(batch.log_probs)
    return out, gradient


def _run(name, batch, **keywords):
    return _loss_and_gradient(getattr(policy, name), batch, **_extras(name, batch), **keywords)


def _one_token(name, ratio, advantage, old_log_prob=-1.0, **keywords):
    """(-dl/dlogp / A, clipped_low, clipped_high) of a single token: its weight."""
    array = functools.partial(np.full, (1, 1), dtype=np.float32)
    batch = _batch(0)._replace(
        log_probs=array(old_log_prob + np.log(ratio)),
        old_log_probs=array(old_log_prob),
        ref_log_probs=array(old_log_prob),
        advantages=array(advantage),
        mask=np.ones((1, 1), bool),
    )
    out, gradient = _run(name, batch, **keywords)
    return -float(gradient[0, 0]) / advantage, bool(out.clipped_low[0, 0]), bool(out.clipped_high[0, 0])


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name, keywords", CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_matches_the_loop(name, keywords, seed):
    batch = _batch(seed)
    out, gradient = _run(name, batch, **keywords)
    expected = getattr(reference, name)(*batch[:3], batch.mask, **_extras(name, batch), **keywords)
    assert name in NEVER_CLIPS or expected.low.any() or expected.high.any()
    np.testing.assert_allclose(out.loss, expected.loss, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected.gradient, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(out.ratio, expected.ratio, rtol=1e-5)
    np.testing.assert_array_equal(out.clipped_low, expected.low)
    np.testing.assert_array_equal(out.clipped_high, expected.high)


def test_both_bounds_and_both_signs_are_in_the_cases():
    """What the loop above compares: each function that clips does so on each side that it has."""
    sides = {name: [False, False] for name in NAMES}
    for name, keywords in CASES:
        for seed in (0, 1):
            batch = _batch(seed)
            out, _ = _run(name, batch, **keywords)
            sides[name][0] |= bool(out.clipped_low.any())
            sides[name][1] |= bool(out.clipped_high.any())
    one_sided = ("truncated_is", "aipo", "topr")
    assert sides == {n: [n not in NEVER_CLIPS + one_sided, n not in NEVER_CLIPS] for n in NAMES}


@pytest.mark.parametrize(
    "name, ratio, advantage, old_log_prob, weight, low, high",
    [
        ("reinforce", 7.0, -2.0, -1.0, 1.0, False, False),
        ("importance_sampling", 7.0, -2.0, -1.0, 7.0, False, False),
        ("cispo", 0.01, -2.0, -1.0, 0.01, False, False),  # no lower bound
        ("cispo", 4.9, 2.0, -5.0, 4.9, False, False),
        ("cispo", 5.1, 2.0, -5.0, 5.0, False, True),
        ("truncated_is", 1.1, -2.0, -5.0, 1.0, False, True),
        ("truncated_is", 0.9, 2.0, -5.0, 0.9, False, False),  # positive advantages are truncated too
        ("aipo", 2.1, 2.0, -5.0, 2.0, False, True),
        ("aipo", 1.9, -2.0, -5.0, 1.9, False, False),
        ("topr", 0.5, 2.0, -5.0, 1.0, False, False),
        ("topr", 1.5, 2.0, -5.0, 1.0, False, False),
        ("topr", 0.5, -2.0, -5.0, 0.5, False, False),
        ("topr", 1.5, -2.0, -5.0, 1.0, False, True),
        ("rec_one_side", 1.19, 2.0, -5.0, 1.0, False, False),
        ("rec_one_side", 1.21, 2.0, -5.0, 0.0, False, True),
        ("rec_one_side", 1.21, -2.0, -5.0, 1.0, False, False),
        ("rec_one_side", 0.79, -2.0, -5.0, 0.0, True, False),
        ("rec_one_side", 0.79, 2.0, -5.0, 1.0, False, False),
        ("vespo", 2.0, 2.0, -5.0, 4.0 * np.exp(-3.0), False, False),
        ("vespo", 2.0, -2.0, -5.0, 8.0 * np.exp(-2.0), False, False),
        ("dppo_tv", 2.0, 2.0, np.log(0.14), 2.0, False, False),  # p: 0.14 -> 0.28
        ("dppo_tv", 2.0, 2.0, np.log(0.16), 0.0, False, True),  # p: 0.16 -> 0.32
        ("dppo_tv", 2.0, -2.0, np.log(0.16), 2.0, False, False),
        ("dppo_tv", 0.5, -2.0, np.log(0.28), 0.5, False, False),  # p: 0.28 -> 0.14
        ("dppo_tv", 0.5, -2.0, np.log(0.32), 0.0, True, False),  # p: 0.32 -> 0.16
        ("dppo_tv", 0.5, 2.0, np.log(0.32), 0.5, False, False),
        ("dppo_tv", 19.0, 2.0, np.log(0.001), 19.0, False, False),
        ("dppo_tv", 21.0, 2.0, np.log(0.001), 20.0, False, False),
        ("dppo_kl", 1.6, 2.0, np.log(0.2), 1.6, False, False),  # p: 0.2 -> 0.32, KL 0.036
        ("dppo_kl", 1.8, 2.0, np.log(0.2), 0.0, False, True),  # p: 0.2 -> 0.36, KL 0.061
        ("dppo_kl", 1.8, -2.0, np.log(0.2), 1.8, False, False),
        ("dppo_kl", 0.5, -2.0, np.log(0.2), 0.5, False, False),  # p: 0.2 -> 0.1, KL 0.044
        ("dppo_kl", 0.45, -2.0, np.log(0.2), 0.0, True, False),  # p: 0.2 -> 0.09, KL 0.057
        ("dppo_kl", 0.45, 2.0, np.log(0.2), 0.45, False, False),
        ("dppo_kl", 19.0, 2.0, np.log(0.001), 19.0, False, False),
        ("dppo_kl", 21.0, 2.0, np.log(0.001), 20.0, False, False),
    ],
)
def test_weights_of_one_token_at_the_defaults(name, ratio, advantage, old_log_prob, weight, low, high):
    out = _one_token(name, ratio, 0.01 * advantage, old_log_prob)  # only the sign of a small advantage counts
    np.testing.assert_allclose(out[0], weight, rtol=1e-5, atol=1e-7)
    assert out[1:] == (low, high)


def test_without_an_advantage_nothing_is_clipped_that_the_sign_decides():
    batch = _batch(2)
    batch = batch._replace(advantages=np.zeros_like(batch.advantages))
    for name in ("rec_one_side", "dppo_tv", "dppo_kl", "topr"):
        out, gradient = _run(name, batch)
        assert not out.clipped_low.any() and not out.clipped_high.any(), name
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize(
    "name, keywords, theirs, settings",
    [
        ("reinforce", {}, "gpg", {}),
        ("cispo", {"ratio_min": 0.8, "ratio_max": 1.28}, "cispo", {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28}),
        (
            "dppo_tv",
            {"divergence_low": 0.15, "divergence_high": 0.1, "ratio_max": 1.8},
            "dppo_tv",
            {"clip_ratio_low": 0.15, "clip_ratio_high": 0.1, "clip_ratio_c": 1.8},
        ),
        (
            "dppo_kl",
            {"divergence_low": 0.05, "divergence_high": 0.03, "ratio_max": 1.8},
            "dppo_kl",
            {"clip_ratio_low": 0.05, "clip_ratio_high": 0.03, "clip_ratio_c": 1.8},
        ),
    ],
)
@pytest.mark.parametrize("seed", [3, 4])
def test_matches_verl(name, keywords, theirs, settings, seed):
    batch = _batch(seed)

    def ours(log_probs):
        out = getattr(policy, name)(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords)
        return aggregate.token_mean(out.loss, batch.mask).value()

    value, gradient = jax.value_and_grad(ours)(batch.log_probs)
    their_value, their_gradient = verl.policy_loss(theirs, *batch[:3], batch.mask, **settings)
    np.testing.assert_allclose(value, their_value, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, their_gradient, rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize(
    "name, keywords, settings",
    [
        ("cispo", {"ratio_max": 1.5}, {"loss_type": "cispo", "epsilon_high": 1.5}),  # absolute in TRL too
        ("vespo", {}, {"loss_type": "vespo"}),
        (
            "vespo",
            {"k_positive": 1.5, "lambda_positive": 0.7, "k_negative": 1.2, "lambda_negative": 0.9},
            {"loss_type": "vespo", "vespo_k_pos": 1.5, "vespo_lambda_pos": 0.7, "vespo_k_neg": 1.2}
            | {"vespo_lambda_neg": 0.9},
        ),
    ],
)
def test_matches_trl(name, keywords, settings, seed):
    batch = _batch(seed)

    def ours(log_probs):
        out = getattr(policy, name)(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords)
        return aggregate.token_mean(out.loss, batch.mask).value()

    value, gradient = jax.value_and_grad(ours)(batch.log_probs)
    their_value, their_gradient = trl.grpo_loss(*batch[:3], batch.mask, **settings)
    np.testing.assert_allclose(value, their_value, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, their_gradient, rtol=2e-5, atol=1e-8)


def test_vespo_against_the_sampler_is_trls_with_its_sampler_weights():
    """TRL multiplies W by old / sampler of every token of the row; that is W against the sampler."""
    batch = _batch(5)
    weights = np.where(batch.mask, np.exp(batch.old_log_probs - batch.ref_log_probs), 1.0)
    out, gradient = _run("vespo", batch._replace(old_log_probs=batch.ref_log_probs))
    value = aggregate.token_mean(out.loss, batch.mask).value()
    their_value, their_gradient = trl.grpo_loss(
        *batch[:3], batch.mask, loss_type="vespo", importance_sampling_ratio=weights
    )
    np.testing.assert_allclose(value, their_value, rtol=2e-5)
    np.testing.assert_allclose(gradient / batch.mask.sum(), their_gradient, rtol=5e-5, atol=1e-8)


# --- Laws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_on_policy_the_gradient_is_minus_a(name):
    batch = _batch(5)
    batch = batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)
    out, gradient = _run(name, batch)
    np.testing.assert_allclose(gradient, np.where(batch.mask, -batch.advantages, 0), rtol=1e-6)
    np.testing.assert_array_equal(out.ratio, 1.0)
    assert not out.clipped_low.any() and not out.clipped_high.any()


@pytest.mark.parametrize(
    "name, keywords",
    [
        ("cispo", {"ratio_min": 1.0, "ratio_max": 1.0}),
        ("aipo", {"ratio_max": 1.0}),
        ("truncated_is", {"ratio_max": 1.0}),
        ("topr", {}),
        ("rec_one_side", {"clip_low": 0.0, "clip_high": 0.0}),
        ("dppo_tv", {"divergence_low": 0.0, "divergence_high": 0.0}),
        ("dppo_kl", {"divergence_low": 0.0, "divergence_high": 0.0}),
    ],
)
def test_on_a_bound_nothing_is_clipped(name, keywords):
    batch = _batch(5)
    batch = batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)
    out, gradient = _run(name, batch, **keywords)
    assert not out.clipped_low.any() and not out.clipped_high.any()
    np.testing.assert_allclose(gradient, np.where(batch.mask, -batch.advantages, 0), rtol=1e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", NAMES)
def test_padding_reaches_nothing(name, poison):
    batch = _batch(6)
    clean = _run(name, batch)
    poisoned = batch._replace(**{f: np.where(batch.mask, getattr(batch, f), poison) for f in batch._fields[:4]})
    out, gradient = _run(name, poisoned)
    for ours, theirs in zip((*out, gradient), (*clean[0], clean[1]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    behind = ~batch.mask
    assert not np.asarray(out.loss)[behind].any() and not np.asarray(gradient)[behind].any()
    assert (np.asarray(out.ratio)[behind] == 1).all()
    assert not np.asarray(out.clipped_low | out.clipped_high)[behind].any()


@pytest.mark.parametrize("name", NAMES)
def test_padding_makes_no_nan_on_the_way(name):
    """Who looks for a nan with jax.debug_nans finds none that padding has made."""
    batch = _batch(6)
    poisoned = batch._replace(**{f: np.where(batch.mask, getattr(batch, f), np.nan) for f in batch._fields[:4]})
    with jax.debug_nans(True):
        _run(name, poisoned)


@pytest.mark.parametrize("ratio_min, ratio_max", [(0.0, 0.5), (1.5, 9.0)])
def test_bounds_are_not_active_behind_the_mask(ratio_min, ratio_max):
    """The ratio there is 1, outside of these bounds."""
    batch = _batch(6)
    out, _ = _run("cispo", batch, ratio_min=ratio_min, ratio_max=ratio_max)
    for flags in (out.clipped_low, out.clipped_high):
        assert not np.asarray(flags)[~batch.mask].any()
    assert (out.clipped_low | out.clipped_high).any()


@pytest.mark.parametrize("name", NAMES)
def test_data_and_diagnostics_carry_no_gradient(name):
    batch = _batch(7)
    fn, names = getattr(policy, name), list(_extras(name, batch))

    def ratio(log_probs):
        return fn(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **_extras(name, batch)).ratio.sum()

    def loss(old_log_probs, advantages, *extras):
        keywords = dict(zip(names, extras, strict=True))
        return fn(batch.log_probs, old_log_probs, advantages, batch.mask, **keywords).loss.sum()

    np.testing.assert_array_equal(jax.grad(ratio)(batch.log_probs), 0)
    data = (batch.old_log_probs, batch.advantages, *_extras(name, batch).values())
    for gradient in jax.grad(loss, argnums=tuple(range(len(data))))(*data):
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", [*NAMES, "gated"])
def test_bad_input_is_refused(name):
    batch = _batch(8)
    fn = functools.partial(policy.gated, gate="reinforce_gate") if name == "gated" else getattr(policy, name)
    good = [*batch[:3], batch.mask]
    for i, bad in ((0, batch.log_probs[:, :3]), (1, batch.old_log_probs[:3]), (2, batch.advantages[:, 0])):
        with pytest.raises(AssertionError):
            fn(*good[:i], bad, *good[i + 1 :], **_extras(name, batch))
    with pytest.raises(AssertionError):
        fn(*good[:3], batch.mask.astype(np.float32), **_extras(name, batch))
    with pytest.raises(AssertionError):
        fn(*good[:2], np.ones(batch.mask.shape, np.int32), batch.mask, **_extras(name, batch))
    if name == "aipo":
        with pytest.raises(AssertionError):
            fn(*good, behavior_log_probs=batch.ref_log_probs[:3])


# --- Limits: one method becomes another ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, keywords",
    [
        ("cispo", {"ratio_min": 0.0, "ratio_max": np.inf}),
        ("truncated_is", {"ratio_max": np.inf}),
        ("dppo_tv", {"divergence_low": 1.0, "divergence_high": 1.0, "ratio_max": np.inf}),
        ("dppo_kl", {"divergence_low": np.inf, "divergence_high": np.inf, "ratio_max": np.inf}),
    ],
)
def test_wide_open_it_is_importance_sampling(name, keywords):
    batch = _batch(9)
    _, gradient = _run(name, batch, **keywords)
    _, expected = _run("importance_sampling", batch)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_importance_sampling_is_the_clipped_surrogate_without_a_clip():
    batch = _batch(10)
    out, gradient = _run("importance_sampling", batch)
    other, other_gradient = _run("clipped_surrogate", batch, clip_low=np.inf, clip_high=np.inf)
    np.testing.assert_allclose(out.loss, other.loss, rtol=1e-6)
    np.testing.assert_allclose(gradient, other_gradient, rtol=1e-6)


def test_truncated_is_is_cispo_up_to_one_and_aipo_is_both_against_the_sampler():
    batch = _batch(11)
    _, tis = _run("truncated_is", batch)
    _, cispo = _run("cispo", batch, ratio_max=1.0)
    np.testing.assert_array_equal(tis, cispo)
    _, aipo = _run("aipo", batch, ratio_max=1.0)
    _, against_sampler = _run("truncated_is", batch._replace(old_log_probs=batch.ref_log_probs))
    np.testing.assert_array_equal(aipo, against_sampler)


def test_aipo_reads_the_sampler_only():
    batch = _batch(12)
    out, gradient = _run("aipo", batch)
    other, other_gradient = _run("aipo", batch._replace(old_log_probs=batch.old_log_probs - 1.0))
    np.testing.assert_array_equal(out.ratio, other.ratio)
    np.testing.assert_array_equal(gradient, other_gradient)
    _, fresh = _run("aipo", batch._replace(ref_log_probs=batch.log_probs))
    np.testing.assert_allclose(fresh, _run("reinforce", batch)[1], rtol=1e-6)


def test_topr_of_positives_is_reinforce_and_of_negatives_truncated_importance_sampling():
    batch = _batch(13)
    positive = batch._replace(advantages=np.abs(batch.advantages))
    negative = batch._replace(advantages=-np.abs(batch.advantages))
    np.testing.assert_array_equal(_run("topr", positive)[1], _run("reinforce", positive)[1])
    np.testing.assert_array_equal(_run("topr", negative, sequence_ratio=False)[1], _run("truncated_is", negative)[1])


def test_rows_of_one_token_have_one_ratio():
    batch = _batch(14, length=1)
    for left, right in zip(
        _run("topr", batch, sequence_ratio=True)[0], _run("topr", batch, sequence_ratio=False)[0], strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=1e-6)


def test_rec_times_the_ratio_is_ppo():
    batch = _batch(15)
    out, gradient = _run("rec_one_side", batch)
    ppo, ppo_gradient = _run("clipped_surrogate", batch)
    np.testing.assert_allclose(gradient * out.ratio, ppo_gradient, rtol=1e-6)
    np.testing.assert_array_equal(out.clipped_low, ppo.clipped_low)
    np.testing.assert_array_equal(out.clipped_high, ppo.clipped_high)


def test_vespo_without_decay_is_importance_sampling_of_whole_rows():
    batch = _batch(16)
    out, gradient = _run("vespo", batch, k_positive=1.0, k_negative=1.0, lambda_positive=0.0, lambda_negative=0.0)
    np.testing.assert_allclose(gradient, np.where(batch.mask, -out.ratio * batch.advantages, 0), rtol=2e-5)


def test_products_of_long_rows_may_overflow():
    """400 tokens, each ratio e^0.5 or its inverse: W is inf or 0, the gradient is finite."""
    signs = np.array([[1.0], [1.0], [-1.0], [-1.0]], np.float32)
    batch = _batch(17, rows=4, length=400)
    batch = batch._replace(
        old_log_probs=batch.log_probs - 0.5 * signs,
        advantages=np.broadcast_to(np.float32([[1], [-1], [1], [-1]]), batch.mask.shape),
        mask=np.ones_like(batch.mask),
    )
    out, gradient = _run("vespo", batch)
    assert np.isinf(out.ratio[:2]).all()
    np.testing.assert_array_equal(gradient, 0)
    np.testing.assert_array_equal(out.loss, 0)
    _, gradient = _run("topr", batch)
    expected = np.broadcast_to(np.float32([[-1], [1], [-1], [0]]), batch.mask.shape)
    np.testing.assert_allclose(gradient, expected, atol=1e-30)
    _, gated = _loss_and_gradient(policy.gated, batch, gate="vespo_gate", level="product")
    np.testing.assert_array_equal(gated, 0)


def test_dppo_kl_drops_what_moves_away_only():
    """With the bound at 0 every move counts, however small; with a negative one also the token that has not moved."""
    for ratio, advantage, weight in ((1.05, 1, 0.0), (0.95, -1, 0.0), (1.05, -1, 1.05), (0.95, 1, 0.95)):
        out = _one_token("dppo_kl", ratio, advantage, divergence_low=0.0, divergence_high=0.0)
        np.testing.assert_allclose(out[0], weight, rtol=1e-6)
        assert out[1:] == (weight == 0 and advantage < 0, weight == 0 and advantage > 0)
    for advantage in (1, -1):
        out = _one_token("dppo_kl", 1.0, advantage, divergence_low=-1.0, divergence_high=-1.0)
        assert out == (1.0, False, False)


def test_dppo_kl_of_tokens_that_are_all_but_certain():
    """1 - p is 1e-6 or 0 in float32: the divergence keeps its digits, and no nan comes out of log(0 / 0)."""
    old = np.log1p(-np.array([[1e-6, 1e-6, 0.2, 0.0, 0.0]]))
    new = np.log1p(-np.array([[0.04, 0.06, 0.0, 0.0, 0.2]]))
    batch = _batch(0)._replace(
        log_probs=new.astype(np.float32),
        old_log_probs=old.astype(np.float32),
        advantages=np.float32([[-1, -1, 1, 1, -1]]),
        mask=np.ones((1, 5), bool),
    )
    out, gradient = _run("dppo_kl", batch)
    np.testing.assert_array_equal(out.clipped_low, [[False, True, False, False, True]])  # KL .0408, .0619, .., .223
    np.testing.assert_array_equal(out.clipped_high, [[False, False, True, False, False]])
    np.testing.assert_allclose(gradient, [[0.96, 0.0, 0.0, -1.0, 0.0]], rtol=1e-5)


# --- A method by its gate --------------------------------------------------------------------------------------------


def test_a_config_names_a_gate():
    batch = _batch(18)
    _, expected = _run("clipped_surrogate", batch, clip_high=0.28)
    spec = {"fn": "gated", "gate": {"fn": "ppo_gate", "clip_high": 0.28}}
    for gate in (spec["gate"], functools.partial(gates.ppo_gate, clip_high=0.28)):
        out, gradient = _loss_and_gradient(bind(spec | {"gate": gate}, policy), batch)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    reference_flags, _ = _run("clipped_surrogate", batch, clip_high=0.28)
    np.testing.assert_array_equal(out.clipped_low, reference_flags.clipped_low)
    np.testing.assert_array_equal(out.clipped_high, reference_flags.clipped_high)
    _, gradient = _loss_and_gradient(bind({"fn": "gated", "gate": "ppo_gate"}, policy), batch)
    np.testing.assert_allclose(gradient, _run("clipped_surrogate", batch)[1], rtol=1e-6)


def test_a_notebook_passes_its_own_gate():
    batch = _batch(19)
    out, gradient = _loss_and_gradient(policy.gated, batch, gate=lambda ratio, advantages: jnp.sqrt(ratio))
    weight = np.exp(0.5 * (batch.log_probs - batch.old_log_probs))
    expected = np.where(batch.mask, -weight * batch.advantages, 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)
    np.testing.assert_allclose(out.loss, expected * batch.log_probs, rtol=1e-5)
    assert not out.clipped_low.any() and not out.clipped_high.any()


def test_the_levels_of_the_ratio():
    batch = _batch(20)
    for level in ("token", "geometric", "product"):
        out, gradient = _loss_and_gradient(policy.gated, batch, gate="importance_sampling_gate", level=level)
        difference = np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0).astype(np.float64)
        if level != "token":
            rows = difference.sum(axis=1) / (batch.mask.sum(axis=1) if level == "geometric" else 1)
            difference = np.where(batch.mask, rows[:, None], 0)
        np.testing.assert_allclose(out.ratio, np.exp(difference), rtol=1e-5)
        np.testing.assert_allclose(gradient, np.where(batch.mask, -np.exp(difference) * batch.advantages, 0), rtol=1e-5)


def test_a_gate_asks_for_what_it_needs():
    batch = _batch(21)
    poison = {f: np.where(batch.mask, getattr(batch, f), np.nan) for f in batch._fields[:3]}

    def gate(ratio, advantages, *, log_probs, old_log_probs, mask):
        seen.append((log_probs, old_log_probs, mask))
        return jnp.exp(log_probs) + 2.0 * old_log_probs + mask

    seen = []
    policy.gated(*batch._replace(**poison)[:3], batch.mask, gate=gate)
    for left, right in zip(seen[0], (batch.log_probs, batch.old_log_probs, batch.mask), strict=True):
        np.testing.assert_array_equal(left, np.where(batch.mask, right, 0))
    out, gradient = _loss_and_gradient(policy.gated, batch._replace(**poison), gate=gate)
    weight = np.exp(batch.log_probs) + 2.0 * batch.old_log_probs + 1.0
    np.testing.assert_allclose(gradient, np.where(batch.mask, -weight * batch.advantages, 0), rtol=1e-5)
    with pytest.raises(ValueError, match="dppo_tv_gate needs"):
        supply(gates.dppo_tv_gate, {})


def test_a_closed_gate_is_a_clip_of_the_tokens_that_had_a_gradient():
    batch = _batch(21)
    advantages = np.where(np.arange(6) == 0, np.float32(0), np.float32(0.01) * batch.advantages)
    out, gradient = _loss_and_gradient(
        policy.gated, batch._replace(advantages=advantages), gate=lambda ratio, _: jnp.where(ratio > 1, 0.0, ratio)
    )
    closed = batch.mask & (batch.log_probs > batch.old_log_probs)
    np.testing.assert_array_equal(out.clipped_low, closed & (advantages < 0))
    np.testing.assert_array_equal(out.clipped_high, closed & (advantages > 0))
    np.testing.assert_array_equal(np.asarray(gradient)[closed], 0)


def test_a_gate_that_is_not_finite_behind_the_mask():
    """The advantage there is 0."""
    batch = _batch(21)
    out, gradient = _loss_and_gradient(policy.gated, batch, gate=lambda ratio, advantages: 1.0 / advantages)
    np.testing.assert_allclose(gradient, np.where(batch.mask, -1.0, 0.0), rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(out.loss)[~batch.mask], 0)


def test_gates_that_are_refused():
    batch = _batch(22)
    run = functools.partial(_loss_and_gradient, policy.gated, batch)
    with pytest.raises(ValueError, match="has no function 'ppo'"):
        run(gate="ppo")
    with pytest.raises(ValueError, match="takes no keyword 'clip_hihg'"):
        run(gate={"fn": "ppo_gate", "clip_hihg": 0.28})
    with pytest.raises(ValueError, match="needs entropy"):
        run(gate=lambda ratio, advantages, *, entropy: ratio)
    with pytest.raises(ValueError, match="level='row' is none of token, geometric, product"):
        run(gate="ppo_gate", level="row")
    for wrong in (lambda ratio, advantages: 1.0, lambda ratio, advantages: ratio[:, :1], lambda r, a: r < 2):
        with pytest.raises((AssertionError, ValueError)):
            run(gate=wrong)
    with pytest.raises(ValueError, match="gated needs gate"):
        supply(policy.gated, {})
