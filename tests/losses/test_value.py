"""losses/value.py: values, gradients and targets against loops, verl, optax, rlax and the paper's numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl_jax.core.binding import needs, public_functions
from rl_jax.losses import aggregate, turn_critics, value
from rl_jax.losses.value import Support
from tests.numpy_loops import value as reference
from tests.oracles import verl

SUPPORT = Support(-1.0, 1.5, num_bins=15, padding=2)


def data(seed=0, rows=6, length=7):
    """(values, returns, old_values, logits, mask) with errors up to 4 of both signs, rows of all lengths."""
    rng = np.random.default_rng(seed)
    mask = np.arange(length) < rng.integers(1, length + 1, rows)[:, None]
    mask[0], mask[1] = True, np.arange(length) % 2 == 0
    old_values, returns = rng.uniform(-1.5, 2.0, (2, rows, length))
    values = old_values + rng.uniform(-1.2, 1.2, (rows, length))
    logits = 2.0 * rng.normal(size=(rows, length, SUPPORT.num_bins))
    return *(x.astype(np.float32) for x in (values, returns, old_values, logits)), mask


@functools.cache
def _compiled(fn, fixed):
    """The loss and its gradient, compiled once for its hyper-parameters."""

    def total(predictions, returns, mask, arrays):
        out = fn(predictions, returns, mask, **arrays, **dict(fixed))
        return out.loss.sum(), out

    return jax.jit(jax.value_and_grad(total, has_aux=True))


def with_gradient(fn, predictions, returns, mask, **keywords):
    """(ValueLoss, d sum of losses / d predictions)."""
    arrays = {name: x for name, x in keywords.items() if isinstance(x, np.ndarray)}
    fixed = tuple((name, x) for name, x in keywords.items() if name not in arrays)
    (_, out), gradient = _compiled(fn, fixed)(predictions, returns, mask, arrays)
    return out, gradient


def target_of(fn, returns, support, **keywords):
    """The target distributions [N, K] of returns [N], read off the gradient softmax - p at logits of 0."""
    returns = np.asarray(returns, np.float32)[None]
    logits = np.zeros((*returns.shape, support.num_bins), np.float32)
    _, gradient = with_gradient(fn, logits, returns, np.ones(returns.shape, bool), support=support, **keywords)
    return (1 / support.num_bins - np.asarray(gradient))[0]


def test_the_module_offers_the_losses_and_nothing_else():
    assert set(public_functions(value)) == {"mse", "clipped", "huber", "hl_gauss", "two_hot"}
    asked = {name: needs(fn) for name, fn in public_functions(value).items()}
    nothing = set()
    assert asked == {
        "mse": nothing,
        "huber": nothing,
        "clipped": {"old_values"},
        "hl_gauss": {"support"},
        "two_hot": {"support"},
    }


# --- Scalars ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_mse_matches_the_loop(seed):
    values, returns, _, _, mask = data(seed)
    out, gradient = with_gradient(value.mse, values, returns, mask)
    loss, expected = reference.mse(values, returns, mask)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    assert out.clipped.dtype == bool and not out.clipped.any()


@pytest.mark.parametrize("value_clip", [0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_clipped_matches_the_loop(seed, value_clip):
    values, returns, old_values, _, mask = data(seed)
    keywords = dict(old_values=old_values, value_clip=value_clip)
    out, gradient = with_gradient(value.clipped, values, returns, mask, **keywords)
    loss, expected, gone = reference.clipped(values, returns, mask, **keywords)
    outside = mask & (np.abs(values - old_values) > value_clip)
    assert gone.any() and (outside & ~gone).any() and (mask & ~outside).any()  # every case there is
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out.clipped, gone)


@pytest.mark.parametrize("delta", [0.3, 1.0])
def test_huber_matches_the_loop_and_optax(delta):
    values, returns, _, _, mask = data(2)
    out, gradient = with_gradient(value.huber, values, returns, mask, delta=delta)
    loss, expected = reference.huber(values, returns, mask, delta)
    assert (np.abs(expected) == delta).any() and (np.abs(expected)[mask] < delta).any()
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    theirs = functools.partial(optax.losses.huber_loss, delta=delta)
    np.testing.assert_allclose(out.loss, np.where(mask, theirs(values, returns), 0), rtol=1e-5, atol=1e-6)
    slope = jax.grad(lambda v: jnp.sum(jnp.where(mask, theirs(v, returns), 0)))(values)
    np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-6)
    assert not out.clipped.any()


def test_huber_is_flat_where_the_error_is_0_and_smooth_at_delta():
    values = np.array([[0.0, 1.0, -1.0]], np.float32)
    _, gradient = with_gradient(value.huber, values, np.zeros_like(values), np.ones((1, 3), bool), delta=1.0)
    np.testing.assert_array_equal(gradient, [[0.0, 1.0, -1.0]])


def test_every_side_of_the_value_clip():
    v, old, target, loss, gradient, gone = zip(
        (0.5, 0.0, 2.0, 1.62, 0.0, True),  # gone up too far, still below: the border's error (0.2 - 2)^2 / 2 counts
        (0.5, 0.0, -1.0, 1.125, 1.5, False),  # gone up and away from R: pulled back
        (-0.5, 0.0, -2.0, 1.62, 0.0, True),
        (-0.5, 0.0, 1.0, 1.125, -1.5, False),
        (0.1, 0.0, 1.0, 0.405, -0.9, False),  # inside the clip
        strict=True,
    )
    v, old, target = (np.array([x], np.float32) for x in (v, old, target))
    out, slope = with_gradient(value.clipped, v, target, np.ones((1, 5), bool), old_values=old)
    np.testing.assert_allclose(out.loss[0], loss, rtol=1e-5)
    np.testing.assert_allclose(slope[0], gradient, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(out.clipped[0], gone)


@pytest.mark.parametrize("value_clip", [0.2, 0.5, 1e9])
def test_clipped_matches_verl(value_clip):
    values, returns, old_values, _, mask = data(9)
    for mode, aggregate_fn in [
        ("token-mean", aggregate.token_mean),
        ("seq-mean-token-mean", aggregate.seq_mean_token_mean),
    ]:

        def total(values, fn=aggregate_fn):
            per_token = value.clipped(values, returns, mask, old_values=old_values, value_clip=value_clip).loss
            return fn(per_token, mask).value()

        loss, gradient = jax.jit(jax.value_and_grad(total))(values)
        theirs, slope = verl.value_loss(
            values, returns, old_values, mask, cliprange_value=value_clip, loss_agg_mode=mode
        )
        np.testing.assert_allclose(loss, theirs, rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-5, atol=1e-7)
    if value_clip > 1e6:  # plain squares then: NeMo-RL's and ROLL's value loss
        plain, _ = with_gradient(value.mse, values, returns, mask)
        np.testing.assert_allclose(aggregate.seq_mean_token_mean(plain.loss, mask).value(), theirs, rtol=1e-5)


def test_without_a_clip_or_a_bend_they_are_mse():
    values, returns, old_values, _, mask = data(4)
    plain = with_gradient(value.mse, values, returns, mask)
    for fn, keywords in [
        (value.clipped, dict(old_values=old_values, value_clip=np.inf)),
        (value.clipped, dict(old_values=values, value_clip=0.2)),  # the first update of a batch
        (value.huber, dict(delta=np.inf)),
    ]:
        out, gradient = with_gradient(fn, values, returns, mask, **keywords)
        np.testing.assert_allclose(out.loss, plain[0].loss, rtol=1e-6)
        np.testing.assert_allclose(gradient, plain[1], rtol=1e-6)
        assert not out.clipped.any()


# --- Categories ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("support", [SUPPORT, Support(0.0, 3.0, 9, 0), Support(-2.0, -1.0, 31, 4)])
def test_support_matches_the_loop(support):
    edges, centres = reference.bins(*support)
    np.testing.assert_allclose(support.edges(), edges, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(support.centres(), centres, rtol=1e-5, atol=1e-6)
    assert support.width() == pytest.approx(edges[1] - edges[0])
    logits = np.random.default_rng(0).normal(size=(2, 3, support.num_bins)).astype(np.float32)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(support.mean(logits), p @ np.array(centres), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sigma_ratio", [0.75, 2.0])
def test_hl_gauss_matches_the_loop(sigma_ratio):
    _, returns, _, logits, mask = data(5)
    out, gradient = with_gradient(value.hl_gauss, logits, returns, mask, support=SUPPORT, sigma_ratio=sigma_ratio)
    edges, _ = reference.bins(*SUPPORT)
    target = functools.partial(reference.hl_gauss_target, edges=edges, sigma=sigma_ratio * (edges[1] - edges[0]))
    loss, expected = reference.cross_entropy(logits, returns, mask, target)
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=2e-6)
    assert out.clipped.shape == mask.shape and not out.clipped.any()


def test_two_hot_matches_the_loop():
    _, returns, _, logits, mask = data(6)
    out, gradient = with_gradient(value.two_hot, logits, returns, mask, support=SUPPORT)
    _, centres = reference.bins(*SUPPORT)
    loss, expected = reference.cross_entropy(
        logits, returns, mask, functools.partial(reference.two_hot_target, centres=centres)
    )
    np.testing.assert_allclose(out.loss, loss, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=5e-6)
    assert out.clipped.shape == mask.shape and not out.clipped.any()


def test_two_hot_target_matches_rlax():
    import rlax

    returns = np.concatenate([np.linspace(-1.4, 2.2, 37), [-9.0, 9.0]]).astype(np.float32)
    centres = SUPPORT.centres()
    theirs = rlax.transform_to_2hot(jnp.array(returns), centres[0], centres[-1], SUPPORT.num_bins)
    ours = target_of(value.two_hot, returns, SUPPORT)
    inside = (np.asarray(theirs).sum(-1) - 1) < 1e-3
    np.testing.assert_allclose(ours[inside], np.asarray(theirs)[inside], atol=2e-4)  # theirs divides by width + 1e-5
    logits = np.log(np.maximum(ours, 1e-30))
    mine = SUPPORT.mean(logits)
    np.testing.assert_allclose(
        mine, rlax.transform_from_2hot(ours, centres[0], centres[-1], SUPPORT.num_bins), atol=1e-5
    )
    np.testing.assert_allclose(mine, np.clip(returns, centres[0], centres[-1]), atol=1e-5)


def test_hl_gauss_target_is_what_the_papers_listing_gives():
    """Numbers of the listing in arXiv 2403.03950 (linspace of m + 1 edges, erf, divided by the sum), by hand."""
    four = Support(-1.0, 1.0, num_bins=4, padding=0)
    found = target_of(value.hl_gauss, [0.0, 0.3, 1.0], four)
    np.testing.assert_allclose(found[0], [0.08806, 0.41194, 0.41194, 0.08806], atol=1e-5)
    np.testing.assert_allclose(found[1], [0.01671, 0.20171, 0.50708, 0.27450], atol=1e-5)
    np.testing.assert_allclose(found @ np.array(four.centres()), [0.0, 0.2697, 0.6549], atol=5e-5)
    wide = Support(-10.0, 10.0, num_bins=101, padding=0)
    found = target_of(value.hl_gauss, [0.3], wide)
    assert (found[0] @ np.array(wide.centres())) == pytest.approx(0.3, abs=1e-5) and (found[0] > 1e-3).sum() == 6


@pytest.mark.parametrize("fn", [value.hl_gauss, value.two_hot])
def test_with_padding_every_return_of_the_range_is_decoded_without_bias(fn):
    """And without it the ends are drawn inwards, which is why the default has 3 bins of it."""
    support = Support(0.0, 1.0)
    returns = np.linspace(0.0, 1.0, 41)
    decoded = target_of(fn, returns, support) @ np.array(support.centres())
    np.testing.assert_allclose(decoded, returns, atol=2e-4 * support.width() + 2e-6)
    bare = support._replace(padding=0)
    at_the_end = target_of(fn, [1.0], bare) @ np.array(bare.centres())
    assert 0.4 < (1.0 - at_the_end[0]) / bare.width() < 0.7


@pytest.mark.parametrize("fn", [value.hl_gauss, value.two_hot])
def test_returns_far_outside_stay_finite_at_the_border(fn):
    p = target_of(fn, [-1e6, 1e6], SUPPORT)
    assert np.isfinite(p).all() and p[0].argmax() == 0 and p[1].argmax() == SUPPORT.num_bins - 1
    np.testing.assert_allclose(p.sum(-1), 1.0, rtol=1e-5)


def test_hl_gauss_goes_from_one_hot_to_uniform():
    narrow = target_of(value.hl_gauss, [0.3], SUPPORT, sigma_ratio=1e-3)[0]
    assert narrow.argmax() == np.searchsorted(SUPPORT.edges(), 0.3) - 1 and narrow.max() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(
        target_of(value.hl_gauss, [0.3], SUPPORT, sigma_ratio=1e3)[0], 1 / SUPPORT.num_bins, rtol=1e-2
    )


@pytest.mark.parametrize("fn", [value.hl_gauss, value.two_hot])
def test_the_gradient_vanishes_where_the_prediction_is_the_target(fn):
    returns = np.array([[-0.7, 0.1, 1.2]], np.float32)
    logits = np.log(np.maximum(target_of(fn, returns[0], SUPPORT), 1e-30))[None].astype(np.float32)
    _, gradient = with_gradient(fn, logits, returns, np.ones((1, 3), bool), support=SUPPORT)
    np.testing.assert_allclose(gradient, 0.0, atol=2e-6)
    np.testing.assert_allclose(SUPPORT.mean(logits), returns, atol=1e-3)


@pytest.mark.parametrize(
    "support", [Support(1.0, 0.0), Support(1.0, 1.0), Support(0.0, 1.0, 6, 3), Support(0.0, 1.0, 9, -1)]
)
def test_a_support_without_bins_is_refused(support):
    with pytest.raises(ValueError, match="no bins between low and high"):
        support.edges()
    assert Support(0.0, 1.0, 7, 3).width() == 1.0


# --- All of them -----------------------------------------------------------------------------------------------------

CASES = {
    "mse": {},
    "clipped": {},
    "huber": {"delta": 0.5},
    "hl_gauss": {"support": SUPPORT},
    "two_hot": {"support": SUPPORT},
}
every_loss = pytest.mark.parametrize("name", sorted(public_functions(value)))


def case(name, seed=7):
    """(function, predictions, returns, mask, keywords) of one loss."""
    values, returns, old_values, logits, mask = data(seed)
    keywords = CASES[name] | ({"old_values": old_values} if name == "clipped" else {})
    return getattr(value, name), logits if "support" in keywords else values, returns, mask, keywords


@every_loss
def test_what_stands_behind_the_mask_is_never_seen(name):
    fn, predictions, returns, mask, keywords = case(name)
    clean, clean_gradient = with_gradient(fn, predictions, returns, mask, **keywords)
    for poison in (np.nan, np.inf):

        def spoil(x, poison=poison):
            live = mask if x.ndim == 2 else np.broadcast_to(mask[..., None], x.shape)
            return np.where(live, x, np.float32(poison))

        spoilt = {k: spoil(v) if isinstance(v, np.ndarray) else v for k, v in keywords.items()}
        out, gradient = with_gradient(fn, spoil(predictions), spoil(returns), mask, **spoilt)
        np.testing.assert_array_equal(out.loss, clean.loss)
        np.testing.assert_array_equal(gradient, clean_gradient)
        np.testing.assert_array_equal(out.clipped, clean.clipped)
    assert (np.asarray(clean.loss)[~mask] == 0).all() and (np.asarray(clean.loss)[mask] > 0).all()
    assert (np.asarray(clean_gradient)[~mask] == 0).all()


@every_loss
def test_targets_are_data(name):
    fn, predictions, returns, mask, keywords = case(name)
    np.testing.assert_array_equal(jax.grad(lambda r: fn(predictions, r, mask, **keywords).loss.sum())(returns), 0)
    if "old_values" in keywords:
        slope = jax.grad(lambda old: fn(predictions, returns, mask, old_values=old).loss.sum())(keywords["old_values"])
        np.testing.assert_array_equal(slope, 0)


@every_loss
def test_gradient_matches_finite_differences(name):
    fn, predictions, returns, mask, keywords = case(name)
    with jax.enable_x64(True):
        predictions, returns = predictions.astype(np.float64), returns.astype(np.float64)
        keywords = {k: v.astype(np.float64) if isinstance(v, np.ndarray) else v for k, v in keywords.items()}
        direction = np.random.default_rng(8).normal(size=predictions.shape)
        _, gradient = with_gradient(fn, predictions, returns, mask, **keywords)
        up, down = (fn(predictions + h * direction, returns, mask, **keywords).loss for h in (1e-6, -1e-6))
        slope = np.asarray(up - down) / 2e-6
        along = np.asarray(gradient) * direction
    np.testing.assert_allclose(along if along.ndim == 2 else along.sum(-1), slope, rtol=1e-6, atol=1e-8)


@every_loss
def test_bad_input_is_refused(name):
    fn, predictions, returns, mask, keywords = case(name)
    for bad in [
        (predictions[:, :-1], returns, mask),
        (predictions, returns[:, :-1], mask),
        (predictions, returns.astype(np.int32), mask),
        (predictions.astype(np.int32), returns, mask),
        (predictions, returns, mask.astype(np.float32)),
        (predictions[0], returns[0], mask[0]),
    ]:
        with pytest.raises(AssertionError):
            fn(*bad, **keywords)
    with pytest.raises(TypeError):
        fn(predictions, returns, mask, 0.2)  # hyper-parameters are keyword-only
    if "old_values" in keywords:
        with pytest.raises(AssertionError):
            fn(predictions, returns, mask, old_values=keywords["old_values"][:, :-1])
    if "support" in keywords:
        with pytest.raises(AssertionError):
            fn(predictions, returns, mask, support=SUPPORT._replace(num_bins=17))


def test_two_bins_at_0_and_1_are_the_cross_entropy_of_a_probability():
    """The value is sigma(l_1 - l_0), the loss -[R log v + (1 - R) log(1 - v)], dl/dl_1 = v - R; for shares R, too."""
    _, returns, _, logits, mask = data()
    returns, logits, support = np.abs(returns) / 2.0, logits[..., :2], Support(-0.5, 1.5, num_bins=2, padding=0)
    np.testing.assert_array_equal(support.centres(), [0.0, 1.0])
    probability = 1 / (1 + np.exp(np.float64(logits[..., 0]) - logits[..., 1]))
    np.testing.assert_allclose(support.mean(logits), probability, rtol=1e-5)
    out, gradient = with_gradient(value.two_hot, logits, returns, mask, support=support)
    expected = -(returns * np.log(probability) + (1 - returns) * np.log1p(-probability))
    np.testing.assert_allclose(out.loss, np.where(mask, expected, 0.0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(gradient[..., 1], np.where(mask, probability - returns, 0.0), rtol=1e-5, atol=1e-7)


def test_critics_of_turns_have_squared_errors_on_the_last_tokens():
    """ArCHer: summed over the critics, not halved; nan elsewhere, and no gradient of the returns."""
    rng = np.random.default_rng(3)
    mask = np.bool_([[1, 0, 1], [0, 1, 0]])
    values, returns = (np.where(mask[..., None], x, np.nan).astype(np.float32) for x in rng.normal(size=(2, 2, 3, 4)))

    def total(values, returns):
        found = turn_critics.squared_errors(values, returns, mask)
        return jnp.sum(found[0]), found

    of, found = jax.grad(total, argnums=(0, 1), has_aux=True)(values, returns)
    gap = np.where(mask[..., None], values - returns, 0.0)
    np.testing.assert_allclose(found[0], (gap**2).sum(axis=2), rtol=1e-5)
    np.testing.assert_allclose(of[0], 2 * gap, rtol=1e-5)
    assert not np.asarray(of[1]).any() and found[1].shape == mask.shape and not np.asarray(found[1]).any()
    for bad in ((values, returns[..., :1], mask), (values, returns, mask[:, :1])):
        with pytest.raises(AssertionError):
            turn_critics.squared_errors(*bad)
