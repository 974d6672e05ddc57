"""masked.py: reductions that never look behind the mask, and means that are divided once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import masked
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import masked as reference

POISON = [np.nan, np.inf, -np.inf, 1e30]


def _poisoned(x, mask, poison):
    return np.where(mask, x, np.float32(poison))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_reductions_match_the_loops(seed):
    x, _, _, _, mask = ragged_batch(seed)
    mask[3] = False
    np.testing.assert_allclose(masked.masked_sum(x, mask), reference.masked_sum(x, mask), rtol=1e-6)
    np.testing.assert_allclose(masked.masked_mean(x, mask).value(), reference.masked_mean(x, mask), rtol=1e-6)
    np.testing.assert_allclose(masked.row_means(x, mask), reference.row_means(x, mask), rtol=1e-6)
    assert masked.row_means(x, mask)[3] == 0
    assert masked.masked_mean(x, mask).count == mask.sum()
    by_row = [reference.masked_sum(row, row_mask) for row, row_mask in zip(x, mask, strict=True)]
    np.testing.assert_allclose(masked.masked_sum(x, mask, axis=1), by_row, rtol=1e-6)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("shift_mean", [True, False])
def test_variance_and_whitening_match_the_loops(ddof, shift_mean):
    x, _, _, _, mask = ragged_batch(3)
    np.testing.assert_allclose(masked.masked_var(x, mask, ddof=ddof), reference.masked_var(x, mask, ddof), rtol=1e-5)
    out = masked.masked_whiten(x, mask, ddof=ddof, eps=1e-3, shift_mean=shift_mean)
    np.testing.assert_allclose(out, reference.masked_whiten(x, mask, ddof, 1e-3, shift_mean), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(out)[~mask], 0)


def test_whitening_has_mean_zero_and_variance_one():
    x, _, _, _, mask = ragged_batch(4)
    out = masked.masked_whiten(x, mask, ddof=1, eps=0.0)
    np.testing.assert_allclose(masked.masked_mean(out, mask).value(), 0.0, atol=1e-6)
    np.testing.assert_allclose(masked.masked_var(out, mask, ddof=1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("ddof", [0, 1])
def test_variance_keeps_its_digits_under_a_large_mean(ddof):
    # E[x^2] - E[x]^2 in float32 is off by more than the variance itself here.
    x = np.float32(4096.0) + np.arange(8, dtype=np.float32).reshape(2, 4) / 8
    mask = np.ones((2, 4), bool)
    np.testing.assert_allclose(masked.masked_var(x, mask, ddof=ddof), reference.masked_var(x, mask, ddof), rtol=1e-5)


@pytest.mark.parametrize("count, ddof", [(0, 0), (0, 1), (1, 1)])
def test_variance_of_too_few_values_is_zero(count, ddof):
    mask = np.arange(4)[None] < count
    assert masked.masked_var(np.ones((1, 4), np.float32), mask, ddof=ddof) == 0


def test_variance_of_as_few_values_as_there_can_be():
    """Two values, one degree of freedom: 1/2 (a - b)^2. One value: 0, and its gradient is 0 and not nan."""
    x, mask = jnp.array([1.0, 4.0, 9.0]), jnp.array([True, True, False])
    np.testing.assert_allclose(masked.masked_var(x, mask, ddof=1), 4.5)
    gradient = jax.grad(lambda x: masked.masked_var(x, jnp.array([True, False, False]), ddof=1))(x)
    np.testing.assert_array_equal(gradient, 0.0)


def test_nothing_counted_is_zero_and_has_a_finite_gradient():
    mask = np.zeros((2, 3), bool)
    value, grad = jax.value_and_grad(lambda x: masked.masked_mean(x, mask).value())(jnp.full((2, 3), jnp.nan))
    assert value == 0
    np.testing.assert_array_equal(grad, 0)
    np.testing.assert_array_equal(masked.row_means(np.ones((2, 3), np.float32), mask), 0)


def test_means_add_up_before_they_are_divided():
    _, _, x, _, mask = ragged_batch(5)
    whole = masked.masked_mean(x, mask)
    parts = [masked.masked_mean(x[rows], mask[rows]) for rows in (slice(0, 1), slice(1, 4), slice(4, 8))]
    total = masked.add(masked.add(parts[0], parts[1]), parts[2])
    np.testing.assert_allclose(total.value(), whole.value(), rtol=1e-6)
    assert total.count == whole.count
    mean_of_means = np.mean([p.value() for p in parts])
    assert abs(mean_of_means - whole.value()) > 1e-3  # the mistake that Mean exists to prevent is visible here


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_summed_and_counted_in_float32(dtype):
    """A mask summed in bfloat16 counts 8704 of these 32832, and float16 has no 131328."""
    for rows in (64, 256):
        x, mask = jnp.ones((rows, 513), dtype), np.ones((rows, 513), bool)
        found = masked.masked_mean(x, mask)
        assert (found.total, found.count) == (rows * 513, rows * 513) and found.count.dtype == jnp.float32
    value, slopes = jax.value_and_grad(lambda x: masked.masked_mean(x[:64], mask[:64]).value())(x)
    assert value == 1 and slopes.dtype == dtype
    np.testing.assert_allclose(jnp.sum(slopes, dtype=jnp.float32), 1.0, rtol=4e-3)
    x = x.at[::2].set(3)
    np.testing.assert_allclose(masked.masked_var(x, mask, ddof=0), 1.0)
    whitened = masked.masked_whiten(x, mask, ddof=0, eps=0.0)
    assert whitened.dtype == dtype
    np.testing.assert_array_equal(whitened, x - 2)


def test_a_gradient_that_is_not_finite_is_dropped_where_that_is_said():
    where = np.bool_([True, True, True, False])
    scale = jnp.asarray([jnp.nan, jnp.inf, 2.0, jnp.inf])
    x = jnp.arange(4.0)
    np.testing.assert_array_equal(masked.finite_gradient(x, where), x)
    slopes = jax.jit(jax.grad(lambda x: jnp.sum(scale * masked.finite_gradient(x, where))))(x)
    np.testing.assert_array_equal(slopes, [0.0, 0.0, 2.0, np.inf])
    with pytest.raises(AssertionError):
        masked.finite_gradient(x, where[:2])


def test_trees_of_statistics_merge_entry_by_entry():
    left = {"mean": masked.Mean(1.0, 2.0), "max": masked.Max(jnp.float32(3.0))}
    right = {"mean": masked.Mean(4.0, 6.0), "max": masked.Max(jnp.float32(-1.0))}
    both = masked.merge(left, right)
    assert both == {"mean": masked.Mean(5.0, 8.0), "max": masked.Max(3.0)}
    both = jax.tree.map(jnp.float32, both)
    assert masked.merge(masked.empty_like(both), both) == both
    assert masked.merge(both, masked.empty_like(jax.eval_shape(lambda: both))) == both
    assert jax.grad(lambda total: masked.Mean(total, jnp.float32(0.0)).value())(0.0) == 0.0  # and not nan
    small = masked.empty_like(masked.Mean(jnp.bfloat16(1.0), jnp.float32(2.0)))
    assert (small.total.dtype, small.count.dtype) == (jnp.bfloat16, jnp.float32)


def test_maximum_looks_at_the_mask_only():
    x, _, _, _, mask = ragged_batch(8)
    for poison in POISON:
        out = masked.masked_max(_poisoned(x, mask, poison), mask)
        assert out.value() == max(reference.values_of(x, mask)) < 0  # all below 0, which zeroed padding would beat
    assert masked.masked_max(x, np.zeros_like(mask)).value() == -np.inf


REDUCTIONS = {
    "zero_masked": lambda x, m: masked.zero_masked(x, m).sum(),
    "masked_sum": masked.masked_sum,
    "masked_mean": lambda x, m: masked.masked_mean(x, m).value(),
    "row_means": lambda x, m: jnp.square(masked.row_means(x, m)).sum(),
    "masked_var": lambda x, m: masked.masked_var(x, m, ddof=1),
    "masked_whiten": lambda x, m: (masked.masked_whiten(x, m, ddof=1, eps=1e-3) ** 3).sum(),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_padding_reaches_neither_value_nor_gradient(name):
    x, _, _, _, mask = ragged_batch(6)
    run = jax.jit(jax.value_and_grad(REDUCTIONS[name]))
    value, grad = run(_poisoned(x, mask, 0.0), mask)
    np.testing.assert_array_equal(np.asarray(grad)[~mask], 0)
    for poison in POISON:
        poisoned_value, poisoned_grad = run(_poisoned(x, mask, poison), mask)
        np.testing.assert_array_equal(poisoned_value, value)
        np.testing.assert_array_equal(poisoned_grad, grad)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_gradients_match_finite_differences(name):
    batch = ragged_batch(7, rows=3, length=4, dtype=np.float64)
    x, mask, h = batch.log_probs, batch.mask, 1e-5
    with jax.enable_x64(True):
        fn = REDUCTIONS[name]
        grad = np.asarray(jax.grad(fn)(jnp.asarray(x), mask))
        for i in np.ndindex(*x.shape):
            step = np.zeros_like(x)
            step[i] = h
            slope = (float(fn(jnp.asarray(x + step), mask)) - float(fn(jnp.asarray(x - step), mask))) / (2 * h)
            np.testing.assert_allclose(grad[i], slope, rtol=1e-6, atol=1e-8)


def test_masks_are_bool_and_fit():
    with pytest.raises(AssertionError):
        masked.zero_masked(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    with pytest.raises(AssertionError):
        masked.zero_masked(np.ones((2, 3), np.float32), np.ones((3,), bool))
    with pytest.raises(AssertionError):
        masked.row_means(np.ones((3,), np.float32), np.ones((3,), bool))


def test_last_of_finds_the_last_place_of_each_row():
    mask = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
    expected = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
    np.testing.assert_array_equal(masked.last_of(jnp.asarray(mask)), expected)


def test_all_reduce_adds_means_and_keeps_the_largest():
    parts = {"mean": masked.Mean(jnp.arange(3.0), jnp.ones(3)), "max": masked.Max(jnp.asarray([1.0, 5.0, 2.0]))}
    found = jax.vmap(lambda x: masked.all_reduce(x, "parts"), axis_name="parts")(parts)
    np.testing.assert_array_equal(found["mean"].value(), np.ones(3))
    np.testing.assert_array_equal(found["mean"].count, np.full(3, 3.0))
    np.testing.assert_array_equal(found["max"].value(), np.full(3, 5.0))
