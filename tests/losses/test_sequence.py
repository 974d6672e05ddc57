"""losses/policy/sequence.py: values, gradients and clips against the loops, verl, TRL and each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.losses import aggregate, policy
from rl_jax.testing.batches import ragged_batch
from tests.numpy_loops import policy as reference
from tests.oracles import trl, verl

CLIP = {"clip_low": 3e-4, "clip_high": 4e-4}
# name -> keywords, and what the log ratios of ragged_batch (-.9 to .9) are multiplied by, so that rows lie on both
# sides of each bound.
CASES = [
    ("gspo", CLIP, 2e-3),
    ("gspo", {"clip_low": 0.1, "clip_high": 0.05}, 0.5),
    ("gspo_token", CLIP, 2e-3),
    ("gspo_token", {"clip_low": 0.1, "clip_high": 0.05, "max_log_ratio": 0.2}, 1.0),
    ("product_ratio_clip", {"clip_low": 0.2, "clip_high": 0.28}, 0.5),
    ("product_ratio_clip", {"clip_low": 0.6, "clip_high": 1.5}, 2.0),
    ("gmpo", {"clip_low": 0.4, "clip_high": 0.3}, 1.0),
]
NAMES = ("gspo", "gspo_token", "product_ratio_clip", "gmpo")
BY_ROW = ("gspo", "product_ratio_clip", "gmpo")
every_function = pytest.mark.parametrize("name", NAMES)


def _scaled(batch, scale):
    return batch._replace(old_log_probs=batch.log_probs - scale * (batch.log_probs - batch.old_log_probs))


def _batch(seed, scale=1.0, rows=24, length=9, constant=False):
    """float64, one row without an advantage; `constant`: one advantage a row."""
    batch = _scaled(ragged_batch(seed, rows=rows, length=length, dtype=np.float64), scale)
    batch.advantages[5] = 0.0
    if constant:
        batch = batch._replace(advantages=np.repeat(batch.advantages[:, :1], length, axis=1))
    return batch


@functools.cache
def _compiled(name, mode, keywords):
    def value(log_probs, old_log_probs, advantages, mask):
        out = getattr(policy, name)(log_probs, old_log_probs, advantages, mask, **dict(keywords))
        return mode(out.loss, mask).value(), out

    return jax.jit(jax.value_and_grad(value, has_aux=True))


def _run(name, batch, mode=aggregate.seq_mean_token_mean, **keywords):
    """(value, gradient, Surrogate) of the aggregated loss, float64 where the batch is."""
    with jax.enable_x64(True):
        (loss, out), gradient = _compiled(name, mode, tuple(sorted(keywords.items())))(*batch[:3], batch.mask)
        return jax.tree.map(np.asarray, (loss, gradient, out))


def _one_token(name, log_ratio, advantage, dtype=np.float64, **keywords):
    """(loss, gradient, clipped_low, clipped_high) of a row with a single token."""
    array = functools.partial(np.full, (1, 1), dtype=dtype)
    batch = ragged_batch()._replace(
        log_probs=array(log_ratio), old_log_probs=array(0.0), advantages=array(advantage), mask=np.ones((1, 1), bool)
    )
    loss, gradient, out = _run(name, batch, **keywords)
    return float(loss), float(gradient[0, 0]), bool(out.clipped_low[0, 0]), bool(out.clipped_high[0, 0])


def _assert_same(ours, theirs, rtol=1e-7):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=rtol)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=rtol, atol=1e-12)


# --- Values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, keywords, scale", CASES, ids=[f"{case[0]}-{i}" for i, case in enumerate(CASES)])
def test_matches_the_loop(name, keywords, scale):
    batch = _batch(0, scale)
    batch.mask[7] = False  # a row without a token
    value, gradient, out = _run(name, batch, **keywords)
    loss, slopes, ratio, low, high = getattr(reference, name)(*batch[:3], batch.mask, **keywords)
    lengths = batch.mask.sum(axis=1)
    rows = (lengths > 0).sum()
    if name in BY_ROW:  # the row's loss on each of its tokens
        expected, slopes = loss.sum() / rows, slopes / rows
        loss = np.where(batch.mask, loss[:, None], 0)
    else:
        expected = (loss.sum(axis=1) / np.maximum(lengths, 1)).sum() / rows
        slopes = slopes / np.maximum(lengths, 1)[:, None] / rows
    assert low.any() and (high & (batch.advantages > 0)).any() and (slopes[batch.mask] != 0).any()
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-10)
    np.testing.assert_allclose(out.ratio, np.where(batch.mask, ratio[:, None], 1), rtol=1e-10)
    np.testing.assert_array_equal(out.clipped_low, low)
    np.testing.assert_array_equal(out.clipped_high, high)


@pytest.mark.parametrize(
    "name, low, high",
    [("gspo", 1 - 3e-4, 1 + 4e-4), ("gspo_token", 1 - 3e-4, 1 + 4e-4), ("product_ratio_clip", 0.8, 1.2)]
    + [("gmpo", np.exp(-0.4), np.exp(0.4))],
)
def test_every_side_at_the_defaults(name, low, high):
    """A row of one token: kept just inside each bound, on the harmless side at any distance."""
    for ratio, advantage, kept in [
        (1 + (high - 1) * 0.99, 2.0, True),
        (1 + (high - 1) * 1.01, 2.0, False),
        (1 + (high - 1) * 1.01, -2.0, True),
        (1 + (low - 1) * 0.99, -2.0, True),
        (1 + (low - 1) * 1.01, -2.0, False),
        (1 + (low - 1) * 1.01, 2.0, True),
    ]:
        loss, gradient, clipped_low, clipped_high = _one_token(name, np.log(ratio), advantage)
        bounded = ratio if kept else (high if advantage > 0 else low)
        np.testing.assert_allclose([loss, gradient], [-advantage * bounded, -advantage * ratio * kept], rtol=1e-9)
        assert (clipped_low, clipped_high) == (not kept and advantage < 0, not kept and advantage > 0)


@every_function
def test_at_a_bound_nothing_is_flagged(name):
    """Beyond it, yes. On-policy, with the bounds on 1."""
    for advantage in (2.0, -2.0):
        assert _one_token(name, 0.0, advantage, clip_low=0.0, clip_high=0.0)[2:] == (False, False)
    assert _one_token("gspo_token", 0.5, -2.0, max_log_ratio=0.5)[2:] == (False, False)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_that_became_impossible_is_gspos_in_gspo_token(advantage):
    """Its row's ratio is 0, and nothing is nan: the token has no gradient of its own."""
    log_probs = jnp.array([[-1.0, -np.inf, -2.0], [-1.0, -1.5, -2.0]])
    old, mask = jnp.array([[-1.0, -2.0, -2.5]] * 2), jnp.ones((2, 3), bool)

    def run(name):
        def loss(x):
            return getattr(policy, name)(x, old, jnp.full((2, 3), advantage), mask).loss

        return loss(log_probs), jax.grad(lambda x: loss(x).sum())(log_probs)

    for found, expected in zip(run("gspo_token"), run("gspo"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)
        assert np.isfinite(found).all()


def test_gspo_token_is_cut_off_at_ten():
    for log_ratio, kept in [(9.99, True), (10.01, False), (1e3, False)]:
        loss, gradient, low, high = _one_token("gspo_token", log_ratio, -2.0)
        np.testing.assert_allclose(loss, 2.0 * np.exp(min(log_ratio, 10.0)), rtol=1e-9)
        np.testing.assert_allclose(gradient, 2.0 * np.exp(log_ratio) if kept else 0.0, rtol=1e-9)
        assert (low, high) == (False, not kept)
        assert _one_token("gspo_token", log_ratio, 0.0)[2:] == (False, False)  # no gradient to lose


@pytest.mark.parametrize("name", BY_ROW)
def test_the_advantage_is_the_rows_mean(name):
    batch = _batch(1)
    mean = np.array([row[on].mean() for row, on in zip(batch.advantages, batch.mask, strict=True)])
    constant = batch._replace(advantages=np.repeat(mean[:, None], batch.mask.shape[1], axis=1))
    assert np.ptp(batch.advantages[0]) > 0
    _assert_same(_run(name, batch)[:2], _run(name, constant)[:2], rtol=1e-12)


# --- Published implementations ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [2e-3, 60.0], ids=["near", "far"])  # far: mean log ratios beyond verl's bound of 10
def test_gspo_token_is_verls_gspo(scale):
    """With an advantage for each token."""
    batch = _batch(5, scale)
    modes = {"seq-mean-token-mean": aggregate.seq_mean_token_mean, "token-mean": aggregate.token_mean}
    for theirs, mode in modes.items():
        expected = verl.policy_loss(
            "gspo", *batch[:3], batch.mask, loss_agg_mode=theirs, clip_ratio_low=3e-4, clip_ratio_high=4e-4
        )
        value, gradient, out = _run("gspo_token", batch, mode)
        _assert_same((value, gradient), expected)
    assert out.clipped_low.any() and out.clipped_high.any() and np.abs(gradient).max() > 0
    assert (out.clipped_high & (batch.advantages < 0)).any() == (scale > 1)


def test_gspo_is_trls_sequence_level():
    batch = _batch(3, 2e-3, constant=True)
    expected = trl.grpo_loss(
        *batch[:2],
        batch.advantages[:, 0],
        batch.mask,
        loss_type="grpo",
        importance_sampling_level="sequence",
        epsilon=3e-4,
        epsilon_high=4e-4,
    )
    value, gradient, out = _run("gspo", batch)
    assert out.clipped_low.any() and out.clipped_high.any()
    _assert_same((value, gradient), expected)


def test_gspo_summed_over_tokens_is_trls_luspo():
    batch = _batch(11, 2e-2, constant=True)
    expected = trl.grpo_loss(
        *batch[:2],
        batch.advantages[:, 0],
        batch.mask,
        loss_type="luspo",
        importance_sampling_level="sequence",
        epsilon=2e-3,
        epsilon_high=2.5e-3,
    )
    value, gradient, out = _run("gspo", batch, aggregate.seq_mean_token_sum, clip_low=2e-3, clip_high=2.5e-3)
    assert out.clipped_low.any() and out.clipped_high.any()
    _assert_same((value, gradient), expected)


@pytest.mark.parametrize("keywords", [{}, {"epsilon": 0.1, "epsilon_high": 0.5}])
def test_product_ratio_clip_is_trls_rloo(keywords):
    batch = _batch(5, 0.3, constant=True)
    expected = trl.rloo_loss(*batch[:2], batch.advantages[:, 0], batch.mask, **keywords)
    ours = {"clip_low": 0.1, "clip_high": 0.5} if keywords else {}
    value, gradient, out = _run("product_ratio_clip", batch, **ours)
    assert out.clipped_low.any() and out.clipped_high.any()
    _assert_same((value, gradient), expected)


@pytest.mark.parametrize("clip_low, clip_high", [(0.4, 0.4), (0.1, 0.3)])
def test_gmpo_is_trls_and_verls(clip_low, clip_high):
    batch = _batch(6, constant=True)
    value, gradient, out = _run("gmpo", batch, clip_low=clip_low, clip_high=clip_high)
    assert out.clipped_low.any() and out.clipped_high.any()
    theirs = trl.gmpo_loss(*batch[:2], batch.advantages[:, 0], batch.mask, epsilon=clip_low, epsilon_high=clip_high)
    _assert_same((value, gradient), theirs)
    theirs = verl.policy_loss("geo_mean", *batch[:3], batch.mask, clip_ratio_low=clip_low, clip_ratio_high=clip_high)
    _assert_same((value, gradient), theirs)


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_one_advantage_a_row_makes_gspo_token_gspo():
    batch = _batch(7, 3e-3, constant=True)
    gspo, token = _run("gspo", batch), _run("gspo_token", batch)
    assert gspo[2].clipped_low.any() and gspo[2].clipped_high.any()
    for left, right in zip(jax.tree.leaves(gspo), jax.tree.leaves(token), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-15)


def test_the_product_is_the_mean_to_the_power_of_the_length():
    batch = _batch(8, 0.5)
    wide = {"clip_low": np.inf, "clip_high": np.inf}
    s, p = _run("gspo", batch, **wide)[2].ratio, _run("product_ratio_clip", batch, **wide)[2].ratio
    np.testing.assert_allclose(p, s ** batch.mask.sum(axis=1, keepdims=True), rtol=1e-12)
    means = np.exp(batch.log_probs - batch.old_log_probs).mean(axis=1, where=batch.mask, keepdims=True)
    assert (s <= means + 1e-12)[batch.mask].all()  # Jensen


def test_without_a_clip_gmpo_is_gspo():
    batch, wide = _batch(9), {"clip_low": np.inf, "clip_high": np.inf}
    gmpo, gspo = _run("gmpo", batch, **wide), _run("gspo", batch, **wide)
    for left, right in zip(jax.tree.leaves(gmpo), jax.tree.leaves(gspo), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-12)


def test_gmpo_of_a_row_without_an_advantage():
    """Nothing is pushed or flagged; the ratio that is reported is cut off from below, as in TRL."""
    for log_ratio, ratio in [(1.0, np.e), (-1.0, np.exp(-0.4))]:
        array = functools.partial(np.full, (1, 1), dtype=np.float64)
        batch = _batch(0)._replace(
            log_probs=array(log_ratio), old_log_probs=array(0.0), advantages=array(0.0), mask=np.ones((1, 1), bool)
        )
        loss, gradient, out = _run("gmpo", batch)
        assert loss == 0 and gradient == 0 and not out.clipped_low.any() and not out.clipped_high.any()
        np.testing.assert_allclose(out.ratio, ratio)


@every_function
def test_of_rows_with_one_token_they_are_ppo(name):
    batch = _batch(10, rows=40, length=1)
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    if name == "gmpo":  # its clip is in logs
        clip = {"clip_low": -np.log(0.8), "clip_high": np.log(1.2)}
    expected = _run("clipped_surrogate", batch)
    assert expected[2].clipped_low.any() and expected[2].clipped_high.any()
    ours = _run(name, batch, **clip)
    _assert_same(ours[:2], expected[:2], rtol=1e-12)
    np.testing.assert_array_equal(ours[2].clipped_low, expected[2].clipped_low)
    np.testing.assert_array_equal(ours[2].clipped_high, expected[2].clipped_high)


@pytest.mark.parametrize("sign", [1, -1])
@every_function
def test_on_policy_it_is_reinforce(name, sign):
    """T3: -c A with the coefficients of the mean over rows; the product has the row's sum instead."""
    batch = _batch(11, constant=True)
    batch = batch._replace(old_log_probs=batch.log_probs, advantages=sign * batch.advantages)
    _, gradient, out = _run(name, batch)
    lengths = batch.mask.sum(axis=1, keepdims=True)
    divisor = 1 if name == "product_ratio_clip" else lengths
    expected = np.where(batch.mask, -batch.advantages / divisor / len(batch.mask), 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)
    np.testing.assert_array_equal(out.ratio, 1.0)
    assert not out.clipped_low.any() and not out.clipped_high.any()


# --- Overflow --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_ratio", [89.0, 1e3])
@pytest.mark.parametrize("advantage", [2.0, 0.0])
@every_function
def test_an_infinite_ratio_that_is_clipped_has_no_gradient(name, advantage, log_ratio):
    guard = {"max_log_ratio": np.inf} if name == "gspo_token" else {}
    loss, gradient, low, high = _one_token(name, log_ratio, advantage, np.float32, clip_high=0.25, **guard)
    largest = np.exp(0.25) if name == "gmpo" else 1.25
    np.testing.assert_allclose(loss, -advantage * largest, rtol=1e-6)
    assert gradient == 0 and not low and high == (advantage > 0)


def test_a_long_rows_product_overflows_quietly():
    """float32: 64 tokens of log ratio 2 have the product e^128."""
    shape = (2, 64)
    batch = ragged_batch()._replace(
        log_probs=np.full(shape, -1.0, np.float32),
        old_log_probs=np.full(shape, -3.0, np.float32),
        advantages=np.ones(shape, np.float32) * np.float32([[1.0], [0.0]]),
        mask=np.ones(shape, bool),
    )
    loss, gradient, out = _run("product_ratio_clip", batch)
    np.testing.assert_allclose(loss, -0.6, rtol=1e-6)
    np.testing.assert_array_equal(gradient, 0)
    assert np.isfinite(out.ratio).all() and out.clipped_high[0].all() and not out.clipped_high[1].any()


# --- What flows where, and what is refused ---------------------------------------------------------------------------


@every_function
def test_nothing_flows_into_data_or_diagnostics(name):
    batch, fn = ragged_batch(10), getattr(policy, name)
    wide = {"clip_low": 5.0, "clip_high": 5.0}

    def loss_of_data(old_log_probs, advantages):
        return fn(batch.log_probs, old_log_probs, advantages, batch.mask, **wide).loss.sum()

    for gradient in jax.jit(jax.grad(loss_of_data, argnums=(0, 1)))(batch.old_log_probs, batch.advantages):
        np.testing.assert_array_equal(gradient, 0)
    ratio = jax.jit(jax.grad(lambda x: fn(x, *batch[1:3], batch.mask, **wide).ratio.sum()))(batch.log_probs)
    np.testing.assert_array_equal(ratio, 0)


@every_function
def test_padding_is_never_looked_at(name):
    batch = ragged_batch(11)
    batch.mask[3] = False
    expected = _run(name, batch)
    for poison in (np.nan, np.inf, 1e4):
        poisoned = (np.where(batch.mask, x, np.float32(poison)) for x in batch[:3])
        poisoned = batch._replace(**dict(zip(batch._fields, poisoned, strict=False)))
        for left, right in zip(jax.tree.leaves(_run(name, poisoned)), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(left, right)
    _, gradient, out = expected
    padding = ~batch.mask
    assert not gradient[padding].any() and not out.loss[padding].any() and (out.ratio[padding] == 1).all()
    assert not out.clipped_low[padding].any() and not out.clipped_high[padding].any()


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
