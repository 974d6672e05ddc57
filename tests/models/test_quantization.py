"""models/quantization.py and the transformer that reads it: errors beside numpy, bytes, and a sampler beside a loop."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models import quantization
from rl_jax.models.quantization import Quantized, dequantize, quantize, quantize_params
from rl_jax.models.transformer import kinds as module
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.generate import ContinuousGenerate
from rl_jax.rollout.lm.sampling import Sampling
from tests.tiny import CONFIG, prompts, random_params

MODEL = make_transformer(CONFIG)
LENGTH, LENGTHS, WIDTH = 6, [5, 3], 5
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def _in_numpy(x, kind, axis):
    """(values, scales), from the definitions."""
    largest = {"int8": 127.0, "fp8": 448.0}[kind]
    scales = (np.abs(x).max(axis, keepdims=True) / np.float32(largest)).astype(np.float32)
    ratio = np.clip(x / np.where(scales > 0, scales, 1), -largest, largest)
    return (np.rint(ratio).astype(np.int8) if kind == "int8" else ratio.astype(ml_dtypes.float8_e4m3fn)), scales


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("axis", [-2, -1])
def test_values_scales_and_errors_are_those_of_numpy(kind, axis):
    x = np.random.default_rng(0).normal(size=(3, 16, 8)).astype(np.float32) * 10.0 ** np.arange(-4, 4)
    x[0, :, 1], x[:, 2] = 0.0, 0.0
    got, (values, scales) = quantize(jnp.array(x), kind, axis=axis), _in_numpy(x, kind, axis)
    np.testing.assert_allclose(got.scales, scales, rtol=1e-6)
    close = np.abs(np.asarray(got.values, np.float32) - values.astype(np.float32))
    assert np.mean(close > 0) < 0.01  # a tie, divided in another order
    error = np.abs(np.asarray(dequantize(got, jnp.float32)) - x)
    bound = scales / 2 if kind == "int8" else np.maximum(np.abs(x) / 16, scales * 2.0**-10)
    assert np.all(error <= bound * 1.0001)
    assert np.all(error[x == 0] == 0)


def test_an_unknown_kind_is_refused():
    for call in (lambda: quantize(jnp.ones((2, 2)), "int4", axis=0), lambda: quantize_params({}, "int4")):
        with pytest.raises(ValueError, match="'int4' is none of '', int8, fp8"):
            call()
    with pytest.raises(ValueError, match="cache='int4'"):
        MODEL.with_cache("int4")


def _bytes(tree):
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_bytes_of_matrices_and_of_the_cache_fall(kind):
    def made(params):
        small = quantize_params(params, kind)
        assert small["embed"]["embedding"] is params["embed"]["embedding"]
        return small, MODEL.with_cache(kind).init_cache(2, 16), MODEL.init_cache(2, 16)

    params = random_params()
    small, cache, full = jax.eval_shape(made, params)
    for name in MATRICES:
        kernel, got = params["layers"][name]["kernel"], small["layers"][name]["kernel"]
        assert got.values.shape == kernel.shape and got.values.dtype.itemsize == 1
        assert got.scales.shape == (*kernel.shape[:-2], 1, kernel.shape[-1])  # one per output channel
    assert cache[0][0].scales.shape == (2, CONFIG.num_kv_heads, 1, 16)  # one per position and head
    assert cache[0][1].scales.shape == (2, CONFIG.num_kv_heads, 16, 1)
    assert _bytes(cache) == _bytes(full) // 4 * (1 + 4 / CONFIG.head_dim)


def test_the_compiled_decode_step_takes_fewer_bytes():
    params = random_params()

    def memory(weights, kind):
        model = MODEL.with_cache(kind)
        shapes = lambda params: (quantize_params(params, weights), model.init_cache(2, 64))  # noqa: E731
        small, cache = jax.eval_shape(shapes, params)
        given = (small, np.zeros(2, np.int32), np.zeros(2, np.int32))
        rest = (cache, np.int32(0), np.ones((2, 64), bool))
        return jax.jit(model.decode).lower(*given, *rest).compile().memory_analysis().argument_size_in_bytes

    full, small = memory("", ""), memory("int8", "int8")
    matrices = sum(params["layers"][name]["kernel"].nbytes for name in MATRICES)
    cache = _bytes(MODEL.init_cache(2, 64))
    assert full - small > 0.6 * matrices + 0.6 * (cache * (1 - (1 + 4 / 8) / 4))


def _fake(x, kind, axis):
    values, scales = _in_numpy(np.asarray(x), kind, axis)
    return jnp.array(values.astype(np.float32) * scales)


def _fake_params(params, kind):
    layers = {
        name: {"kernel": _fake(part["kernel"], kind, -2)} if name in MATRICES else part
        for name, part in params["layers"].items()
    }
    return {**params, "layers": layers}


@functools.partial(jax.jit, static_argnames="attention")
def _next_log_probs(params, batch, column, attention):
    """attention: tells programs apart whose model is another by `monkeypatch`."""
    return jax.nn.log_softmax(MODEL.unembed(params, MODEL.apply(params, batch))[:, column])


@functools.cache
def _loop(weights, attention=""):
    """Greedy tokens [B, C] and log-probs of whole forwards over float params that were rounded by numpy."""
    params = _fake_params(random_params(), weights) if weights else random_params()
    tokens, mask = map(np.asarray, prompts(LENGTHS, WIDTH))
    total = WIDTH + LENGTH
    all_tokens, found = np.zeros((2, total), np.int32), np.zeros((2, LENGTH), np.float32)
    all_tokens[:, :WIDTH] = tokens
    segments = np.concatenate([mask, np.ones((2, LENGTH), bool)], axis=1).astype(np.int32)
    positions = np.maximum(np.cumsum(segments, axis=1) - 1, 0).astype(np.int32)
    for step in range(LENGTH):
        batch = TokenBatch(all_tokens, positions, segments)
        log_probs = np.asarray(_next_log_probs(params, batch, WIDTH + step - 1, attention))
        all_tokens[:, WIDTH + step] = log_probs.argmax(-1)
        found[:, step] = log_probs.max(-1)
    return all_tokens[:, WIDTH:], found


@functools.cache
def _quantized(weights):
    return jax.jit(lambda params: quantize_params(params, weights))(random_params())


def _sampled(weights, cache, engine="lockstep", length=LENGTH):
    model, options = MODEL.with_cache(cache), dict(completion_length=length, sampling=Sampling(top_k=1), eos_ids=())
    if engine == "lockstep":
        generate = jax.jit(make_generate(model, **options))
    else:
        generate = ContinuousGenerate(model, prompt_length=WIDTH, slots=2, chunk=8, **options)
    return generate(_quantized(weights), *prompts(LENGTHS, WIDTH), jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_tokens_and_log_probs_are_those_of_a_loop_over_rounded_weights(kind):
    tokens, log_probs = _loop(kind)
    rollout = _sampled(kind, "")
    np.testing.assert_array_equal(rollout.batch.tokens[:, WIDTH:], tokens)
    np.testing.assert_allclose(rollout.raw_log_probs, log_probs, atol=2e-5)
    assert np.max(np.abs(log_probs - _loop("")[1])) > 1e-3  # the rounding shows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_quantised_cache_is_that_of_whole_forwards_that_round_keys_and_values(kind, monkeypatch):
    inner = module.attend_causally
    rounded = lambda x: dequantize(quantize(x, kind, axis=-1), x.dtype)  # noqa: E731
    monkeypatch.setattr(module, "attend_causally", lambda q, k, v, *a, **b: inner(q, rounded(k), rounded(v), *a, **b))
    tokens, log_probs = _loop("", kind)
    monkeypatch.undo()
    assert np.max(np.abs(log_probs - _loop("")[1])) > 1e-4
    for engine in ("lockstep", "continuous"):
        rollout = _sampled("", kind, engine)
        np.testing.assert_array_equal(rollout.batch.tokens[:, WIDTH:], tokens)
        np.testing.assert_allclose(rollout.raw_log_probs, log_probs, atol=2e-5)


def test_an_unquantised_read_is_the_same_tree():
    layer = jax.tree.map(lambda x: x[0], random_params()["layers"])
    assert quantization.read(layer, jnp.zeros(()), "float32") is layer
    assert quantize_params(layer, "") is layer


def test_more_bits_are_closer():
    """int8 rounds a normal matrix less than e4m3, whose numbers have 3 bits of mantissa; both differ from it."""
    x = jax.random.normal(jax.random.key(0), (64, 64))
    errors = [float(jnp.std(dequantize(quantize(x, kind, axis=0), x.dtype) - x)) for kind in ("fp8", "int8")]
    assert errors[0] > 1.5 * errors[1] > 0


def test_quantised_leaves_are_stacked_and_unstacked_like_the_others():
    layers = MODEL.unstack(quantize_params(random_params(), "int8"))["layers"]
    assert isinstance(layers[1]["q"]["kernel"], Quantized) and layers[1]["q"]["kernel"].scales.ndim == 2
