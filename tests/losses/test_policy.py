"""losses/policy.py: values, gradients and clip flags against the loop, rlax, closed forms and finite differences."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import policy
from rl_jax.losses.policy import base
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import policy as reference

ASYMMETRIC = {"clip_low": 0.2, "clip_high": 0.28}


def _loss_and_gradient(batch, **keywords):
    def total(log_probs):
        out = policy.clipped_surrogate(log_probs, batch.old_log_probs, batch.advantages, batch.mask, **keywords)
        return out.loss.sum(), out

    (_, out), gradient = jax.value_and_grad(total, has_aux=True)(batch.log_probs)
    return out, gradient


def _one_token(ratio, advantage, **keywords):
    """(loss, gradient, clipped_low, clipped_high) of a single token."""
    array = functools.partial(np.full, (1, 1), dtype=np.float32)
    batch = ragged_batch()._replace(
        log_probs=array(np.log(ratio) - 1.0),
        old_log_probs=array(-1.0),
        advantages=array(advantage),
        mask=np.ones((1, 1), bool),
    )
    out, gradient = _loss_and_gradient(batch, **keywords)
    return float(out.loss[0, 0]), float(gradient[0, 0]), bool(out.clipped_low[0, 0]), bool(out.clipped_high[0, 0])


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "keywords", [ASYMMETRIC, {"clip_low": 0.2, "clip_high": 0.2}, {"clip_low": 0.1, "clip_high": 9.0}]
)
def test_matches_the_loop(seed, keywords):
    batch = ragged_batch(seed)
    out, gradient = _loss_and_gradient(batch, **keywords)
    loss, expected_gradient, low, high = reference.clipped_surrogate(*batch[:3], batch.mask, **keywords)
    assert low.any() and (high.any() or keywords["clip_high"] > 1)  # the batch exercises the clip
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out.clipped_low, low)
    np.testing.assert_array_equal(out.clipped_high, high)
    ratio = np.where(batch.mask, np.exp(batch.log_probs - batch.old_log_probs), 1.0)
    np.testing.assert_allclose(out.ratio, ratio, rtol=1e-6)


@pytest.mark.parametrize(
    "ratio, advantage, loss, gradient, low, high",
    [
        (1.25, 2.0, -2.5, -2.5, False, False),  # above 1 + clip_low, below 1 + clip_high: not clipped
        (1.40, 2.0, -2.56, 0.0, False, True),
        (1.40, -2.0, 2.8, 2.8, False, False),  # the pessimistic side is never clipped
        (0.78, -2.0, 1.6, 0.0, True, False),  # below 1 - clip_low, above 1 - clip_high: clipped
        (0.60, 2.0, -1.2, -1.2, False, False),
        (0.60, 0.0, 0.0, 0.0, False, False),
    ],
)
def test_every_side_of_an_asymmetric_clip(ratio, advantage, loss, gradient, low, high):
    out = _one_token(ratio, advantage, **ASYMMETRIC)
    np.testing.assert_allclose(out[:2], (loss, gradient), rtol=1e-5, atol=1e-7)
    assert out[2:] == (low, high)


def test_matches_rlax():
    import rlax

    batch = ragged_batch(4, rows=6, length=16)

    def theirs(log_probs):
        ratio = jnp.exp(log_probs - batch.old_log_probs)
        per_row = jax.vmap(lambda r, a: rlax.clipped_surrogate_pg_loss(r, a, 0.2))(ratio, batch.advantages)
        return per_row.sum(), per_row

    def ours(log_probs):
        everything = np.ones_like(batch.mask)
        out = policy.clipped_surrogate(log_probs, batch.old_log_probs, batch.advantages, everything)
        return out.loss.mean(axis=1).sum(), out.loss.mean(axis=1)

    (_, ours_value), ours_gradient = jax.value_and_grad(ours, has_aux=True)(batch.log_probs)
    (_, theirs_value), theirs_gradient = jax.value_and_grad(theirs, has_aux=True)(batch.log_probs)
    np.testing.assert_allclose(ours_value, theirs_value, rtol=1e-5)
    np.testing.assert_allclose(ours_gradient, theirs_gradient, rtol=1e-5, atol=1e-7)


def test_gradient_matches_finite_differences():
    batch, h = ragged_batch(5, rows=4, length=5, dtype=np.float64), 1e-6
    with jax.enable_x64(True):
        _, gradient = _loss_and_gradient(batch, **ASYMMETRIC)
        up, _ = _loss_and_gradient(batch._replace(log_probs=batch.log_probs + h), **ASYMMETRIC)
        down, _ = _loss_and_gradient(batch._replace(log_probs=batch.log_probs - h), **ASYMMETRIC)
        slope = np.asarray(up.loss - down.loss) / (2 * h)  # a token's loss depends on its own log-prob only
    assert (slope[batch.mask] == 0).any() and (slope > 0).any() and (slope < 0).any()
    np.testing.assert_allclose(gradient, slope, rtol=1e-7, atol=1e-8)


def test_on_policy_the_ratio_is_one_and_the_gradient_minus_a():
    batch = ragged_batch(6)
    out, gradient = _loss_and_gradient(batch._replace(old_log_probs=batch.log_probs), **ASYMMETRIC)
    np.testing.assert_array_equal(out.ratio, 1.0)
    assert not out.clipped_low.any() and not out.clipped_high.any()
    np.testing.assert_allclose(gradient, np.where(batch.mask, -batch.advantages, 0), rtol=1e-6)


def test_without_a_clip_it_is_importance_sampling():
    batch = ragged_batch(7)
    out, gradient = _loss_and_gradient(batch, clip_low=np.inf, clip_high=np.inf)
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    expected = np.where(batch.mask, -batch.advantages * ratio, 0)
    np.testing.assert_allclose(out.loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_data_and_diagnostics_carry_no_gradient():
    batch = ragged_batch(8)

    def diagnostics(log_probs):
        return policy.clipped_surrogate(log_probs, batch.old_log_probs, batch.advantages, batch.mask).ratio.sum()

    def loss_of_data(old_log_probs, advantages):
        return policy.clipped_surrogate(batch.log_probs, old_log_probs, advantages, batch.mask).loss.sum()

    np.testing.assert_array_equal(jax.grad(diagnostics)(batch.log_probs), 0)
    for gradient in jax.grad(loss_of_data, argnums=(0, 1))(batch.old_log_probs, batch.advantages):
        np.testing.assert_array_equal(gradient, 0)


def test_log_ratio_is_zero_behind_the_mask():
    batch = ragged_batch(9)
    poisoned = np.where(batch.mask, batch.log_probs, np.nan)
    out = base.log_ratio(poisoned, batch.old_log_probs, batch.mask)
    np.testing.assert_allclose(out, np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0), rtol=1e-6)
