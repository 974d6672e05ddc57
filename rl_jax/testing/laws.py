"""The laws that every policy objective obeys, whatever its constants.

A case is a function (log_probs, old_log_probs, advantages, ref_log_probs, mask) -> Mean on arrays [B, T], and what one
has to know about it. Laws do not pin constants: values belong in the tests of the function itself.
"""

import functools
from collections.abc import Callable, Collection
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rl_jax import grpo
from rl_jax.core import binding
from rl_jax.core.masked import add
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.losses import aggregate
from rl_jax.losses.policy.base import Surrogate
from rl_jax.testing import holding
from rl_jax.testing.batches import Batch, ragged_batch
from rl_jax.testing.holding import law, same

DATA = ("old_log_probs", "advantages", "ref_log_probs")


class Case(NamedTuple):
    """An objective, and which laws apply to it."""

    name: str  # shown in messages
    fn: Callable  # (log_probs, old_log_probs, advantages, ref_log_probs, mask) -> Mean
    # mask bool [B, T] -> float [B, T]: with old = ref = log_probs the gradient is -c * A, c these coefficients; None if
    # that is not so.
    coefficients: Callable | None = None
    # Without advantages and with ref = log_probs the gradient is exactly 0.
    needs_advantages: bool = True


# --- What is held ----------------------------------------------------------------------------------------------------


def recipe_case(name: str, *, coefficients: Callable | None = None, needs_advantages: bool = True, **choices) -> Case:
    """grpo.loss of Objective(**choices), with minus the log-prob of each token in place of its entropy."""

    def fn(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        batch = PolicyBatch(None, mask, advantages, old_log_probs, old_log_probs, ref_log_probs)
        return grpo.loss(TokenScores(log_probs, -log_probs), batch, grpo.Objective(**choices))[0]

    return Case(name, fn, coefficients, needs_advantages)


def surrogate_case(
    surrogate: Callable, *, name: str = "", on_policy: bool = True, needs_advantages: bool = True
) -> Case:
    """A surrogate with seq_mean_token_mean. What it needs beyond the four is made from the arrays that there are.

    Args:
      surrogate: (log_probs, old_log_probs, advantages, mask, *, ...) -> Surrogate.
      name: shown in messages; "" is the function's own.
      on_policy: whether the gradient of a token's loss is -A where the ratio is 1.
      needs_advantages: whether no advantage means no gradient.
    """

    def fn(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        known = _known(log_probs, old_log_probs, ref_log_probs)
        known |= {"selected": mask & (advantages > 0.5), "gate": "ppo_gate"}
        result = binding.supply(surrogate, known)(log_probs, old_log_probs, advantages, mask)
        assert isinstance(result, Surrogate), (
            f"it returns a {type(result).__name__}, and a Surrogate(loss, ratio, clipped_low, clipped_high) is wanted"
        )
        for field, values in result._asdict().items():
            assert jnp.shape(values) == mask.shape, (
                f"{field} of its Surrogate has shape {jnp.shape(values)}, expected {mask.shape}, one value per token"
            )
        return aggregate.seq_mean_token_mean(result.loss, mask)

    coefficients = seq_mean_token_mean_coefficients if on_policy else None
    return Case(name or holding.name_of(surrogate), fn, coefficients, needs_advantages)


def kl_case(estimator: Callable, *, name: str = "") -> Case:
    """The token mean of a KL estimator (log_probs, ref_log_probs, mask, *, ...) -> float [B, T]."""

    def fn(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        bound = binding.supply(estimator, _known(log_probs, old_log_probs, ref_log_probs))
        values = bound(log_probs, ref_log_probs, mask)
        assert jnp.shape(values) == mask.shape, (
            f"it returns shape {jnp.shape(values)}, expected {mask.shape}, one value per token"
        )
        return aggregate.token_mean(values, mask)

    return Case(name or holding.name_of(estimator), fn, needs_advantages=False)


def _known(log_probs, old_log_probs, ref_log_probs) -> dict:
    """What grpo.loss can give to a surrogate or an estimator by name, made from the arrays of a case."""
    return {
        "behavior_log_probs": old_log_probs,
        "ref_log_probs": ref_log_probs,
        "old_log_probs": old_log_probs,
        "entropy": jax.lax.stop_gradient(-log_probs),
    }


def seq_mean_token_mean_coefficients(mask: np.ndarray) -> np.ndarray:
    """c of loss = sum c * per_token: 1 / (tokens of the row) / (rows with a token). bool [B, T] -> float64 [B, T]."""
    lengths = np.sum(mask, axis=1, keepdims=True)
    return np.where(mask, 1.0 / np.maximum(lengths, 1) / max(np.sum(lengths > 0), 1), 0.0)


def check_surrogate(
    surrogate: Callable, *, on_policy: bool = True, needs_advantages: bool = True, except_for: Collection[str] = ()
) -> None:
    """Holds a policy surrogate to all laws of this module.

    Args:
      surrogate: (log_probs, old_log_probs, advantages, mask, *, ...) -> Surrogate. Keywords without a default may ask
        for what grpo.loss gives by name (behavior_log_probs, ref_log_probs, entropy, selected).
      on_policy: False if the gradient is not -A of each token where the ratio is 1 (one ratio per row, as in GSPO).
      needs_advantages: False if it has a gradient without any advantage (a penalty of its own).
      except_for: names of further laws that it breaks on purpose.
    Raises:
      AssertionError: if it breaks a law; it names the function, the law and the argument at fault.
      ValueError: if the surrogate needs an array that there is not, or `except_for` names no law.
    """
    case = surrogate_case(surrogate, on_policy=on_policy, needs_advantages=needs_advantages)
    holding.check(case, LAWS, except_for=except_for)


def check_kl(estimator: Callable, *, except_for: Collection[str] = ()) -> None:
    """Holds a KL estimator to the laws of this module that are not about advantages.

    Args:
      estimator: (log_probs, ref_log_probs, mask, *, ...) -> float [B, T]. May ask by name as a surrogate does, and for
        old_log_probs.
      except_for: names of laws that it breaks on purpose.
    Raises:
      AssertionError: if it breaks a law; it names the function, the law and the argument at fault.
      ValueError: if the estimator needs an array that there is not, or `except_for` names no law.
    """
    holding.check(kl_case(estimator), LAWS | KL_LAWS, except_for=except_for)


# --- Padding ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _compiled(fn):
    return jax.jit(jax.value_and_grad(lambda *arrays: fn(*arrays).value()))


def value_and_gradient(case: Case, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """(the divided loss float [], its gradient by log_probs float [B, T]), compiled."""
    value, gradient = _compiled(case.fn)(*batch)
    return np.asarray(value), np.asarray(gradient)


def _map(fn, batch: Batch) -> Batch:
    return Batch(*(fn(x) for x in batch))


@law
def contents_of_the_padding_change_nothing(case: Case) -> None:
    """Noise, nan and infinities behind the mask, in each argument and in all: not a bit of value or gradient."""
    batch = ragged_batch(0)
    value, gradient = value_and_gradient(case, batch)
    assert np.isfinite(value) and np.isfinite(gradient).all(), "log_probs: value or gradient are not finite"
    assert np.abs(gradient).max() > 0, "log_probs: the gradient is 0 everywhere"
    np.testing.assert_array_equal(gradient[~batch.mask], 0, err_msg="log_probs: a gradient outside of the mask")
    noise = np.random.default_rng(1).normal(size=batch.mask.shape).astype(np.float32) * 50
    for says, poison in {"noise": noise, "nan": np.nan, "inf": np.inf, "-inf": -np.inf}.items():
        for fields in [[field] for field in (*DATA, "log_probs")] + [[*DATA, "log_probs"]]:
            poisoned = {field: np.where(batch.mask, getattr(batch, field), np.float32(poison)) for field in fields}
            result = value_and_gradient(case, batch._replace(**poisoned))
            same(result, (value, gradient), argument=f"{', '.join(fields)}, {says} outside of the mask", rtol=0, atol=0)


@law
def width_of_the_padding_changes_nothing(case: Case) -> None:
    """Columns without a token, before and after."""
    batch = ragged_batch(1)
    value, gradient = value_and_gradient(case, batch)
    wide = value_and_gradient(case, _map(lambda x: np.pad(x, ((0, 0), (2, 3))), batch))
    same(wide, (value, np.pad(gradient, ((0, 0), (2, 3)))), argument="all arguments, five columns of padding more")


@law
def rows_without_a_token_change_nothing(case: Case) -> None:
    """Rows of nan whose mask is empty."""
    batch = ragged_batch(2)
    value, gradient = value_and_gradient(case, batch)
    empty = Batch(*(np.full_like(x[:3], np.nan) for x in batch[:4]), np.zeros_like(batch.mask[:3]))
    more = Batch(*(np.concatenate([x, e]) for x, e in zip(batch, empty, strict=True)))
    result = value_and_gradient(case, more)
    same(result, (value, np.pad(gradient, ((0, 3), (0, 0)))), argument="mask, three more rows without tokens")


@law
def a_batch_without_a_token_is_zero(case: Case) -> None:
    """The value is 0 and so is the gradient; nothing is divided by nothing."""
    batch = ragged_batch(2)
    value, gradient = value_and_gradient(case, batch._replace(mask=np.zeros_like(batch.mask)))
    assert value == 0, f"mask, all False: the value is {value}"
    np.testing.assert_array_equal(gradient, 0, err_msg="mask, all False: a gradient")


# --- Order, splits, devices, jit -------------------------------------------------------------------------------------


@law
def order_of_the_rows_changes_nothing(case: Case) -> None:
    """A permutation of the rows permutes the gradient."""
    batch, order = ragged_batch(3), np.random.default_rng(3).permutation(8)
    value, gradient = value_and_gradient(case, batch)
    result = value_and_gradient(case, _map(lambda x: x[order], batch))
    same(result, (value, gradient[order]), argument="all arguments, their rows in another order")


@law
def micro_batches_change_nothing(case: Case) -> None:
    """Totals and counts of 1 + 3 rows add up, gradients of the totals add up, and one division ends it."""
    batch = ragged_batch(4, rows=4)
    value, gradient = value_and_gradient(case, batch)

    def total(log_probs, *rest):
        mean = case.fn(log_probs, *rest)
        return mean.total, mean

    statistics, gradients = None, []
    for rows in (slice(0, 1), slice(1, 4)):
        (_, mean), part = jax.value_and_grad(total, has_aux=True)(*_map(lambda x, rows=rows: x[rows], batch))
        statistics = mean if statistics is None else add(statistics, mean)
        gradients.append(np.asarray(part))
    result = statistics.value(), np.concatenate(gradients) / statistics.count
    same(result, (value, gradient), argument="all arguments, in micro-batches of 1 and 3 rows")


@law
def several_devices_are_one(case: Case) -> None:
    """Rows split over all devices give the value and gradient of one. With a single device there is nothing to do."""
    devices = jax.devices()
    if len(devices) == 1:
        return
    batch = ragged_batch(5, rows=len(devices) * -(-8 // len(devices)))
    mesh = Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    run = jax.jit(jax.value_and_grad(lambda *arrays: case.fn(*arrays).value()), in_shardings=sharding)
    result = jax.block_until_ready(run(*jax.device_put(tuple(batch), sharding)))
    expected = value_and_gradient(case, batch)
    same(result, expected, argument=f"all arguments, their rows on {len(devices)} devices")


@law
def jit_changes_nothing(case: Case) -> None:
    """Operation by operation, and compiled as one program."""
    batch = ragged_batch(6)
    eager = jax.value_and_grad(lambda *arrays: case.fn(*arrays).value())(*_map(jnp.asarray, batch))
    same(eager, value_and_gradient(case, batch), argument="all arguments, without jit")


# --- What flows where ------------------------------------------------------------------------------------------------


@law
def nothing_flows_into_the_data(case: Case) -> None:
    """No gradient by old_log_probs, advantages or ref_log_probs: stop_gradient is where they enter."""
    batch = ragged_batch(7)
    gradients = jax.jit(jax.grad(lambda *arrays: case.fn(*arrays).value(), argnums=(1, 2, 3)))(*batch)
    for field, gradient in zip(DATA, gradients, strict=True):
        np.testing.assert_array_equal(gradient, 0, err_msg=f"{field}: it has a gradient; stop_gradient is missing")


@law
def on_policy_the_gradient_is_minus_c_times_a(case: Case, signs: tuple[int, ...] = (1, -1)) -> None:
    """With old = ref = log_probs, for advantages of both signs, and for all of one sign."""
    if case.coefficients is None:
        return
    batch = ragged_batch(8)
    batch = batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)
    coefficients = case.coefficients(batch.mask)
    for sign in signs:
        one_sign = "all positive" if sign > 0 else "all negative"
        chosen = {"of both signs": sign * batch.advantages, one_sign: sign * np.abs(batch.advantages)}
        for kind, advantages in chosen.items():
            _, gradient = value_and_gradient(case, batch._replace(advantages=advantages))
            expected = -coefficients * np.where(batch.mask, advantages, 0)
            says = f"advantages {kind}, the ratio 1: the gradient is not -A over what the aggregate divides by"
            np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8, err_msg=says)


@law
def no_advantage_no_gradient(case: Case) -> None:
    """Off-policy; the reference equals the policy so that a divergence is at its minimum."""
    if not case.needs_advantages:
        return
    batch = ragged_batch(9)
    batch = batch._replace(advantages=np.zeros_like(batch.advantages), ref_log_probs=batch.log_probs)
    value, gradient = value_and_gradient(case, batch)
    assert value == 0, f"advantages, all 0: the value is {value}"
    np.testing.assert_array_equal(gradient, 0, err_msg="advantages, all 0: a gradient")


@law
def equal_policies_have_no_divergence(case: Case) -> None:
    """Of KL estimators: where the reference has the policy's own log-probs, each token's value is 0."""
    batch = ragged_batch(9)
    value, _ = value_and_gradient(case, batch._replace(ref_log_probs=batch.log_probs))
    assert value == 0, f"ref_log_probs, equal to log_probs: the value is {value}"


LAWS = {
    fn.__name__: fn
    for fn in (
        contents_of_the_padding_change_nothing,
        width_of_the_padding_changes_nothing,
        rows_without_a_token_change_nothing,
        a_batch_without_a_token_is_zero,
        order_of_the_rows_changes_nothing,
        micro_batches_change_nothing,
        several_devices_are_one,
        jit_changes_nothing,
        nothing_flows_into_the_data,
        on_policy_the_gradient_is_minus_c_times_a,
        no_advantage_no_gradient,
    )
}
KL_LAWS = {"equal_policies_have_no_divergence": equal_policies_have_no_divergence}
