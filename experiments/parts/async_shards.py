"""Weights between two meshes, shard by shard (rl_jax.flow.shards): no host has the whole of an array.

The trainer hands over what its devices hold, each value once. A sampler, whose mesh may have other axes, reads for
each of its devices the boxes that this device will hold, and nothing else. Values are moved and not computed with, so
the bits are those of whole arrays.
"""

from typing import Any

import jax
import numpy as np

from rl_jax.core.types import Params
from rl_jax.flow import payload
from rl_jax.flow.shards import Box, Cut, Piece, Slices


def cut(params: Params) -> Params:
    """The params with a Cut in place of each array: copies on the host of the shards of this process's devices.

    params: a nested dict of jax.Arrays. Of values that several devices hold, the first one's are taken.
    """

    def leaf(x: jax.Array) -> Cut:
        held = [shard for shard in x.addressable_shards if shard.replica_id == 0]
        pieces = [Piece(_corners(shard.index, x.shape)[0], np.array(shard.data), shard.device.id) for shard in held]
        return Cut(x.shape, x.dtype.name, pieces)

    return jax.tree.map(leaf, params)


def boxes_of(slices: Slices, shardings: Any) -> list[Box]:
    """The boxes that the devices of these shardings need, each once. shardings: a nested dict like the params."""
    wanted = {}
    for name, sharding in payload.flatten(shardings, leaf=lambda name, sharding: sharding).items():
        shape = slices.leaves[name][0]
        for index in sharding.addressable_devices_indices_map(shape).values():
            wanted[name, *_corners(index, shape)] = None
    return list(wanted)


def place(slices: Slices, shardings: Any) -> Params:
    """The params on the mesh of these shardings, of which only what its devices need is read.

    Args:
      slices: of a version, from a link.
      shardings: a nested dict of Shardings like the params.

    Raises:
      ValueError: if the published arrays are not those of the shardings, or pieces are missing.
      FileNotFoundError: if newer versions have replaced this one meanwhile.
    """
    wanted = payload.flatten(shardings, leaf=lambda name, sharding: sharding)
    if set(wanted) != set(slices.leaves):
        differ = sorted(set(wanted) ^ set(slices.leaves))
        raise ValueError(f"the published weights are of another model: {', '.join(differ[:6])}")
    boxes = boxes_of(slices, shardings)
    found = dict(zip(boxes, slices.read(boxes), strict=True))

    def leaf(name: str, sharding) -> jax.Array:
        shape = slices.leaves[name][0]
        return jax.make_array_from_callback(shape, sharding, lambda index: found[name, *_corners(index, shape)])

    return payload.nest({name: leaf(name, sharding) for name, sharding in wanted.items()})


def _corners(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(first corner, end) of a shard's slices."""
    ends = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return tuple(start for start, _ in ends), tuple(stop for _, stop in ends)
