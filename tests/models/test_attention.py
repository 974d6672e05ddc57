"""attention.py: blocks of queries change nothing; when and how the GPU's kernel is called."""

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.attention import attend, attend_causally, attend_fused, fused_fits
from rl_jax.models.transformer.config import TransformerConfig
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding

SMALL = TransformerConfig(
    vocab_size=16, embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=16, dtype="bfloat16"
)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "softcap"), [(128, 0.0), (300, 0.0), (300, 2.0)])
def test_blocks_of_queries_equal_the_whole(length, softcap):
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(key, (2, length, heads, 4)) for key, heads in zip(keys[:3], (2, 1, 1), strict=True))
    itself = jnp.eye(length, dtype=bool)[None, None]
    mask = jnp.tril(jax.random.bernoulli(keys[3], 0.7, (2, 1, length, length))) | itself

    def total(function, q, k, v):
        out = function(q, k, v, mask, scale=0.5, softcap=softcap)
        return jnp.sum(jnp.sin(out)), out

    (value, gradient), (found, blocked) = (
        jax.jit(jax.grad(functools.partial(total, f), argnums=(0, 1, 2), has_aux=True))(q, k, v)[::-1]
        for f in (attend, attend_causally)
    )
    np.testing.assert_allclose(found, value, atol=1e-5)
    for ours, theirs in zip(blocked, gradient, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_auto_takes_the_gpus_kernel_for_what_it_can_do(monkeypatch):
    assert not fused_fits(SMALL, 8), "this is no GPU"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    device = SimpleNamespace(device_kind="NVIDIA H200")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert fused_fits(SMALL, 8) and not fused_fits(SMALL, 7)
    for changes in (dict(dtype="float32"), dict(attention_softcap=2.0), dict(head_dim=12), dict(head_dim=136)):
        assert not fused_fits(dataclasses.replace(SMALL, **changes), 8), changes
    device.device_kind = "AMD Instinct MI300X"
    assert not fused_fits(SMALL, 8)
    monkeypatch.undo()
    meshes = [sharding.make_mesh(sharding.parse_mesh(text)) for text in ("tensor:8", "context:8")]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind="NVIDIA H200")])
    for mesh in meshes:
        with jax.set_mesh(mesh):
            assert not fused_fits(SMALL, 8), "a key head, or a row, that is split"


@pytest.mark.parametrize("causal", [True, False])
def test_the_gpus_kernel_gets_the_mask_and_whether_it_is_causal(monkeypatch, causal):
    """Its numbers are compared where there is a GPU: tests/models/gpu_attention.py."""
    plain, calls = jax.nn.dot_product_attention, []

    def kernel(q, k, v, *, implementation, is_causal, **keywords):
        calls.append((implementation, is_causal))
        return plain(q, k, v, is_causal=is_causal, **keywords)

    config = dataclasses.replace(SMALL, causal=causal, dtype="float32")
    segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    batch = TokenBatch(jnp.arange(12).reshape(2, 6), jnp.tile(jnp.arange(6), (2, 1)), segments)
    params = make_transformer(config).init(jax.random.key(0))
    wanted = make_transformer(config).apply(params, batch)
    monkeypatch.setattr(jax.nn, "dot_product_attention", kernel)
    found = make_transformer(dataclasses.replace(config, attention="cudnn")).apply(params, batch)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert calls == [("cudnn", causal)]


def test_the_gpus_kernel_has_no_softcap():
    x = jnp.ones((1, 2, 1, 8))
    with pytest.raises(ValueError, match=r"attention='cudnn' has no softcap \(2.0\)"):
        attend_fused(x, x, x, jnp.ones((1, 1, 2, 2), bool), scale=1.0, softcap=2.0)
