"""models/splash.py, run by the interpreter, against the attention that every other backend uses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.attention import attend_causally, attention_mask
from rl_jax.models.transformer.model import make_transformer
from rl_jax.models.transformer.splash import splash_attend
from rl_jax.training import sharding
from tests.tiny import CONFIG

LENGTH = 256


def rows() -> TokenBatch:
    """Two segments, and one with padding behind it."""
    segments = np.repeat(np.array([[1, 2], [3, 0]], np.int32), LENGTH // 2, axis=1)
    positions = np.where(segments > 0, np.tile(np.arange(LENGTH // 2, dtype=np.int32), (2, 2)), 0)
    return TokenBatch(jnp.zeros((2, LENGTH), jnp.int32), jnp.asarray(positions), jnp.asarray(segments))


def projections(head_dim: int):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (2, LENGTH, heads, head_dim)) for key, heads in zip(keys, (4, 2, 2), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_dim", "keywords", "mesh"),
    [
        (128, {}, ""),
        (64, {}, ""),
        (128, {"softcap": 20.0}, ""),
        (128, {"window": 17}, ""),
        (128, {"window": 140}, "data:2,context:2,tensor:2"),
    ],
    ids=["plain", "filled-up heads", "soft cap", "window", "queries over devices"],
)
def test_values_and_gradients_are_those_of_plain_attention(head_dim, keywords, mesh):
    batch, arrays = rows(), projections(head_dim)
    weights = jnp.broadcast_to(jnp.sin(jnp.arange(head_dim))[None, None, None], arrays[0].shape)
    real = jnp.broadcast_to((batch.segment_ids > 0)[:, :, None, None], weights.shape)
    window = keywords.get("window", 0)
    softcap = {name: value for name, value in keywords.items() if name == "softcap"}

    def plain(q, k, v):
        found = attend_causally(q, k, v, attention_mask(batch, window), scale=0.1, **softcap)
        return jnp.sum(jnp.where(real, found * weights, 0.0))

    def splash(q, k, v):
        found = splash_attend(q, k, v, batch.segment_ids, scale=0.1, interpret=True, **keywords)
        return jnp.sum(jnp.where(real, found * weights, 0.0))

    wanted = jax.value_and_grad(plain, (0, 1, 2))(*arrays)
    mesh = sharding.make_mesh(sharding.parse_mesh(mesh))
    gradient = sharding.on_mesh(jax.value_and_grad(splash, (0, 1, 2)), mesh)
    found = jax.device_get(jax.jit(gradient, in_shardings=sharding.replicated(mesh))(*arrays))
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    for ours, theirs in zip(found[1], wanted[1], strict=True):
        assert jnp.max(jnp.abs(theirs)) > 0.01
        np.testing.assert_allclose(ours, theirs, atol=3e-5)


@pytest.mark.slow
def test_rows_must_fit_the_tiles():
    q, k, v = (x[:, :100] for x in projections(128))
    with pytest.raises(ValueError, match="multiples of 128 tokens, not 100"):
        splash_attend(q, k, v, jnp.ones((2, 100), jnp.int32), scale=1.0)
    with jax.set_mesh(sharding.make_mesh(sharding.parse_mesh("context:8"))):
        with pytest.raises(ValueError, match="multiples of 128 tokens per device, on 8 devices, not 256"):
            splash_attend(*projections(128), rows().segment_ids, scale=1.0)


def test_key_heads_must_divide_over_the_tensor_axis():
    mesh = jax.make_mesh((1, 1, 8), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    q, k, v = projections(128)
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="2 key heads do not divide over tensor=8"):
        splash_attend(q, k, v, rows().segment_ids, scale=1.0)


def test_what_the_kernel_cannot_do_is_refused():
    with pytest.raises(ValueError, match="one window for all layers"):
        dataclasses.replace(CONFIG, attention="splash", windows=(0, 8) * (CONFIG.num_layers // 2))
    model = make_transformer(dataclasses.replace(CONFIG, attention="splash"))
    batch = rows()._replace(prefix_ids=jnp.zeros((2, LENGTH), jnp.int32))
    with pytest.raises(ValueError, match="does not support shared prefixes"):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), batch)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["", "data:2,fsdp:2,tensor:2", "data:2,fsdp:2,context:2"])
def test_a_gradient_lowers_for_tpu_without_one(mesh):
    """Through Mosaic, and with a mesh on each device's own rows and heads."""
    model = make_transformer(dataclasses.replace(CONFIG, attention="splash"))
    params = jax.eval_shape(model.init, jax.random.key(0))
    with jax.set_mesh(sharding.make_mesh(sharding.parse_mesh(mesh))):
        batch = TokenBatch(*[jax.ShapeDtypeStruct((4, LENGTH), jnp.int32)] * 3)
        traced = jax.jit(jax.grad(lambda p, b: jnp.sum(model.apply(p, b)))).trace(params, batch)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" in text
