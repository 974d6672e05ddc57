"""An output head split over the vocabulary: a mesh sends hidden states to it, and the head at most once for all slices.

A layer's weights are gathered once and used on all of a micro-batch. A head that is applied to one slice of columns at
a time would be gathered for each of them, in both directions: of an 8B model on 64 chips that was half of all bytes.
Here every device has the columns of some tokens, sees the rows of the devices of its ring, and adds up its part of the
softmax's sums. What is sent per slice is its hidden states and their gradient, and a few numbers per token.

They go around a ring of devices, each of which multiplies the rows that it has while the next ones arrive, so that none
waits. A ring of 64 would send them 63 times. Several smaller ones, with a copy of the vocabulary each, send less:
with 512 tokens a device and a vocabulary of 128,256 it is 8 rings of 8, and hidden states are sent 7 times.

A vocabulary that the devices do not divide (151,936 over 256) gets columns without a token, of no probability.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rl_jax.core.axis_table import RULES, constrain, mesh_sizes
from rl_jax.core.types import TokenScores

# Axes that can share the vocabulary; the others have rows of their own. First the one that splits the weights' V where
# they rest: then one all-to-all moves them, if V divides.
VOCABULARY = ("tensor", "fsdp", "context")
RING = "fsdp"  # the one of them that splits rows, too
NO_LOGIT = -1e30  # of a column without a token: its e^s is 0, and sums of as many as there are stay finite
LONGEST = 8  # devices of a ring. A v5e waits for what is sent farther than a few chips, and its rows are of 4, 8 or 16


class SplitHead(NamedTuple):
    """A head's weights, split, and what it does with any of its columns.

    Attributes:
      weights: float [D, V'], V' split over `axes`: V columns, then columns of zeros up to a multiple of the devices.
      vocab_size: V.
      product: (weights [D, v], hidden [..., D]) -> float32 [..., v], linear in both.
      cap: float32 [..., v] -> logits [..., v], elementwise.
      axes: of the mesh that split V; RING is the last one.
      mesh: of the context in which it was made.
    """

    weights: chex.Array
    vocab_size: int
    product: Callable
    cap: Callable
    axes: tuple[str, ...]
    mesh: AbstractMesh

    @property
    def row_axes(self) -> tuple[str, ...]:
        """The axes that split rows."""
        return tuple(axis for axis in RULES["rows"] if self.mesh.shape.get(axis, 1) > 1)

    @property
    def row_devices(self) -> int:
        """Number of devices that split rows."""
        return math.prod(self.mesh.shape[axis] for axis in self.row_axes)

    @property
    def others(self) -> tuple[str, ...]:
        """The axes that split the vocabulary and no rows."""
        return tuple(axis for axis in self.axes if axis != RING)

    def takes(self, rows: int) -> bool:
        """Whether slices of that many rows can be given to it: they must divide over the devices that split them."""
        return rows % self.row_devices == 0

    def ring(self, rows: int, columns: int) -> int:
        """Number of devices that see each other's rows of such slices, and share the vocabulary.

        As many as leaves each with no more tokens of a slice than of the vocabulary: then neither its hidden states
        nor its weights are large. With 1, every device gathers all of the head, once for all slices, and no hidden
        states are sent.
        """
        sizes = self.mesh.shape
        if RING not in self.axes:
            return 1
        tokens, vocabulary = rows // self.row_devices * columns, self.weights.shape[1] // sizes.get("tensor", 1)
        counts = [n for n in range(1, min(sizes[RING], LONGEST) + 1) if sizes[RING] % n == 0]
        return max(n for n in counts if n == 1 or n * n * tokens <= vocabulary)

    def copies(self, ring: int) -> int:
        """Number of rings of that many devices, along RING."""
        return self.mesh.shape[RING] // ring if RING in self.axes else 1

    def parts(self, ring: int) -> chex.Array:
        """The columns that each device multiplies: float [N, D, v], N split over all axes of rows and vocabulary.

        The rings' copies of a column are as many arrays here, as are those of devices with rows of their own. So a
        gradient is added up over them once, rather than after every slice.
        """

        def local(weights):
            copies = self.copies(ring)
            if copies > 1:
                groups = [list(range(place, copies * ring, ring)) for place in range(ring)]
                weights = jax.lax.all_gather(weights, RING, axis=1, tiled=True, axis_index_groups=groups)
            return weights[None]

        call = jax.shard_map(local, mesh=self.mesh, in_specs=PartitionSpec(None, self.axes), out_specs=self.parts_spec)
        return call(_summed_at_once(self.weights))

    @property
    def parts_spec(self) -> PartitionSpec:
        """The layout of `parts`."""
        return PartitionSpec((*(axis for axis in self.row_axes if axis not in self.axes), *self.axes), None, None)


@jax.custom_vjp
def _summed_at_once(weights: chex.Array) -> chex.Array:
    """The weights. Their gradient is added up over the rings before XLA can add micro-batches to it.

    Otherwise it keeps a device's whole part of it, twice, while the layers' gradients are computed.
    """
    return weights


_summed_at_once.defvjp(lambda weights: (weights, None), lambda _, gradient: (jax.lax.optimization_barrier(gradient),))


def split_head(
    make_weights: Callable[[], chex.Array], vocab_size: int, product: Callable, cap: Callable = lambda x: x
) -> SplitHead | None:
    """The head, split over the context's mesh; None if that splits nothing.

    Args:
      make_weights: () -> float [D, V].
      vocab_size: V.
      product: (weights [D, v], hidden [..., D]) -> float32 [..., v], for any v of the columns.
      cap: float32 [..., v] -> logits [..., v], elementwise.
    """
    mesh, sizes = jax.sharding.get_abstract_mesh(), mesh_sizes()
    if any(kind != AxisType.Auto for kind in mesh.axis_types):  # inside of a shard_map everything is local
        return None
    axes = tuple(axis for axis in VOCABULARY if sizes.get(axis, 1) > 1)
    if not axes:
        return None
    weights = make_weights()
    missing = -vocab_size % math.prod(sizes[axis] for axis in axes)
    if missing:
        # Of a split vocabulary every part would move a little: XLA would gather all of the head for that, and for its
        # gradient. So columns are added where D alone is split, and then V is split like that of weights at rest.
        weights = jnp.pad(constrain(weights, "embed", None), ((0, 0), (0, missing)))
        weights = constrain(constrain(weights, "embed", None), "embed", "vocab")
    axes = tuple(sorted(axes, key=lambda axis: axis == RING))
    weights = jax.lax.with_sharding_constraint(weights, PartitionSpec(None, axes))
    return SplitHead(weights, vocab_size, product, cap, axes, mesh)


def _about(sums: chex.Array, top: chex.Array) -> chex.Array:
    """A softmax's sums about another logit. sums: float32 [4 or 5, B, c], see `_Ring.sums_of`."""
    old, picked, total, moment, *squares = sums
    shift = old - top
    scale = jnp.exp(shift)
    squares = [x * jnp.square(scale) for x in squares]
    return jnp.stack([top, picked, total * scale, scale * (moment + shift * total), *squares])


def _add(a: chex.Array, b: chex.Array) -> chex.Array:
    """The sums over the vocabulary of both."""
    top = jnp.maximum(a[0], b[0])
    return (_about(a, top) + _about(b, top)).at[0].set(top)


class _Ring(NamedTuple):
    """The devices that see each other's rows, and what each does with them; see `make_split_scores`."""

    split: SplitHead
    size: int
    temperature: float
    sum_pi_squared: bool

    @property
    def copies(self) -> int:
        """Number of rings."""
        return self.split.copies(self.size)

    @property
    def steps(self) -> list[tuple[int, int]]:
        """(from, to) of every device along RING: to the next one of its ring."""
        # Out along a line by way of every other device, and back by way of the rest: no step is longer than two.
        order = [*range(0, self.size, 2), *reversed(range(1, self.size, 2))]
        next_of = dict(zip(order, order[1:] + order[:1], strict=True))
        return [(i, i // self.size * self.size + next_of[i % self.size]) for i in range(self.size * self.copies)]

    def send(self, tree):
        """The tree of the device before this one."""
        return jax.tree.map(lambda x: jax.lax.ppermute(x, RING, self.steps), tree)

    def around(self, own, visit, add):
        """(sum of visit(rows, turn) over the ring's devices, for the rows `own`; the rows that were here in each turn).

        The part of a device's own turn stays there, and that of the others comes home in as many steps as they are.
        """
        rows, total = [own], None
        for turn in range(self.size):
            if turn < self.size - 1:
                rows.append(self.send(rows[turn]))
            if turn > 1:
                total = self.send(total)
            part = visit(rows[turn], turn)
            if turn == 0:
                kept = part
            else:
                total = part if turn == 1 else add(total, part)
        return (add(kept, self.send(total)) if self.size > 1 else kept), rows

    def columns(self, count):
        """Which `count` of the head's columns this device has: int32 [1, 1, v]."""
        width = count // self.copies
        first = jax.lax.axis_index(self.split.others) * self.copies * self.size if self.split.others else 0
        first = first + (jax.lax.axis_index(RING) % self.size if RING in self.split.axes else 0)
        columns = (first + jnp.arange(self.copies)[:, None] * self.size) * width + jnp.arange(width)[None]
        return columns.reshape(1, 1, -1)

    def is_picked(self, product, tokens):
        """Tokens [B, c] -> bool [B, c, v]: which of this device's columns is the token's."""
        return self.columns(product.shape[-1]) == tokens[..., None]

    def logits_of(self, product):
        """The products [B, c, v], capped and divided by the temperature."""
        logits = self.split.cap(product) / self.temperature
        if self.split.weights.shape[1] == self.split.vocab_size:
            return logits
        return jnp.where(self.columns(product.shape[-1]) < self.split.vocab_size, logits, NO_LOGIT)

    def sums_of(self, product, tokens):
        """This device's columns' [4 or 5, B, c]: largest logit m, token's logit, sums of e^s, e^s s and e^2s."""
        logits = self.logits_of(product)
        top = jnp.max(logits, axis=-1)
        shifted = logits - top[..., None]
        masses = jnp.exp(shifted)
        parts = [jnp.where(self.is_picked(product, tokens), logits, 0.0), masses, masses * shifted]
        parts += [jnp.square(masses)] if self.sum_pi_squared else []
        return jnp.stack([top, *(jnp.sum(part, axis=-1) for part in parts)])

    def forward(self, weights, hidden, tokens):
        """(TokenScores, what `backward` needs)."""
        products = []

        def visit(rows, _):
            products.append(self.split.product(weights, rows[0]))
            return self.sums_of(products[-1], rows[1])

        # Told apart on devices that have the same rows, whose gradients are added up once, in `backward`.
        hidden = jax.lax.pcast(hidden, self.split.others, to="varying") if self.split.others else hidden
        sums, rows = self.around((hidden, tokens), visit, _add)
        top = sums[0]
        if self.split.others:
            top = jax.lax.pmax(top, self.split.others)
            sums = jax.lax.psum(_about(sums, top), self.split.others)
        _, picked, total, moment, *squares = sums
        log_total = jnp.log(total)
        squares = squares[0] / jnp.square(total) if squares else None
        scores = TokenScores(picked - top - log_total, log_total - moment / total, squares)
        return scores, (weights, rows, products, top, log_total, scores)

    def backward(self, residuals, cotangents):
        """The gradients of weights and hidden states."""
        weights, rows, products, top, log_total, scores = residuals
        # A term that the loss does not have is left out of the gradient, too.
        g, h, q = [None if isinstance(x, SymbolicZero) else x for x in cotangents]
        g = jnp.zeros_like(top) if g is None else g
        mean = g if h is None else g + h * scores.entropy
        mean = mean if q is None else mean + 2.0 * q * scores.sum_pi_squared
        own = jnp.stack([x for x in (top + log_total, g, mean, h, q) if x is not None])
        by_products = []

        def visit(numbers, turn):
            log_total, g, mean, *terms = numbers[..., None]
            logits, uncap = jax.vjp(self.logits_of, products[turn])
            log_p = logits - log_total
            p = jnp.exp(log_p)
            slope = mean if h is None else mean + terms[0] * log_p
            slope = slope if q is None else slope - 2.0 * terms[-1] * p
            by_logits = jnp.where(self.is_picked(products[turn], rows[turn][1]), g, 0.0) - p * slope
            by_products.extend(uncap(by_logits))
            by_rows = jax.linear_transpose(functools.partial(self.split.product, weights), rows[turn][0])
            return by_rows(by_products[-1])[0]

        by_hidden, _ = self.around(own, visit, jnp.add)
        by_hidden = jax.lax.psum(by_hidden, self.split.others) if self.split.others else by_hidden
        # One product for all rows of the ring: a turn's own would read and write the whole sum each time.
        hidden = jnp.concatenate([hidden for hidden, _ in rows])
        of_weights = jax.linear_transpose(lambda weights: self.split.product(weights, hidden), weights)
        return of_weights(jnp.concatenate(by_products))[0], by_hidden, None


def make_split_scores(split: SplitHead, size: int, *, temperature: float, sum_pi_squared: bool) -> Callable:
    """head(weights, hidden [B, c, D], tokens int32 [B, c]) -> TokenScores [B, c] of softmax(logits / temperature).

    With m the largest logit, over the whole vocabulary like the sums:

        log p = s_token - log Z,   H = log Z - sum_v e^s_v s_v / Z,   s = logits / temperature - m,   Z = sum_v e^s_v

    and, with cotangents g of log p, h of H and q of S = sum_v p_v^2,

        d s_v = g 1[v = token] - p_v (g + h H + 2 q S + h log p_v - 2 q p_v)

    A turn of the ring is a product with some device's rows, while they are sent on. The sums and the gradient of these
    rows follow them, a turn later. The gradient of the hidden states is added up in their own dtype, as every other
    product split over `tensor` is.

    Args:
      split: the head; `weights` are split.parts(size), handed in so that they can be differentiated.
      size: number of devices that see each other's rows.
      temperature: > 0.
      sum_pi_squared: also give TokenScores.sum_pi_squared.
    """
    ring = _Ring(split, size, temperature, sum_pi_squared)

    @jax.custom_vjp
    def scores_of(weights, hidden, tokens):
        return ring.forward(weights, hidden, tokens)[0]

    scores_of.defvjp(lambda *primals: ring.forward(*[x.value for x in primals]), ring.backward, symbolic_zeros=True)

    def head(weights, hidden, tokens):
        rows = PartitionSpec(split.row_axes or None)
        local = jax.shard_map(
            lambda weights, hidden, tokens: scores_of(weights[0], hidden, tokens),
            mesh=split.mesh,
            in_specs=(split.parts_spec, rows, rows),
            out_specs=rows,
        )
        return local(weights, hidden, tokens)

    return head
