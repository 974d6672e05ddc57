"""Means that are divided once, and reductions that ignore masked entries.

A loss or a metric is a `Mean(total, count)`. Micro-batches and devices are summed first (`add`), and only the train
step divides (`Mean.value`), so there are no local means to get wrong.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    """A mean that has not been divided yet: value = total / count."""

    total: chex.Array
    """float []. The masked sum."""
    count: chex.Array
    """float []. The divisor; 0 gives the value 0, not nan."""

    def value(self) -> chex.Array:
        """total / count as float [], and 0 if the count is 0."""
        empty = self.count == 0
        return jnp.where(empty, 0.0, self.total / jnp.where(empty, 1.0, self.count))


class Max(NamedTuple):
    """A largest value; two are merged by taking the larger."""

    largest: chex.Array
    """float []. -inf if nothing was seen."""

    def value(self) -> chex.Array:
        """The largest value seen, float []."""
        return self.largest


def _is_statistic(x) -> bool:
    return isinstance(x, Mean | Max)


def add(left: Mean | Max, right: Mean | Max) -> Mean | Max:
    """Merges two statistics of the same kind: totals and counts are summed, the larger Max is kept."""
    if isinstance(left, Max):
        return Max(jnp.maximum(left.largest, right.largest))
    return Mean(left.total + right.total, left.count + right.count)


def merge(left, right):
    """`add`, leaf by leaf, of two pytrees of Mean and Max."""
    return jax.tree.map(add, left, right, is_leaf=_is_statistic)


def all_reduce(statistics, axis_name: str):
    """`add` over a mapped axis (pmap, shard_map), for a pytree of Mean and Max."""

    def reduce(x: Mean | Max) -> Mean | Max:
        if isinstance(x, Max):
            return Max(jax.lax.pmax(x.largest, axis_name))
        return jax.lax.psum(x, axis_name)

    return jax.tree.map(reduce, statistics, is_leaf=_is_statistic)


def empty_like(statistics):
    """The identity of `merge`: Mean(0, 0) and Max(-inf), in the dtypes of `statistics` (arrays or shapes)."""

    def empty(x):
        if isinstance(x, Max):
            return Max(jnp.full((), -jnp.inf, x.largest.dtype))
        return Mean(jnp.zeros((), x.total.dtype), jnp.zeros((), x.count.dtype))

    return jax.tree.map(empty, statistics, is_leaf=_is_statistic)


def zero_masked(x: chex.Array, mask: chex.Array) -> chex.Array:
    """`x` on the mask, 0 elsewhere; a masked nan reaches neither the value nor the gradient.

    Args:
      x: [...], any dtype.
      mask: bool [...], the same shape.
    """
    chex.assert_equal_shape([x, mask])
    chex.assert_type(mask, bool)
    return jnp.where(mask, x, jnp.zeros_like(x))


@jax.custom_vjp
def finite_gradient(x: chex.Array, where: chex.Array) -> chex.Array:
    """x, whose gradient counts as 0 at the places `where` if it is not finite; reverse mode only.

    For entries of which the result does not depend but through 0 * inf. x: float [...], where: bool [...].
    """
    chex.assert_equal_shape([x, where])
    chex.assert_type(where, bool)
    return x


def _finite_gradient_forward(x, where):
    return finite_gradient(x, where), where


def _finite_gradient_backward(where, gradient):
    return jnp.where(where & ~jnp.isfinite(gradient), 0.0, gradient), None


finite_gradient.defvjp(_finite_gradient_forward, _finite_gradient_backward)


def sum_dtype(x: chex.Array):
    """The dtype in which entries of x are summed and counted: that of x, and at least float32.

    In bfloat16, a mask of 64 x 513 tokens counts 8704, and a sum rounds to 8 bits; float16 ends at 65504.
    """
    return jnp.result_type(x, jnp.float32)


def masked_sum(x: chex.Array, mask: chex.Array, axis: int | None = None) -> chex.Array:
    """sum_t mask_t x_t along `axis` (all axes if None). x: float [...], mask: bool [...]."""
    return jnp.sum(zero_masked(x, mask), axis=axis)


def masked_max(x: chex.Array, mask: chex.Array) -> Max:
    """The largest x on the mask, -inf if the mask is empty. x: float [...], mask: bool [...]."""
    chex.assert_equal_shape([x, mask])
    return Max(jnp.max(jnp.where(mask, x, -jnp.inf)))


def masked_mean(x: chex.Array, mask: chex.Array) -> Mean:
    """The mean of `x` over the whole mask, undivided: Mean(sum mask*x, sum mask). x: float [...], mask: bool [...]."""
    dtype = sum_dtype(x)
    return Mean(jnp.sum(zero_masked(x, mask), dtype=dtype), jnp.sum(mask, dtype=dtype))


def row_means(x: chex.Array, mask: chex.Array) -> chex.Array:
    """The mean of each row over its mask, 0 for a row without any. x: float [B, T], mask: bool [B, T] -> float [B]."""
    chex.assert_rank([x, mask], 2)
    return masked_sum(x, mask, axis=1) / jnp.maximum(jnp.sum(mask, axis=1), 1)


def last_of(mask: chex.Array) -> chex.Array:
    """True at the last masked-in position of each row; an empty row has none. bool [B, T] -> bool [B, T]."""
    chex.assert_rank(mask, 2)
    chex.assert_type(mask, bool)
    return mask & (jnp.cumsum(mask[:, ::-1], axis=1)[:, ::-1] == 1)


def masked_var(x: chex.Array, mask: chex.Array, *, ddof: int) -> chex.Array:
    """sum mask (x - mean)^2 / (sum mask - ddof) over the whole mask, 0 if that divisor is not positive.

    Two passes: E[x^2] - E[x]^2 loses all precision in float32 if the mean is large.
    x: float [...], mask: bool [...] -> float [].
    """
    mean = masked_mean(x, mask).value()
    squares = masked_sum(jnp.square(zero_masked(x, mask) - mean), mask)
    divisor = jnp.sum(mask, dtype=sum_dtype(x)) - ddof
    return jnp.where(divisor > 0, squares / jnp.maximum(divisor, 1), 0.0)


def masked_whiten(x: chex.Array, mask: chex.Array, *, ddof: int, eps: float, shift_mean: bool = True) -> chex.Array:
    """(x - mean) / sqrt(var + eps) over the mask, 0 elsewhere. Batch-coupled: call it on the global batch.

    Args:
      x: float [...].
      mask: bool [...].
      ddof: 1 in verl, 0 in OpenRLHF.
      eps: inside the square root (verl 1e-8).
      shift_mean: if False, the mean is added back.
    """
    mean = masked_mean(x, mask).value()
    whitened = (zero_masked(x, mask) - mean) * jax.lax.rsqrt(masked_var(x, mask, ddof=ddof) + eps)
    return zero_masked(whitened if shift_mean else whitened + mean, mask).astype(x.dtype)
