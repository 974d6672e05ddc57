"""models/transformer/ring.py on simulated devices, against the attention that every other backend uses."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer import ring
from rl_jax.models.transformer.attention import attend, attention_mask
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training import sharding
from tests.tiny import CONFIG, token_batch

LENGTH = 16


def rows() -> TokenBatch:
    """Two packed segments, a row padded on the left, and padding on the right; segments cross the devices' shares."""
    segments = np.array([[1] * 9 + [2] * 7, [0] * 5 + [1] * 11, [3] * 6 + [0] * 10, [1] * 16], np.int32)
    starts = np.array([[0] * 9 + [9] * 7, [5] * 16, [0] * 16, [0] * 16])
    positions = np.where(segments > 0, np.arange(LENGTH) - starts, 0).astype(np.int32)
    return TokenBatch(jnp.zeros((4, LENGTH), jnp.int32), jnp.asarray(positions), jnp.asarray(segments))


def prefixed() -> TokenBatch:
    """The rows, and the second segment of the first sees the first."""
    batch = rows()
    return batch._replace(prefix_ids=jnp.where(batch.segment_ids == 2, 1, 0))


def projections(length=LENGTH, num_rows=4):
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, (num_rows, length, heads, 8)) for key, heads in zip(keys, (4, 2, 2), strict=True)]


def mesh_of(text):
    return sharding.make_mesh(sharding.parse_mesh(text))


def weighed(attend):
    def total(q, k, v):
        found = attend(q, k, v)
        return jnp.sum(found * jnp.cos(jnp.arange(found.size, dtype=jnp.float32)).reshape(found.shape)), found

    return jax.value_and_grad(total, (0, 1, 2), has_aux=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "batch", "options"),
    [
        ("context:4", rows(), {"window": 5}),
        ("fsdp:2,context:2", prefixed(), {"softcap": 2.0}),
        ("context:2,tensor:2", rows(), {"causal": False}),
    ],
    ids=["window", "soft cap and prefixes", "both ways, heads split"],
)
def test_values_and_gradients_are_those_of_plain_attention(monkeypatch, mesh, batch, options):
    monkeypatch.setattr(ring, "BLOCK", 3)  # shares of 4 and 8: several blocks, the last one filled up
    arrays, mask = projections(), attention_mask(batch, options.get("window", 0), causal=options.get("causal", True))
    plain = weighed(lambda q, k, v: attend(q, k, v, mask, scale=0.5, softcap=options.get("softcap", 0.0)))
    around = weighed(lambda q, k, v: ring.ring_attend(q, k, v, batch, scale=0.5, **options))
    mesh = mesh_of(mesh)
    program = jax.jit(sharding.on_mesh(around, mesh), in_shardings=sharding.replicated(mesh)).lower(*arrays).compile()
    found = jax.device_get(program(*arrays))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(plain)(*arrays)), strict=True):
        assert np.max(np.abs(theirs)) > 0.01
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


def test_a_query_that_sees_nothing_is_0_and_has_no_gradient():
    """The mask's padding sees padding, so it takes a window of -1, which hides all keys, to leave softmaxes empty."""
    mesh, arrays = mesh_of("context:2"), projections(4, 1)
    batch = TokenBatch(*[jnp.zeros((1, 4), jnp.int32)] * 3)
    program = weighed(lambda q, k, v: ring.ring_attend(q, k, v, batch, scale=0.5, window=-1))
    program = jax.jit(sharding.on_mesh(program, mesh), in_shardings=sharding.replicated(mesh))
    assert all(np.all(leaf == 0.0) for leaf in jax.tree.leaves(jax.device_get(program(*arrays))))


@pytest.mark.slow
def test_a_model_of_two_windows_never_gathers_keys():
    """Hidden states equal those of plain attention; its gathered keys are found, and are not in the ring's program."""
    plain = dataclasses.replace(CONFIG, num_layers=2, windows=(0, 5), attention="dot_product")
    batch, mesh = token_batch([16, 11], LENGTH), mesh_of("context:4")
    params = make_transformer(plain).init(jax.random.key(0))

    def compiled(config):
        model = sharding.model_on_mesh(make_transformer(config), mesh)
        return jax.jit(model.apply, in_shardings=sharding.replicated(mesh)).lower(params, batch).compile()

    gathered, around = compiled(plain), compiled(dataclasses.replace(plain, attention="ring"))
    whole = rf"all-gather\S* = \S*\[[\d,]*{LENGTH},2,8\]"  # [B, T, K, h]
    assert re.search(whole, gathered.as_text()) and not re.search(whole, around.as_text())
    assert "collective-permute" in around.as_text()
    real = np.asarray(batch.segment_ids)[..., None] > 0
    found, wanted = (np.where(real, jax.device_get(program(params, batch)), 0.0) for program in (around, gathered))
    np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_where_nothing_splits_tokens_it_is_plain_attention():
    batch = token_batch([16, 11], LENGTH)
    params = jax.eval_shape(make_transformer(CONFIG).init, jax.random.key(0))

    def program(attention):
        model = make_transformer(dataclasses.replace(CONFIG, attention=attention))
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(model.apply)(params, batch)))

    assert program("ring") == program("dot_product")


@pytest.mark.parametrize(
    ("mesh", "length", "words"),
    [
        ("fsdp:2", 16, "attention='ring' needs a mesh with a context axis"),
        ("context:4", 18, "rows of 18 tokens do not divide over context=4"),
        ("context:2,tensor:4", 16, "2 key heads do not divide over tensor=4"),
    ],
)
def test_what_it_cannot_do_is_refused(mesh, length, words):
    batch = TokenBatch(*[jnp.zeros((4, length), jnp.int32)] * 3)
    with jax.set_mesh(mesh_of(mesh)), pytest.raises(ValueError, match=words):
        ring.ring_attend(*projections(length), batch, scale=1.0)


def test_a_gradient_lowers_for_tpu_without_one():
    batch = rows()
    with jax.set_mesh(mesh_of("context:4")):
        program = weighed(lambda q, k, v: ring.ring_attend(q, k, v, batch, scale=0.5))
        text = jax.jit(program).trace(*projections()).lower(lowering_platforms=("tpu",)).as_text()
    assert "collective_permute" in text and "all_gather" not in text
