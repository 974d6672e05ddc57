"""Weights and KV caches in 8 bits, for sampling: symmetric, one scale per output channel, or per position and head.

    int8: s = max|x| / 127, q = round(x / s)        fp8 (e4m3): s = max|x| / 448, q = float8(x / s)        x ~ q s

Products are in the model's own dtype: `read` multiplies q by s just before one. Embeddings, the head, norms, biases and
routers stay as they are.
"""

import re
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Params, path_name

KINDS = {"int8": (jnp.int8, 127.0), "fp8": (jnp.float8_e4m3fn, 448.0)}  # name -> type, its largest number
MATRICES = r"layers/((q|k|v|o|gate|up|down)/kernel|experts/(gate|up|down))$"  # [..., in, out]


class Quantized(NamedTuple):
    """An array in 8 bits.

    Attributes:
      values: int8 or float8_e4m3fn, of the array's shape.
      scales: float32; the quantised axis has length 1.
    """

    values: chex.Array
    scales: chex.Array


def check_kind(name: str, kind: str) -> None:
    """Raises ValueError unless `kind` is "" or in KINDS. name: of the argument."""
    if kind and kind not in KINDS:
        raise ValueError(f"{name}={kind!r} is none of '', {', '.join(KINDS)}")


def quantize(x: chex.Array, kind: str, *, axis: int) -> Quantized:
    """`x` in 8 bits; an error of at most s / 2 (int8), or 1/16 of a normal number (fp8).

    Args:
      x: float.
      kind: a name in KINDS.
      axis: along which numbers share a scale: the summed one of the product that follows.

    Raises:
      ValueError: if the kind is unknown.
    """
    chex.assert_type(x, float)
    check_kind("kind", kind)
    dtype, largest = KINDS[kind]
    wide = x.astype(jnp.float32)
    scales = jnp.max(jnp.abs(wide), axis=axis, keepdims=True) / largest
    ratio = jnp.clip(wide / jnp.where(scales > 0, scales, 1.0), -largest, largest)  # e4m3 has no infinity: nan beyond
    return Quantized((jnp.round(ratio) if kind == "int8" else ratio).astype(dtype), scales)


def dequantize(x: Quantized | chex.Array, dtype) -> chex.Array:
    """values * scales in float32, rounded to `dtype` once; an array that is not Quantized is returned as it is."""
    if not isinstance(x, Quantized):
        return x
    return (x.values.astype(jnp.float32) * x.scales).astype(dtype)


def quantize_params(params: Params, kind: str) -> Params:
    """The params with the layers' matrices Quantized over their inputs: one scale per output channel.

    Args:
      params: of a transformer, stacked layers.
      kind: a name in KINDS; "" changes nothing.

    Raises:
      ValueError: if the kind is unknown.
    """
    check_kind("kind", kind)

    def leaf(path, x):
        return quantize(x, kind, axis=-2) if re.search(MATRICES, path_name(path)) else x

    return jax.tree_util.tree_map_with_path(leaf, params) if kind else params


def read(params: Params, x: chex.Array, dtype) -> Params:
    """The params of one layer with Quantized matrices in `dtype`; params without any are returned as they are.

    Args:
      params: of one layer.
      x: the layer's input. XLA may not compute the matrices before it, else a decoding loop would compute those of all
        layers once, and keep them.
      dtype: of the products.
    """
    if not any_quantized(params):
        return params
    params, _ = jax.lax.optimization_barrier((params, x))
    return jax.tree.map(lambda leaf: dequantize(leaf, dtype), params, is_leaf=_is_quantized)


def any_quantized(params: Params) -> bool:
    """Whether any of the params is Quantized."""
    return any(map(_is_quantized, jax.tree.leaves(params, is_leaf=_is_quantized)))


def _is_quantized(x) -> bool:
    return isinstance(x, Quantized)
