"""Attention of whole rows by the TPU's splash kernel: scores stay in the chip's own memory, [T, T] is never written.

A Mosaic kernel cannot be partitioned by XLA, so under a mesh (jax.set_mesh) each device runs it on its own rows and
heads: rows over data and fsdp, heads over tensor.
"""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

LANES = 128  # the kernel's tiles: T is a multiple of it, and heads are filled up to one
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
    """softmax(cap(scale q k^T)) v over the keys before a query in its own segment, as attention.attend computes it.

    q: [B, T, H, h]. k, v: [B, T, K, h], K divides H. segment_ids: int32 [B, T]. softcap: c of c tanh(s / c), 0 is none.
    window: keys less than that many columns back, 0 is any. interpret: run the kernel on any backend, slowly.
    -> [B, T, H, h]. Raises ValueError for sizes that the kernel's tiles or the mesh's axes do not divide.
    Source: arXiv 2205.14135 (flash attention); jax.experimental.pallas.ops.tpu.splash_attention.
    """
    chex.assert_rank([q, k, v, segment_ids], [4, 4, 4, 2])
    length = q.shape[1]
    if length % LANES:
        raise ValueError(f"splash attention takes rows in multiples of {LANES} tokens, not {length}")
    call = functools.partial(_local, scale=scale, softcap=softcap, window=window, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return call(q, k, v, segment_ids)
    tensor = mesh.shape["tensor"]
    if k.shape[2] % tensor:
        raise ValueError(f"{k.shape[2]} key heads do not divide over tensor={tensor} devices")
    heads, rows = PartitionSpec(("data", "fsdp"), None, "tensor", None), PartitionSpec(("data", "fsdp"), None)
    return jax.shard_map(call, in_specs=(heads, heads, heads, rows), out_specs=heads, check_vma=False)(
        q, k, v, segment_ids
    )


def _local(q, k, v, segment_ids, *, scale, softcap, window, interpret):
    """The kernel on one device's rows and heads."""
    _, length, num_heads, head_dim = q.shape
    missing = -head_dim % LANES  # zeros there change neither the scores nor the first columns of what comes out
    q, k, v = (jnp.pad(x, [(0, 0)] * 3 + [(0, missing)]) for x in (q, k, v))
    shape = (length, length)
    mask = masks.LocalMask(shape, (window - 1, 0), 0) if window else masks.CausalMask(shape)
    block = next(size for size in (BLOCK, 256, LANES) if length % size == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * num_heads),
        block_sizes=kernels.BlockSizes(**{f"block_{name}": block for name in names}),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=softcap or None,
        interpret=interpret,
    )

    def row(q, k, v, segments):  # [T, H, h] -> [T, H, h]
        heads_first = [jnp.swapaxes(x, 0, 1) for x in (q * jnp.asarray(scale, q.dtype), k, v)]
        return jnp.swapaxes(kernel(*heads_first, segment_ids=kernels.SegmentIds(segments, segments)), 0, 1)

    return jax.vmap(row)(q, k, v, segment_ids)[..., :head_dim].astype(v.dtype)
