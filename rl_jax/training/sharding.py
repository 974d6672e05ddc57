"""Meshes and layouts on them: parameters by path, rows, and moves from one layout to another.

The rules name dimensions; rl_jax.core.axis_table says which mesh axes split each dimension. XLA does the rest.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rl_jax.core.axis_table import AXES, RULES, spec
from rl_jax.core.types import Model, path_name

# The first rule whose pattern matches the path ("params/layers/q/kernel") wins. Leaves without a rule (norms,
# counters) are replicated. The path of an optimizer moment contains its parameter's path, so it gets the same layout.
PARAMS = (
    (r"embed/embedding$", ("vocab", "embed")),
    (r"head/kernel$", ("embed", "vocab")),
    (r"layers/(q|k|v)/kernel$", (None, "embed", "heads")),  # [L, D, heads * h]
    (r"layers/(gate|up)/kernel$", (None, "embed", "mlp")),
    (r"layers/o/kernel$", (None, "heads", "embed")),
    (r"layers/down/kernel$", (None, "mlp", "embed")),
    (r"layers/(q|k|v)/bias$", (None, "heads")),
    (r"layers/(gate|up)/bias$", (None, "mlp")),
    (r"layers/experts/(gate|up)$", (None, "experts", "embed", "mlp")),  # [L, E, D, mlp]
    (r"layers/experts/down$", (None, "experts", "mlp", "embed")),
    (r"layers/experts/router/kernel$", (None, "embed", None)),
)


def parse_mesh(text: str) -> dict[str, int]:
    """Axis sizes of a mesh from text; "" is one device.

        "data:2,fsdp:4" -> {"data": 2, "expert": 1, "fsdp": 4, "context": 1, "tensor": 1}

    Raises:
      ValueError: if an axis does not exist or is repeated, or a size is not a positive integer.
    """
    sizes = {}
    for part in filter(None, text.split(",")):
        name, _, size = part.strip().partition(":")
        if name not in AXES or name in sizes or not size.isdecimal() or int(size) < 1:
            raise ValueError(
                f"mesh {text!r}: {part!r} is not AXIS:SIZE, with AXIS one of {', '.join(AXES)}, each at most once"
            )
        sizes[name] = int(size)
    return {axis: sizes.get(axis, 1) for axis in AXES}


def make_mesh(sizes: dict[str, int], devices: list | None = None) -> Mesh:
    """A mesh of `sizes` (see parse_mesh) over the first devices.

    On a TPU jax orders them so that an axis is a ring of neighbours. It cannot if they are no cuboid of the slice, as
    half of each host's chips are; then they keep their order.

    Args:
      sizes: devices per axis.
      devices: default: all devices of jax.

    Raises:
      ValueError: if there are too few devices.
    """
    devices = jax.devices() if devices is None else devices
    needed = math.prod(sizes.values())
    if len(devices) < needed:
        raise ValueError(f"mesh {sizes} needs {needed} devices, but {len(devices)} are available")
    shape, types = tuple(sizes[axis] for axis in AXES), (AxisType.Auto,) * len(AXES)
    if not is_cuboid(devices[:needed]):
        return Mesh(np.array(devices[:needed]).reshape(shape), AXES, axis_types=types)
    return jax.make_mesh(shape, AXES, axis_types=types, devices=devices[:needed])


def is_cuboid(devices: Sequence[jax.Device]) -> bool:
    """Whether a TPU's devices fill a cuboid of their slice; True for devices without coordinates."""
    places = {tuple(device.coords) for device in devices if hasattr(device, "coords")}
    return math.prod(max(axis) - min(axis) + 1 for axis in zip(*places, strict=True)) == len(places) or not places


def on_mesh(fn: Callable, mesh: Mesh) -> Callable:
    """Wraps `fn`, to be jitted, so that axis_table.constrain sees `mesh`, or the context's own mesh if it has one.

    The jit determines the devices from the shardings of its arguments. Outside of a jit, where the arguments are
    concrete, nothing changes.
    """

    @functools.wraps(fn)
    def call(*arguments, **keywords):
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((arguments, keywords)))
        if not traced or not jax.sharding.get_abstract_mesh().empty:
            return fn(*arguments, **keywords)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return fn(*arguments, **keywords)

    return call


def model_on_mesh(model: Model, mesh: Mesh) -> Model:
    """`model` with every function but init wrapped by `on_mesh`, so that callers can jit them without further care."""
    functions = {name: fn for name, fn in model._asdict().items() if callable(fn) and name != "init"}
    return model._replace(**{name: on_mesh(fn, mesh) for name, fn in functions.items()}) if mesh.size > 1 else model


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of [B, ...]: rows over data, expert and fsdp. B must be a multiple of row_shards(mesh).

    Tokens are not split here: a forward over rows splits them over context itself.
    """
    return NamedSharding(mesh, PartitionSpec(tuple(axis for axis in RULES["rows"] if axis in mesh.shape)))


def row_shards(mesh: Mesh) -> int:
    """Number of devices over which the rows of a batch are split."""
    return math.prod(mesh.shape.get(axis, 1) for axis in RULES["rows"])


def tree_shardings(tree, mesh: Mesh, rules=PARAMS):
    """A NamedSharding for every leaf (array or shape struct) of `tree`, by the first matching rule of `rules`.

    A dimension that is not divisible by its axes stays whole, so a tiny model runs on any mesh.
    """

    def leaf(path, x):
        name = path_name(path)
        matching = (names for pattern, names in rules if re.search(pattern, name) and len(names) == len(x.shape))
        names = next(matching, None)
        return NamedSharding(mesh, spec(x.shape, names, dict(mesh.shape)) if names else PartitionSpec())

    return jax.tree_util.tree_map_with_path(leaf, tree)


def moved_bytes(tree, shardings) -> int:
    """Bytes that all devices together receive when `tree` (arrays or shapes with a sharding) moves to `shardings`.

    Counts, for each new shard, what its device does not hold yet: a lower bound for any way of moving.
    """

    def leaf(x, to):
        source, target = (s.devices_indices_map(x.shape) for s in (x.sharding, to))
        missing = sum(_volume(x.shape, part) - _volume(x.shape, part, source.get(d)) for d, part in target.items())
        return missing * x.dtype.itemsize

    return sum(jax.tree.leaves(jax.tree.map(leaf, tree, shardings)))


def _volume(shape: tuple[int, ...], *parts: tuple[slice, ...] | None) -> int:
    """Number of elements of an array of this shape that are in all `parts`; None is the empty part."""
    if None in parts:
        return 0
    ranges = [[part[i].indices(length)[:2] for part in parts] for i, length in enumerate(shape)]
    return math.prod(max(0, min(stop for _, stop in ends) - max(start for start, _ in ends)) for ends in ranges)
