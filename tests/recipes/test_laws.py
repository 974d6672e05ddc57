"""The laws that every objective obeys. A new objective is one row of OBJECTIVES; the laws below then hold it.

A row is a function (log_probs, old_log_probs, advantages, ref_log_probs, mask) -> Mean on arrays [B, T], and what one
has to know about it. Laws do not pin constants: values belong in the file of the function's own tests.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rl_jax import grpo
from rl_jax.core import binding
from rl_jax.core.masked import add
from rl_jax.core.types import PolicyBatch, TokenScores
from rl_jax.losses import aggregate, kl, policy
from tests.batches import Batch, ragged_batch
from tests.numpy_loops import aggregate as aggregate_reference

MAX_LENGTH = 10
# What these divide by comes with the batch: tests/losses/test_aggregate.py holds them to the same laws.
COUNTED_OUTSIDE = {"group_token_mean", "token_sum", "only_token_mean"}
DATA = ("old_log_probs", "advantages", "ref_log_probs")
AGGREGATIONS = {
    "token_mean": aggregate.token_mean,
    "seq_mean_token_mean": aggregate.seq_mean_token_mean,
    "seq_mean_token_sum": aggregate.seq_mean_token_sum,
    "seq_mean_token_sum_norm": functools.partial(aggregate.seq_mean_token_sum_norm, max_length=MAX_LENGTH),
}


def _recipe(**choices) -> Callable:
    """grpo.loss of an Objective, with minus the log-prob standing in for the entropy of its token."""

    def objective(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        batch = PolicyBatch(None, mask, advantages, old_log_probs, old_log_probs, ref_log_probs)
        return grpo.loss(TokenScores(log_probs, -log_probs), batch, grpo.Objective(**choices))[0]

    return objective


def _divergence(estimator: Callable) -> Callable:
    """The token mean of a KL estimator as an objective of its own."""

    def objective(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        bound = binding.supply(estimator, {"old_log_probs": old_log_probs})
        return aggregate.token_mean(bound(log_probs, ref_log_probs, mask), mask)

    return objective


def _surrogate(fn: Callable) -> Callable:
    """A surrogate with seq_mean_token_mean. What it asks for beyond is made from the arrays that there are."""

    def objective(log_probs, old_log_probs, advantages, ref_log_probs, mask):
        extras = {"behavior_log_probs": old_log_probs, "selected": mask & (advantages > 0.5), "gate": "ppo_gate"}
        bound = binding.supply(fn, extras)
        loss = bound(log_probs, old_log_probs, advantages, mask).loss
        return aggregate.seq_mean_token_mean(loss, mask)

    return objective


class Law(NamedTuple):
    """One objective of the table.

    name: shown by pytest. fn: (log_probs, old_log_probs, advantages, ref_log_probs, mask) -> Mean.
    aggregation: with old = ref = log_probs the gradient is -c * A, c the coefficients of this aggregation; None where
        that is not so.
    needs_advantages: without advantages and with ref = log_probs the gradient is exactly 0.
    """

    name: str
    fn: Callable
    aggregation: str | None = None
    needs_advantages: bool = True


CLIP_HIGHER = functools.partial(policy.clipped_surrogate, clip_low=0.2, clip_high=0.28)
UNCLIPPED = functools.partial(policy.clipped_surrogate, clip_low=np.inf, clip_high=np.inf)
# Their advantage is the row's mean, or their pull does not end where the advantage does.
BY_ROW = {"gspo", "gspo_token", "gmpo", "product_ratio_clip"}
PULLING = {"dro", "kl_cov"}
OBJECTIVES = [
    *(
        Law(f"clipped_surrogate/{mode}", _recipe(surrogate=CLIP_HIGHER, kl_coef=0.0, aggregate=fn), mode)
        for mode, fn in AGGREGATIONS.items()
    ),
    Law("importance sampling", _recipe(surrogate=UNCLIPPED, kl_coef=0.0), "seq_mean_token_mean"),
    Law("grpo", _recipe(), "seq_mean_token_mean"),
    Law("grpo/k2", _recipe(kl=kl.k2, kl_coef=0.5), "seq_mean_token_mean"),
    Law("grpo/k1", _recipe(kl=kl.k1, kl_coef=0.5), needs_advantages=False),
    Law("grpo/entropy", _recipe(entropy_coef=0.1), needs_advantages=False),
    *(
        Law(f"surrogate/{name}", _surrogate(fn), None if name in BY_ROW else "seq_mean_token_mean", name not in PULLING)
        for name, fn in binding.public_functions(policy).items()
    ),
    *(
        Law(f"kl/{name}", _divergence(fn), needs_advantages=False)
        for name, fn in binding.public_functions(kl).items()
    ),
]
every_objective = pytest.mark.parametrize("law", OBJECTIVES, ids=[law.name for law in OBJECTIVES])


@functools.cache
def _compiled(fn):
    return jax.jit(jax.value_and_grad(lambda *arrays: fn(*arrays).value()))


def _value_and_gradient(law, batch):
    value, gradient = _compiled(law.fn)(*batch)
    return np.asarray(value), np.asarray(gradient)


def _map(fn, batch: Batch) -> Batch:
    return Batch(*(fn(x) for x in batch))


def _on_policy(batch: Batch) -> Batch:
    return batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)


def _assert_same(left, right, rtol=1e-5, atol=1e-7):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_the_table_has_every_function_of_the_modules():
    """A new aggregation without a row here fails; so do duplicated names. Surrogates and estimators are all taken."""
    assert set(AGGREGATIONS) | COUNTED_OUTSIDE == set(binding.public_functions(aggregate))
    assert len(OBJECTIVES) > 30
    assert len({law.name for law in OBJECTIVES}) == len(OBJECTIVES)


# --- Padding ---------------------------------------------------------------------------------------------------------


@every_objective
def test_contents_of_the_padding_change_nothing(law):
    batch = ragged_batch(0)
    value, gradient = _value_and_gradient(law, batch)
    assert np.isfinite(value) and np.isfinite(gradient).all() and np.abs(gradient).max() > 0
    np.testing.assert_array_equal(gradient[~batch.mask], 0)
    noise = np.random.default_rng(1).normal(size=batch.mask.shape).astype(np.float32) * 50
    for poison in (noise, np.nan, np.inf, -np.inf):
        for fields in [[field] for field in (*DATA, "log_probs")] + [[*DATA, "log_probs"]]:
            poisoned = {field: np.where(batch.mask, getattr(batch, field), np.float32(poison)) for field in fields}
            _assert_same(_value_and_gradient(law, batch._replace(**poisoned)), (value, gradient), rtol=0, atol=0)


@every_objective
def test_width_of_the_padding_changes_nothing(law):
    batch = ragged_batch(1)
    value, gradient = _value_and_gradient(law, batch)
    wide_value, wide_gradient = _value_and_gradient(law, _map(lambda x: np.pad(x, ((0, 0), (2, 3))), batch))
    _assert_same((wide_value, wide_gradient), (value, np.pad(gradient, ((0, 0), (2, 3)))))


@every_objective
def test_rows_without_a_token_change_nothing(law):
    batch = ragged_batch(2)
    value, gradient = _value_and_gradient(law, batch)
    empty = Batch(*(np.full_like(x[:3], np.nan) for x in batch[:4]), np.zeros_like(batch.mask[:3]))
    more = Batch(*(np.concatenate([x, e]) for x, e in zip(batch, empty, strict=True)))
    _assert_same(_value_and_gradient(law, more), (value, np.pad(gradient, ((0, 3), (0, 0)))))


@every_objective
def test_a_batch_without_a_token_is_zero(law):
    batch = ragged_batch(2)
    value, gradient = _value_and_gradient(law, batch._replace(mask=np.zeros_like(batch.mask)))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


# --- Order, splits, devices, jit -------------------------------------------------------------------------------------


@every_objective
def test_order_of_the_rows_changes_nothing(law):
    batch, order = ragged_batch(3), np.random.default_rng(3).permutation(8)
    value, gradient = _value_and_gradient(law, batch)
    _assert_same(_value_and_gradient(law, _map(lambda x: x[order], batch)), (value, gradient[order]))


@every_objective
def test_micro_batches_change_nothing(law):
    """Totals and counts of 1 + 3 rows add up, gradients of the totals add up, and one division ends it (T9)."""
    batch = ragged_batch(4, rows=4)
    value, gradient = _value_and_gradient(law, batch)

    def total(log_probs, *rest):
        mean = law.fn(log_probs, *rest)
        return mean.total, mean

    statistics, gradients = None, []
    for rows in (slice(0, 1), slice(1, 4)):
        (_, mean), part = jax.value_and_grad(total, has_aux=True)(*_map(lambda x, rows=rows: x[rows], batch))
        statistics = mean if statistics is None else add(statistics, mean)
        gradients.append(np.asarray(part))
    _assert_same((statistics.value(), np.concatenate(gradients) / statistics.count), (value, gradient))


@every_objective
def test_eight_devices_are_one(law):
    batch = ragged_batch(5)
    assert jax.device_count() == 8, "tests/conftest.py asks for eight simulated devices"
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    run = jax.jit(jax.value_and_grad(lambda *arrays: law.fn(*arrays).value()), in_shardings=sharding)
    value, gradient = jax.block_until_ready(run(*jax.device_put(tuple(batch), sharding)))
    _assert_same((value, gradient), _value_and_gradient(law, batch))


@every_objective
def test_jit_changes_nothing(law):
    batch = ragged_batch(6)
    eager = jax.value_and_grad(lambda *arrays: law.fn(*arrays).value())(*_map(jnp.asarray, batch))
    _assert_same(eager, _value_and_gradient(law, batch))


# --- What flows where ------------------------------------------------------------------------------------------------


@every_objective
def test_nothing_flows_into_the_data(law):
    batch = ragged_batch(7)
    gradients = jax.jit(jax.grad(lambda *arrays: law.fn(*arrays).value(), argnums=(1, 2, 3)))(*batch)
    for field, gradient in zip(DATA, gradients, strict=True):
        np.testing.assert_array_equal(gradient, 0, err_msg=field)


on_policy_objectives = pytest.mark.parametrize(
    "law", [law for law in OBJECTIVES if law.aggregation], ids=[law.name for law in OBJECTIVES if law.aggregation]
)


@on_policy_objectives
@pytest.mark.parametrize("sign", [1, -1])
def test_on_policy_the_gradient_is_minus_c_times_a(law, sign):
    """T2, for advantages of both signs, and for all of one sign."""
    batch = _on_policy(ragged_batch(8))
    coefficients = aggregate_reference.coefficients(law.aggregation, batch.mask, MAX_LENGTH)
    for advantages in (sign * batch.advantages, sign * np.abs(batch.advantages)):
        _, gradient = _value_and_gradient(law, batch._replace(advantages=advantages))
        expected = -coefficients * np.where(batch.mask, advantages, 0)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "law",
    [law for law in OBJECTIVES if law.needs_advantages],
    ids=[law.name for law in OBJECTIVES if law.needs_advantages],
)
def test_no_advantage_no_gradient(law):
    """T6, off-policy: the reference equals the policy so that the divergence is at its minimum."""
    batch = ragged_batch(9)
    batch = batch._replace(advantages=np.zeros_like(batch.advantages), ref_log_probs=batch.log_probs)
    value, gradient = _value_and_gradient(law, batch)
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


# --- Limits: one method becomes another ------------------------------------------------------------------------------


def _law(name):
    return next(law for law in OBJECTIVES if law.name == name)


def test_a_wide_clip_is_importance_sampling():
    wide = Law("wide", _recipe(surrogate=functools.partial(policy.clipped_surrogate, clip_high=1e9, clip_low=1e9)))
    batch = ragged_batch(10)
    without_kl = Law("no kl", _recipe(surrogate=UNCLIPPED, kl_coef=0.04))
    _assert_same(_value_and_gradient(wide, batch), _value_and_gradient(without_kl, batch))
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    c = aggregate_reference.coefficients("seq_mean_token_mean", batch.mask)
    expected = -c * np.where(batch.mask, ratio * batch.advantages, 0)
    _assert_same(_value_and_gradient(_law("importance sampling"), batch), (expected.sum(), expected), atol=1e-6)


def test_without_kl_grpo_is_the_clipped_surrogate():
    batch = ragged_batch(11)
    zero = Law("zero", _recipe(surrogate=CLIP_HIGHER, kl_coef=0.0))
    _assert_same(
        _value_and_gradient(zero, batch), _value_and_gradient(_law("clipped_surrogate/seq_mean_token_mean"), batch)
    )
    tiny = Law("tiny", _recipe(surrogate=CLIP_HIGHER, kl_coef=1e-9))
    _assert_same(_value_and_gradient(tiny, batch), _value_and_gradient(zero, batch), atol=1e-6)


def test_grpo_is_the_sum_of_its_terms():
    """Terms are added token by token and aggregated once."""
    batch = ragged_batch(12)
    one, two, both = (
        _value_and_gradient(Law("", _recipe(surrogate=surrogate, kl_coef=coefficient)), batch)
        for surrogate, coefficient in [(CLIP_HIGHER, 0.0), (_no_surrogate, 0.3), (CLIP_HIGHER, 0.3)]
    )
    _assert_same(both, [a + b for a, b in zip(one, two, strict=True)], atol=1e-6)


def _no_surrogate(log_probs, old_log_probs, advantages, mask):
    return policy.clipped_surrogate(log_probs, old_log_probs, jnp.zeros_like(advantages), mask)


@pytest.mark.parametrize("mode", AGGREGATIONS)
def test_equal_lengths_make_every_aggregation_the_same(mode):
    batch, length = ragged_batch(13), 4
    batch = batch._replace(mask=np.broadcast_to(np.arange(6) < length, batch.mask.shape))
    factor = {"seq_mean_token_sum": length, "seq_mean_token_sum_norm": length / MAX_LENGTH}.get(mode, 1.0)
    expected = [x * factor for x in _value_and_gradient(_law("clipped_surrogate/token_mean"), batch)]
    _assert_same(_value_and_gradient(_law(f"clipped_surrogate/{mode}"), batch), expected)


def test_ragged_lengths_do_not():
    batch = _on_policy(ragged_batch(13))
    modes = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum")
    directions = []
    for mode in modes:
        _, gradient = _value_and_gradient(_law(f"clipped_surrogate/{mode}"), batch)
        directions.append(gradient.ravel() / np.linalg.norm(gradient))
    token, sequence, total = directions
    assert token @ sequence < 0.99  # a different direction, not only a different length
    np.testing.assert_allclose(token, total, atol=1e-6)  # these two differ by the mean length only
