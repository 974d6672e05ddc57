"""Products with weights that are gathered from the devices of `fsdp`, and whose gradients go back along lines of them.

XLA adds up a weight's gradient over all devices of `fsdp` at once. For more than a line of chips the TPU compiler has
no reduce-scatter: it sends the whole sum to every device, twice the bytes, and each drops what it does not keep. Along
one line it has one. So here a gradient goes along the lines one way, and what is left of it along those across.
"""

import functools
import math
from collections.abc import Callable

import chex
import jax
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rl_jax.core.axis_table import devices_over, mesh_sizes, spec

AXIS = "fsdp"
# Devices that split a weight, up to which XLA sends it around under the product that it is for. A train step of 1B on
# v5e:4x4 so sends 52 GB, 4 of them synchronously, and along lines 29 and 13; on v5e:4x8 49 and 47, or 26 and 24.
LONGEST_RING = 16

Lines = tuple[tuple[tuple[int, ...], ...], ...]  # groups of the axis's devices: those of a grid's rows, of its columns


def grid_lines(devices: int) -> Lines | None:
    """(The rows of a grid of the devices 0, 1, ... , its columns), as square as their number allows.

    8 x 8 for 64: then each is a line of chips, for a mesh that numbers them along its slice's rows.

    Args:
      devices: how many there are.

    Returns:
      None if they are one line whatever the grid.
    """
    width = max(n for n in range(1, math.isqrt(devices) + 1) if devices % n == 0)
    if width == 1:
        return None
    rows = tuple(tuple(range(first, first + width)) for first in range(0, devices, width))
    return rows, tuple(zip(*rows, strict=True))


def gathered_products(*, again: bool) -> tuple[Callable | None, Callable | None]:
    """The dot_general of nn.Dense for kernels [D, F], and for [F, D], whose D the context's mesh splits over many.

    Args:
      again: gather a weight once more in the backward pass, for a layer that is not rematerialised: otherwise every
        device keeps all weights of all layers.

    Returns:
      (None, None), which is jax.lax.dot_general, without such a mesh.
    """
    mesh, devices = jax.sharding.get_abstract_mesh(), devices_over("embed")
    lines = grid_lines(devices) if devices > LONGEST_RING else None
    if lines is None or any(kind != AxisType.Auto for kind in mesh.axis_types):  # inside of a shard_map all is local
        return None, None
    names = (("embed", "mlp"), ("mlp", "embed"))
    return tuple(functools.partial(_product, mesh, lines, again, of_kernel) for of_kernel in names)


def _product(
    mesh: AbstractMesh,
    lines: Lines,
    again: bool,
    names: tuple[str, str],
    x: chex.Array,
    kernel: chex.Array,
    dimension_numbers: tuple,
    **keywords,
) -> chex.Array:
    """x [N, d] or [B, T, d] times the kernel, of dimensions `names`. The rest is as in jax.lax.dot_general."""
    sizes, split = mesh_sizes(), names.index("embed")
    of_kernel = spec(kernel.shape, names, sizes)
    inner = of_kernel[0] if split else None  # what splits the sum of the product
    of_x = spec(x.shape, ("rows", *["tokens"] * (x.ndim - 2), "mlp" if inner else None), sizes)
    if of_x[0] is None or of_kernel[split] != AXIS:  # too few rows, or a model too narrow for the mesh
        return jax.lax.dot_general(x, kernel, dimension_numbers, **keywords)
    of_y = PartitionSpec(*of_x[:-1], None if split else of_kernel[1])
    copies = tuple(sorted(_axes(of_x) - _axes(of_kernel)))  # axes with rows of their own, and the same weights

    def local(x, kernel):
        # Gradients are then added up over these when each device has its own part only.
        kernel = jax.lax.pcast(kernel, copies, to="varying") if copies else kernel
        # D first: parts of a last dimension are narrower than a TPU's lanes, and there is no reduce-scatter of them.
        kernel = kernel.T if split else kernel
        for groups in lines:
            kernel = jax.lax.all_gather(kernel, AXIS, axis=0, tiled=True, axis_index_groups=groups)
        y = jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (split,)), ((), ())), **keywords)
        return jax.lax.psum(y, inner) if inner else y

    local = jax.checkpoint(local) if again else local
    return jax.shard_map(local, mesh=mesh, in_specs=(of_x, of_kernel), out_specs=of_y)(x, kernel)


def _axes(layout: PartitionSpec) -> set[str]:
    return set(jax.tree.leaves(tuple(layout)))
