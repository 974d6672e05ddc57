"""sharding.py: texts to meshes, paths to specs, and dimensions that do not divide."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from rl_jax import sharding
from rl_jax.models.transformer import TransformerConfig, make_transformer
from rl_jax.train import init_state
from rl_jax.types import path_name
from tests.tiny import CONFIG


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("", (1, 1, 1)),
        ("data:2", (2, 1, 1)),
        ("data:2,fsdp:4", (2, 4, 1)),
        ("tensor:8, data:1", (1, 1, 8)),
        ("data:2,fsdp:2,tensor:2", (2, 2, 2)),
    ],
)
def test_parse_mesh(text, sizes):
    assert sharding.parse_mesh(text) == dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
    mesh = sharding.make_mesh(sharding.parse_mesh(text))
    assert mesh.axis_names == ("data", "fsdp", "tensor") and mesh.devices.shape == sizes


@pytest.mark.parametrize(
    "text, part", [("data", "data"), ("date:2", "date:2"), ("data:2,data:4", "data:4"), ("data:0", "data:0"),
                   ("fsdp:-1", "fsdp:-1"), ("fsdp:x", "fsdp:x"), ("data:2,tensor:", "tensor:")]
)  # fmt: skip
def test_bad_meshes_are_named(text, part):
    with pytest.raises(ValueError, match=f"mesh '{text}': '{part}' is not AXIS:SIZE with AXIS one of data, fsdp"):
        sharding.parse_mesh(text)


def test_too_few_devices():
    with pytest.raises(ValueError, match="needs 16 devices, but 8 are there"):
        sharding.make_mesh(sharding.parse_mesh("data:16"))
    with pytest.raises(ValueError, match="needs 2 devices, but 1 are there"):
        sharding.make_mesh(sharding.parse_mesh("data:2"), jax.devices()[:1])


# The spec of every leaf of the tiny transformer (untied) on data:2,fsdp:2,tensor:2.
SPECS = {
    "embed/embedding": P("tensor", "fsdp"),
    "head/kernel": P("fsdp", "tensor"),
    "final_norm/scale": P(),
    "layers/attention_norm/scale": P(),
    "layers/mlp_norm/scale": P(),
    "layers/q/kernel": P(None, "fsdp", "tensor"),
    "layers/k/kernel": P(None, "fsdp", "tensor"),
    "layers/v/kernel": P(None, "fsdp", "tensor"),
    "layers/gate/kernel": P(None, "fsdp", "tensor"),
    "layers/up/kernel": P(None, "fsdp", "tensor"),
    "layers/o/kernel": P(None, "tensor", "fsdp"),
    "layers/down/kernel": P(None, "tensor", "fsdp"),
}


def _state(**fields):
    config = TransformerConfig(**{**vars(CONFIG), "tied_head": False, **fields})
    init = make_transformer(config).init
    return jax.eval_shape(lambda: init_state(init(jax.random.key(0)), optax.adamw(1e-3), jax.random.key(1)))


def _by_name(tree):
    return {path_name(path): leaf.spec for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def test_every_leaf_of_the_state_has_its_spec():
    """Params, and both AdamW moments like their params; counters and the key on every device."""
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    specs = _by_name(sharding.tree_shardings(_state(), mesh))
    expected = {f"{tree}/{name}": spec for tree in ("params", "opt_state/0/mu", "opt_state/0/nu")
                for name, spec in SPECS.items()}  # fmt: skip
    counters = ("step", "rng", "skipped", "skipped_in_a_row", "opt_state/0/count")
    assert specs == expected | dict.fromkeys(counters, P())


def test_a_dimension_that_does_not_divide_stays_whole():
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:4,tensor:2"))
    specs = _by_name(sharding.tree_shardings(_state(embed_dim=30, vocab_size=63).params, mesh))
    assert specs["embed/embedding"] == P(None, None)
    assert specs["head/kernel"] == P(None, None)
    assert specs["layers/q/kernel"] == P(None, None, "tensor")
    assert specs["layers/o/kernel"] == P(None, "tensor", None)


def test_each_device_holds_its_part():
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    state = jax.jit(lambda: make_transformer(CONFIG).init(jax.random.key(0)))()
    placed = jax.device_put(state, sharding.tree_shardings(state, mesh))
    kernel = placed["layers"]["q"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 16, 16)}
    np.testing.assert_array_equal(kernel, state["layers"]["q"]["kernel"])
    assert len(kernel.sharding.device_set) == 8


def test_rows_go_over_data_and_fsdp():
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    rows = jax.device_put(jnp.arange(24).reshape(8, 3), sharding.batch_sharding(mesh))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
    assert len({shard.index[0].start for shard in rows.addressable_shards}) == 4  # tensor holds copies
    whole = jax.device_put(jnp.arange(3), sharding.replicated(mesh))
    assert whole.sharding.is_fully_replicated
