"""Attention of whole rows by the TPU's splash kernel: scores stay in on-chip memory, [T, T] is never written.

A Mosaic kernel cannot be partitioned by XLA, so under a mesh each device runs it on its own rows and heads, and, if
tokens are split over context, on its own queries against all keys (for the axes see rl_jax.core.axis_table).

Its masks compare a query's segment with a key's, so completions that share a prompt take two kernels: over a query's
own segment, with normaliser Z_1, and over the prefix, with Z_2. Both are parts of one softmax:

    o = (Z_1 o_1 + Z_2 o_2) / (Z_1 + Z_2)

and the kernels' backward pass needs of the softmax only o and log (Z_1 + Z_2), so each part gets those of the whole.
"""

import functools
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rl_jax.core.axis_table import devices_over, mesh_sizes, spec
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.splash_blocks import LANES, Blocks, check, device_kind, fit, lookup


def splash_attend(
    q: chex.Array,
    k: chex.Array,
    v: chex.Array,
    segment_ids: chex.Array,
    *,
    scale: float,
    prefix_ids: chex.Array | None = None,
    positions: chex.Array | None = None,
    softcap: float = 0.0,
    window: int = 0,
    blocks: Blocks | None = None,
    interpret: bool = False,
) -> chex.Array:
    """softmax(cap(scale q k^T)) v over the keys before a query in its own segment or its prefix, as attention.attend.

    Source: arXiv 2205.14135 (flash attention); jax.experimental.pallas.ops.tpu.splash_attention.

    Args:
      q: [B, T, H, h].
      k: [B, T, K, h], K divides H.
      v: [B, T, K, h].
      segment_ids: int32 [B, T].
      scale: of the scores.
      prefix_ids: int32 [B, T], the segment that a query sees besides its own, 0 is none (TokenBatch.prefix_ids). None
        if no query has one. A segment's tokens are neighbours in their row.
      positions: int32 [B, T], with prefix_ids and a window.
      softcap: c of c tanh(s / c), 0 is none.
      window: keys less than that many positions back, 0 is any.
      blocks: sizes of the kernel's blocks, which divide the row, filled up to a multiple of 128 per device. None:
        those of the table for the device's kind and the row, made to divide it (transformer.splash_blocks).
      interpret: run the kernel on any backend, slowly.

    Returns:
      [B, T, H, h].

    Raises:
      ValueError: if the key heads do not divide over the mesh's tensor axis, positions are missing, or a block does not
        divide the row.
    """
    chex.assert_rank([q, k, v, segment_ids], [4, 4, 4, 2])
    context, tensor, length = devices_over("tokens"), devices_over("heads"), q.shape[1]
    if prefix_ids is not None and window and positions is None:
        raise ValueError("shared prefixes and a window need positions: a completion's columns are not its positions")
    missing = -length % (LANES * context)
    if missing:  # columns behind a row's end are seen by no query of the row
        q, k, v = (jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]) for x in (q, k, v))
        ids = (None if x is None else jnp.pad(x, [(0, 0), (0, missing)]) for x in (segment_ids, prefix_ids, positions))
        segment_ids, prefix_ids, positions = ids
        options = dict(scale=scale, softcap=softcap, window=window, blocks=blocks, interpret=interpret)
        options |= dict(prefix_ids=prefix_ids, positions=positions)
        return splash_attend(q, k, v, segment_ids, **options)[:, :length]
    sizes = mesh_sizes()
    if k.shape[2] % tensor:
        raise ValueError(f"{k.shape[2]} key heads do not divide over tensor={tensor} devices")
    options = dict(blocks=_sizes(q, blocks, queries=length // context), softcap=softcap, interpret=interpret)
    make = functools.partial(_make_kernel, length, q.shape[2] // tensor, context, **options)
    kernels, ids = (make(window=window),), (segment_ids,)
    if prefix_ids is not None:
        kernels += (make(window=0),)
        columns = _as_of_prefix(segment_ids, prefix_ids, positions) if window else jnp.zeros_like(prefix_ids)
        ids += (jnp.where(prefix_ids > 0, prefix_ids, -1), columns)  # -1: no key's segment
    call = functools.partial(_local, scale=scale, window=window)
    if math.prod(sizes.values()) == 1:
        return call(kernels, q, k, v, ids, segment_ids)
    queries, keys = (spec(x.shape, ("rows", t, "heads", None), sizes) for x, t in ((q, "tokens"), (k, None)))
    of_queries, of_keys = PartitionSpec(*queries[:2]), PartitionSpec(*keys[:2])
    whole = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec(None, queries[1]))
    parts = tuple(kernel.manual_sharding_spec(whole) for kernel in kernels)
    in_specs = (parts, queries, keys, keys, (of_queries,) * len(ids), of_keys)
    return jax.shard_map(call, in_specs=in_specs, out_specs=queries, check_vma=False)(
        kernels, q, k, v, ids, segment_ids
    )


def splash_fits(batch: TokenBatch, num_kv_heads: int) -> bool:
    """Whether attention="auto" takes the kernel: on a TPU, for rows of a tile or more.

    Args:
      batch: the rows, [B, T].
      num_kv_heads: they must divide over the mesh's tensor axis.
    """
    divides = num_kv_heads % devices_over("heads") == 0
    return jax.default_backend() == "tpu" and batch.tokens.shape[1] >= LANES and divides


def _sizes(q: chex.Array, blocks: Blocks | None, *, queries: int) -> Blocks:
    """The sizes given, or those of the table. q: [B, T, H, h]; queries: tokens of a row on one device."""
    length, head_dim = q.shape[1], q.shape[3]
    if blocks is not None:
        check(blocks, queries=queries, keys=length)
        return blocks
    found = lookup(device_kind(), head_dim=head_dim, length=length, dtype=q.dtype.name)
    return fit(found, queries=queries, keys=length)


def _make_kernel(
    length: int, num_heads: int, context: int, *, blocks: Blocks, softcap: float, window: int, interpret: bool
):
    """The kernel for rows of `length` tokens whose queries are split over `context` devices."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    kernels = _kernels()
    shape = (length, length)
    if window:
        mask = masks.LocalMask(shape, (window - 1, 0), 0, shard_count=context)
    else:
        mask = masks.CausalMask(shape, shard_count=context)
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * num_heads),
        block_sizes=kernels.BlockSizes(**{f"block_{name}": size for name, size in blocks._asdict().items()}),
        head_shards=1,
        q_seq_shards=context,
        attn_logits_soft_cap=softcap or None,
        interpret=interpret,
    )


def _kernels():
    """Pallas' own, imported where it is called: few programs do, and it takes a tenth of the start of all others."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    return splash_attention_kernel


def _local(kernels, q, k, v, of_queries, of_keys, *, scale, window):
    """The kernels on one device's rows, heads and queries.

    Args:
      kernels: of a query's own segment and, with shared prefixes, of its prefix.
      q: [B, T, H, h]; k and v: [B, S, K, h].
      of_queries: int32 [B, T] each: segments and, with shared prefixes, prefixes (-1 is none) and _as_of_prefix.
      of_keys: their segments, int32 [B, S].
      scale: of the scores.
      window: as of splash_attend.
    """
    head_dim = q.shape[3]
    missing = -head_dim % LANES  # zero padding changes neither the scores nor the first columns of the result
    q, k, v = (jnp.pad(x, [(0, 0)] * 3 + [(0, missing)]) for x in (q, k, v))

    def row(q, k, v, of_queries, of_keys):  # [T, H, h] -> [T, H, h]
        heads_first = [jnp.swapaxes(x, 0, 1) for x in (q * jnp.asarray(scale, q.dtype), k, v)]
        ids = [_kernels().SegmentIds(x, of_keys) for x in of_queries[:2]]
        if len(kernels) == 1:
            return jnp.swapaxes(kernels[0](*heads_first, segment_ids=ids[0]), 0, 1)
        own, prefix = (_Part(x.fwd_mask_info, x.dq_mask_info, x.dkv_mask_info) for x in kernels)
        options = [x.kwargs for x in kernels]
        if window:
            prefix = _Part(*(info._replace(q_sequence=of_queries[2]) for info in prefix))
            options[1] = options[1] | dict(mask_function=functools.partial(_within, window=window))
        options = tuple(tuple(sorted(x.items())) for x in options)
        return jnp.swapaxes(_two_parts(options, (own, prefix), ids, *heads_first), 0, 1)

    return jax.vmap(row)(q, k, v, of_queries, of_keys)[..., :head_dim].astype(v.dtype)


class _Part(NamedTuple):
    """What a kernel knows of its mask's blocks, in its three passes (splash_attention_mask_info.MaskInfo)."""

    forward: Any
    dq: Any
    dkv: Any


def _as_of_prefix(segment_ids: chex.Array, prefix_ids: chex.Array, positions: chex.Array) -> chex.Array:
    """The column that each query would have if its segment followed its prefix: int32 [B, T]; the kernel counts the
    window's keys in columns."""
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, segment_ids.shape, axis) for axis in (0, 1))
    first = jnp.zeros((segment_ids.shape[0], segment_ids.shape[1] + 1), jnp.int32)
    first = first.at[rows, segment_ids].set(columns - positions)  # equal for all tokens of a segment
    return first[rows, prefix_ids] + positions


def _within(queries, keys, *, window):
    return queries - keys < window


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _two_parts(options, parts, ids, q, k, v):
    """One softmax over the keys of two kernels: [H, T, h].

    Private to Pallas: the kernel's own gradient is that of its part alone; here each part's has the whole's Z and o.

    Args:
      options: of each kernel, its sorted keywords.
      parts: _Part of each.
      ids: SegmentIds of each.
      q: [H, T, h], scaled; k and v: [K, S, h].
    """
    return _two_parts_forward(options, parts, ids, q, k, v)[0]


def _two_parts_forward(options, parts, ids, q, k, v):
    found = []
    for keywords, part, own in zip(options, parts, ids, strict=True):
        keywords = dict(keywords) | dict(save_residuals=True)
        out, (log_z,) = _kernels()._splash_attention_forward(part.forward, q, k, v, own, None, **keywords)
        found.append((out.astype(jnp.float32), log_z))
    log_z = jnp.logaddexp(*(z for _, z in found))
    out = sum(out * jnp.exp(z - log_z)[..., None] for out, z in found).astype(q.dtype)
    return out, (parts, ids, q, k, v, out, log_z)


def _two_parts_backward(options, kept, cotangent):
    parts, ids, q, k, v, out, log_z = kept
    gradients = []
    for keywords, part, own in zip(options, parts, ids, strict=True):
        of_part = (q, k, v, own, None, out, log_z, part.dq, part.dkv)
        gradients.append(_kernels()._splash_attention_bwd(**dict(keywords), res=of_part, do=cotangent)[3:6])
    return (None, None, *(a + b for a, b in zip(*gradients, strict=True)))


_two_parts.defvjp(_two_parts_forward, _two_parts_backward)
