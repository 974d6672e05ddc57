"""config.rollout.mesh: sampling in another layout of the weights than training, on the same devices or on others.

    --config.mesh=fsdp:8 --config.rollout.mesh=data:2,tensor:4                      # the same 8 devices take turns
    --config.mesh=fsdp:4 --config.rollout.mesh=tensor:4 --config.rollout.devices=separate     # 4 devices, and 4 more

Decoding reads every weight for every token: fsdp gathers them each time, tensor does not. The weights are moved once
per step, from device to device; the cost is printed at the start and logged as reshard_s. No copy is kept while
training.
"""

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from experiments.parts import processes
from rl_jax.core.types import Params, Rollout
from rl_jax.training import sharding


class Layout(NamedTuple):
    """The sampling layout.

    Attributes:
      mesh: of the rollouts.
      param_shardings: tree of shardings of the weights on it.
      name: for messages.
    """

    mesh: Mesh
    param_shardings: Any
    name: str = ""


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


def make_layout(config, mesh: Mesh, shapes) -> Layout | None:
    """The layout of config.rollout.mesh, None if it is that of the training.

    Args:
      config: of the run.
      mesh: of the training.
      shapes: of the params.

    Raises:
      ValueError: if the config or the number of processes does not allow it.
    """
    sizes, settings = mesh_sizes(config)[1], config.rollout
    if sizes is None:
        return None
    processes.one_process(f"rollout.mesh={settings.mesh!r}")
    used = list(mesh.devices.flat)
    target = sharding.make_mesh(sizes, [d for d in jax.devices() if (d in used) == (settings.devices == "shared")])
    return Layout(target, sharding.tree_shardings(shapes, target), f"{settings.mesh}, {settings.devices} devices")


def place(layout: Layout | None, params: Params, clock=None) -> Params:
    """Moves `params` to the sampling layout, from device to device; does nothing if they are there.

    Args:
      layout: None returns `params` unchanged.
      params: in any layout.
      clock: gets the lap reshard_s.
    """
    if layout is None:
        return params
    params = jax.device_put(params, layout.param_shardings)
    if clock is not None:
        clock.lap("reshard_s", params)
    return params


def cost(layout: Layout, params: Params) -> str:
    """What moving `params` to the layout costs, in words. It is measured twice, as the first move compiles."""
    moved, seconds = sharding.moved_bytes(params, layout.param_shardings), []
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
        key = jax.device_put(key, sharding.replicated(self._layout.mesh))
        return place(self._layout, params), tokens, prompt_mask, key
