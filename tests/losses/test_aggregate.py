"""losses/aggregate.py: every mode is one coefficient per token, and its count is what the paper divides by."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import binding
from rl_jax.losses import aggregate
from tests.batches import ragged_batch
from tests.references import aggregate as reference

MAX_LENGTH = 10  # not the padded width
MODES = {name: {} for name in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum")}
MODES["seq_mean_token_sum_norm"] = {"max_length": MAX_LENGTH}
all_modes = pytest.mark.parametrize("mode, keywords", MODES.items(), ids=MODES)


def _function(mode, keywords):
    return functools.partial(getattr(aggregate, mode), **keywords)


def test_every_mode_is_tested():
    assert set(MODES) == set(binding.public_functions(aggregate))


@all_modes
@pytest.mark.parametrize("empty_rows", [(), (2,), (0, 5, 7)])
def test_value_and_gradient_are_the_coefficients(mode, keywords, empty_rows):
    batch = ragged_batch(0)
    batch.mask[list(empty_rows)] = False
    fn = _function(mode, keywords)
    value, gradient = jax.value_and_grad(lambda x: fn(x, batch.mask).value())(batch.advantages)
    expected = reference.aggregate(mode, batch.advantages, batch.mask, **keywords)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.coefficients(mode, batch.mask, **keywords), rtol=1e-6)


@all_modes
def test_counts(mode, keywords):
    batch = ragged_batch(1)
    batch.mask[4] = False
    count = _function(mode, keywords)(batch.advantages, batch.mask).count
    assert count == (batch.mask.sum() if mode == "token_mean" else 7)
    assert count.dtype == jnp.float32


@all_modes
def test_no_token_at_all_is_zero(mode, keywords):
    fn, mask = _function(mode, keywords), np.zeros((2, 3), bool)
    value, gradient = jax.value_and_grad(lambda x: fn(x, mask).value())(jnp.full((2, 3), jnp.nan))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@all_modes
def test_equal_lengths_coincide_up_to_a_constant(mode, keywords):
    x, length = ragged_batch(2).advantages, 4
    mask = np.broadcast_to(np.arange(6) < length, x.shape)
    constant = {"seq_mean_token_sum": length, "seq_mean_token_sum_norm": length / MAX_LENGTH}.get(mode, 1.0)
    expected = aggregate.token_mean(x, mask).value() * constant
    np.testing.assert_allclose(_function(mode, keywords)(x, mask).value(), expected, rtol=1e-5)


@all_modes
def test_padded_width_is_not_a_constant_of_any_mode(mode, keywords):
    batch, fn = ragged_batch(3), _function(mode, keywords)
    wider, wider_mask = np.pad(batch.advantages, ((0, 0), (0, 9))), np.pad(batch.mask, ((0, 0), (0, 9)))
    expected = fn(batch.advantages, batch.mask).value()
    np.testing.assert_allclose(fn(wider, wider_mask).value(), expected, rtol=1e-6)


def _two_prompts():
    """Prompt A: a right answer of 400 tokens and three wrong of 100; prompt B: four wrong of 100."""
    lengths = np.array([400, 100, 100, 100, 100, 100, 100, 100])
    return np.float32([1, 0, 0, 0, 0, 0, 0, 0]), np.arange(400) < lengths[:, None]


@pytest.mark.parametrize(
    "mode, correct, wrong",
    [
        ("token_mean", 1.5 / 1100, -0.5 / 1100),  # 1.36e-3, -4.5e-4
        ("seq_mean_token_mean", 1.5 / 400 / 8, -0.5 / 100 / 8),  # 4.7e-4, -6.25e-4
    ],
)
def test_weights_per_token_of_the_frameworks(mode, correct, wrong):
    """shared/atlas/conventions.md 5.2: the same rewards, two aggregations, other weights (TRL >= .22, slime)."""
    from rl_jax.advantages import group_relative, to_tokens

    rewards, mask = _two_prompts()
    a = to_tokens(group_relative(rewards, group_size=4), mask)
    weights = jax.grad(lambda x: getattr(aggregate, mode)(x * a, mask).value())(jnp.ones_like(a))
    np.testing.assert_allclose(weights[0, 0], correct, rtol=1e-5)
    np.testing.assert_allclose(weights[1, 0], wrong, rtol=1e-5)
    np.testing.assert_array_equal(weights[4:], 0)


def test_dropping_the_solved_prompt_and_centring():
    """The open-instruct row of 5.2: prompt B is filtered out, advantages are centred, token mean."""
    from rl_jax.advantages import group_centered, to_tokens

    rewards, mask = _two_prompts()
    a = to_tokens(group_centered(rewards[:4], group_size=4), mask[:4])
    weights = jax.grad(lambda x: aggregate.token_mean(x * a, mask[:4]).value())(jnp.ones_like(a))
    np.testing.assert_allclose([weights[0, 0], weights[1, 0]], [0.75 / 700, -0.25 / 700], rtol=1e-5)


@all_modes
def test_bad_input_is_refused(mode, keywords):
    fn = _function(mode, keywords)
    with pytest.raises(AssertionError):
        fn(np.ones(3, np.float32), np.ones(3, bool))
    with pytest.raises(AssertionError):
        fn(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
