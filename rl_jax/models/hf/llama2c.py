"""Reads llama2.c's legacy (version 0) checkpoint: seven int32, then float32 tensors in a fixed order.

https://github.com/karpathy/llama2.c, export.py `legacy_export`. Its rotary embedding rotates neighbours (2i, 2i+1);
ours rotates halves (i, i + h/2). The two agree after reordering the rows of wq and wk, which is done here.
"""

import pathlib

import jax
import numpy as np

from rl_jax.core.types import Params
from rl_jax.models.transformer.model import TransformerConfig

_HEADER = 7 * 4


def load(path: str | pathlib.Path) -> tuple[TransformerConfig, Params]:
    """The config and the params (numpy float32 leaves) of the checkpoint at `path`.

    Raises:
      ValueError: if the file's size does not fit its header; gives both sizes.
    """
    path = pathlib.Path(path)
    raw = path.read_bytes()
    if len(raw) < _HEADER:
        raise ValueError(f"{path}: {len(raw)} bytes are too few for a llama2.c header of {_HEADER}")
    dim, hidden, layers, heads, kv_heads, vocab, max_len = np.frombuffer(raw[:_HEADER], np.int32).tolist()
    tied, vocab = vocab > 0, abs(vocab)
    if min(dim, hidden, layers, heads, kv_heads, vocab, max_len) < 1 or dim % heads:
        raise ValueError(f"{path}: not a llama2.c version 0 header: dim={dim} hidden={hidden} layers={layers}")
    head_dim = dim // heads
    shapes = {
        "embedding": (vocab, dim),
        "attention_norm": (layers, dim),
        "q": (layers, heads * head_dim, dim),
        "k": (layers, kv_heads * head_dim, dim),
        "v": (layers, kv_heads * head_dim, dim),
        "o": (layers, dim, heads * head_dim),
        "mlp_norm": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "final_norm": (dim,),
        "rope_tables": (2, max_len, head_dim // 2),  # cosines and sines, recomputed by us
    }
    if not tied:
        shapes["head"] = (vocab, dim)
    expected = _HEADER + 4 * sum(int(np.prod(s)) for s in shapes.values())
    if len(raw) != expected:
        raise ValueError(f"{path}: {len(raw)} bytes, but its header requires {expected}; is the download complete?")
    tensors, offset = {}, _HEADER
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        tensors[name] = np.frombuffer(raw, np.float32, size, offset).reshape(shape)
        offset += 4 * size
    config = TransformerConfig(
        vocab, dim, layers, heads, kv_heads, head_dim, hidden, tied_head=tied, rope_theta=10_000.0, norm_eps=1e-5
    )
    return config, _to_params(tensors, config)


def _halves(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorders the output rows of each head from neighbouring pairs to halves. [L, H*h, D] -> the same shape."""
    num_layers, rows, dim = weight.shape
    pairs = weight.reshape(num_layers, rows // head_dim, head_dim // 2, 2, dim)
    return pairs.swapaxes(2, 3).reshape(num_layers, rows, dim)


def _to_params(tensors: dict[str, np.ndarray], config: TransformerConfig) -> Params:
    for name in ("q", "k"):
        tensors[name] = _halves(tensors[name], config.head_dim)
    layers = {name: {"kernel": tensors[name].swapaxes(1, 2)} for name in ("q", "k", "v", "o", "gate", "up", "down")}
    layers |= {name: {"scale": tensors[name]} for name in ("attention_norm", "mlp_norm")}
    params = {
        "embed": {"embedding": tensors["embedding"]},
        "layers": layers,
        "final_norm": {"scale": tensors["final_norm"]},
    }
    if not config.tied_head:
        params["head"] = {"kernel": tensors["head"].T}
    return jax.tree.map(np.ascontiguousarray, params)
