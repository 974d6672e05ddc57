"""sharding.py and logical.py: texts to meshes, paths to specs, dimensions that do not divide, moves, tables."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from rl_jax.core import axis_table
from rl_jax.core.types import path_name
from rl_jax.models.partition import parameter_table
from rl_jax.models.transformer.model import TransformerConfig, make_transformer
from rl_jax.training import sharding
from rl_jax.training.step import init_state
from tests.tiny import CONFIG


@pytest.mark.parametrize(
    "text, sizes",
    [
        ("", (1, 1, 1, 1, 1)),
        ("data:2", (2, 1, 1, 1, 1)),
        ("data:2,fsdp:4", (2, 1, 4, 1, 1)),
        ("tensor:8, data:1", (1, 1, 1, 1, 8)),
        ("data:2,fsdp:2,tensor:2", (2, 1, 2, 1, 2)),
        ("context:4,expert:2", (1, 2, 1, 4, 1)),
    ],
)
def test_parse_mesh(text, sizes):
    axes = ("data", "expert", "fsdp", "context", "tensor")
    assert sharding.parse_mesh(text) == dict(zip(axes, sizes, strict=True))
    mesh = sharding.make_mesh(sharding.parse_mesh(text))
    assert mesh.axis_names == axes and mesh.devices.shape == sizes


@pytest.mark.parametrize(
    "text, part", [("data", "data"), ("date:2", "date:2"), ("data:2,data:4", "data:4"), ("data:0", "data:0"),
                   ("fsdp:-1", "fsdp:-1"), ("fsdp:x", "fsdp:x"), ("data:2,tensor:", "tensor:")]
)  # fmt: skip
def test_bad_meshes_are_named(text, part):
    with pytest.raises(ValueError, match=f"mesh '{text}': '{part}' is not AXIS:SIZE, with AXIS one of data, expert"):
        sharding.parse_mesh(text)


def test_too_few_devices():
    with pytest.raises(ValueError, match="needs 16 devices, but 8 are available"):
        sharding.make_mesh(sharding.parse_mesh("data:16"))
    with pytest.raises(ValueError, match="needs 2 devices, but 1 are available"):
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


@pytest.mark.slow
def test_each_device_holds_its_part():
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    state = jax.jit(lambda: make_transformer(CONFIG).init(jax.random.key(0)))()
    placed = jax.device_put(state, sharding.tree_shardings(state, mesh))
    kernel = placed["layers"]["q"]["kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(2, 16, 16)}
    np.testing.assert_array_equal(kernel, state["layers"]["q"]["kernel"])
    assert len(kernel.sharding.device_set) == 8


@pytest.mark.parametrize("text", ["data:2,fsdp:2,tensor:2", "data:2,expert:2,context:2"])
def test_rows_go_over_data_expert_and_fsdp(text):
    mesh = sharding.make_mesh(sharding.parse_mesh(text))
    assert sharding.row_shards(mesh) == 4
    rows = jax.device_put(jnp.arange(24).reshape(8, 3), sharding.batch_sharding(mesh))
    assert {shard.data.shape for shard in rows.addressable_shards} == {(2, 3)}
    assert len({shard.index[0].start for shard in rows.addressable_shards}) == 4  # tensor and context hold copies
    whole = jax.device_put(jnp.arange(3), sharding.replicated(mesh))
    assert whole.sharding.is_fully_replicated


def test_experts_go_over_their_axis_and_the_optimizer_follows():
    experts = dict(num_experts=4, experts_per_token=2, mlp_dim=16)
    mesh = sharding.make_mesh(sharding.parse_mesh("expert:2,fsdp:2,tensor:2"))
    specs = _by_name(sharding.tree_shardings(_state(**experts), mesh))
    for tree in ("params", "opt_state/0/mu", "opt_state/0/nu"):
        assert specs[f"{tree}/layers/experts/gate"] == P(None, "expert", "fsdp", "tensor")
        assert specs[f"{tree}/layers/experts/down"] == P(None, "expert", "tensor", "fsdp")
        assert specs[f"{tree}/layers/experts/router/kernel"] == P(None, "fsdp", None)


def test_a_hint_is_one_on_a_mesh_and_nothing_elsewhere():
    """constrain under on_mesh gives the layout; without a mesh, with another one's axes and under pmap it is silent."""
    mesh = sharding.make_mesh(sharding.parse_mesh("fsdp:2,context:2,tensor:2"))
    x, odd = jnp.ones((4, 6, 2, 3)), jnp.ones((3, 6, 1, 3))  # 3 rows and 1 head do not divide
    whole = sharding.replicated(mesh)

    def hint(x):
        return axis_table.constrain(x, "rows", "tokens", "heads", None) + 0.0

    hinted = jax.jit(sharding.on_mesh(hint, mesh), in_shardings=whole)
    assert hinted(x).sharding.spec == P("fsdp", "context", "tensor")
    assert hinted(odd).sharding.is_equivalent_to(jax.NamedSharding(mesh, P(None, "context")), 4)
    assert hint(x).sharding == sharding.on_mesh(hint, mesh)(x).sharding == x.sharding
    other = jax.make_mesh((2, 4), ("seeds", "envs"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    assert "sharding_constraint" not in str(jax.make_jaxpr(sharding.on_mesh(hint, other))(x))
    assert jax.pmap(sharding.on_mesh(hint, mesh), axis_name="data")(x).shape == x.shape
    both = jax.jit(sharding.on_mesh(sharding.on_mesh(hint, other), mesh), in_shardings=whole)
    assert both(x).sharding.spec == P("fsdp", "context", "tensor")


@pytest.mark.slow
def test_params_are_made_in_their_shards():
    """No device ever holds the whole: results and temporaries together are under a third of it on eight devices."""
    config = TransformerConfig(**{**vars(CONFIG), "num_layers": 1, "vocab_size": 512, "embed_dim": 128, "mlp_dim": 512})
    init = make_transformer(config).init
    shapes = jax.eval_shape(init, jax.random.key(0))
    shardings = sharding.tree_shardings(shapes, sharding.make_mesh(sharding.parse_mesh("fsdp:8")))
    compiled = jax.jit(lambda: init(jax.random.key(0)), out_shardings=shardings).lower().compile()
    memory, whole = compiled.memory_analysis(), sum(x.size * 4 for x in jax.tree.leaves(shapes))
    assert whole / 8 <= memory.output_size_in_bytes < whole / 7
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < whole / 3


@pytest.mark.parametrize(
    "here, there, moved",
    [
        ((P("fsdp"), "fsdp:8"), (P("fsdp"), "fsdp:8"), 0),
        ((P("fsdp"), "fsdp:8"), (P(), "fsdp:8"), 8 * 128 - 128),  # all of it everywhere, less what is there
        ((P(), "fsdp:8"), (P("fsdp"), "fsdp:8"), 0),
        # Rows of 1 x 16 to blocks of 4 x 4, each device's own row among them or not: counted by hand.
        ((P("fsdp"), "fsdp:8"), (P("data", "tensor"), "data:2,tensor:4"), 8 * 16 - 8 * 4),
    ],
)
def test_moved_bytes(here, there, moved):
    shardings = [jax.NamedSharding(sharding.make_mesh(sharding.parse_mesh(text)), spec) for spec, text in (here, there)]
    x = jax.device_put(jnp.arange(128.0, dtype=jnp.float32).reshape(8, 16), shardings[0])
    assert sharding.moved_bytes({"x": x}, {"x": shardings[1]}) == 4 * moved
    np.testing.assert_array_equal(jax.device_put(x, shardings[1]), np.arange(128.0).reshape(8, 16))


def test_moved_bytes_to_other_devices_are_all():
    here, there = (sharding.make_mesh(sharding.parse_mesh("fsdp:4"), d) for d in (jax.devices()[:4], jax.devices()[4:]))
    x = jax.device_put(jnp.ones((8, 16)), jax.NamedSharding(here, P("fsdp")))
    assert sharding.moved_bytes(x, jax.NamedSharding(there, P(None, "fsdp"))) == 8 * 16 * 4


def test_the_table_says_what_lives_where():
    """Bytes a device are those of the shards that a device holds, the axes those that split."""
    mesh = sharding.make_mesh(sharding.parse_mesh("data:2,fsdp:2,tensor:2"))
    shapes = {"base": _state().params, "adapters": {"layers": {"q": jax.ShapeDtypeStruct((2, 4), jnp.float32)}}}
    moments = {"mu": shapes["adapters"], "count": jax.ShapeDtypeStruct((), jnp.int32)}
    params, state = (
        jax.device_put(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree), sharding.tree_shardings(tree, mesh))
        for tree in (shapes, moments)
    )
    lines = parameter_table(params, state, frozen="base").splitlines()
    of_first = {name: sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(part))
                for name, part in {**params, "state": state}.items()}  # fmt: skip
    assert of_first["adapters"] == 32 and of_first["state"] == 36  # nothing splits them
    assert lines[0].split()[-4:] == ["per", "device", "split", "over"]
    name = next(line for line in lines if line.startswith("base/layers/q"))
    assert name.split()[1:] == ["2,048", "0", "8,192", "2,048", "fsdp,", "tensor"]
    whole = next(line for line in lines if line.startswith("all of base")).split()
    assert whole[6] == f"{of_first['base']:,}" and whole[7:] == ["fsdp,", "tensor"]
    assert next(line for line in lines if line.startswith("all of adapters")).split()[3:] == ["8", "8", "32", "32", "-"]
    assert next(line for line in lines if line.startswith("optimizer state")).split()[2:] == ["36", "36", "-"]
    assert lines[-3].startswith("axis data:2 splits 0.0 % of the parameters, 0.0 %")
    split = sum(x.nbytes for x in jax.tree.leaves(params) if "fsdp" in jax.tree.leaves(tuple(x.sharding.spec)))
    share = 100 * split / sum(x.nbytes for x in jax.tree.leaves(params))
    assert lines[-2].startswith(f"axis fsdp:2 splits {share:.1f} % of the parameters, 0.0 %")


class Chip:
    """A device as a slice describes it."""

    def __init__(self, *coords):
        self.coords = coords


def test_half_of_each_host_s_chips_is_no_cuboid():
    """Two chips of each of four hosts of 2 x 2; jax finds rings in a cuboid only."""
    slice_ = [Chip(x, y, 0) for y in range(4) for x in range(4)]
    assert sharding.is_cuboid(slice_) and sharding.is_cuboid(slice_[:8]) and sharding.is_cuboid(slice_[5:6])
    assert not sharding.is_cuboid([chip for chip in slice_ if chip.coords[1] in (0, 2)])
    assert not sharding.is_cuboid(slice_[:7]) and sharding.is_cuboid(jax.devices())


def test_devices_that_are_no_cuboid_keep_their_order(monkeypatch):
    sizes, devices = sharding.parse_mesh("fsdp:2,tensor:2"), jax.devices()[::2]
    monkeypatch.setattr(sharding, "is_cuboid", lambda devices: False)
    mesh = sharding.make_mesh(sizes, devices)
    assert [*mesh.devices.flat] == devices and mesh.shape == sizes
    monkeypatch.undo()
    assert mesh == sharding.make_mesh(sizes, devices), "on a CPU that is jax's own, too"
