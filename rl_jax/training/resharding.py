"""Moves arrays from one mesh to another, from device to device, in one process or in several.

    training on fsdp:8            [embed / 8,          mlp]
    all-to-all                    [embed / 2 (data),   mlp / 4 (tensor)]
    sampling on data:2,tensor:4   [embed,              mlp / 4 (tensor)]

Asked for the last layout at once, XLA gathers each array whole on every device and drops most of it: 3.8 GB of
bfloat16 for one matrix of all layers of an 8B model. So it is told the layout between the two (`between`).

If the meshes have no device in common, arrays are first laid out among their old devices as they will be among the new
ones; then each device sends its part to its twin, a new device of the same process. If there are no such twins, they go
through the hosts.
"""

import functools
import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_jax.core.axis_table import RULES
from rl_jax.training import distributed


def reshard(tree: Any, shardings: Any) -> Any:
    """The arrays of `tree` in `shardings`. Those that are there already are returned as they are.

    Every process must call it, with equal trees of shardings.

    Args:
      tree: of arrays. Those of several processes must be NamedSharding's.
      shardings: tree of NamedSharding, all on one mesh.
    """
    leaves, structure = jax.tree.flatten(tree)
    targets = structure.flatten_up_to(shardings)
    moving = [i for i, (x, to) in enumerate(zip(leaves, targets, strict=True)) if not _is_there(x, to)]
    moved = _move([leaves[i] for i in moving], [targets[i] for i in moving])
    for i, x in zip(moving, moved, strict=True):
        leaves[i] = x
    return jax.tree.unflatten(structure, leaves)


def between(source: PartitionSpec, target: NamedSharding, shape: tuple[int, ...]) -> NamedSharding:
    """The layout that an array passes through: the target, whose idle axes split what is split at the source.

    From there to the target is an all-gather over these axes, and to there from the source an exchange of equal parts.
    It is the target itself if nothing is split at the source, or the axes do not divide it.

    Args:
      source: of the array as it is.
      target: of the array as it will be.
      shape: of the array.
    """
    sizes, spec = target.mesh.shape, _padded(target.spec, len(shape))
    used = {axis for entry in spec for axis in _axes(entry)}
    idle = [axis for axis, size in sizes.items() if size > 1 and axis not in used]
    for i, entry in enumerate(_padded(source, len(shape))):
        axes = (*idle, *_axes(spec[i]))
        if _axes(entry) and idle and shape[i] % math.prod(sizes[axis] for axis in axes) == 0:
            ordered = tuple(axis for axis in sizes if axis in axes)
            return NamedSharding(target.mesh, PartitionSpec(*spec[:i], ordered, *spec[i + 1 :]))
    return target


def twins(old: list[jax.Device], new: Mesh) -> tuple[Mesh, dict[jax.Device, jax.Device]] | None:
    """A mesh of the devices `old` that splits arrays as `new` does, and which of them has the part of each new one.

    Only the data axis, which splits no parameter, may have another size. A twin is of the same process.

    Args:
      old: all devices that have the arrays.
      new: the mesh to move them to.

    Returns:
      (mesh, {device of `new`: device of `old`}), or None if the devices cannot be paired so.
    """
    axis = list(new.axis_names).index(RULES["rows"][0])
    copies, rest = divmod(new.shape[RULES["rows"][0]] * len(old), new.size)
    places = np.moveaxis(new.devices, axis, 0)
    if rest or not copies or max(copies, len(places)) % min(copies, len(places)):
        return None
    free: dict[int, list] = {}
    for device in old:
        free.setdefault(device.process_index, []).append(device)
    mirror, pairs = np.empty((copies, *places.shape[1:]), object), {}
    for index in np.ndindex(mirror.shape):
        first = index[0] * len(places) // copies
        group = [places[i, *index[1:]] for i in range(first, first + max(1, len(places) // copies))]
        owners = {device.process_index for device in group}
        if len(owners) > 1 or not free.get(group[0].process_index):
            return None
        mirror[index] = free[group[0].process_index].pop(0)
        pairs |= {device: mirror[index] for device in group if device not in pairs}
    return Mesh(np.moveaxis(mirror, 0, axis), new.axis_names, axis_types=new.axis_types), pairs


def _is_there(x: Any, sharding: NamedSharding) -> bool:
    return isinstance(x, jax.Array) and x.committed and x.sharding == sharding


def _move(leaves: list, targets: list[NamedSharding]) -> list[jax.Array]:
    """The leaves in other shardings."""
    if not leaves:
        return []
    new = targets[0].mesh
    sources = [x.sharding if isinstance(x, jax.Array) else None for x in leaves]
    if not all(isinstance(source, NamedSharding) for source in sources):  # what each process has whole
        return [distributed.place(x, to) for x, to in zip(leaves, targets, strict=True)]
    old = sources[0].mesh
    if {*old.devices.flat} == {*new.devices.flat}:
        return _exchange(leaves, targets)
    found = None if {*old.devices.flat} & {*new.devices.flat} else twins(list(old.devices.flat), new)
    if found is None:
        return [distributed.place(distributed.whole(x), to) for x, to in zip(leaves, targets, strict=True)]
    mirror, pairs = found
    return _send(_exchange(leaves, [NamedSharding(mirror, to.spec) for to in targets]), targets, pairs)


def _exchange(leaves: list[jax.Array], targets: list[NamedSharding]) -> list[jax.Array]:
    """The leaves in other shardings over the same devices."""
    if [*leaves[0].sharding.mesh.devices.flat] == [*targets[0].mesh.devices.flat]:
        return exchange(leaves, targets)(leaves)
    # Meshes of a slice differ in the order of their devices, and a program takes one: jax renames the parts first.
    return jax.device_put(jax.device_put(leaves, _through(leaves, targets)), targets)


def exchange(leaves: list, targets: list[NamedSharding]):
    """The program that moves arrays to other shardings over the same devices, in the same order.

    Args:
      leaves: arrays, or their shapes with NamedSharding's.
      targets: a sharding for each.
    """
    return _program(tuple(_through(leaves, targets)), tuple(targets))


def _through(leaves: list, targets: list[NamedSharding]) -> list[NamedSharding]:
    return [between(x.sharding.spec, to, x.shape) for x, to in zip(leaves, targets, strict=True)]


@functools.lru_cache(maxsize=16)
def _program(through: tuple[NamedSharding, ...], targets: tuple[NamedSharding, ...]):
    def move(leaves):
        return [jax.lax.with_sharding_constraint(x, at) for x, at in zip(leaves, through, strict=True)]

    return jax.jit(move, out_shardings=list(targets))


def _send(leaves: list[jax.Array], targets: list[NamedSharding], pairs: dict) -> list[jax.Array]:
    """Each part to the device of another mesh that is the twin of the one that has it."""
    new = [device for device in targets[0].mesh.devices.flat if device.process_index == jax.process_index()]
    parts = [{shard.device: shard.data for shard in x.addressable_shards} for x in leaves]
    sent = jax.device_put([[held[pairs[device]] for device in new] for held in parts], [new] * len(leaves))
    return [
        jax.make_array_from_single_device_arrays(x.shape, to, shards)
        for x, to, shards in zip(leaves, targets, sent, strict=True)
    ]


def _padded(spec: PartitionSpec, rank: int) -> tuple:
    return (*spec, *(None,) * (rank - len(spec)))


def _axes(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
