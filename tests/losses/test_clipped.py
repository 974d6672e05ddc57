"""losses/policy/clipped.py beyond what test_policy.py holds: dual clip, two-sided clip, the guard of the log ratio."""

import functools

import jax
import numpy as np
import pytest

from rl_jax.losses import aggregate, policy
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import policy as reference
from tests.oracles import trl, verl

CLIP = {"clip_low": 0.2, "clip_high": 0.28}
# Ratios of ragged_batch are 0.4 to 2.5, log ratios -.9 to .9: tokens on both sides of each bound.
CASES = [
    ("dual_clip", CLIP | {"dual_clip": 1.7}),
    ("dual_clip", CLIP | {"dual_clip": 1.1}),  # inside the clip
    ("dual_clip", CLIP | {"dual_clip": 1.7, "max_log_ratio": 0.45}),
    ("dual_clip", CLIP | {"dual_clip": 3.0, "max_log_ratio": 0.15}),  # the guard lies inside the clip
    ("two_sided_clip", CLIP | {"delta": 1.7}),
    ("two_sided_clip", CLIP | {"delta": 1.3}),
    ("clipped_surrogate", CLIP | {"max_log_ratio": 0.45}),
    ("clipped_surrogate", CLIP | {"max_log_ratio": 0.15}),
]
NAMES = ("clipped_surrogate", "dual_clip", "two_sided_clip")
every_function = pytest.mark.parametrize("name", NAMES)


@functools.cache
def _compiled(name, mode, keywords):
    def value(log_probs, old_log_probs, advantages, mask):
        out = getattr(policy, name)(log_probs, old_log_probs, advantages, mask, **dict(keywords))
        return out.loss.sum() if mode is None else mode(out.loss, mask).value(), out

    return jax.jit(jax.value_and_grad(value, has_aux=True))


def _run(name, batch, **keywords):
    """The Surrogate and the gradient of its summed loss."""
    (_, out), gradient = _compiled(name, None, tuple(sorted(keywords.items())))(*batch[:3], batch.mask)
    return jax.tree.map(np.asarray, (out, gradient))


def _single(log_ratio, advantage):
    array = functools.partial(np.full, (1, 1), dtype=np.float32)
    return ragged_batch()._replace(
        log_probs=array(log_ratio),
        old_log_probs=array(0.0),
        advantages=array(advantage),
        mask=np.ones((1, 1), bool),
    )


def _one_token(name, log_ratio, advantage, **keywords):
    """(loss, gradient, clipped_low, clipped_high) of a single token."""
    out, gradient = _run(name, _single(log_ratio, advantage), **keywords)
    return float(out.loss[0, 0]), float(gradient[0, 0]), bool(out.clipped_low[0, 0]), bool(out.clipped_high[0, 0])


def _off_policy(seed, log_ratio_scale=1.0):
    """float64, more rows, and some advantages of 0."""
    batch = ragged_batch(seed, rows=24, length=9, dtype=np.float64)
    log_ratio = (batch.log_probs - batch.old_log_probs) * log_ratio_scale
    batch.advantages[5] = 0.0
    return batch._replace(old_log_probs=batch.log_probs - log_ratio)


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name, keywords", CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_matches_the_loop(name, keywords, seed):
    batch = ragged_batch(seed)
    batch.advantages[3, :2] = 0.0
    out, gradient = _run(name, batch, **keywords)
    loss, expected_gradient, low, high = getattr(reference, name)(*batch[:3], batch.mask, **keywords)
    assert low.any() and (high & (batch.advantages > 0)).any() and (high & (batch.advantages < 0)).any()
    assert (batch.mask & ~low & ~high).any()
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out.clipped_low, low)
    np.testing.assert_array_equal(out.clipped_high, high)
    bound = keywords.get("max_log_ratio", np.inf)
    log_ratio = np.clip(np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0), -bound, bound)
    np.testing.assert_allclose(out.ratio, np.exp(log_ratio), rtol=1e-6)  # delta and c cut the loss, not the ratio


@every_function
def test_a_flag_is_a_gradient_that_was_removed(name):
    batch = _off_policy(2, log_ratio_scale=2.0)
    with jax.enable_x64(True):
        out, gradient = _run(name, batch)
    flagged = np.asarray(out.clipped_low | out.clipped_high)
    np.testing.assert_array_equal(flagged, (np.asarray(gradient) == 0) & batch.mask & (batch.advantages != 0))
    assert not (out.clipped_low & out.clipped_high).any()


@pytest.mark.parametrize(
    "name, ratio, advantage, loss, gradient, low, high",
    [
        ("dual_clip", 2.9, -2.0, 5.8, 5.8, False, False),
        ("dual_clip", 3.1, -2.0, 6.0, 0.0, False, True),
        ("dual_clip", 3.1, 2.0, -2.4, 0.0, False, True),  # PPO's clip, as at any ratio above 1.2
        ("dual_clip", 0.7, -2.0, 1.6, 0.0, True, False),
        ("dual_clip", 0.7, 2.0, -1.4, -1.4, False, False),
        ("dual_clip", 7.0, 0.0, 0.0, 0.0, False, False),
        ("two_sided_clip", 3.9, -2.0, 7.8, 7.8, False, False),
        ("two_sided_clip", 4.1, -2.0, 8.0, 0.0, False, True),
        ("two_sided_clip", 4.1, 2.0, -2.4, 0.0, False, True),
        ("two_sided_clip", 0.7, -2.0, 1.6, 0.0, True, False),
        ("two_sided_clip", 0.7, 2.0, -1.4, -1.4, False, False),
        ("two_sided_clip", 7.0, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_every_side_at_the_defaults(name, ratio, advantage, loss, gradient, low, high):
    out = _one_token(name, np.log(ratio), advantage)
    np.testing.assert_allclose(out[:2], (loss, gradient), rtol=1e-5, atol=1e-7)
    assert out[2:] == (low, high)


def test_at_a_bound_nothing_is_flagged():
    """Beyond it, yes. The bounds are taken from the ratio itself, or are the 1 of an on-policy token."""
    ratio = float(_run("dual_clip", _single(1.5, -2.0))[0].ratio[0, 0])
    for name, keywords in [("dual_clip", {"dual_clip": ratio}), ("two_sided_clip", {"delta": ratio})]:
        assert _one_token(name, 1.5, -2.0, **keywords)[2:] == (False, False)
        assert _one_token(name, 1.5, -2.0, **{key: x * 0.999 for key, x in keywords.items()})[2:] == (False, True)
    for name in NAMES:
        for advantage in (2.0, -2.0):
            assert _one_token(name, 0.0, advantage, clip_low=0.0, clip_high=0.0)[2:] == (False, False)
    for log_ratio in (0.5, -0.5):
        for advantage in (2.0, -2.0):
            out = _one_token("clipped_surrogate", log_ratio, advantage, clip_low=1.0, clip_high=9.0, max_log_ratio=0.5)
            assert out[2:] == (False, False)


# --- Published implementations ---------------------------------------------------------------------------------------


def _aggregated(name, batch, mode, **keywords):
    """(value, gradient) of the aggregated loss, in float64."""
    with jax.enable_x64(True):
        (value, _), gradient = _compiled(name, mode, tuple(sorted(keywords.items())))(*batch[:3], batch.mask)
        return np.asarray(value), np.asarray(gradient)


def _assert_same(ours, theirs, rtol=1e-7):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=rtol)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["near", "far"])  # far: log ratios beyond verl's guard of 20
def test_dual_clip_is_verls_vanilla(scale):
    batch = _off_policy(3, scale)
    for theirs, ours in [({}, {}), ({"clip_ratio_low": 0.1, "clip_ratio_high": 0.3, "clip_ratio_c": 1.8}, None)]:
        ours = {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.8} if ours is None else ours
        expected = verl.policy_loss("vanilla", *batch[:3], batch.mask, **theirs)
        _assert_same(_aggregated("dual_clip", batch, aggregate.token_mean, max_log_ratio=20.0, **ours), expected)
    assert scale == 1 or np.abs((batch.log_probs - batch.old_log_probs)[batch.mask]).max() > 21


def test_the_guard_is_verls():
    """With c so large that it never binds, a log ratio beyond 20 has the value of 20 and no gradient, at either end."""
    batch = _off_policy(4, log_ratio_scale=30.0)
    expected = verl.policy_loss("vanilla", *batch[:3], batch.mask, clip_ratio_c=1e30)
    _assert_same(_aggregated("clipped_surrogate", batch, aggregate.token_mean, max_log_ratio=20.0), expected)
    log_ratio = (batch.log_probs - batch.old_log_probs)[batch.mask]
    assert log_ratio.max() > 21 and log_ratio.min() < -21


@pytest.mark.parametrize("delta", [1.5, 4.0])
def test_two_sided_clip_is_trls_delta(delta):
    batch = _off_policy(5, log_ratio_scale=1.8)
    expected = trl.grpo_loss(*batch[:3], batch.mask, loss_type="grpo", delta=delta, epsilon=0.1, epsilon_high=0.3)
    ours = _aggregated("two_sided_clip", batch, aggregate.seq_mean_token_mean, delta=delta, clip_low=0.1, clip_high=0.3)
    _assert_same(ours, expected)


def test_clipped_surrogate_is_trls_grpo():
    batch = _off_policy(6)
    for loss_type, mode in [("grpo", aggregate.seq_mean_token_mean), ("dapo", aggregate.token_mean)]:
        expected = trl.grpo_loss(*batch[:3], batch.mask, loss_type=loss_type)
        _assert_same(_aggregated("clipped_surrogate", batch, mode), expected)


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_without_its_bound_dual_clip_is_the_clipped_surrogate():
    batch = ragged_batch(7)
    batch.advantages[4] = 0.0
    for left, right in zip(
        jax.tree.leaves(_run("dual_clip", batch, dual_clip=np.inf)),
        jax.tree.leaves(_run("clipped_surrogate", batch)),
        strict=True,
    ):
        np.testing.assert_array_equal(left, right)


def test_two_sided_clip_is_dual_clip():
    batch = ragged_batch(8)
    two_sided, dual = _run("two_sided_clip", batch, delta=1.6, **CLIP), _run("dual_clip", batch, dual_clip=1.6, **CLIP)
    assert (dual[0].clipped_high & (batch.advantages < 0)).any()
    for left, right in zip(jax.tree.leaves(two_sided), jax.tree.leaves(dual), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


@every_function
def test_on_policy_the_gradient_is_minus_a(name):
    batch = ragged_batch(9)
    out, gradient = _run(name, batch._replace(old_log_probs=batch.log_probs))
    np.testing.assert_array_equal(out.ratio, 1.0)
    np.testing.assert_allclose(gradient, np.where(batch.mask, -batch.advantages, 0), rtol=1e-6)


# --- Overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_ratio", [89.0, 1e3, 1e30])
@pytest.mark.parametrize("advantage", [2.0, 0.0])
@every_function
def test_an_infinite_ratio_that_is_clipped_has_no_gradient(name, advantage, log_ratio):
    loss, gradient, low, high = _one_token(name, log_ratio, advantage, clip_high=0.28)
    np.testing.assert_allclose(loss, -1.28 * advantage, rtol=1e-6)
    assert gradient == 0 and not low and high == (advantage > 0)


@pytest.mark.parametrize("name, bound", [("dual_clip", 3.0), ("two_sided_clip", 4.0)])
def test_an_infinite_ratio_is_bounded_for_negative_advantages_too(name, bound):
    loss, gradient, low, high = _one_token(name, 1e3, -2.0)
    assert (loss, gradient, low, high) == (2.0 * bound, 0.0, False, True)


def test_without_a_bound_an_infinite_ratio_is_seen():
    """A < 0 and no bound: the loss is infinite, and its gradient too, so that a guard of the train step can act."""
    loss, gradient, _, _ = _one_token("clipped_surrogate", 89.0, -2.0)
    assert loss == np.inf and gradient == np.inf


@pytest.mark.parametrize("advantage", [1e-3, -1e-3])
def test_large_finite_ratios_are_untouched(advantage):
    """Up to the range of float32; exp(87.9) is 1.5e38."""
    loss, gradient, _, _ = _one_token("clipped_surrogate", 87.9, advantage, clip_high=np.inf)
    np.testing.assert_allclose([loss, gradient], -advantage * np.exp(87.9), rtol=1e-5)
    with jax.enable_x64(True):
        batch = ragged_batch(dtype=np.float64)
        batch = batch._replace(log_probs=np.full_like(batch.log_probs, 700.0), old_log_probs=0 * batch.log_probs)
        out, _ = _run("clipped_surrogate", batch)
        np.testing.assert_allclose(out.ratio[batch.mask], np.exp(700.0))


@pytest.mark.parametrize("log_ratio", [30.0, -30.0])
@pytest.mark.parametrize("name", ["clipped_surrogate", "dual_clip"])
def test_the_guard_flags_what_it_stops(name, log_ratio):
    for advantage in (2.0, -2.0, 0.0):
        _, gradient, low, high = _one_token(name, log_ratio, advantage, max_log_ratio=20.0)
        assert gradient == 0
        assert (low, high) == (advantage != 0 and log_ratio < 0, advantage != 0 and log_ratio > 0)


# --- What flows where, and what is refused ---------------------------------------------------------------------------


@every_function
def test_nothing_flows_into_data_or_diagnostics(name):
    batch, fn = ragged_batch(10), getattr(policy, name)

    def loss_of_data(old_log_probs, advantages):
        return fn(batch.log_probs, old_log_probs, advantages, batch.mask).loss.sum()

    for gradient in jax.jit(jax.grad(loss_of_data, argnums=(0, 1)))(batch.old_log_probs, batch.advantages):
        np.testing.assert_array_equal(gradient, 0)
    ratio = jax.jit(jax.grad(lambda x: fn(x, *batch[1:3], batch.mask).ratio.sum()))(batch.log_probs)
    np.testing.assert_array_equal(ratio, 0)


@every_function
def test_padding_is_never_looked_at(name):
    batch = ragged_batch(11)
    expected = jax.tree.leaves(_run(name, batch))
    for poison in (np.nan, np.inf, 1e4):
        poisoned = (np.where(batch.mask, x, np.float32(poison)) for x in batch[:3])
        poisoned = batch._replace(**dict(zip(batch._fields, poisoned, strict=False)))
        for left, right in zip(jax.tree.leaves(_run(name, poisoned)), expected, strict=True):
            np.testing.assert_array_equal(left, right)
    loss, ratio, *flags = expected[:4]
    assert not np.any(loss[~batch.mask]) and (ratio[~batch.mask] == 1).all()
    assert not any(np.any(flag[~batch.mask]) for flag in flags)


@every_function
def test_bad_input_is_refused(name):
    batch, fn = ragged_batch(0), getattr(policy, name)
    good = (batch.log_probs, batch.old_log_probs, batch.advantages, batch.mask)
    for place, bad in [
        (0, batch.log_probs[:, :-1]),
        (1, batch.old_log_probs.astype(np.int32)),
        (2, batch.advantages[:, 0]),
        (3, batch.mask.astype(np.float32)),
    ]:
        with pytest.raises(AssertionError):
            fn(*good[:place], bad, *good[place + 1 :])
    with pytest.raises(TypeError):
        fn(*good, 0.2)  # hyper-parameters are keyword-only


def test_a_bound_inside_the_clip_is_refused():
    batch = ragged_batch(0)
    good = (batch.log_probs, batch.old_log_probs, batch.advantages, batch.mask)
    for bound in (1.0, 0.5):
        with pytest.raises(ValueError, match="larger than 1"):
            policy.dual_clip(*good, dual_clip=bound)
    policy.dual_clip(*good, dual_clip=1.01)
    for bound in (1.28, 1.2, 0.5):
        with pytest.raises(ValueError, match="1.28"):
            policy.two_sided_clip(*good, clip_high=0.28, delta=bound)
    policy.two_sided_clip(*good, clip_high=0.28, delta=1.29)
