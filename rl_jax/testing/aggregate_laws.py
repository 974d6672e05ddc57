"""The laws that every aggregation obeys: (per_token float [B, T], mask bool [B, T], *, ...) -> Mean.

An aggregation is one coefficient per token, which the mask decides: loss = sum_it c_it * per_token_it.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rl_jax.core import binding
from rl_jax.core.masked import Mean, merge
from rl_jax.testing import holding
from rl_jax.testing.batches import ragged_batch
from rl_jax.testing.holding import law, same

GROUP_SIZE = 4


class AggregateCase(NamedTuple):
    """An aggregation. What it asks for by name (group_tokens, batch_rows) is made from the mask of the whole batch."""

    name: str  # shown in messages
    fn: Callable  # (per_token, mask, *, ...) -> Mean


def aggregate_case(aggregate: Callable, *, name: str = "") -> AggregateCase:
    """The case of a function of losses.aggregate, or of a user's own; keywords that are no arrays are bound already."""
    return AggregateCase(name or holding.name_of(aggregate), aggregate)


def check_aggregate(aggregate: Callable, *, except_for: Collection[str] = ()) -> None:
    """Holds an aggregation to all laws of this module.

    Args:
      aggregate: (per_token float [B, T], mask bool [B, T], *, ...) -> Mean. Keywords without a default may ask for
        group_tokens (float [B], tokens of each row's group) and batch_rows (float [B], rows of the whole update that
        have a token).
      except_for: names of laws that it breaks on purpose.
    Raises:
      AssertionError: if it breaks a law; it names the function, the law and the argument at fault.
      ValueError: if it needs something else by name, or `except_for` names no law.
    """
    holding.check(aggregate_case(aggregate), LAWS, except_for=except_for)


def _by_name(case: AggregateCase, mask: np.ndarray) -> dict[str, np.ndarray]:
    """{name: float32 [B]} of what the case asks for, of the whole batch."""
    lengths = mask.sum(axis=1)
    groups = np.repeat(lengths.reshape(-1, GROUP_SIZE).sum(axis=1), GROUP_SIZE)
    rows = np.full(len(mask), (lengths > 0).sum())
    known = {"group_tokens": np.float32(groups), "batch_rows": np.float32(rows)}
    binding.supply(case.fn, known)  # says what else it needs
    return {name: known[name] for name in binding.needs(case.fn)}


def _mean(case: AggregateCase, per_token, mask, by_name) -> Mean:
    mean = case.fn(per_token, mask, **by_name)
    assert isinstance(mean, Mean), f"it returns a {type(mean).__name__}, and a Mean(total, count) is wanted"
    return mean


def _value_and_gradient(case: AggregateCase, per_token, mask, by_name=None):
    by_name = _by_name(case, mask) if by_name is None else by_name
    value, gradient = jax.value_and_grad(lambda x: _mean(case, x, mask, by_name).value())(per_token)
    return np.asarray(value), np.asarray(gradient)


def _batch(seed: int, *, empty_row: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(per_token, mask) of 8 rows."""
    batch = ragged_batch(seed)
    if empty_row is not None:
        batch.mask[empty_row] = False
    return batch.advantages, batch.mask


@law
def value_is_a_sum_of_coefficients(case: AggregateCase) -> None:
    """loss = sum c * per_token: linear, with the same gradient c for any values, and not 0."""
    x, mask = _batch(0)
    value, coefficients = _value_and_gradient(case, x, mask)
    assert np.isfinite(coefficients).all(), "per_token: its gradient is not finite"
    assert np.abs(coefficients).max() > 0, "per_token: its gradient is 0 everywhere"
    expected = np.sum(coefficients[mask] * x[mask], dtype=np.float64)
    says = "per_token: the value is not linear in it"
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=says)
    _, others = _value_and_gradient(case, np.float32(2.0) * x + np.float32(1.0), mask)
    says = "per_token: its gradient depends on its values"
    np.testing.assert_allclose(others, coefficients, rtol=1e-6, err_msg=says)


@law
def contents_of_the_padding_change_nothing(case: AggregateCase) -> None:
    """Noise, nan and infinities behind the mask."""
    x, mask = _batch(1)
    value, gradient = _value_and_gradient(case, x, mask)
    np.testing.assert_array_equal(gradient[~mask], 0, err_msg="per_token: a gradient outside of the mask")
    for poison in (50.0, np.nan, np.inf, -np.inf):
        result = _value_and_gradient(case, np.where(mask, x, np.float32(poison)), mask)
        same(result, (value, gradient), argument=f"per_token, {poison} outside of the mask", rtol=0, atol=0)


@law
def width_of_the_padding_changes_nothing(case: AggregateCase) -> None:
    """Columns without a token: the padded width is no constant of the method."""
    x, mask = _batch(3)
    value, gradient = _value_and_gradient(case, x, mask)
    wide = [np.pad(a, ((0, 0), (2, 9))) for a in (x, mask)]
    same(
        _value_and_gradient(case, *wide),
        (value, np.pad(gradient, ((0, 0), (2, 9)))),
        argument="mask, eleven columns of padding more",
    )


@law
def rows_without_a_token_change_nothing(case: AggregateCase) -> None:
    """A group of rows of nan whose mask is empty."""
    x, mask = _batch(2)
    value, gradient = _value_and_gradient(case, x, mask)
    more = ((0, GROUP_SIZE), (0, 0))
    result = _value_and_gradient(case, np.pad(x, more, constant_values=np.nan), np.pad(mask, more))
    same(result, (value, np.pad(gradient, more)), argument=f"mask, {GROUP_SIZE} more rows without tokens")


@law
def a_batch_without_a_token_is_zero(case: AggregateCase) -> None:
    """The value is 0 and so is the gradient; nothing is divided by nothing."""
    mask = np.zeros((GROUP_SIZE, 3), bool)
    value, gradient = _value_and_gradient(case, np.full(mask.shape, np.nan, np.float32), mask)
    assert value == 0, f"mask, all False: the value is {value}"
    np.testing.assert_array_equal(gradient, 0, err_msg="mask, all False: a gradient")


@law
def order_of_the_rows_changes_nothing(case: AggregateCase) -> None:
    """Rows may lie anywhere, with what is known of each."""
    (x, mask), order = _batch(4, empty_row=5), np.random.default_rng(3).permutation(8)
    value, gradient = _value_and_gradient(case, x, mask)
    by_name = {name: array[order] for name, array in _by_name(case, mask).items()}
    result = _value_and_gradient(case, x[order], mask[order], by_name)
    same(result, (value, gradient[order]), argument="per_token and mask, their rows in another order")


@law
def micro_batches_add_up(case: AggregateCase) -> None:
    """Totals and counts are sums over rows. A group is split over several parts, and some parts hold an empty row."""
    x, mask = _batch(5, empty_row=6)
    by_name = _by_name(case, mask)
    whole = _mean(case, x, mask, by_name)
    for parts in ([slice(0, 1), slice(1, 8)], [slice(i, None, 3) for i in range(3)]):
        total = Mean(np.float32(0), np.float32(0))
        for rows in parts:
            of_rows = {name: array[rows] for name, array in by_name.items()}
            total = merge(total, _mean(case, x[rows], mask[rows], of_rows))
        says = f"per_token and mask, in {len(parts)} micro-batches: (total, count)"
        np.testing.assert_allclose(total, whole, rtol=1e-5, err_msg=says)


@law
def equal_lengths_weigh_all_tokens_the_same(case: AggregateCase) -> None:
    """Where all rows are of the same length every token has the same coefficient."""
    x, _ = _batch(6)
    mask = np.broadcast_to(np.arange(6) < 4, x.shape)
    _, coefficients = _value_and_gradient(case, x, mask)
    says = "mask, rows of equal length: tokens have different coefficients"
    np.testing.assert_allclose(coefficients[mask], coefficients[0, 0], rtol=1e-5, err_msg=says)


@law
def half_precision_loses_no_token(case: AggregateCase) -> None:
    """Of 64 x 513 tokens in bfloat16, value and gradient are those in float32: numbers of tokens are not rounded."""
    mask = np.ones((64, 513), bool)
    value, coefficients = _value_and_gradient(case, np.ones(mask.shape, np.float32), mask)
    half, of_half = _value_and_gradient(case, jnp.ones(mask.shape, jnp.bfloat16), mask)
    says = "per_token, in bfloat16: another {} than in float32; count and sum in float32 at least (masked.sum_dtype)"
    np.testing.assert_allclose(float(half), value, rtol=1e-2, err_msg=says.format("value"))
    np.testing.assert_allclose(np.float32(of_half), coefficients, rtol=1e-2, err_msg=says.format("gradient"))


@law
def several_devices_are_one(case: AggregateCase) -> None:
    """Rows split over all devices give the value and gradient of one. With a single device there is nothing to do."""
    devices = jax.devices()
    if len(devices) == 1:
        return
    batch = ragged_batch(7, rows=len(devices) * GROUP_SIZE)
    x, mask, by_name = batch.advantages, batch.mask, _by_name(case, batch.mask)
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    arrays = jax.device_put((x, mask, by_name), NamedSharding(mesh, PartitionSpec("data")))
    result = jax.jit(jax.value_and_grad(lambda x, mask, by_name: _mean(case, x, mask, by_name).value()))(*arrays)
    expected = _value_and_gradient(case, x, mask)
    same(result, expected, argument=f"per_token and mask, their rows on {len(devices)} devices")


LAWS = {
    fn.__name__: fn
    for fn in (
        value_is_a_sum_of_coefficients,
        contents_of_the_padding_change_nothing,
        width_of_the_padding_changes_nothing,
        rows_without_a_token_change_nothing,
        a_batch_without_a_token_is_zero,
        order_of_the_rows_changes_nothing,
        micro_batches_add_up,
        equal_lengths_weigh_all_tokens_the_same,
        half_precision_loses_no_token,
        several_devices_are_one,
    )
}
