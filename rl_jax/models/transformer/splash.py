"""Attention of whole rows by the TPU's splash kernel: scores stay in on-chip memory, [T, T] is never written.

A Mosaic kernel cannot be partitioned by XLA, so under a mesh each device runs it on its own rows and heads, and, if
tokens are split over context, on its own queries against all keys (for the axes see rl_jax.core.axis_table).
"""

import functools
import math

import chex
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from rl_jax.core.axis_table import devices_over, mesh_sizes, spec
from rl_jax.core.types import TokenBatch

LANES = 128  # the kernel's tile size: rows and heads are padded to a multiple of it
BLOCK = 512


def splash_attend(
    q: chex.Array,
    k: chex.Array,
    v: chex.Array,
    segment_ids: chex.Array,
    *,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    interpret: bool = False,
) -> chex.Array:
    """softmax(cap(scale q k^T)) v over the keys before a query in its own segment, as in attention.attend.

    Source: arXiv 2205.14135 (flash attention); jax.experimental.pallas.ops.tpu.splash_attention.

    Args:
      q: [B, T, H, h].
      k: [B, T, K, h], K divides H.
      v: [B, T, K, h].
      segment_ids: int32 [B, T].
      scale: of the scores.
      softcap: c of c tanh(s / c), 0 is none.
      window: keys less than that many columns back, 0 is any.
      interpret: run the kernel on any backend, slowly.

    Returns:
      [B, T, H, h].

    Raises:
      ValueError: if the key heads do not divide over the mesh's tensor axis.
    """
    chex.assert_rank([q, k, v, segment_ids], [4, 4, 4, 2])
    context, tensor, length = devices_over("tokens"), devices_over("heads"), q.shape[1]
    missing = -length % (LANES * context)
    if missing:  # columns behind a row's end are seen by no query of the row
        q, k, v = (jnp.pad(x, [(0, 0), (0, missing), (0, 0), (0, 0)]) for x in (q, k, v))
        segment_ids = jnp.pad(segment_ids, [(0, 0), (0, missing)])
        options = dict(scale=scale, softcap=softcap, window=window, interpret=interpret)
        return splash_attend(q, k, v, segment_ids, **options)[:, :length]
    sizes = mesh_sizes()
    if k.shape[2] % tensor:
        raise ValueError(f"{k.shape[2]} key heads do not divide over tensor={tensor} devices")
    kernel = _make_kernel(length, q.shape[2] // tensor, context, softcap=softcap, window=window, interpret=interpret)
    call = functools.partial(_local, scale=scale)
    if math.prod(sizes.values()) == 1:
        return call(kernel, q, k, v, segment_ids, segment_ids)
    queries, keys = (spec(x.shape, ("rows", t, "heads", None), sizes) for x, t in ((q, "tokens"), (k, None)))
    of_queries, of_keys = PartitionSpec(*queries[:2]), PartitionSpec(*keys[:2])
    mesh = jax.sharding.get_abstract_mesh()
    parts = kernel.manual_sharding_spec(NamedSharding(mesh, PartitionSpec(None, queries[1])))
    in_specs = (parts, queries, keys, keys, of_queries, of_keys)
    return jax.shard_map(call, in_specs=in_specs, out_specs=queries, check_vma=False)(
        kernel, q, k, v, segment_ids, segment_ids
    )


def splash_fits(batch: TokenBatch, num_kv_heads: int) -> bool:
    """Whether attention="auto" takes the kernel: on a TPU, for rows of a tile or more that share no prefixes.

    Args:
      batch: the rows, [B, T].
      num_kv_heads: they must divide over the mesh's tensor axis.
    """
    divides = num_kv_heads % devices_over("heads") == 0
    return jax.default_backend() == "tpu" and batch.prefix_ids is None and batch.tokens.shape[1] >= LANES and divides


def _make_kernel(length: int, num_heads: int, context: int, *, softcap: float, window: int, interpret: bool):
    """The kernel for rows of `length` tokens whose queries are split over `context` devices."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    kernels = _kernels()
    shape = (length, length)
    if window:
        mask = masks.LocalMask(shape, (window - 1, 0), 0, shard_count=context)
    else:
        mask = masks.CausalMask(shape, shard_count=context)
    block = next(size for size in (BLOCK, 256, LANES) if length // context % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    return kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * num_heads),
        block_sizes=kernels.BlockSizes(**{f"block_{name}": block for name in names}),
        head_shards=1,
        q_seq_shards=context,
        attn_logits_soft_cap=softcap or None,
        interpret=interpret,
    )


def _kernels():
    """Pallas' own, imported where it is called: few programs do, and it takes a tenth of the start of all others."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    return splash_attention_kernel


def _local(kernel, q, k, v, of_queries, of_keys, *, scale):
    """The kernel on one device's rows, heads and queries. of_queries, of_keys: their segments, [B, T] and [B, S]."""
    head_dim = q.shape[3]
    missing = -head_dim % LANES  # zero padding changes neither the scores nor the first columns of the result
    q, k, v = (jnp.pad(x, [(0, 0)] * 3 + [(0, missing)]) for x in (q, k, v))

    def row(q, k, v, of_queries, of_keys):  # [T, H, h] -> [T, H, h]
        heads_first = [jnp.swapaxes(x, 0, 1) for x in (q * jnp.asarray(scale, q.dtype), k, v)]
        return jnp.swapaxes(kernel(*heads_first, segment_ids=_kernels().SegmentIds(of_queries, of_keys)), 0, 1)

    return jax.vmap(row)(q, k, v, of_queries, of_keys)[..., :head_dim].astype(v.dtype)
