"""Ring attention: rows split over the mesh's context axis, and no device ever holds the keys of a whole row.

Each device keeps its own queries; keys and values go from neighbour to neighbour, one block per step, until each device
has seen all of them. The softmax is summed up on the way, in float32, from a running maximum m, denominator l and
numerator o. The backward pass goes around once more: it computes the scores again, and the gradients of a block of keys
travel with the block, so that what is kept per device is its own share of the row.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from rl_jax.core.axis_table import RULES, devices_over, mesh_sizes, spec
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.config import NEGATIVE

BLOCK = 256  # queries whose scores against one device's keys are in memory at the same time
(AXIS,) = RULES["tokens"]


class Ids(NamedTuple):
    """What decides who sees whom.

    Attributes:
      segments: int32 [B, t].
      prefixes: int32 [B, t], the segment that a query sees besides its own; 0 is none.
      positions: int32 [B, t].
      columns: int32 [B, t], in the whole row.
    """

    segments: chex.Array
    prefixes: chex.Array
    positions: chex.Array
    columns: chex.Array


class Options(NamedTuple):
    """What is fixed while a program is traced: as in ring_attend; `devices` is the length of the ring."""

    devices: int
    scale: float
    softcap: float
    causal: bool


def ring_attend(
    q: chex.Array,
    k: chex.Array,
    v: chex.Array,
    batch: TokenBatch,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int | chex.Array = 0,
    causal: bool = True,
) -> chex.Array:
    """softmax(cap(scale q k^T)) v over the keys of attention.attention_mask, as in attention.attend.

    With s the scores of one block of keys, a query's sums become, block after block,

        m' = max(m, max s),   l' = e^(m - m') l + sum e^(s - m'),   o' = e^(m - m') o + e^(s - m') v;   result o / l

    Blocks wholly in the future are skipped, not masked: a device passes them on and computes nothing. A block is sent
    on before it is used, so that a step's transfer and products can overlap; the last transfer brings all blocks home.
    Source: arXiv 2310.01889 (Ring Attention with Blockwise Transformers).

    Args:
      q: [B, T, H, h].
      k: [B, T, K, h], K divides H.
      v: [B, T, K, h].
      batch: the rows [B, T]: segments, prefixes and positions.
      scale: of the scores.
      softcap: c of c tanh(s / c), 0 is none.
      window: only keys less than that many positions back, 0 is any; int32 [] may be traced.
      causal: False also shows the keys after the query.

    Returns:
      [B, T, H, h]; 0 for a query that sees nothing.

    Raises:
      ValueError: if the mesh has no context axis, T does not divide over it, or K over its tensor axis.
    """
    chex.assert_rank([q, k, v, batch.segment_ids], [4, 4, 4, 2])
    chex.assert_equal_shape([k, v])
    chex.assert_equal_shape_prefix([q, k, batch.segment_ids], 2)
    context, tensor, sizes = devices_over("tokens"), devices_over("heads"), mesh_sizes()
    if context == 1:
        raise ValueError(f"attention='ring' needs a mesh with a context axis, as in context:2: this one is {sizes}")
    if q.shape[1] % context:
        raise ValueError(f"attention='ring': rows of {q.shape[1]} tokens do not divide over context={context} devices")
    if k.shape[2] % tensor:
        raise ValueError(f"attention='ring': {k.shape[2]} key heads do not divide over tensor={tensor} devices")
    segments = batch.segment_ids
    prefixes = jnp.zeros_like(segments) if batch.prefix_ids is None else batch.prefix_ids
    columns = jnp.broadcast_to(jnp.arange(q.shape[1], dtype=jnp.int32)[None], segments.shape)
    ids = Ids(segments, prefixes, batch.positions, columns)
    queries, keys = (spec(x.shape, ("rows", "tokens", "heads", None), sizes) for x in (q, k))
    of_ids = PartitionSpec(*queries[:2])
    local = functools.partial(_ring, Options(context, scale, softcap, causal))
    in_specs = (queries, keys, keys, of_ids, PartitionSpec())
    call = jax.shard_map(local, in_specs=in_specs, out_specs=queries, check_vma=False)
    return call(q, k, v, ids, jnp.asarray(window, jnp.int32))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _ring(options: Options, q, k, v, ids: Ids, window):
    """One device's part: q [B, t, H, h], k and v [B, t, K, h], ids [B, t], window [] -> [B, t, H, h]."""
    return _forward(options, q, k, v, ids, window)[0]


def _forward(options, q, k, v, ids, window):
    """(the result [B, t, H, h], what the backward pass reads)."""
    queries, own = _blocks(_grouped(q, k)), jax.tree.map(_blocks, ids)
    shape = queries.shape[:2] + queries.shape[3:5] + queries.shape[2:3]  # [N, B, K, G, c]
    start = (
        jnp.full(shape, NEGATIVE, jnp.float32),
        jnp.zeros(shape, jnp.float32),
        jnp.zeros((*shape, q.shape[3]), jnp.float32),
    )

    def use(sums, keys):
        k, v, of_keys = keys

        def block(xs):
            (top, total, summed), q, of_queries = xs
            scores, _, seen = _scores(options, q, k, of_queries, of_keys, window)
            new = jnp.maximum(top, jnp.max(jnp.where(seen, scores, NEGATIVE), axis=-1))
            masses, kept = _exp(scores - new[..., None], seen), jnp.exp(top - new)
            read = jnp.einsum("bkgct,btkh->bkgch", masses.astype(v.dtype), v, preferred_element_type=jnp.float32)
            return new, kept * total + jnp.sum(masses, axis=-1), kept[..., None] * summed + read

        return jax.lax.map(block, (sums, queries, own))

    def step(carry, i):
        sums, keys = carry
        onward = _pass_on(options, keys)  # before it is used: the transfer waits for no product
        return (_unless_future(options, i, use, sums, keys), onward), None

    ((top, total, summed), _), _ = jax.lax.scan(step, (start, (k, v, ids)), jnp.arange(options.devices))
    # A query that has seen nothing has a total of 0.
    safe = jnp.where(total > 0, total, 1.0)
    found = _rows(jnp.moveaxis(summed / safe[..., None], -2, 2), q).astype(v.dtype)
    return found, (q, k, v, ids, window, found, top + jnp.log(safe))


def _backward(options, kept, cotangent):
    """Gradients of q, k and v: with p = e^(s - log Z), ds = p * (do v^T - sum(do * o)), dq = ds k, dk = ds^T q."""
    q, k, v, ids, window, found, log_total = kept
    queries, own, of_result = _blocks(_grouped(q, k)), jax.tree.map(_blocks, ids), _blocks(_grouped(cotangent, k))
    delta = jnp.sum(_grouped(cotangent, k).astype(jnp.float32) * _grouped(found, k).astype(jnp.float32), axis=-1)
    delta = jnp.moveaxis(_blocks(delta), 2, -1)  # [N, B, K, G, c]
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)

    def use(gradients, keys):
        of_q, of_k, of_v = gradients
        k, v, of_keys = keys

        def block(of_keys_values, xs):
            of_k, of_v = of_keys_values
            of_q, q, of_queries, of_result, delta, log_total = xs
            scores, slope, seen = _scores(options, q, k, of_queries, of_keys, window)
            weights = _exp(scores - log_total[..., None], seen)
            of_v = of_v + product("bkgct,bckgh->btkh", weights.astype(v.dtype), of_result)
            of_scores = weights * (product("bckgh,btkh->bkgct", of_result, v) - delta[..., None])
            of_scores = (of_scores * slope * options.scale).astype(q.dtype)
            of_q = of_q + product("bkgct,btkh->bckgh", of_scores, k)
            return (of_k + product("bkgct,bckgh->btkh", of_scores, q), of_v), of_q

        xs = (of_q, queries, own, of_result, delta, log_total)
        (of_k, of_v), of_q = jax.lax.scan(block, (of_k, of_v), xs)
        return of_q, of_k, of_v

    def step(carry, i):
        of_q, of_k, of_v, keys = carry
        onward = _pass_on(options, keys)
        of_q, of_k, of_v = _unless_future(options, i, use, (of_q, of_k, of_v), keys)
        return (of_q, *_pass_on(options, (of_k, of_v)), onward), None

    zeros = (jnp.zeros(x.shape, jnp.float32) for x in (queries, k, v))
    (of_q, of_k, of_v, _), _ = jax.lax.scan(step, (*zeros, (k, v, ids)), jnp.arange(options.devices))
    return _rows(of_q, q).astype(q.dtype), of_k.astype(k.dtype), of_v.astype(v.dtype), None, None


_ring.defvjp(_forward, _backward)


def _pass_on(options: Options, x):
    """Each device's `x` to the next of the ring: after i steps device r has what was device (r - i)'s."""
    ring = [(device, (device + 1) % options.devices) for device in range(options.devices)]
    return jax.tree.map(lambda leaf: jax.lax.ppermute(leaf, AXIS, ring), x)


def _unless_future(options: Options, i, use, sums, keys):
    """use(sums, keys), or `sums` if every key of step i's block is after every query of this device."""
    if not options.causal:
        return use(sums, keys)
    return jax.lax.cond(i <= jax.lax.axis_index(AXIS), use, lambda sums, _: sums, sums, keys)


def _scores(options: Options, q, k, of_queries: Ids, of_keys: Ids, window):
    """(scores float32 [B, K, G, c, t], their derivative by the scores before the soft cap, bool [B, 1, 1, c, t])."""
    scores = jnp.einsum("bckgh,btkh->bkgct", q, k, preferred_element_type=jnp.float32) * options.scale
    slope = 1.0
    if options.softcap:
        capped = jnp.tanh(scores / options.softcap)
        scores, slope = options.softcap * capped, 1.0 - jnp.square(capped)
    queries, keys = (jax.tree.map(fill, ids) for fill, ids in zip((_last, _middle), (of_queries, of_keys), strict=True))
    seen = queries.segments == keys.segments
    seen |= (queries.prefixes == keys.segments) & (queries.prefixes > 0)
    seen &= (window == 0) | (queries.positions - keys.positions < window)
    if options.causal:
        seen &= queries.columns >= keys.columns
    return scores, slope, seen[:, None, None]


def _exp(x, seen):
    return jnp.where(seen, jnp.exp(jnp.where(seen, x, 0.0)), 0.0)


def _last(x):
    return x[:, :, None]


def _middle(x):
    return x[:, None, :]


def _grouped(q, k):
    """[B, t, H, h] -> [B, t, K, H / K, h]."""
    return q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])


def _blocks(x):
    """[B, t, ...] -> [N, B, c, ...]: blocks of at most BLOCK queries, the last one filled up with 0.

    What a filled-up query finds is cut off by _rows, and its gradient is 0.
    """
    length = x.shape[1]
    count = -(-length // BLOCK)
    size = -(-length // count)
    x = jnp.pad(x, [(0, 0), (0, count * size - length)] + [(0, 0)] * (x.ndim - 2))
    return jnp.moveaxis(x.reshape(x.shape[0], count, size, *x.shape[2:]), 1, 0)


def _rows(x, q):
    """[N, B, c, K, G, h] -> [B, t, H, h], the shape of q, without what filled the blocks up."""
    joined = jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *q.shape[2:])
    return joined[:, : q.shape[1]]
