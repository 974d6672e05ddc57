"""losses/aggregate.py: every mode is one coefficient per token, and its count is what the paper divides by."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core import binding
from rl_jax.core.masked import add
from rl_jax.losses import aggregate
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import aggregate as reference

MAX_LENGTH = 10  # not the padded width
GROUP_SIZE = 4
MODES = {name: {} for name in ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum")}
MODES["seq_mean_token_sum_norm"] = {"max_length": MAX_LENGTH}
MODES |= {"group_token_mean": {"group_size": GROUP_SIZE}, "token_sum": {}, "only_token_mean": {}}
all_modes = pytest.mark.parametrize("mode, keywords", MODES.items(), ids=MODES)


def _rows_of_the_batch(mask):
    """{name: float [B]} of what a mode may ask for by name, made on the whole batch and split with its rows."""
    lengths = mask.sum(axis=1)
    groups = np.repeat([lengths[i : i + GROUP_SIZE].sum() for i in range(0, len(mask), GROUP_SIZE)], GROUP_SIZE)
    rows = np.full(len(mask), (lengths > 0).sum())
    return {"group_tokens": np.float32(groups[: len(mask)]), "batch_rows": np.float32(rows)}


def _function(mode, keywords, mask, rows=slice(None)):
    """The mode with its constants bound and, where it asks for numbers of the whole batch, those of these rows."""
    fn = getattr(aggregate, mode)
    constants = {key: x for key, x in keywords.items() if key != "group_size"}
    arrays = {key: x[rows] for key, x in _rows_of_the_batch(mask).items() if key in binding.needs(fn)}
    return functools.partial(fn, **constants, **arrays)


def test_every_mode_is_tested():
    assert set(MODES) == set(binding.public_functions(aggregate))


@all_modes
@pytest.mark.parametrize("empty_rows", [(), (2,), (0, 5, 7), (0, 1, 2, 3)])
def test_value_and_gradient_are_the_coefficients(mode, keywords, empty_rows):
    batch = ragged_batch(0)
    batch.mask[list(empty_rows)] = False
    fn = _function(mode, keywords, batch.mask)
    value, gradient = jax.value_and_grad(lambda x: fn(x, batch.mask).value())(batch.advantages)
    expected = reference.aggregate(mode, batch.advantages, batch.mask, **keywords)
    np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, reference.coefficients(mode, batch.mask, **keywords), rtol=1e-6)


@all_modes
def test_counts(mode, keywords):
    batch = ragged_batch(1)
    batch.mask[4] = False
    count = _function(mode, keywords, batch.mask)(batch.advantages, batch.mask).count
    by_mode = {"token_mean": batch.mask.sum(), "group_token_mean": 2, "token_sum": 1, "only_token_mean": 1}
    np.testing.assert_allclose(count, by_mode.get(mode, 7), rtol=1e-6)
    assert count.dtype == jnp.float32


@all_modes
@pytest.mark.parametrize("parts", [[slice(0, 1), slice(1, 8)], [slice(i, None, 3) for i in range(3)]])
def test_micro_batches_add_up(mode, keywords, parts):
    """The rows of a group lie in different parts, and some parts hold an empty row."""
    batch = ragged_batch(5)
    batch.mask[6] = False
    whole = _function(mode, keywords, batch.mask)(batch.advantages, batch.mask)
    means = [_function(mode, keywords, batch.mask, rows)(batch.advantages[rows], batch.mask[rows]) for rows in parts]
    np.testing.assert_allclose(functools.reduce(add, means), whole, rtol=1e-5)


@all_modes
def test_no_token_at_all_is_zero(mode, keywords):
    mask = np.zeros((4, 3), bool)
    fn = _function(mode, keywords, mask)
    value, gradient = jax.value_and_grad(lambda x: fn(x, mask).value())(jnp.full((4, 3), jnp.nan))
    assert value == 0
    np.testing.assert_array_equal(gradient, 0)


@all_modes
def test_equal_lengths_coincide_up_to_a_constant(mode, keywords):
    x, length = ragged_batch(2).advantages, 4
    mask = np.broadcast_to(np.arange(6) < length, x.shape)
    constants = {"seq_mean_token_sum": length, "seq_mean_token_sum_norm": length / MAX_LENGTH}
    constants |= {"token_sum": 8 * length, "only_token_mean": 8}
    expected = aggregate.token_mean(x, mask).value() * constants.get(mode, 1.0)
    np.testing.assert_allclose(_function(mode, keywords, mask)(x, mask).value(), expected, rtol=1e-5)


@all_modes
def test_padded_width_is_not_a_constant_of_any_mode(mode, keywords):
    batch = ragged_batch(3)
    fn = _function(mode, keywords, batch.mask)
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
    from rl_jax.advantages.groups import group_relative, to_tokens

    rewards, mask = _two_prompts()
    a = to_tokens(group_relative(rewards, group_size=4), mask)
    weights = jax.grad(lambda x: getattr(aggregate, mode)(x * a, mask).value())(jnp.ones_like(a))
    np.testing.assert_allclose(weights[0, 0], correct, rtol=1e-5)
    np.testing.assert_allclose(weights[1, 0], wrong, rtol=1e-5)
    np.testing.assert_array_equal(weights[4:], 0)


def test_dropping_the_solved_prompt_and_centring():
    """The open-instruct row of 5.2: prompt B is filtered out, advantages are centred, token mean."""
    from rl_jax.advantages.groups import group_centered, to_tokens

    rewards, mask = _two_prompts()
    a = to_tokens(group_centered(rewards[:4], group_size=4), mask[:4])
    weights = jax.grad(lambda x: aggregate.token_mean(x * a, mask[:4]).value())(jnp.ones_like(a))
    np.testing.assert_allclose([weights[0, 0], weights[1, 0]], [0.75 / 700, -0.25 / 700], rtol=1e-5)


@all_modes
def test_bad_input_is_refused(mode, keywords):
    mask = np.ones((4, 3), bool)
    fn = _function(mode, keywords, mask)
    with pytest.raises(AssertionError):
        fn(np.ones(3, np.float32), mask[0])
    with pytest.raises(AssertionError):
        fn(np.ones((4, 3), np.float32), np.ones((4, 3), np.float32))
    for name in binding.needs(getattr(aggregate, mode)) - {"max_length"}:
        with pytest.raises(AssertionError):
            fn(np.ones((4, 3), np.float32), mask, **{name: np.ones((4, 1), np.float32)})


@pytest.mark.parametrize(
    "mode, name",
    [
        ("token_mean", "token-mean"),
        ("token_sum", "token-sum"),
        ("seq_mean_token_sum", "seq-mean-token-sum"),
        ("seq_mean_token_mean", "seq-mean-token-mean"),
        ("seq_mean_token_sum_norm", "seq-mean-token-sum-norm"),
    ],
)
@pytest.mark.parametrize("empty_rows", [(), (2, 5)])
def test_matches_verl(mode, name, empty_rows):
    from tests.oracles import verl

    batch = ragged_batch(4)
    batch.mask[list(empty_rows)] = False
    fn = _function(mode, MODES[mode], batch.mask)
    settings = {"loss_scale_factor": MAX_LENGTH} if mode.endswith("norm") else {}
    expected, expected_gradient = verl.aggregate(batch.advantages, batch.mask, name, **settings)
    value, gradient = jax.value_and_grad(lambda x: fn(x, batch.mask).value())(batch.advantages)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5)


@pytest.mark.parametrize("mode, loss_type", [("token_mean", "dapo"), ("seq_mean_token_mean", "grpo")])
def test_matches_trl(mode, loss_type):
    """On-policy and without a KL, minus TRL's gradient is the coefficient times the advantage."""
    from tests.oracles import trl

    batch = ragged_batch(6)
    arrays = (batch.log_probs, batch.log_probs, np.ones(8), batch.mask)
    _, gradient = trl.grpo_loss(*arrays, loss_type=loss_type)
    fn = _function(mode, MODES[mode], batch.mask)
    ours = jax.grad(lambda x: fn(x, batch.mask).value())(batch.advantages)
    np.testing.assert_allclose(ours, -gradient, rtol=1e-5)


def test_groups_weigh_the_same_only_as_the_paper_of_dapo_writes_it():
    """Two prompts, two rows each: 3 + 1 tokens and 1 + 1 tokens (all of verl's and TRL's modes: tests above)."""
    mask = np.array([[1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]], bool)
    groups = aggregate.group_token_mean(np.ones((4, 3), np.float32), mask, group_tokens=np.float32([4, 4, 2, 2]))
    np.testing.assert_allclose(groups, (2.0, 2.0))
    first = np.float32(np.arange(4)[:, None] < 2) * mask
    mean = aggregate.group_token_mean(first, mask, group_tokens=np.float32([4, 4, 2, 2]))
    assert mean.value() == 0.5
    np.testing.assert_allclose(aggregate.token_mean(first, mask).value(), 4 / 6)
    one_group = aggregate.group_token_mean(first, mask, group_tokens=np.float32([6, 6, 6, 6]))
    np.testing.assert_allclose(one_group.value(), aggregate.token_mean(first, mask).value(), rtol=1e-6)


@all_modes
def test_a_single_token_of_a_single_row(mode, keywords):
    """Counts of one are not rounded up, and what divides by a number of tokens divides by 1."""
    x, mask = np.full((1, 3), 2.0, np.float32), np.array([[False, True, False]])
    mean = _function(mode, keywords, mask)(x, mask)
    assert mean.count == 1
    np.testing.assert_allclose(mean.value(), 2.0 / (MAX_LENGTH if mode.endswith("norm") else 1), rtol=1e-6)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode.startswith("seq_")])
def test_rows_without_a_token_count_where_that_is_asked_for(mode):
    batch = ragged_batch(0)
    batch.mask[[2, 5]] = False
    fn = _function(mode, MODES[mode], batch.mask)
    counted = functools.partial(fn, count_empty_rows=True)
    one, other = fn(batch.advantages, batch.mask), counted(batch.advantages, batch.mask)
    assert (one.count, other.count) == (6, 8) and one.total == other.total
    parts = [counted(batch.advantages[i::3], batch.mask[i::3]) for i in range(3)]
    np.testing.assert_allclose(functools.reduce(add, parts), other, rtol=1e-5)
    nothing = counted(batch.advantages, np.zeros_like(batch.mask))
    assert (nothing.total, nothing.count) == (0, 8)


OF_TRL = {  # its divisor is the number of all rows
    "grpo": "seq_mean_token_mean",
    "sapo": "seq_mean_token_mean",
    "gmpo": "seq_mean_token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    "luspo": "seq_mean_token_sum",
    "rloo": "seq_mean_token_sum",
}


@pytest.mark.parametrize("loss_type, mode", OF_TRL.items(), ids=OF_TRL)
def test_matches_trl_where_rows_have_no_token(loss_type, mode):
    """On-policy and with advantages of 1, minus TRL's gradient is the coefficient."""
    from tests.oracles import trl

    batch = ragged_batch(6)
    batch.mask[[1, 4]] = False
    arrays = (batch.log_probs, batch.log_probs, np.ones(8), batch.mask)
    if loss_type in ("gmpo", "rloo"):
        _, gradient = getattr(trl, f"{loss_type}_loss")(*arrays)
    else:
        _, gradient = trl.grpo_loss(*arrays, loss_type=loss_type, max_completion_length=MAX_LENGTH)
    fn = _function(mode, MODES[mode], batch.mask)
    counted, ours = (
        jax.grad(lambda x, fn=fn: fn(x, batch.mask).value())(batch.advantages)
        for fn in (functools.partial(fn, count_empty_rows=True), fn)
    )
    np.testing.assert_allclose(counted, -gradient, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(ours, counted * 8 / 6, rtol=1e-5)
