"""Layouts of the continuous engine's buffers on a mesh: each device makes and keeps its own rows and heads only."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from rl_jax.core.axis_table import spec

HEADS = ("heads", None, None)  # of a cache's leaves after their rows: [B, K, h, S] and [B, K, S, h]


def shardings_of(tree: Any, mesh: Mesh, *, split_rows: bool) -> Any:
    """A NamedSharding for each leaf of a cache, or of buffers beside it (rows first).

    Args:
      tree: of arrays or shapes.
      mesh: of the engine.
      split_rows: whether rows are split over the devices; if not, each group of them that shares heads has all rows.
    """

    def leaf(x):
        others = HEADS if x.ndim == 1 + len(HEADS) else (None,) * (x.ndim - 1)
        return NamedSharding(mesh, spec(x.shape, ("rows" if split_rows else None, *others), dict(mesh.shape)))

    return jax.tree.map(leaf, tree)


def constrain_rows(tree: Any, mesh: Mesh) -> Any:
    """The tree, traced, with its leaves in the layouts of shardings_of."""
    return jax.lax.with_sharding_constraint(tree, shardings_of(tree, mesh, split_rows=True))


def make_in_shards(make: Callable[[], Any], mesh: Mesh, *, split_rows: bool) -> Any:
    """make(), in the layouts of shardings_of, without any device ever holding more than its share."""
    shardings = shardings_of(jax.eval_shape(make), mesh, split_rows=split_rows)
    return jax.jit(make, out_shardings=shardings)()


def on(mesh: Mesh, fn: Callable) -> Callable:
    """Wraps `fn`, to be jitted, so that axis_table.constrain sees `mesh`."""

    @functools.wraps(fn)
    def call(*arguments):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return fn(*arguments)

    return call
