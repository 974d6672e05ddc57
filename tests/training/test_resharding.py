"""resharding.py: values, what a device holds on the way, devices that differ, twins of the same process."""

import dataclasses
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from rl_jax.core.axis_table import AXES
from rl_jax.training import resharding, sharding

SHAPES = {"layers/up/kernel": (2, 16, 32), "layers/down/kernel": (2, 32, 16), "final_norm/scale": (16,)}


def laid_out(mesh):
    """(a tree of arrays on the mesh, its shardings)."""
    tree = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
    shardings = sharding.tree_shardings(tree, mesh)
    return jax.device_put(tree, shardings), shardings


def mesh_of(text, devices=None):
    return sharding.make_mesh(sharding.parse_mesh(text), devices)


@pytest.mark.parametrize(
    "source, target, devices",
    [
        ("fsdp:8", "data:2,tensor:4", slice(0, 8)),
        ("fsdp:8", "data:2,tensor:4", slice(None, None, -1)),  # in another order
        ("fsdp:4", "data:2,tensor:2", slice(4, 8)),  # others: each has a twin
        ("fsdp:2", "data:3,tensor:2", slice(2, 8)),  # three have the same twin
        ("fsdp:4", "tensor:2", slice(4, 6)),  # two have none
        ("fsdp:4", "data:3", slice(4, 7)),  # no twins, by the host
    ],
)
def test_values_and_layouts(source, target, devices):
    placed, _ = laid_out(mesh_of(source))
    mesh = mesh_of(target, jax.devices()[devices])
    expected, shardings = laid_out(mesh)
    moved = resharding.reshard(placed, shardings)
    assert jax.tree.map(lambda x: x.sharding, moved) == shardings
    jax.tree.map(np.testing.assert_array_equal, moved, expected)
    again = resharding.reshard(moved, shardings)
    assert all(again[name] is moved[name] for name in moved)  # nothing is moved twice
    assert resharding.reshard(jax.device_get(placed), shardings)["final_norm/scale"].sharding.mesh == mesh


def test_no_device_holds_more_than_its_old_and_its_new_share_on_the_way():
    """Without the layout between the two, XLA gathers each array whole everywhere."""
    placed, _ = laid_out(mesh_of("fsdp:8"))
    x, target = placed["layers/up/kernel"], NamedSharding(mesh_of("data:2,tensor:4"), P(None, None, "tensor"))
    through = resharding.between(x.sharding.spec, target, x.shape)
    assert through.spec == P(None, "data", "tensor")

    def largest(program):
        text = program.lower([x]).compile().as_text()
        sizes = re.findall(r"= f32\[([\d,]+)\]", text)
        return max(np.prod([int(n) for n in size.split(",")]) for size in sizes)

    assert largest(resharding._program((through,), (target,))) == x.size // 4
    assert largest(resharding._program((target,), (target,))) == x.size


@pytest.mark.parametrize(
    "source, spec, mesh, expected",
    [
        (P("fsdp"), P(), "data:8", P("data", None)),
        (P("fsdp", "tensor"), P("fsdp", "tensor"), "data:2,fsdp:2,tensor:2", P(("data", "fsdp"), "tensor")),
        (P(None, "fsdp"), P("tensor"), "data:4,tensor:2", P("tensor", "data")),
        (P(), P(), "data:8", P()),  # whole at the source
        (P("fsdp"), P("tensor"), "tensor:8", P("tensor")),  # no axis is idle
    ],
)
def test_the_layout_between(source, spec, mesh, expected):
    target = NamedSharding(mesh_of(mesh), spec)
    assert resharding.between(source, target, (16, 8)).spec == expected
    odd = resharding.between(source, target, (17, 7))
    assert odd == target  # nothing divides


@dataclasses.dataclass(eq=False)
class Device:
    """Of a process that is not there."""

    process_index: int


def test_twins_are_of_the_same_process():
    def of(process, count):
        return [Device(process) for _ in range(count)]

    old = of(0, 2) + of(1, 2)
    new = np.array(of(1, 2) + of(0, 2), object).reshape(2, 1, 1, 1, 2)
    like = SimpleNamespace(
        axis_names=AXES,
        axis_types=(AxisType.Auto,) * 5,
        devices=new,
        size=4,
        shape=dict(zip(AXES, new.shape, strict=True)),
    )
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resharding, "Mesh", lambda devices, *_, **__: made.append(devices))
        _, pairs = resharding.twins(old, like)
        assert all(mine.process_index == theirs.process_index for mine, theirs in pairs.items())
        assert len({*map(id, pairs.values())}) == 4 and made[0].shape == new.shape
        assert resharding.twins(of(0, 4), like) is None  # the others' process has none
        assert resharding.twins(of(0, 3), like) is None


def test_bfloat16_stays_bfloat16():
    mesh = mesh_of("data:2,tensor:4")
    x = jax.device_put(jnp.ones((8, 8), jnp.bfloat16), NamedSharding(mesh_of("fsdp:8"), P("fsdp")))
    assert resharding.reshard([x], [NamedSharding(mesh, P(None, "tensor"))])[0].dtype == jnp.bfloat16
