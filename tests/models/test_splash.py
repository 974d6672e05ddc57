"""models/splash.py, run by the interpreter, against the attention that every other backend uses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.attention import attend_causally, attention_mask
from rl_jax.models.transformer.model import make_transformer
from rl_jax.models.transformer.splash import splash_attend, splash_fits
from rl_jax.training import sharding
from tests.tiny import CONFIG

LENGTH = 256


def rows() -> TokenBatch:
    """Two segments, and one with padding behind it."""
    segments = np.repeat(np.array([[1, 2], [3, 0]], np.int32), LENGTH // 2, axis=1)
    positions = np.where(segments > 0, np.tile(np.arange(LENGTH // 2, dtype=np.int32), (2, 2)), 0)
    return TokenBatch(jnp.zeros((2, LENGTH), jnp.int32), jnp.asarray(positions), jnp.asarray(segments))


def shared() -> TokenBatch:
    """Two completions of a prompt and padding; a segment alone, and a prompt with three completions."""
    lengths = [
        [(1, 60, 0), (2, 70, 1), (3, 90, 1), (0, 36, 0)],
        [(1, 40, 0), (2, 90, 0), (3, 50, 2), (4, 46, 2), (5, 30, 2)],
    ]
    found = []
    for row in lengths:
        size = {segment: length for segment, length, _ in row}
        begins = [size[prefix] if prefix else 0 for _, _, prefix in row]
        positions = [b + np.arange(length) for b, (_, length, _) in zip(begins, row, strict=True)]
        segments, prefixes = (np.repeat([x[i] for x in row], [x[1] for x in row]) for i in (0, 2))
        found.append((np.concatenate(positions) * (segments > 0), segments, prefixes))
    positions, segments, prefixes = (jnp.asarray(np.stack(x), jnp.int32) for x in zip(*found, strict=True))
    return TokenBatch(jnp.zeros((2, LENGTH), jnp.int32), positions, segments, prefix_ids=prefixes)


def projections(head_dim: int):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, LENGTH, heads, head_dim)).astype(np.float32) for heads in (4, 2, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "keywords", "mesh"),
    [
        (128, {}, ""),
        (64, {}, ""),
        (128, {"softcap": 20.0}, ""),
        (128, {"window": 17}, ""),
        (128, {"window": 140}, "data:2,context:2,tensor:2"),
        (64, {"shared": True, "softcap": 20.0}, ""),
        (128, {"shared": True, "window": 75}, ""),
        (128, {"shared": True, "window": 75}, "data:2,context:2,tensor:2"),
    ],
    ids=[
        *("plain", "filled-up heads", "soft cap", "window", "queries over devices"),
        *("shared", "shared, window", "shared, window, over devices"),
    ],
)
def test_values_and_gradients_are_those_of_plain_attention(head_dim, keywords, mesh):
    keywords = dict(keywords)
    batch, arrays = shared() if keywords.pop("shared", False) else rows(), projections(head_dim)
    weights = np.broadcast_to(np.sin(np.arange(head_dim, dtype=np.float32)), arrays[0].shape)
    real = np.broadcast_to((np.asarray(batch.segment_ids) > 0)[:, :, None, None], weights.shape)
    window = keywords.get("window", 0)
    softcap = {name: value for name, value in keywords.items() if name == "softcap"}

    def plain(q, k, v):
        found = attend_causally(q, k, v, attention_mask(batch, window), scale=0.1, **softcap)
        return jnp.sum(jnp.where(real, found * weights, 0.0))

    def splash(q, k, v):
        ids = dict(prefix_ids=batch.prefix_ids, positions=batch.positions)
        found = splash_attend(q, k, v, batch.segment_ids, scale=0.1, interpret=True, **ids, **keywords)
        return jnp.sum(jnp.where(real, found * weights, 0.0))

    wanted = jax.device_get(jax.jit(jax.value_and_grad(plain, (0, 1, 2)))(*arrays))
    mesh = sharding.make_mesh(sharding.parse_mesh(mesh))
    gradient = sharding.on_mesh(jax.value_and_grad(splash, (0, 1, 2)), mesh)
    found = jax.device_get(jax.jit(gradient, in_shardings=sharding.replicated(mesh))(*arrays))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for ours, theirs in zip(found[1], wanted[1], strict=True):
        assert np.max(np.abs(theirs)) > 0.01
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "context:2"])
def test_rows_of_any_length_are_filled_up(mesh):
    """Rows of 200 are not of the kernel's tiles: what fills them up is seen by nobody and has no gradient."""
    length, arrays = 200, projections(128)
    batch = jax.tree.map(lambda x: x[:, :length], rows()._replace(prefix_ids=None))
    short = [x[:, :length] for x in arrays]

    def total(attend):
        def weighed(q, k, v):
            return jnp.sum(jnp.where((batch.segment_ids > 0)[..., None, None], attend(q, k, v), 0.0) * jnp.cos(q))

        return jax.value_and_grad(weighed, (0, 1, 2))

    wanted = jax.jit(total(lambda q, k, v: attend_causally(q, k, v, attention_mask(batch), scale=0.1)))(*short)
    kernel = total(lambda q, k, v: splash_attend(q, k, v, batch.segment_ids, scale=0.1, interpret=True))
    placed = sharding.make_mesh(sharding.parse_mesh(mesh))
    found = jax.jit(sharding.on_mesh(kernel, placed), in_shardings=sharding.replicated(placed))(*short)
    for ours, theirs in zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=3e-5)


@pytest.mark.slow
def test_layers_of_several_windows_each_take_their_own_kernel(monkeypatch):
    """Values of a model whose layers see 8 columns and all of them, in turns; with one window they are others."""
    interpreted = functools.partial(splash_attend, interpret=True)
    monkeypatch.setattr("rl_jax.models.transformer.kinds.splash_attend", interpreted)
    plain = dataclasses.replace(CONFIG, num_layers=2, windows=(0, 8))
    batch = jax.tree.map(lambda x: x[:1, :130], rows())._replace(tokens=jnp.arange(130)[None] % CONFIG.vocab_size)
    params = jax.jit(make_transformer(plain).init)(jax.random.key(0))
    wanted = jax.jit(make_transformer(plain).apply)(params, batch)
    model = make_transformer(dataclasses.replace(plain, attention="splash"))
    np.testing.assert_allclose(jax.jit(model.apply)(params, batch), wanted, atol=2e-5)
    wide = make_transformer(dataclasses.replace(plain, windows=()))
    assert np.max(np.abs(np.asarray(jax.jit(wide.apply)(params, batch)) - wanted)) > 1e-3


def test_auto_takes_the_kernel_on_a_tpu_for_what_it_can_do(monkeypatch):
    batch = rows()
    assert not splash_fits(batch, 2), "this is no TPU"
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert splash_fits(batch, 2)
    assert splash_fits(batch._replace(prefix_ids=batch.segment_ids), 2)
    assert not splash_fits(jax.tree.map(lambda x: x[:, :100], batch), 2), "less than a tile"
    with jax.set_mesh(sharding.make_mesh(sharding.parse_mesh("tensor:8"))):
        assert not splash_fits(batch, 2), "two key heads on eight devices"


@pytest.mark.slow
@pytest.mark.parametrize("windows", [(), (0, 8)])
def test_auto_lowers_to_the_kernel_for_a_tpu(monkeypatch, windows):
    model = make_transformer(dataclasses.replace(CONFIG, num_layers=2, windows=windows, attention="auto"))
    params = jax.eval_shape(model.init, jax.random.key(0))
    batch = TokenBatch(*[jax.ShapeDtypeStruct((4, 200), jnp.int32)] * 3)
    plain = jax.jit(model.apply).trace(params, batch).lower(lowering_platforms=("tpu",)).as_text()
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    found = jax.jit(lambda p, b: model.apply(p, b)).trace(params, batch).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in found and "tpu_custom_call" not in plain


def test_key_heads_must_divide_over_the_tensor_axis():
    mesh = jax.make_mesh((1, 1, 8), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    q, k, v = projections(128)
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="2 key heads do not divide over tensor=8"):
        splash_attend(q, k, v, rows().segment_ids, scale=1.0)


def test_a_window_over_shared_prefixes_needs_positions():
    batch = shared()
    with pytest.raises(ValueError, match="shared prefixes and a window need positions"):
        splash_attend(*projections(128), batch.segment_ids, scale=1.0, prefix_ids=batch.prefix_ids, window=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "arrays"),
    [("", 3), ("", 4), ("data:2,fsdp:2,tensor:2", 3), ("data:2,fsdp:2,context:2", 3), ("data:2,fsdp:2,context:2", 4)],
)
def test_a_gradient_lowers_for_tpu_without_one(mesh, arrays):
    """Through Mosaic, and with a mesh on each device's own rows and heads; a fourth array has the shared prefixes."""
    windows = (0, 8) if arrays == 4 else ()
    model = make_transformer(dataclasses.replace(CONFIG, attention="splash", num_layers=2, windows=windows))
    params = jax.eval_shape(model.init, jax.random.key(0))
    with jax.set_mesh(sharding.make_mesh(sharding.parse_mesh(mesh))):
        batch = TokenBatch(*[jax.ShapeDtypeStruct((4, LENGTH), jnp.int32)] * arrays)
        traced = jax.jit(jax.grad(lambda p, b: jnp.sum(model.apply(p, b)))).trace(params, batch)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
