"""The one table of layouts: which axes of a mesh split a dimension, by the dimension's name.

    data     rows
    expert   rows, and the experts of a mixture. Outside of the experts its devices hold rows of their own, as in
             MaxText; otherwise each of them would repeat the attention
    fsdp     rows, and every parameter (and what the optimizer keeps of it) along its model dimension
    context  the tokens of a row, in forwards over whole rows; queries stay, keys and values are gathered,
             or with attention="ring" passed around (rl_jax.models.transformer.ring)
    tensor   heads, the inner dimension of an MLP, the vocabulary

A model gives XLA's sharding propagation a hint with `constrain(x, "rows", "tokens", None)`. The mesh is that of the
context (jax.set_mesh, sharding.on_mesh); without a mesh it does nothing.
"""

import math

import chex
import jax
from jax.sharding import AxisType, PartitionSpec

AXES = ("data", "expert", "fsdp", "context", "tensor")  # of a mesh; the last one's devices are the nearest neighbours
RULES = {
    "rows": ("data", "expert", "fsdp"),
    "looked_up_rows": ("data", "expert"),  # of a table that is split over fsdp: then one all-to-all makes them "rows"
    "tokens": ("context",),
    "embed": ("fsdp",),
    "experts": ("expert",),
    "heads": ("tensor",),
    "mlp": ("tensor",),
    "vocab": ("tensor",),
}


def axes_of(name: str | None, sizes: dict[str, int]) -> tuple[str, ...]:
    """The axes with more than one device that split a dimension of this name; none for None."""
    return tuple(axis for axis in RULES[name] if sizes.get(axis, 1) > 1) if name else ()


def spec(shape: tuple[int, ...], names: tuple[str | None, ...], sizes: dict[str, int]) -> PartitionSpec:
    """The layout of an array. A dimension that its axes do not divide is not split: a tiny model runs on any mesh.

    Args:
      shape: of the array.
      names: of its dimensions.
      sizes: of the mesh, axis -> devices.
    """
    result = []
    for length, name in zip(shape, names, strict=True):
        axes = axes_of(name, sizes)
        fits = axes and length % math.prod(sizes[axis] for axis in axes) == 0
        result.append((axes if len(axes) > 1 else axes[0]) if fits else None)
    return PartitionSpec(*result)


def mesh_sizes() -> dict[str, int]:
    """axis -> devices of the context's mesh, for the axes that XLA partitions over; {} without a mesh.

    Axes of an enclosing pmap or shard_map are left out: inside it an array is local to its device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
    return {axis: size for axis, size, kind in kinds if kind == AxisType.Auto and axis in AXES}


def devices_over(name: str) -> int:
    """Number of devices of the context's mesh that split a dimension of this name."""
    sizes = mesh_sizes()
    return math.prod(sizes[axis] for axis in axes_of(name, sizes))


def constrain(x: chex.Array, *names: str | None) -> chex.Array:
    """`x` constrained to the layout of its dimensions' names; None is not split. Without a mesh, `x` itself."""
    sizes = mesh_sizes()
    if math.prod(sizes.values()) == 1:
        return x
    return jax.lax.with_sharding_constraint(x, spec(x.shape, names, sizes))
