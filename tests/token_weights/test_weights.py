"""weights/: against loops and sorted lists, verl's rollout correction, TRL's masks, and what each reduces to."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax import token_weights
from rl_jax.core import binding
from rl_jax.losses import policy
from rl_jax.testing.batches import ragged_batch
from rl_jax.token_weights.behavior import behavior_gap
from rl_jax.token_weights.select import _cut, at_rank, lowest, ordered_bits
from rl_jax.token_weights.tokens import _random_bits
from tests.numpy_loops import weights as reference

LEVELS = ["token", "sequence", "geometric"]
NAMES = sorted(binding.public_functions(token_weights))
BEHAVIOR = ["exact", "geometric_mask", "icepop", "masked", "sequence_mask", "truncated"]
every_weight = pytest.mark.parametrize("name", NAMES)


def _data(batch, seed=0) -> dict:
    """Everything that a weight may ask for; the weights of the tokens range from about .4 to 2.5."""
    entropy = np.random.default_rng(seed).uniform(0.0, 3.0, batch.mask.shape).astype(np.float32)
    return {
        "log_probs": batch.log_probs,
        "behavior_log_probs": batch.old_log_probs,
        "advantages": batch.advantages,
        "entropy": entropy,
        "key": jax.random.key(seed),
    }


@functools.cache
def _compiled(name, hypers):
    return jax.jit(functools.partial(getattr(token_weights, name), **dict(hypers)))


def _weight(name, mask, data, **hypers):
    """The weights as numpy, of the arrays that the function asks for. Bounds are traced: one program for all."""
    arrays = {key: data[key] for key in binding.needs(getattr(token_weights, name))}
    bounds = {key: x for key, x in hypers.items() if isinstance(x, float) and name != "high_entropy"}
    static = {key: x for key, x in hypers.items() if key not in bounds}
    return np.asarray(_compiled(name, tuple(sorted(static.items())))(mask, **arrays, **bounds))


def _one_row(name, *log_weights, advantage=-1.0, **hypers):
    """The weights of a single row whose tokens have these log weights; padded, so that they share a program."""
    gap, mask = np.zeros((1, 6), np.float32), np.arange(6)[None] < len(log_weights)
    gap[mask] = log_weights
    data = {
        "log_probs": gap,
        "behavior_log_probs": np.zeros_like(gap),
        "advantages": np.full_like(gap, advantage),
    }
    return _weight(name, mask, data, **hypers)[mask]


def _poisoned(x, mask, poison):
    return x if x.shape != mask.shape else np.where(mask, x, np.float32(poison))


# --- Laws ------------------------------------------------------------------------------------------------------------


@every_weight
def test_what_a_weight_is(name):
    """[B, T], finite, not negative, 0 behind the mask."""
    batch = ragged_batch(0, rows=24)
    out = _weight(name, batch.mask, _data(batch))
    assert out.shape == batch.mask.shape and out.dtype == (bool if name == "top_covariance" else np.float32)
    assert np.isfinite(out).all() and (out >= 0).all()
    np.testing.assert_array_equal(out[~batch.mask], 0)


@every_weight
def test_contents_of_the_padding_change_nothing(name):
    batch = ragged_batch(1)
    data = _data(batch)
    expected = _weight(name, batch.mask, data)
    for poison in (np.nan, np.inf, -np.inf, 50.0):
        poisoned = {key: x if key == "key" else _poisoned(x, batch.mask, poison) for key, x in data.items()}
        np.testing.assert_array_equal(_weight(name, batch.mask, poisoned), expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "clip_cov"])
def test_width_and_empty_rows_change_nothing(name):
    batch = ragged_batch(2)
    pad = [(0, 2), (1, 3)]
    wide = {key: x if key == "key" else np.pad(x, pad) for key, x in _data(batch).items()}
    expected = np.pad(_weight(name, batch.mask, _data(batch)), pad)
    np.testing.assert_allclose(_weight(name, np.pad(batch.mask, pad), wide), expected, rtol=1e-6)


@every_weight
def test_a_batch_without_a_token_is_zero(name):
    batch = ragged_batch(2)
    data = {key: x if key == "key" else np.full_like(x, np.nan) for key, x in _data(batch).items()}
    hypers = [{}] + [{"normalize": True}] * (name in ("exact", "truncated", "icepop", "masked"))
    for keywords in hypers:
        np.testing.assert_array_equal(_weight(name, np.zeros_like(batch.mask), data, **keywords), 0)


@every_weight
def test_no_gradient_leaves_a_weight(name):
    batch = ragged_batch(3)
    data = {key: x for key, x in _data(batch).items() if key in binding.needs(getattr(token_weights, name))}
    arrays = {key: jnp.asarray(x) for key, x in data.items() if key != "key"}
    rest = {key: x for key, x in data.items() if key == "key"}
    if name in ("none", "top_covariance"):
        return  # nothing comes in, or a choice comes out
    weight = getattr(token_weights, name)
    gradients = jax.jit(jax.grad(lambda arrays: weight(batch.mask, **arrays, **rest).sum()))(arrays)
    for gradient in gradients.values():
        np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("name", [*BEHAVIOR, "none", "reject_ratio", "reject_divergence", "opsm", "m2po"])
def test_on_policy_every_token_weighs_one(name):
    batch = ragged_batch(4)
    data = _data(batch) | {"behavior_log_probs": batch.log_probs}
    np.testing.assert_array_equal(_weight(name, batch.mask, data), batch.mask)


@every_weight
def test_no_temporary_is_larger_than_the_batch(name):
    """Nothing of shape [B, T, T] or the like, at any depth of the program."""
    mask = np.ones((16, 64), bool)
    data = {key: np.zeros(mask.shape, np.float32) for key in binding.needs(getattr(token_weights, name))}
    if "key" in data:
        data["key"] = jax.random.key(0)
    jaxpr = jax.make_jaxpr(getattr(token_weights, name))(mask, **data)
    largest = max((v.aval.size for eqn in _equations(jaxpr.jaxpr) for v in eqn.outvars), default=0)
    assert largest <= mask.size


def _equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for parameter in eqn.params.values():
            for part in parameter if isinstance(parameter, tuple | list) else [parameter]:
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


@every_weight
def test_bad_input_is_refused(name):
    batch = ragged_batch(0)
    fn, wanted = getattr(token_weights, name), binding.needs(getattr(token_weights, name))
    data = {key: x for key, x in _data(batch).items() if key in wanted}
    with pytest.raises(AssertionError):
        fn(batch.mask.astype(np.float32), **data)
    with pytest.raises(AssertionError):
        fn(batch.mask[0], **{key: x if key == "key" else x[0] for key, x in data.items()})
    for key in wanted - {"key"}:
        with pytest.raises(AssertionError):
            fn(batch.mask, **data | {key: data[key][:, :-1]})
        if key != "advantages" or name != "opsm":
            with pytest.raises(AssertionError):
                fn(batch.mask, **data | {key: data[key].astype(np.int32)})
    if "level" in inspect.signature(fn).parameters:
        with pytest.raises(ValueError, match="is none of token, sequence, geometric"):
            fn(batch.mask, **data, level="row")


def test_the_gap_is_zero_behind_the_mask():
    batch = ragged_batch(4)
    out = behavior_gap(batch.mask, np.where(batch.mask, batch.log_probs, np.nan), batch.old_log_probs)
    np.testing.assert_allclose(out, np.where(batch.mask, batch.log_probs - batch.old_log_probs, 0), rtol=1e-6)


# --- Importance weights ----------------------------------------------------------------------------------------------

BANDS = {
    "exact": ("exact", {}, {}),
    "truncated": ("truncated", {"cap": 1.5}, {"high": 1.5}),
    "masked": ("band", {"cap": 1.5}, {"high": 1.5}),
    "icepop": ("band", {"low": 0.7, "high": 1.3}, {"low": 0.7, "high": 1.3}),
}


@pytest.mark.parametrize("name", BANDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("normalize", [False, True])
def test_importance_weights_match_the_loop(name, level, normalize):
    batch = ragged_batch(5)
    batch.mask[3] = False
    kind, hypers, bounds = BANDS[name]
    out = _weight(name, batch.mask, _data(batch), **hypers, level=level, normalize=normalize)
    arrays = (batch.mask, batch.log_probs, batch.old_log_probs)
    expected = reference.behavior(kind, *arrays, level=level, normalize=normalize, **bounds)
    np.testing.assert_allclose(out, expected, rtol=2e-5)
    if normalize:
        values = out[batch.mask] if level == "token" else out.max(axis=1)[batch.mask.any(axis=1)]
        np.testing.assert_allclose(values.mean(), 1.0, rtol=1e-5)


def test_masks_over_rows_match_the_loop():
    batch = ragged_batch(6)
    arrays = (batch.mask, batch.log_probs, batch.old_log_probs)
    out = _weight("sequence_mask", batch.mask, _data(batch), cap=1.2)
    np.testing.assert_allclose(out, reference.behavior("band", *arrays, level="sequence", high=1.2), rtol=2e-5)
    out = _weight("geometric_mask", batch.mask, _data(batch), low=0.9, high=1.1)
    np.testing.assert_allclose(out, reference.geometric_mask(*arrays, 0.9, 1.1), rtol=2e-5)
    assert 0 < (out[batch.mask] == 0).sum() < batch.mask.sum()


def test_defaults_of_the_importance_weights():
    inside, outside = np.log([1.99, 2.01])
    np.testing.assert_allclose(_one_row("truncated", inside, outside), [1.99, 2.0], rtol=1e-5)
    np.testing.assert_allclose(_one_row("masked", inside, outside), [1.99, 0.0], rtol=1e-5)
    edges = np.log([0.499, 0.501, 4.99, 5.01])
    np.testing.assert_allclose(_one_row("icepop", *edges), [0.0, 0.501, 4.99, 0.0], rtol=1e-5)
    for log_weight, weight in zip(edges, [0.0, 0.501, 4.99, 0.0], strict=True):
        np.testing.assert_allclose(_one_row("geometric_mask", log_weight), [weight], rtol=1e-5)
    np.testing.assert_allclose(_one_row("sequence_mask", np.log(1.99), np.log(1.5)), [2.985, 2.985], rtol=1e-5)
    np.testing.assert_array_equal(_one_row("sequence_mask", np.log(2.01), np.log(1.5)), 0)
    # A token is the default level, and the mean is not divided by.
    np.testing.assert_allclose(_one_row("exact", 0.5, -0.2), np.exp([0.5, -0.2]), rtol=1e-5)
    np.testing.assert_allclose(_one_row("truncated", 0.5, -0.2), np.exp([0.5, -0.2]), rtol=1e-5)


@pytest.mark.parametrize("name", BEHAVIOR)
def test_the_log_weight_is_clamped(name):
    unbounded = {"truncated": {"cap": np.inf}, "masked": {"cap": np.inf}, "sequence_mask": {"cap": np.inf}}
    hypers = unbounded.get(name, {} if name == "exact" else {"low": 0.0, "high": np.inf})
    for log_weight, clamped in [(25.0, 20.0), (-25.0, -20.0), (19.0, 19.0)]:
        np.testing.assert_allclose(_one_row(name, log_weight, **hypers), np.exp(clamped), rtol=1e-5)
    np.testing.assert_allclose(_one_row(name, 7.0, max_log=3.0, **hypers), np.exp(3.0), rtol=1e-5)


def test_bounds_belong_to_the_band():
    assert _one_row("icepop", 0.0, low=1.0, high=1.0) == _one_row("masked", 0.0, cap=1.0) == 1
    assert _one_row("geometric_mask", 0.0, low=1.0, high=1.0) == _one_row("sequence_mask", 0.0, cap=1.0) == 1
    assert _one_row("reject_ratio", 0.0, low=1.0, high=1.0) == _one_row("reject_divergence", 0.0, high=0.0) == 1
    assert _one_row("opsm", 0.0, delta=0.0) == 1


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("normalize", [False, True])
def test_importance_weights_match_verl(level, normalize):
    from tests.oracles import verl

    for seed in range(3):
        batch = ragged_batch(seed, rows=12, length=9)
        arrays, hypers = (batch.log_probs, batch.old_log_probs, batch.mask), {"level": level, "normalize": normalize}
        for name, keywords, threshold in [
            ("truncated", {"cap": 1.4}, 1.4),
            ("icepop", {"low": 0.6, "high": 1.7}, "0.6_1.7"),
            ("masked", {"cap": 1.4}, "1e-30_1.4"),
            ("truncated", {}, 2.0),
        ]:
            expected = verl.rollout_weights(*arrays, level=level, threshold=threshold, batch_normalize=normalize)
            assert len(np.unique(expected)) > 3
            out = _weight(name, batch.mask, _data(batch), **keywords, **hypers)
            np.testing.assert_allclose(out, expected, rtol=3e-5)


def test_the_expected_weight_is_one_and_corrects_any_mean():
    """Exact enumeration of a softmax: E_behavior[w f] = E_policy[f]; a truncated weight falls short of it."""
    rng = np.random.default_rng(0)
    log_probs, behavior = (np.log(np.exp(z) / np.exp(z).sum()) for z in rng.normal(size=(2, 1, 6)))
    data = {"log_probs": np.float32(log_probs), "behavior_log_probs": np.float32(behavior)}
    everything = np.ones((1, 6), bool)
    w, f = _weight("exact", everything, data), rng.normal(size=(1, 6))
    np.testing.assert_allclose((np.exp(behavior) * w).sum(), 1.0, rtol=1e-5)
    np.testing.assert_allclose((np.exp(behavior) * w * f).sum(), (np.exp(log_probs) * f).sum(), rtol=1e-4)
    assert (np.exp(behavior) * _weight("truncated", everything, data, cap=w.max() / 2)).sum() < 0.99


def test_the_weights_are_ordered():
    batch = ragged_batch(7)
    data, mask = _data(batch), batch.mask
    w, tis, mis = (_weight("exact", mask, data), *(_weight(x, mask, data, cap=1.3) for x in ("truncated", "masked")))
    assert (mis <= tis).all() and (tis <= w).all() and (mis < tis).any() and (tis < w).any()
    np.testing.assert_array_equal(_weight("truncated", mask, data, cap=1e9), w)
    np.testing.assert_array_equal(_weight("masked", mask, data, cap=1e9), w)
    # The product over a row is the geometric mean to the power of its length.
    row, mean = (_weight("exact", mask, data, level=level) for level in ("sequence", "geometric"))
    lengths = np.broadcast_to(mask.sum(1, keepdims=True), mask.shape)
    np.testing.assert_allclose(row[mask], mean[mask] ** lengths[mask], rtol=1e-5)


def test_decoupled_ppo_at_the_proximal_policy_is_importance_sampling():
    """T5: w times the on-policy gradient of PPO is the gradient of plain importance sampling against the sampler."""
    batch = ragged_batch(8)
    w = _weight("exact", batch.mask, _data(batch))

    def decoupled(log_probs):
        return (w * policy.clipped_surrogate(log_probs, batch.log_probs, batch.advantages, batch.mask).loss).sum()

    def plain(log_probs):
        ratio = jnp.exp(log_probs - batch.old_log_probs)  # old_log_probs play the sampler here
        return -jnp.where(batch.mask, ratio * batch.advantages, 0).sum()

    found, expected = (jax.jit(jax.grad(fn))(batch.log_probs) for fn in (decoupled, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- Rejections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "level, kind", [("token", "token_k1"), ("sequence", "seq_sum_k1"), ("geometric", "seq_mean_k1")]
)
def test_reject_ratio_matches_the_loop_and_verl(level, kind):
    from tests.oracles import verl

    batch = ragged_batch(9, rows=16, length=9)
    for low, high in [(0.8, 1.3), (0.5, 5.0), (0.2, 1.1)]:
        out = _weight("reject_ratio", batch.mask, _data(batch), level=level, low=low, high=high)
        arrays = (batch.log_probs, batch.old_log_probs)
        np.testing.assert_array_equal(out, reference.reject_ratio(batch.mask, *arrays, level, low, high))
        kept = verl.rejection_mask(*arrays, batch.mask, kind, threshold=f"{low}_{high}")
        np.testing.assert_array_equal(out, kept)
        assert 0 < out.sum() and (out.sum() < batch.mask.sum() or (low, high, level) == (0.5, 5.0, "geometric"))


def test_reject_ratio_bounds_the_inverse_weight():
    """low = .5, high = 5 keeps weights between .2 and 2, not between .5 and 5 as IcePop does."""
    log_weights = np.log([0.19, 0.21, 1.99, 2.01, 4.9])
    np.testing.assert_array_equal(_one_row("reject_ratio", *log_weights, low=0.5, high=5.0), [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(_one_row("icepop", *log_weights) > 0, [0, 0, 1, 1, 1])
    np.testing.assert_array_equal(_one_row("reject_ratio", *np.log([0.499, 0.501, 1.99, 2.01])), [0, 1, 1, 0])


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("pool", ["token", "sum", "mean", "max"])
def test_reject_divergence_matches_the_loop_and_verl(estimator, pool):
    from tests.oracles import verl

    batch = ragged_batch(10, rows=16, length=9)
    arrays = (batch.log_probs, batch.old_log_probs)
    kind = f"token_{estimator}" if pool == "token" else f"seq_{pool}_{estimator}"
    for high in {"token": [0.1, 0.2], "sum": [0.5, 1.0], "mean": [0.1, 0.15], "max": [0.25, 0.35]}[pool]:
        out = _weight("reject_divergence", batch.mask, _data(batch), estimator=estimator, pool=pool, high=high)
        assert 0 < out.sum() < batch.mask.sum()
        np.testing.assert_array_equal(out, reference.reject_divergence(batch.mask, *arrays, estimator, pool, high))
        np.testing.assert_array_equal(out, verl.rejection_mask(*arrays, batch.mask, kind, threshold=high))


def test_defaults_and_clamps_of_the_rejections():
    # The mean of k3 at most .01: k3(.14) = .01027 and k3(.138) = .00997.
    np.testing.assert_array_equal(_one_row("reject_divergence", 0.14), 0)
    np.testing.assert_array_equal(_one_row("reject_divergence", 0.138), 1)
    np.testing.assert_array_equal(_one_row("reject_divergence", 0.16, 0.0), 1)
    assert _one_row("reject_divergence", 25.0, estimator="k2", high=200.1) == 1
    assert _one_row("reject_divergence", -25.0, estimator="k2", high=200.1) == 1
    assert _one_row("reject_divergence", 25.0, estimator="k2", high=199.9) == 0
    for log_weight in (25.0, -25.0):
        for bound, kept in [(np.exp(20.1), 1), (np.exp(19.9), 0)]:
            assert _one_row("reject_ratio", log_weight, low=1 / bound, high=bound) == kept
    assert _one_row("reject_ratio", 25.0, 25.0, level="sequence", low=np.exp(-40.1), high=1.0).all()


def test_unknown_divergences_are_refused():
    batch = ragged_batch(0)
    arrays = {"log_probs": batch.log_probs, "behavior_log_probs": batch.old_log_probs}
    with pytest.raises(ValueError, match="estimator='k1' is none of k2, k3"):
        token_weights.reject_divergence(batch.mask, **arrays, estimator="k1")
    with pytest.raises(ValueError, match="pool='row' is none of token, sum, mean, max"):
        token_weights.reject_divergence(batch.mask, **arrays, pool="row")


@pytest.mark.parametrize("delta", [-0.1, 0.0, 0.1])
def test_opsm_matches_the_loop_and_trl(delta):
    from tests.oracles import trl

    batch = ragged_batch(11, rows=16)
    advantages = np.broadcast_to(batch.advantages[:, :1], batch.mask.shape)
    out = _weight("opsm", batch.mask, _data(batch) | {"advantages": advantages}, delta=delta)
    arrays = (batch.log_probs, batch.old_log_probs)
    np.testing.assert_array_equal(out, reference.opsm(batch.mask, *arrays, advantages, delta))
    kept = trl.off_policy_mask(advantages[:, 0], *arrays, batch.mask, threshold=delta)
    np.testing.assert_array_equal(out, batch.mask & kept[:, None])
    assert 0 < out.sum() < batch.mask.sum()


def test_opsm_drops_only_what_is_to_be_unlearnt():
    np.testing.assert_array_equal(_one_row("opsm", -1.05e-4, advantage=-1.0), 0)
    np.testing.assert_array_equal(_one_row("opsm", -1.05e-4, advantage=1.0), 1)
    np.testing.assert_array_equal(_one_row("opsm", -1.05e-4, advantage=0.0), 1)
    np.testing.assert_array_equal(_one_row("opsm", -0.95e-4, advantage=-1.0), 1)
    np.testing.assert_array_equal(_one_row("opsm", -1.05e-4, 1e-4, advantage=-1.0), 1)  # the row's mean decides


@pytest.mark.parametrize("threshold", [1e-9, 0.02, 0.1, 0.2, 10.0])
def test_m2po_matches_the_loop(threshold):
    for seed in (12, 13):
        batch = ragged_batch(seed)
        out = _weight("m2po", batch.mask, _data(batch), threshold=threshold)
        expected = reference.m2po(batch.mask, batch.log_probs, batch.old_log_probs, threshold)
        np.testing.assert_array_equal(out, expected)


def test_m2po_at_its_edges():
    # 0, 0, .12 have the mean .04, which is not below the default .04; a little less is.
    np.testing.assert_array_equal(_one_row("m2po", 0.0, 0.0, np.sqrt(0.1201)), [1, 1, 0])
    np.testing.assert_array_equal(_one_row("m2po", 0.0, 0.0, np.sqrt(0.1199)), [1, 1, 1])
    np.testing.assert_array_equal(_one_row("m2po", 0.5, -0.5, 1.0, threshold=0.25), [1, 0, 0])  # < and not <=
    np.testing.assert_array_equal(_one_row("m2po", 0.5, -0.5, 0.0, threshold=0.25), [1, 1, 1])
    np.testing.assert_array_equal(
        _one_row("m2po", 1.0, 0.5, -0.5, 0.0, threshold=0.15), [0, 0, 0, 1]
    )  # equals go together
    np.testing.assert_array_equal(_one_row("m2po", 2.0, 1.0, -1.0), [0, 1, 0])  # none is below: the first smallest


# --- Choices of tokens -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.77, 1.0])
def test_high_entropy_matches_the_quantile_and_trl(share):
    from tests.oracles import trl

    for seed in range(4):
        batch = ragged_batch(seed)
        data = _data(batch, seed)
        if seed % 2:
            data["entropy"] = np.round(data["entropy"], 1)  # with ties
        out = _weight("high_entropy", batch.mask, data, share=share)
        np.testing.assert_array_equal(out, reference.high_entropy(batch.mask, data["entropy"], share))
        np.testing.assert_array_equal(out, trl.high_entropy_mask(data["entropy"], batch.mask, quantile=1 - share))
        assert share < 1 or out.sum() == batch.mask.sum()


def test_high_entropy_by_hand():
    entropy = np.float32([[0.5, 3.0, 1.0, 2.0, 2.5, 0.0, 1.5, 9.0]])
    mask = np.array([[True] * 7 + [False]])
    # Six steps from the lowest of seven: the .8 quantile lies at rank 4.8, between 2.0 and 2.5; at .5 it is 1.5 itself.
    out = _weight("high_entropy", mask, {"entropy": entropy})
    np.testing.assert_array_equal(out, [[0, 1, 0, 0, 1, 0, 0, 0]])
    out = _weight("high_entropy", mask, {"entropy": entropy}, share=0.5)
    np.testing.assert_array_equal(out, [[0, 1, 0, 1, 1, 0, 1, 0]])
    equal = _weight("high_entropy", mask, {"entropy": np.zeros_like(entropy)})
    np.testing.assert_array_equal(equal, mask)  # equal entropies stay together
    hundred = {"entropy": np.arange(100, dtype=np.float32)[None]}
    assert _weight("high_entropy", np.ones((1, 100), bool), hundred).sum() == 20


@pytest.mark.parametrize("share", [1e-9, 0.1, 0.3, 1.0])
def test_top_covariance_matches_the_sorted_list_and_verl(share):
    from tests.oracles import verl

    batch = ragged_batch(14, rows=10)
    out = _weight("top_covariance", batch.mask, _data(batch), share=share)
    np.testing.assert_array_equal(out, reference.top_covariance(batch.mask, batch.log_probs, batch.advantages, share))
    # verl adds coef * |d| to the chosen tokens: they are where its gradient is not that of importance sampling.
    arrays = (batch.log_probs, batch.old_log_probs, batch.advantages)
    _, gradient = verl.policy_loss("kl_cov", *arrays, batch.mask, kl_cov_ratio=share, ppo_kl_coef=1.0)
    plain = -batch.advantages * np.exp(batch.log_probs - batch.old_log_probs) / batch.mask.sum()
    np.testing.assert_array_equal(out, batch.mask & (np.abs(gradient - plain) > 1e-4))


def _with_covariances(values):
    """One row whose covariances are `values`, up to a mean of nearly 0: log-probs +-1, advantages values / 1."""
    sign = np.float32([[1, -1] * len(values)])
    advantages = np.float32([[v for value in values for v in (value, -value)]])
    data = {"log_probs": sign - 2, "advantages": advantages, "key": jax.random.key(0)}
    return np.ones_like(sign, bool), data


def test_covariance_bounds_and_counts():
    mask, data = _with_covariances([0.9, 1.1, 4.9, 5.1])
    everything = _weight("clip_cov", mask, data, share=1.0)
    np.testing.assert_array_equal(everything, [[1, 1, 0, 0, 0, 0, 1, 1]])
    narrow = _weight("clip_cov", mask, data, share=1.0, low=0.8, high=1.0)
    np.testing.assert_array_equal(narrow, [[0, 0, 1, 1, 1, 1, 1, 1]])
    np.testing.assert_array_equal(_weight("clip_cov", mask, data, share=1.0, low=1.1, high=4.9), 1)  # open interval
    np.testing.assert_array_equal(_weight("clip_cov", mask, data, low=6.0, high=7.0), 1)  # none is eligible
    assert (_weight("clip_cov", mask, data) == 0).sum() == 1  # at least one
    assert (_weight("clip_cov", mask, data, share=0.25) == 0).sum() == 2
    assert (_weight("clip_cov", mask, data, share=0.49) == 0).sum() == 3
    np.testing.assert_array_equal(
        _weight("top_covariance", mask, data), [[0, 0, 0, 0, 0, 0, 1, 0]]
    )  # of ties the first
    np.testing.assert_array_equal(_weight("top_covariance", mask, data, share=0.4), [[0, 0, 0, 0, 1, 0, 1, 1]])


def test_the_default_share_of_covariances():
    """2e-4 of 24,000 tokens are 4, of 25,000 they are 5; of 4,000 there is one."""
    rng = np.random.default_rng(0)
    for tokens, expected in [(24_000, 4), (25_000, 5), (4_000, 1)]:
        mask, shape = np.ones((4, tokens // 4), bool), (4, tokens // 4)
        data = {
            "log_probs": np.float32(rng.normal(size=shape)),
            "advantages": np.float32(3 * rng.normal(size=shape)),
            "key": jax.random.key(1),
        }
        assert (_weight("clip_cov", mask, data) == 0).sum() == expected
        assert _weight("top_covariance", mask, data).sum() == expected


def test_clip_cov_draws_nothing_behind_the_mask():
    """Two of four tokens are drawn, whatever stands in the padding: a thousand times as many that would do."""
    mask, data = _with_covariances([2.0, 3.0, 2.5, 4.0])
    wide = {name: np.concatenate([x] + 1000 * [x], axis=1) for name, x in data.items() if name != "key"}
    hidden = np.concatenate([mask, np.zeros((len(mask), 1000 * mask.shape[1]), bool)], axis=1)
    drawn = _weight("clip_cov", hidden, wide | {"key": jax.random.key(0)}, share=2 / mask.sum())[hidden] == 0
    assert drawn.sum() == 2


def test_clip_cov_draws_every_eligible_token_alike():
    mask, data = _with_covariances([2.0, 3.0, 0.5])
    draw = jax.jit(jax.vmap(lambda key: token_weights.clip_cov(mask, **data | {"key": key}, share=0.34)))
    drawn = 1 - np.asarray(draw(jax.random.split(jax.random.key(3), 4000)))[:, 0]
    np.testing.assert_array_equal(drawn.sum(axis=1), 2)
    # Two of four: each with probability 1/2, each pair with 1/6; 5 standard deviations are .04 and .03.
    np.testing.assert_allclose(drawn.mean(axis=0), [0.5, 0.5, 0.5, 0.5, 0, 0], atol=0.04)
    np.testing.assert_allclose((drawn.T @ drawn / 4000)[0, 1:4], 1 / 6, atol=0.03)


def test_clip_cov_is_verls_where_everything_is_taken():
    """share = 1 leaves nothing to chance; on-policy PPO has clipped no token, so verl's exclusion is empty."""
    from tests.oracles import verl

    batch = ragged_batch(15, rows=10)
    advantages = 2 * batch.advantages
    w = _weight("clip_cov", batch.mask, _data(batch) | {"advantages": advantages}, share=1.0)
    assert 0 < (w[batch.mask] == 0).sum() < batch.mask.sum() / 2

    def ours(log_probs):
        loss = policy.clipped_surrogate(log_probs, batch.log_probs, advantages, batch.mask).loss
        return (w * loss).sum() / batch.mask.sum()

    value, gradient = verl.policy_loss(
        "clip_cov", batch.log_probs, batch.log_probs, advantages, batch.mask, clip_cov_ratio=1.0
    )
    found, slope = jax.jit(jax.value_and_grad(ours))(batch.log_probs)
    np.testing.assert_allclose(found, value, rtol=1e-5)
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-8)


# --- Selection without sorting ---------------------------------------------------------------------------------------


def test_bits_have_the_order_of_the_numbers():
    x = np.float32([-np.inf, -3e38, -1.0, -1e-40, -0.0, 0.0, 1e-40, 1.0, 1.0000001, 3e38, np.inf])
    bits = np.asarray(ordered_bits(x)).astype(np.int64)
    assert (np.diff(bits[[0, 1, 2, 3, 4, 6, 7, 8, 9, 10]]) > 0).all() and bits[4] == bits[5]
    with jax.enable_x64(True):
        wide = np.asarray(ordered_bits(jnp.asarray([-2.0, -1.0, 0.0, 1.0, 1.0 + 1e-15], jnp.float64)))
    assert wide.dtype == np.uint64 and (wide[:-1] < wide[1:]).all()


def test_lowest_is_a_stable_sort():
    rng = np.random.default_rng(1)
    run, rank = jax.jit(lambda x, mask, k: lowest(ordered_bits(x), mask, k)), jax.jit(at_rank)
    for count in (0, 1, 5, 20, 47, 48, 60):
        x = np.float32(rng.integers(-3, 4, (6, 8)) / 2)  # many ties
        mask = rng.random((6, 8)) < 0.6
        order = [i for i in np.argsort(np.where(mask, x, np.inf), axis=None, kind="stable") if mask.flat[i]]
        expected = np.zeros(48, bool)
        expected[order[:count]] = True
        np.testing.assert_array_equal(run(x, mask, count), expected.reshape(6, 8))
        if count < len(order):
            assert rank(ordered_bits(x), mask, count) == ordered_bits(x).reshape(-1)[order[count]]


def test_a_cut_is_found_where_a_threshold_has_just_as_many_below():
    """Found at its first bits, it is not lost by those that would follow; without one, it is the number itself."""
    bits = jnp.asarray([[6, 2**31 + 4], [2**31 + 4, 2**31 + 8]], jnp.uint32)
    for count, expected in ((0, True), (1, True), (2, False), (3, True), (4, True)):
        threshold, found = map(np.asarray, _cut(bits, count))
        assert found == expected
        assert (np.asarray(bits) < threshold).sum() == count if expected else threshold == 2**31 + 4


def test_lowest_of_random_bits_is_the_same_with_the_hint():
    """uniform=True only says where to begin: also where the mask is empty, small, or the bits are not random at all."""
    rng = np.random.default_rng(2)
    run, plain = jax.jit(functools.partial(lowest, uniform=True)), jax.jit(lowest)
    for largest, density in [(2**32, 0.9), (2**32, 0.1), (2**32, 0.0), (2**32, 1.0), (2**20, 0.5), (2, 0.5)]:
        bits = rng.integers(0, largest, (8, 50)).astype(np.uint32)
        mask = rng.random((8, 50)) < density
        for count in (0, 1, 2, 40, int(mask.sum()), 401):
            np.testing.assert_array_equal(run(bits, mask, count), plain(bits, mask, count))


def test_m2po_of_many_tokens_keeps_as_many_as_the_sorted_list():
    rng = np.random.default_rng(3)
    gap, mask = np.float32(rng.normal(size=(64, 1024))), rng.random((64, 1024)) < 0.7
    for scale in (0.1, 0.21, 0.5, 3.0):
        data = {"log_probs": scale * gap, "behavior_log_probs": np.zeros_like(gap)}
        squares = np.sort(np.square(np.float64(scale * gap[mask])))
        expected = (squares.cumsum() / np.arange(1, len(squares) + 1) < 0.04).sum()
        kept = _weight("m2po", mask, data) > 0
        assert kept.sum() == expected > 0
        largest = np.square(np.float64(scale * gap[kept])).max()
        np.testing.assert_allclose(largest, squares[expected - 1], rtol=1e-6)


def test_a_quantile_just_above_a_rank_takes_the_next_one():
    """.72 of 7 steps is 5.04: of eight entropies the two above the sixth."""
    entropy = np.float32([[3, 0, 7, 1], [6, 2, 4, 5]])
    found = _weight("high_entropy", np.ones((2, 4), bool), {"entropy": entropy}, share=0.28)
    np.testing.assert_array_equal(found, entropy >= 6)


def test_clip_cov_draws_in_rows_of_an_odd_length():
    mask = np.ones((3, 5), bool)
    advantages = np.where(np.arange(5) % 2, 2.0, -2.0) * np.ones((3, 1))
    data = {"log_probs": np.float32(advantages / 2), "advantages": np.float32(advantages), "key": jax.random.key(0)}
    found = _weight("clip_cov", mask, data, share=0.2)
    assert found.shape == (3, 5) and (found == 0).sum() == 3


def test_the_upper_bits_of_a_token_are_its_own():
    """Those of a row and a column alone would agree on the corners of every rectangle."""
    upper = np.asarray(_random_bits(jax.random.key(0), (6, 7))) >> 16
    assert len(np.unique(upper)) > 38
    corners = upper[:-1, :-1] ^ upper[1:, :-1] ^ upper[:-1, 1:] ^ upper[1:, 1:]
    assert (corners != 0).mean() > 0.9
