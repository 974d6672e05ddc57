"""One mesh, axes `data, fsdp, tensor`; rules from the path of a parameter to its PartitionSpec. XLA does the rest."""

import math
import re

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rl_jax.types import path_name

AXES = ("data", "fsdp", "tensor")

# The first rule whose pattern is found in the path ("params/layers/q/kernel") wins. Leaves without a rule (norms,
# counters) are replicated. Optimizer moments carry their parameter's path inside their own, so they follow it.
RULES = (
    (r"embed/embedding$", ("tensor", "fsdp")),  # [V, D]
    (r"head/kernel$", ("fsdp", "tensor")),  # [D, V]
    (r"layers/(q|k|v|gate|up)/kernel$", (None, "fsdp", "tensor")),  # [L, D, heads or mlp]
    (r"layers/(o|down)/kernel$", (None, "tensor", "fsdp")),  # [L, heads or mlp, D]
    (r"layers/(q|k|v|gate|up)/bias$", (None, "tensor")),  # [L, heads or mlp]
    (r"layers/experts/(gate|up)$", (None, None, "fsdp", "tensor")),  # [L, E, D, mlp]
    (r"layers/experts/down$", (None, None, "tensor", "fsdp")),  # [L, E, mlp, D]
    (r"layers/experts/router/kernel$", (None, "fsdp", None)),  # [L, D, E]
)


def parse_mesh(text: str) -> dict[str, int]:
    """"data:2,fsdp:4" -> {"data": 2, "fsdp": 4, "tensor": 1}. "" is one device.

    Raises ValueError for an axis that does not exist, stands twice, or a size that is no positive integer.
    """
    sizes = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.strip().partition(":")
        if name not in AXES or name in sizes or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"mesh {text!r}: {part!r} is not AXIS:SIZE with AXIS one of {', '.join(AXES)}, each once")
        sizes[name] = int(size)
    return {axis: sizes.get(axis, 1) for axis in AXES}


def make_mesh(sizes: dict[str, int], devices: list | None = None) -> Mesh:
    """A mesh of `sizes` (see parse_mesh) over the first devices. Raises ValueError where there are too few."""
    devices = jax.devices() if devices is None else devices
    needed = math.prod(sizes.values())
    if len(devices) < needed:
        raise ValueError(f"mesh {sizes} needs {needed} devices, but {len(devices)} are there")
    shape = tuple(sizes[axis] for axis in AXES)
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices[:needed])


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of [B, ...]: rows over data and fsdp. B must be a multiple of their product."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def tree_shardings(tree, mesh: Mesh, rules=RULES):
    """A NamedSharding for every leaf (arrays or shape structs) of `tree`, by `rules`.

    A dimension that its axis does not divide stays whole: a tiny model runs on any mesh.
    """

    def leaf(path, x):
        name = path_name(path)
        axes = next((axes for pattern, axes in rules if re.search(pattern, name) and len(axes) == len(x.shape)), ())
        fitting = (a if a and size % mesh.shape[a] == 0 else None for a, size in zip(axes, x.shape, strict=False))
        return NamedSharding(mesh, PartitionSpec(*fitting))

    return jax.tree_util.tree_map_with_path(leaf, tree)
