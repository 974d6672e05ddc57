"""The laws of rl_jax.testing on every objective. A new objective is one row of OBJECTIVES; the laws then hold it.

Surrogates and KL estimators of the library are all taken. Laws do not pin constants: values belong in the file of the
function's own tests.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import binding
from rl_jax.losses import aggregate, kl, policy
from rl_jax.testing import laws
from rl_jax.testing.batches import ragged_batch
from rl_jax.testing.laws import Case, kl_case, recipe_case, surrogate_case, value_and_gradient
from tests.numpy_loops import aggregate as aggregate_reference

MAX_LENGTH = 10
# What these divide by comes with the batch: tests/losses/test_aggregate.py holds them to the same laws.
COUNTED_OUTSIDE = {"group_token_mean", "token_sum", "only_token_mean"}
AGGREGATIONS = {
    "token_mean": aggregate.token_mean,
    "seq_mean_token_mean": aggregate.seq_mean_token_mean,
    "seq_mean_token_sum": aggregate.seq_mean_token_sum,
    "seq_mean_token_sum_norm": functools.partial(aggregate.seq_mean_token_sum_norm, max_length=MAX_LENGTH),
}


def _coefficients(mode: str):
    """Those of the plain loop, as a function of the mask."""
    return lambda mask: aggregate_reference.coefficients(mode, mask, MAX_LENGTH)


CLIP_HIGHER = functools.partial(policy.clipped_surrogate, clip_low=0.2, clip_high=0.28)
UNCLIPPED = functools.partial(policy.clipped_surrogate, clip_low=np.inf, clip_high=np.inf)
BY_ROWS = _coefficients("seq_mean_token_mean")
# Their advantage is the row's mean, or their pull does not end where the advantage does.
BY_ROW = {"gspo", "gspo_token", "gmpo", "product_ratio_clip"}
PULLING = {"dro", "kl_cov"}
OBJECTIVES = [
    *(
        recipe_case(
            f"clipped_surrogate/{mode}",
            surrogate=CLIP_HIGHER,
            kl_coef=0.0,
            aggregate=fn,
            coefficients=_coefficients(mode),
        )
        for mode, fn in AGGREGATIONS.items()
    ),
    recipe_case("importance sampling", surrogate=UNCLIPPED, kl_coef=0.0, coefficients=BY_ROWS),
    recipe_case("grpo", coefficients=BY_ROWS),
    recipe_case("grpo/k2", kl=kl.k2, kl_coef=0.5, coefficients=BY_ROWS),
    recipe_case("grpo/k1", kl=kl.k1, kl_coef=0.5, needs_advantages=False),
    recipe_case("grpo/entropy", entropy_coef=0.1, needs_advantages=False),
    *(
        surrogate_case(
            fn, name=f"surrogate/{name}", on_policy=name not in BY_ROW, needs_advantages=name not in PULLING
        )._replace(coefficients=None if name in BY_ROW else BY_ROWS)
        for name, fn in binding.public_functions(policy).items()
    ),
    *(kl_case(fn, name=f"kl/{name}") for name, fn in binding.public_functions(kl).items()),
]


def cases(chosen):
    return pytest.mark.parametrize("case", chosen, ids=[case.name for case in chosen])


every_objective = cases(OBJECTIVES)


def test_the_table_has_every_function_of_the_modules():
    """A new aggregation without a row here fails; so do duplicated names. Surrogates and estimators are all taken."""
    assert set(AGGREGATIONS) | COUNTED_OUTSIDE == set(binding.public_functions(aggregate))
    assert len(OBJECTIVES) > 30
    assert len({case.name for case in OBJECTIVES}) == len(OBJECTIVES)


def test_every_law_is_a_test_here():
    """And the closed form with which a user's own surrogate is checked is the loop's."""
    asked = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {*laws.LAWS, *laws.KL_LAWS} <= asked
    for mask in (ragged_batch(8).mask, np.arange(6)[None] < np.arange(8)[:, None]):
        expected = aggregate_reference.coefficients("seq_mean_token_mean", mask)
        np.testing.assert_allclose(laws.seq_mean_token_mean_coefficients(mask), expected, rtol=1e-12)


# --- Padding ---------------------------------------------------------------------------------------------------------


@every_objective
def test_contents_of_the_padding_change_nothing(case):
    laws.contents_of_the_padding_change_nothing(case)


@every_objective
def test_width_of_the_padding_changes_nothing(case):
    laws.width_of_the_padding_changes_nothing(case)


@every_objective
def test_rows_without_a_token_change_nothing(case):
    laws.rows_without_a_token_change_nothing(case)


@every_objective
def test_a_batch_without_a_token_is_zero(case):
    laws.a_batch_without_a_token_is_zero(case)


# --- Order, splits, devices, jit -------------------------------------------------------------------------------------


@every_objective
def test_order_of_the_rows_changes_nothing(case):
    laws.order_of_the_rows_changes_nothing(case)


@every_objective
def test_micro_batches_change_nothing(case):
    laws.micro_batches_change_nothing(case)


@every_objective
def test_several_devices_are_one(case):
    assert jax.device_count() == 8, "tests/conftest.py asks for eight simulated devices"
    laws.several_devices_are_one(case)


@every_objective
def test_jit_changes_nothing(case):
    laws.jit_changes_nothing(case)


# --- What flows where ------------------------------------------------------------------------------------------------


@every_objective
def test_nothing_flows_into_the_data(case):
    laws.nothing_flows_into_the_data(case)


@cases([case for case in OBJECTIVES if case.coefficients])
@pytest.mark.parametrize("sign", [1, -1])
def test_on_policy_the_gradient_is_minus_c_times_a(case, sign):
    laws.on_policy_the_gradient_is_minus_c_times_a(case, signs=(sign,))


@cases([case for case in OBJECTIVES if case.needs_advantages])
def test_no_advantage_no_gradient(case):
    laws.no_advantage_no_gradient(case)


@cases([case for case in OBJECTIVES if case.name.startswith("kl/")])
def test_equal_policies_have_no_divergence(case):
    laws.equal_policies_have_no_divergence(case)


# --- Limits: one method becomes another ------------------------------------------------------------------------------


def _case(name) -> Case:
    return next(case for case in OBJECTIVES if case.name == name)


def _assert_same(left, right, rtol=1e-5, atol=1e-7):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_a_wide_clip_is_importance_sampling():
    wide = recipe_case("wide", surrogate=functools.partial(policy.clipped_surrogate, clip_high=1e9, clip_low=1e9))
    batch = ragged_batch(10)
    without_kl = recipe_case("no kl", surrogate=UNCLIPPED, kl_coef=0.04)
    _assert_same(value_and_gradient(wide, batch), value_and_gradient(without_kl, batch))
    ratio = np.exp(batch.log_probs - batch.old_log_probs)
    c = aggregate_reference.coefficients("seq_mean_token_mean", batch.mask)
    expected = -c * np.where(batch.mask, ratio * batch.advantages, 0)
    _assert_same(value_and_gradient(_case("importance sampling"), batch), (expected.sum(), expected), atol=1e-6)


def test_without_kl_grpo_is_the_clipped_surrogate():
    batch = ragged_batch(11)
    zero = recipe_case("zero", surrogate=CLIP_HIGHER, kl_coef=0.0)
    _assert_same(
        value_and_gradient(zero, batch), value_and_gradient(_case("clipped_surrogate/seq_mean_token_mean"), batch)
    )
    tiny = recipe_case("tiny", surrogate=CLIP_HIGHER, kl_coef=1e-9)
    _assert_same(value_and_gradient(tiny, batch), value_and_gradient(zero, batch), atol=1e-6)


def test_grpo_is_the_sum_of_its_terms():
    """Terms are added token by token and aggregated once."""
    batch = ragged_batch(12)
    one, two, both = (
        value_and_gradient(recipe_case("", surrogate=surrogate, kl_coef=coefficient), batch)
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
    expected = [x * factor for x in value_and_gradient(_case("clipped_surrogate/token_mean"), batch)]
    _assert_same(value_and_gradient(_case(f"clipped_surrogate/{mode}"), batch), expected)


def test_ragged_lengths_do_not():
    batch = ragged_batch(13)
    batch = batch._replace(old_log_probs=batch.log_probs, ref_log_probs=batch.log_probs)
    modes = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum")
    directions = []
    for mode in modes:
        _, gradient = value_and_gradient(_case(f"clipped_surrogate/{mode}"), batch)
        directions.append(gradient.ravel() / np.linalg.norm(gradient))
    token, sequence, total = directions
    assert token @ sequence < 0.99  # a different direction, not only a different length
    np.testing.assert_allclose(token, total, atol=1e-6)  # these two differ by the mean length only
