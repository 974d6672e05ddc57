"""An output head split over the vocabulary, so that a mesh sends hidden states to the head and never the head itself.

A layer's weights are gathered once and used on all of a micro-batch. A head that is applied to one slice of columns at
a time would be gathered for each of them, in both directions: of an 8B model on 64 chips that was half of all bytes.
Here every device has the columns of some tokens, sees the slice's rows of all devices that share the vocabulary, and
adds up its part of the softmax's sums. What is sent per slice is its hidden states and their gradient, and a few
numbers per token.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rl_jax.core.axis_table import RULES, mesh_sizes
from rl_jax.core.types import TokenScores

# Axes that can share the vocabulary; the others have rows of their own. First the one that splits the weights' V where
# they rest: then one all-to-all moves them.
VOCABULARY = ("tensor", "fsdp", "context")


class SplitHead(NamedTuple):
    """A head's weights, split, and what it does with any of its columns.

    Attributes:
      weights: float [N, D, V], V split over `axes`. N copies, one per device that has rows of its own: a gradient is
        then added up over them once, rather than after every slice.
      logits: (weights [D, v], hidden [..., D]) -> float32 [..., v]. It treats every column alike.
      axes: of the mesh that split V.
      mesh: of the context in which it was made.
    """

    weights: chex.Array
    logits: Callable
    axes: tuple[str, ...]
    mesh: AbstractMesh

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes that split rows."""
        return tuple(axis for axis in RULES["rows"] if self.mesh.shape.get(axis, 1) > 1)

    def takes(self, rows: int) -> bool:
        """Whether that many rows divide over the devices that split rows."""
        return rows % math.prod(self.mesh.shape[axis] for axis in self.row_axes) == 0


def split_head(make_weights: Callable[[], chex.Array], vocab_size: int, logits: Callable) -> SplitHead | None:
    """The head, split over the context's mesh; None if the mesh splits nothing, or the vocabulary does not divide.

    Args:
      make_weights: () -> float [D, V].
      vocab_size: V.
      logits: (weights [D, v], hidden [..., D]) -> float32 [..., v], for any v of the columns.
    """
    mesh, sizes = jax.sharding.get_abstract_mesh(), mesh_sizes()
    if any(kind != AxisType.Auto for kind in mesh.axis_types):  # inside of a shard_map everything is local
        return None
    axes, count = (), 1
    for axis in VOCABULARY:
        if sizes.get(axis, 1) > 1 and vocab_size % (count * sizes[axis]) == 0:
            axes, count = (*axes, axis), count * sizes[axis]
    if not axes or (sizes.get("fsdp", 1) > 1 and "fsdp" not in axes):
        return None
    own = tuple(axis for axis in RULES["rows"] if sizes.get(axis, 1) > 1 and axis not in axes)
    weights = make_weights()
    copies = jnp.broadcast_to(weights[None], (math.prod(sizes[axis] for axis in own), *weights.shape))
    copies = jax.lax.with_sharding_constraint(copies, PartitionSpec(own or None, None, axes))
    return SplitHead(copies, logits, axes, mesh)


def make_split_scores(split: SplitHead, *, temperature: float, sum_pi_squared: bool) -> Callable:
    """head(weights, hidden [B, c, D], tokens int32 [B, c]) -> TokenScores [B, c] of softmax(logits / temperature).

    With m the largest logit, over the whole vocabulary like the sums:

        log p = s_token - log Z,   H = log Z - sum_v e^s_v s_v / Z,   s = logits / temperature - m,   Z = sum_v e^s_v

    The gradient of the hidden states is added up in their own dtype, as every other product split over `tensor` is.

    Args:
      split: for its logits, axes and mesh; `weights` are handed in, so that they can be differentiated.
      temperature: > 0.
      sum_pi_squared: also give TokenScores.sum_pi_squared.
    """
    gathered = tuple(axis for axis in split.row_axes if axis in split.axes)
    others = tuple(axis for axis in split.axes if axis not in gathered)

    def summed(x):  # [k, B', c] of all rows, this device's share of the vocabulary -> [k, B, c] of its own rows
        x = jax.lax.psum(x, others) if others else x
        return jax.lax.psum_scatter(x, gathered, scatter_dimension=1, tiled=True) if gathered else x

    def whole(x):  # rows [B, ...] -> those of all devices that share the vocabulary
        return jax.lax.all_gather(x, gathered, axis=0, tiled=True) if gathered else x

    def local(weights, hidden, tokens):
        logits = split.logits(weights[0], whole(hidden)) / temperature
        top = jax.lax.pmax(jnp.max(jax.lax.stop_gradient(logits), axis=-1), split.axes)
        shifted = logits - top[..., None]
        places = jnp.arange(shifted.shape[-1]) + jax.lax.axis_index(split.axes) * shifted.shape[-1]
        picked = jnp.where(places[None, None] == whole(tokens)[..., None], shifted, 0.0)
        masses = jnp.exp(shifted)
        parts = [masses, picked, masses * shifted] + ([jnp.square(masses)] if sum_pi_squared else [])
        total, picked, moment, *squares = summed(jnp.stack([jnp.sum(part, axis=-1) for part in parts]))
        log_total = jnp.log(total)
        squares = squares[0] / jnp.square(total) if squares else None
        return TokenScores(picked - log_total, log_total - moment / total, squares)

    def head(weights, hidden, tokens):
        rows = PartitionSpec(split.row_axes or None)
        own = tuple(axis for axis in split.row_axes if axis not in split.axes)
        specs = (PartitionSpec(own or None, None, split.axes), rows, rows)
        return jax.shard_map(local, mesh=split.mesh, in_specs=specs, out_specs=rows)(weights, hidden, tokens)

    return head
