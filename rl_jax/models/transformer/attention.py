"""Attention over whole rows: rotary embedding, attention masks, and the kinds of layers that a model mixes."""

import math
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.axis_table import constrain, devices_over
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.config import NEGATIVE, TransformerConfig
from rl_jax.models.transformer.keys_first import attend_keys_first


class LayerKind(NamedTuple):
    """What differs between layers.

    Attributes:
      window: 0 sees all.
      frequencies: [h / 2] of RoPE, () for learned positions.
    """

    window: int
    frequencies: tuple[float, ...]


def layer_kinds(config: TransformerConfig) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
    """(the distinct kinds of layers, the index of each layer's kind [L])."""
    layers = []
    for window in config.windows or (0,) * config.num_layers:
        frequencies = () if config.learned_positions else rope_frequencies(config, local=window > 0)
        layers.append(LayerKind(window, frequencies))
    kinds = tuple(dict.fromkeys(layers))
    return kinds, tuple(kinds.index(layer) for layer in layers)


def rope_frequencies(config: TransformerConfig, *, local: bool = False) -> tuple[float, ...]:
    """The angle per position by which each pair of a head rotates: theta^(-2i/h), scaled by config.rope_scaling.

    linear: divided by rope_factor f. llama3: with n = rope_original_length turns of 2 pi / (frequency), frequencies of
    fewer than rope_low_freq_factor turns are divided by f, of more than rope_high_freq_factor are kept, and those in
    between are interpolated. Computed in float32 and in the order of `transformers`, so that angles at far positions
    agree too.
    Source: arXiv 2104.09864 (RoPE), 2306.15595 (linear), 2407.21783 (Llama 3).

    Args:
      config: the model's.
      local: of a layer with a window.
    """
    theta = config.rope_theta
    scaling = config.rope_scaling
    if local and config.local_rope_theta:
        theta, scaling = config.local_rope_theta, "none"
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = np.float32(1.0) / np.float32(theta) ** exponents
    if scaling == "linear":
        frequencies = frequencies / np.float32(config.rope_factor)
    if scaling == "llama3":
        low, high = config.rope_low_freq_factor, config.rope_high_freq_factor
        turns = config.rope_original_length * frequencies / (2 * math.pi)
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        frequencies = (1.0 - kept) * frequencies / config.rope_factor + kept * frequencies
    return tuple(frequencies.astype(np.float32).tolist())


def rotation(kind: LayerKind, positions: chex.Array) -> tuple[chex.Array, chex.Array] | None:
    """(sin, cos) float32 [B, T, 1, h / 2] of the angles at `positions`, int32 [B, T]; None for learned positions."""
    if not kind.frequencies:
        return None
    frequencies = jnp.array(kind.frequencies, jnp.float32)
    angle = positions[..., None, None].astype(jnp.float32) * frequencies[None, None, None, :]
    return jnp.sin(angle), jnp.cos(angle)


def rotate(x: chex.Array, angles: tuple[chex.Array, chex.Array] | None) -> chex.Array:
    """Rotary position embedding on halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), in float32.

    Source: arXiv 2104.09864.

    Args:
      x: float [B, T, H, h].
      angles: from `rotation`; None changes nothing.
    """
    if angles is None:
        return x
    sin, cos = angles
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def attention_mask(batch: TokenBatch, window: int = 0, *, causal: bool = True) -> chex.Array:
    """Causal mask within a token's own segment or its prefix. TokenBatch [B, T] -> bool [B, 1, T, T].

    Padding, segment 0, attends to padding, so that no row of the softmax is empty; a prefix of 0 is none.

    Args:
      batch: the rows.
      window: only keys less than that many positions back; 0 is any. Positions count, not columns: a completion placed
        after other completions of its prompt is as close to the prompt as they are.
      causal: False also shows the keys after the query.
    """
    segments, length = batch.segment_ids, batch.segment_ids.shape[1]
    seen = segments[:, :, None] == segments[:, None, :]
    if batch.prefix_ids is not None:
        prefixes = batch.prefix_ids[:, :, None]
        seen |= (prefixes == segments[:, None, :]) & (prefixes != 0)
    if window:
        seen &= batch.positions[:, :, None] - batch.positions[:, None, :] < window
    if causal:
        seen &= jnp.tril(jnp.ones((length, length), bool))[None]
    return constrain(seen[:, None], "rows", None, "tokens", None)


def attend(
    q: chex.Array, k: chex.Array, v: chex.Array, mask: chex.Array, *, scale: float, softcap: float = 0.0
) -> chex.Array:
    """softmax(cap(scale q k^T)) v over the keys that the mask shows, cap(s) = softcap * tanh(s / softcap).

    Scores are float32. Source: arXiv 2408.00118 (soft-capping).

    Args:
      q: [B, T, H, h].
      k: [B, S, K, h], K divides H.
      v: [B, S, K, h].
      mask: bool [B, 1, T, S].
      scale: of the scores.
      softcap: 0 is none, and uses the backend's own kernel; on a CPU, keys_first's.

    Returns:
      [B, T, H, h].
    """
    chex.assert_rank([q, k, v, mask], 4)
    if not softcap and _keys_first_fits(q, k, v):
        return attend_keys_first(q, k, v, mask, scale)
    if not softcap:
        return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale)
    batch, length, num_heads, head_dim = q.shape
    grouped = q.reshape(batch, length, k.shape[2], -1, head_dim)
    scores = jnp.einsum("btkgh,bskh->bkgts", grouped, k, preferred_element_type=jnp.float32) * scale
    scores = softcap * jnp.tanh(scores / softcap)
    weights = jax.nn.softmax(jnp.where(mask[:, :, None], scores, NEGATIVE), axis=-1)
    attended = jnp.einsum("bkgts,bskh->btkgh", weights.astype(v.dtype), v)
    return attended.reshape(batch, length, num_heads, head_dim)


def _keys_first_fits(*parts: chex.Array) -> bool:
    """On a CPU in float32, unless a mesh splits the tokens: its scores have queries and groups on one axis."""
    whole = jax.default_backend() == "cpu" and devices_over("tokens") == 1
    return whole and all(part.dtype == jnp.float32 for part in parts)


def attend_causally(q: chex.Array, k: chex.Array, v: chex.Array, mask: chex.Array, **keywords) -> chex.Array:
    """`attend` if no query sees a key after its own column, T = S: blocks of queries skip the keys after them.

    Half the scores are then never computed or stored: 1.9 times faster on 2 CPU cores, including the gradient. Blocks
    have 128 queries or more, and there are 8 at most, so that the program stays small. If a mesh splits the tokens,
    each device keeps its own queries as one block and gathers the keys and values.
    """
    chex.assert_equal_shape_prefix([q, k], 2)
    length = q.shape[1]
    size = max(128, -(-length // 8))
    q = constrain(q, "rows", "tokens", "heads", None)
    k, v = (constrain(x, "rows", None, "heads", None) for x in (k, v))
    if length <= size or devices_over("tokens") > 1:
        return attend(q, k, v, mask, **keywords)
    blocks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    return jnp.concatenate(
        [attend(q[:, b], k[:, : b.stop], v[:, : b.stop], mask[:, :, b, : b.stop], **keywords) for b in blocks], axis=1
    )


def attend_both_ways(q: chex.Array, k: chex.Array, v: chex.Array, mask: chex.Array, **keywords) -> chex.Array:
    """`attend` where a query sees keys before and after it, T = S: no block of keys can be skipped."""
    chex.assert_equal_shape_prefix([q, k], 2)
    q = constrain(q, "rows", "tokens", "heads", None)
    return attend(q, *(constrain(x, "rows", None, "heads", None) for x in (k, v)), mask, **keywords)


def attend_fused(
    q: chex.Array,
    k: chex.Array,
    v: chex.Array,
    mask: chex.Array,
    *,
    scale: float,
    softcap: float = 0.0,
    causal: bool = True,
) -> chex.Array:
    """`attend` by cuDNN's flash attention on an NVIDIA GPU, T = S: no scores in memory, forward or backward.

    The mask goes in as it is, so that packed rows, windows and shared prefixes are what they are everywhere. If no
    query sees a key after its own column, the kernel is told, and skips those blocks. Scores and sums are float32.
    Source: arXiv 2205.14135 (FlashAttention), as in jax.nn.dot_product_attention(implementation="cudnn").

    Args:
      q: bfloat16 or float16 [B, T, H, h], h a multiple of 8.
      k: [B, T, K, h], K divides H.
      v: [B, T, K, h].
      mask: bool [B, 1, T, T].
      scale: of the scores.
      softcap: must be 0.
      causal: whether the mask shows no key after the query.

    Raises:
      ValueError: if there is a softcap, which the kernel does not have.
    """
    chex.assert_rank([q, k, v, mask], 4)
    chex.assert_equal_shape_prefix([q, k], 2)
    if softcap:
        raise ValueError(f"attention='cudnn' has no softcap ({softcap}): set attention='dot_product' or 'auto'")
    q = constrain(q, "rows", None, "heads", None)
    k, v = (constrain(x, "rows", None, "heads", None) for x in (k, v))
    return jax.nn.dot_product_attention(q, k, v, mask=mask, scale=scale, is_causal=causal, implementation="cudnn")


def fused_fits(config: TransformerConfig, length: int) -> bool:
    """Whether attention="auto" takes cuDNN's kernel: on an NVIDIA GPU, in half precision, without a softcap.

    Args:
      config: the model's. Its key heads must divide over the mesh's tensor axis.
      length: T, which must be even for the gradient, and not split by the mesh.
    """
    half = jnp.dtype(config.dtype) in (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
    shape = config.head_dim % 8 == 0 and config.head_dim <= 128 and length % 2 == 0
    whole = devices_over("tokens") == 1 and config.num_kv_heads % devices_over("heads") == 0
    if jax.default_backend() != "gpu" or not (half and shape and whole) or config.attention_softcap:
        return False
    return "NVIDIA" in jax.devices()[0].device_kind  # others are "gpu" too; what came before Ampere has other names
