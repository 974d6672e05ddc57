"""The table of attentions over whole rows: a name of config.ATTENTIONS -> how it is computed.

Each entry takes the model's config, the rows and the kinds of layers, and gives what each kind of layer needs of its
own (a mask, a window, an index: arrays of one shape, which a scan over the layers selects from) and a function
(q, k, v, own) -> [B, T, H, h].
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_jax.core.axis_table import devices_over
from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer.attention import (
    LayerKind,
    attend_both_ways,
    attend_causally,
    attend_fused,
    attention_mask,
    fused_fits,
)
from rl_jax.models.transformer.config import TransformerConfig
from rl_jax.models.transformer.ring import ring_attend
from rl_jax.models.transformer.splash import splash_attend, splash_fits

Kinds = tuple[LayerKind, ...]


def choose_attention(config: TransformerConfig, batch: TokenBatch) -> str:
    """The entry that a forward over these rows takes: config.attention, or what "auto" finds to fit the backend."""
    if config.attention != "auto":
        return config.attention
    if config.causal and splash_fits(batch, config.num_kv_heads):
        return "splash"
    # Not causal ones too: the kernel takes any mask.
    return "cudnn" if fused_fits(config, batch.tokens.shape[1]) else "dot_product"


def make_attention(config: TransformerConfig, batch: TokenBatch, kinds: Kinds) -> tuple[list[Any], Callable]:
    """([what each kind of layer needs], (q [B, T, H, h], k and v [B, T, K, h], own) -> [B, T, H, h]).

    Args:
      config: the model's.
      batch: the rows, [B, T].
      kinds: of its layers.

    Raises:
      ValueError: if the attention that config names cannot do these rows.
    """
    return ATTENTION[choose_attention(config, batch)](config, batch, kinds)


def _keywords(config: TransformerConfig) -> dict[str, float]:
    return {"scale": config.attention_scale, "softcap": config.attention_softcap}


def _masks(config: TransformerConfig, batch: TokenBatch, kinds: Kinds) -> list[jax.Array]:
    return [attention_mask(batch, kind.window, causal=config.causal) for kind in kinds]


def _dot_product(config: TransformerConfig, batch: TokenBatch, kinds: Kinds):
    attend = attend_causally if config.causal else attend_both_ways
    return _masks(config, batch, kinds), functools.partial(attend, **_keywords(config))


def _cudnn(config: TransformerConfig, batch: TokenBatch, kinds: Kinds):
    attend = functools.partial(attend_fused, causal=config.causal, **_keywords(config))
    return _masks(config, batch, kinds), attend


def _splash(config: TransformerConfig, batch: TokenBatch, kinds: Kinds):
    """Its window is part of the compiled kernel: layers choose among the kernels by index."""
    options = dict(segment_ids=batch.segment_ids, prefix_ids=batch.prefix_ids, positions=batch.positions)
    options |= _keywords(config)
    kernels = [functools.partial(splash_attend, window=kind.window, **options) for kind in kinds]

    def attend(q, k, v, own):
        return kernels[0](q, k, v) if len(kernels) == 1 else jax.lax.switch(own, kernels, q, k, v)

    return [np.int32(index) for index in range(len(kinds))], attend


def _ring(config: TransformerConfig, batch: TokenBatch, kinds: Kinds):
    """Where nothing splits the tokens (context:1, or a sampler on a mesh of its own) it is plain attention."""
    if devices_over("tokens") == 1:
        return _dot_product(config, batch, kinds)

    def attend(q, k, v, own):
        return ring_attend(q, k, v, batch, window=own, causal=config.causal, **_keywords(config))

    return [np.int32(kind.window) for kind in kinds], attend


ATTENTION: dict[str, Callable] = {"dot_product": _dot_product, "splash": _splash, "cudnn": _cudnn, "ring": _ring}
