"""config.rollout.mesh: sampling in another layout of the weights than training, on the same devices or on others.

    --config.mesh=fsdp:8 --config.rollout.mesh=data:2,tensor:4                      # the same 8 devices take turns
    --config.mesh=fsdp:4 --config.rollout.mesh=tensor:4 --config.rollout.devices=separate     # 4 devices, and 4 more

Decoding reads every weight for every token: fsdp gathers them each time, tensor does not. The weights are moved once
per step, from device to device (rl_jax.training.resharding); the cost is printed at the start and logged as reshard_s.
No copy is kept while training. Matrices that the model reads in bfloat16 are rounded before they are moved, not after:
half the bytes, the same samples. (Not with adapters: norms of DoRA and merged heads read the
unrounded matrices.) With several processes
each has devices of both meshes, and judges the rows that config.mesh gives it.
"""

import functools
import math
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from experiments.parts import processes
from rl_jax.core.types import Params, Rollout, path_name
from rl_jax.training import distributed, sharding
from rl_jax.training.resharding import reshard

# What the model casts to its own dtype whenever it reads it (rl_jax.models.transformer). Norms are read as they are.
CAST_WHEN_READ = r"(embed/embedding|head/kernel|layers/(q|k|v|o|gate|up|down)/kernel)$"


class Layout(NamedTuple):
    """The sampling layout.

    Attributes:
      mesh: of the rollouts.
      param_shardings: tree of shardings of the weights on it.
      name: for messages.
      dtype: that the matrices are moved in; "" moves them as they are.
      in_8_bits: whether the sampler moves the weights itself, after it has quantised them.
    """

    mesh: Mesh
    param_shardings: Any
    name: str = ""
    dtype: str = ""
    in_8_bits: bool = False


def mesh_sizes(config) -> tuple[dict[str, int], dict[str, int] | None]:
    """The axis sizes of the training mesh and of the rollout mesh (None if they are the same).

    Raises:
      ValueError: if a mesh is malformed, or does not fit the other one or the engine.
    """
    settings, train = config.rollout, sharding.parse_mesh(config.mesh)
    if settings.devices not in ("shared", "separate"):
        raise ValueError(f"rollout.devices={settings.devices!r} is neither 'shared' nor 'separate'")
    if not settings.mesh:
        if settings.devices == "separate":
            raise ValueError("rollout.devices='separate' needs rollout.mesh, the mesh of those devices")
        return train, None
    rollout, count = sharding.parse_mesh(settings.mesh), math.prod(train.values())
    mine = math.prod(rollout.values())
    if settings.devices == "shared" and mine != count:
        raise ValueError(
            f"rollout.mesh={settings.mesh!r} has {mine} devices and mesh={config.mesh!r} {count}: "
            "make them equal, or set rollout.devices=separate"
        )
    if settings.engine.name == "openai":
        raise ValueError("rollout.mesh must be empty with rollout.engine.name='openai': the server has its own layout")
    return train, rollout


def num_devices(config) -> int:
    """The number of devices of a run, including those of separate rollouts."""
    train, rollout = mesh_sizes(config)
    separate = math.prod(rollout.values()) if rollout and config.rollout.devices == "separate" else 0
    return math.prod(train.values()) + separate


def make_layout(config, mesh: Mesh, shapes, dtype: str = "", devices: list | None = None) -> Layout | None:
    """The layout of config.rollout.mesh, None if it is that of the training.

    Args:
      config: of the run.
      mesh: of the training.
      shapes: of the params.
      dtype: as in Layout.
      devices: to choose from, of a slice that is described; None: those that are there.

    Raises:
      ValueError: if the config does not allow it, or a process has no device of the layout.
    """
    sizes, settings = mesh_sizes(config)[1], config.rollout
    if sizes is None:
        return None
    used = list(mesh.devices.flat)
    known = jax.devices() if devices is None else devices
    target = sharding.make_mesh(sizes, [d for d in known if (d in used) == (settings.devices == "shared")])
    processes.check_mesh(target, "rollout.mesh")
    shardings = sharding.tree_shardings(shapes, target)
    in_8_bits = bool(settings.get("weights", "") or settings.get("cache", ""))
    return Layout(target, shardings, f"{settings.mesh}, {settings.devices} devices", dtype, in_8_bits)


@functools.partial(jax.jit, static_argnames="dtype")
def rounded(params: Params, dtype: str) -> Params:
    """The params with the matrices of CAST_WHEN_READ in `dtype`, in the shards in which they are."""

    def leaf(path, x):
        wider = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize > jnp.dtype(dtype).itemsize
        return x.astype(dtype) if wider and re.search(CAST_WHEN_READ, path_name(path)) else x

    return jax.tree_util.tree_map_with_path(leaf, params)


def place(layout: Layout | None, params: Params, clock=None) -> Params:
    """Moves `params` to the sampling layout, from device to device; does nothing if they are there.

    Args:
      layout: None returns `params` unchanged.
      params: in any layout.
      clock: gets the lap reshard_s.
    """
    if layout is None:
        return params
    params = reshard(rounded(params, layout.dtype) if layout.dtype else params, layout.param_shardings)
    if clock is not None:
        clock.lap("reshard_s", params)
    return params


def for_sampler(layout: Layout | None, params: Params, clock=None) -> Params:
    """`place`, but for a sampler that moves them itself, in 8 bits."""
    return params if layout is None or layout.in_8_bits else place(layout, params, clock)


def cost(layout: Layout, params: Params) -> str:
    """What moving `params` to the layout costs, in words. It is measured twice, as the first move compiles."""
    as_moved = rounded(params, layout.dtype) if layout.dtype else params
    moved, seconds = sharding.moved_bytes(as_moved, layout.param_shardings), []
    del as_moved
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(place(layout, params))
        seconds.append(time.perf_counter() - start)
    return (
        f"rollouts on {layout.name}: moving the weights takes {moved:,} bytes per step, {moved // layout.mesh.size:,} "
        f"to each device; {seconds[1]:.3g} s, the first time {seconds[0]:.3g}"
    )


class Placing:
    """A compiled generate(params, tokens, prompt_mask, key) of a layout, for params in any other layout."""

    def __init__(self, generate: Callable, layout: Layout):
        self._generate, self._layout = generate, layout
        self._cache_size = generate._cache_size

    def __call__(self, *arguments) -> Rollout:
        """Samples. Raises ValueError if the rows do not divide over the layout's devices."""
        return self._generate(*self._placed(*arguments))

    def lower(self, *arguments):
        """Lowers the program for these arguments, like `lower` of a jitted function."""
        return self._generate.lower(*self._placed(*arguments))

    def _placed(self, params: Params, tokens, prompt_mask, key) -> tuple:
        shards = sharding.row_shards(self._layout.mesh)
        if len(tokens) % shards:
            raise ValueError(f"{len(tokens)} prompts do not divide over the {shards} row shards of rollout.mesh")
        rows, everywhere = sharding.batch_sharding(self._layout.mesh), sharding.replicated(self._layout.mesh)
        tokens, prompt_mask = distributed.place((tokens, prompt_mask), rows)
        return place(self._layout, params), tokens, prompt_mask, distributed.place(key, everywhere)
