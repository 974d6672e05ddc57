"""Decoding with a KV cache: the layers are unrolled, so that the cache is updated in place.

Caches are arguments and results; a cache has (keys [B, K, h, S], values [B, K, S, h]) per layer. Every leaf has rows
first, so rows can be moved without knowing the contents. With one buffer per layer, and the summed dimension of each
product in the place that XLA's CPU backend prefers, a step of attention is 5 times faster there than with one
[L, B, S, K, h].
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.axis_table import constrain
from rl_jax.core.types import TokenBatch
from rl_jax.models.quantization import KINDS, Quantized, dequantize, quantize
from rl_jax.models.transformer.config import NEGATIVE


def make_decode(
    config, embed: Callable, run_layer: Callable, normed: Callable, *, record_routes: bool = False, kind: str = ""
) -> tuple[Callable, Callable, Callable]:
    """(extend, decode, init_cache) of types.Model, closed over a TransformerConfig and its parts.

    Args:
      config: the model's.
      embed: (params, tokens, positions) -> x.
      run_layer: (params, i, x, positions, attend) -> (x, extra, routing).
      normed: the final norm, (params, x) -> hidden.
      record_routes: whether each layer's cache has the chosen experts, too: int16 [B, S, k], -1 in empty columns.
      kind: of quantization.KINDS: keys and values are Quantized, with a scale per position and head; "": of dtype.
    """
    windows = config.windows or (0,) * config.num_layers
    dtype = jnp.dtype(config.dtype)

    def extend(params, batch: TokenBatch, cache, columns, visible):
        """T tokens per row after what the cache holds: TokenBatch [B, T] -> hidden [B, T, D], cache.

        Args:
          params: the model's.
          batch: TokenBatch [B, T].
          cache: of S columns.
          columns: the column of a row's first new key, the others follow; int32 [B], or [] if it is the same for all.
            Columns up to columns + T must exist: XLA would shift what does not fit.
          visible: bool [B, S], the columns that a row's queries may attend to; a query never sees a column after its
            own.
        """
        chex.assert_rank([batch.tokens, visible], 2)
        own = jnp.broadcast_to(columns, batch.tokens.shape[:1])[:, None] + jnp.arange(batch.tokens.shape[1])[None]
        masks = {window: _shown(visible, own, window) for window in set(windows)}
        x, filled = embed(params, batch.tokens, batch.positions), []
        for i, (keys, values, *routes) in enumerate(cache):

            def attend(q, k, v, i=i, keys=keys, values=values):
                keys = _put(keys, jnp.transpose(k, (0, 2, 3, 1)), columns, axis=3, kind=kind)
                values = _put(values, jnp.transpose(v, (0, 2, 1, 3)), columns, axis=2, kind=kind)
                filled.append((keys, values))
                scale, softcap = config.attention_scale, config.attention_softcap
                full = (dequantize(part, dtype) for part in (keys, values))
                return attend_cache(q, *full, masks[windows[i]], scale=scale, softcap=softcap), None

            x, _, routing = run_layer(params, i, x, batch.positions, attend)
            if routes:
                chosen = routing.chosen.reshape(*batch.tokens.shape, -1)
                filled[-1] += (put_columns(routes[0], chosen, columns, axis=1),)
        return normed(params, x), tuple(filled)

    def decode(params, tokens, positions, cache, columns, visible):
        """extend by one token per row: tokens, positions int32 [B] -> hidden [B, D], cache."""
        batch = TokenBatch(tokens[:, None], positions[:, None], jnp.ones_like(tokens)[:, None])
        hidden, cache = extend(params, batch, cache, columns, visible)
        return hidden[:, 0], cache

    def init_cache(batch: int, length: int):
        keys = (batch, config.num_kv_heads, config.head_dim, length)
        values = (batch, config.num_kv_heads, length, config.head_dim)
        names = ("rows", "heads", None, None)
        shapes = ((keys, values) for _ in range(config.num_layers))
        if kind:
            scales = ((batch, config.num_kv_heads, 1, length), (batch, config.num_kv_heads, length, 1))
            cache = tuple(
                tuple(
                    Quantized(
                        constrain(jnp.zeros(shape, KINDS[kind][0]), *names),
                        constrain(jnp.zeros(scale, jnp.float32), *names),
                    )
                    for shape, scale in zip(layer, scales, strict=True)
                )
                for layer in shapes
            )
        else:
            cache = tuple(tuple(constrain(jnp.zeros(shape, dtype), *names) for shape in layer) for layer in shapes)
        if not record_routes:
            return cache
        shape = (batch, length, config.experts_per_token)  # a buffer for each layer: programs donate them
        return tuple((*layer, constrain(jnp.full(shape, -1, jnp.int16), "rows", None, None)) for layer in cache)

    return extend, decode, init_cache


def as_cache(keys: chex.Array, values: chex.Array, *routes: chex.Array):
    """The cache of a full forward, as stacked by a scan over layers.

    Args:
      keys: [L, B, T, K, h], or Quantized over h.
      values: as keys.
      *routes: int16 [L, B, T, k], if they are recorded.
    """
    chex.assert_rank(jax.tree.leaves((keys, values)), 5)
    number = jax.tree.leaves(keys)[0].shape[0]
    layers = (jax.tree.map(lambda x, i=i: x[i], (keys, values, *routes)) for i in range(number))

    def turned(tree, axes):
        return jax.tree.map(lambda x: jnp.transpose(x, axes), tree)

    return tuple((turned(k, (0, 2, 3, 1)), turned(v, (0, 2, 1, 3)), *r) for k, v, *r in layers)


def routes_of(cache) -> chex.Array:
    """int16 [B, S, L, k], the experts that a recording cache holds; -1 in empty columns."""
    return jnp.stack([layer[2] for layer in cache], axis=2)


def unstack(params):
    """A copy of the params with "layers" as a tuple, one per layer, instead of stacked on L.

    XLA's CPU backend copies a layer out of stacked params each time a loop's body uses it: for a model of 4 M params
    that is more than half of a small batch's decode step.
    """
    layers = params["layers"]
    number = jax.tree.leaves(layers)[0].shape[0]
    return {**params, "layers": tuple(jax.tree.map(lambda p, i=i: p[i], layers) for i in range(number))}


def _put(old, update: chex.Array, columns: chex.Array, *, axis: int, kind: str):
    """put_columns of keys (axis 3) or values (axis 2), quantised over the head's width if the cache is."""
    if not kind:
        return put_columns(old, update, columns, axis=axis)
    new = quantize(update, kind, axis=5 - axis)
    return jax.tree.map(lambda x, y: put_columns(x, y, columns, axis=axis), old, new)


def put_columns(array: chex.Array, update: chex.Array, columns: chex.Array, *, axis: int) -> chex.Array:
    """`update` written into `array` [B, ...] along `axis`, from each row's own column; columns: int32 [B] or []."""
    if jnp.ndim(columns) == 0:
        return jax.lax.dynamic_update_slice_in_dim(array, update.astype(array.dtype), columns, axis)
    put = jax.vmap(lambda a, u, c: jax.lax.dynamic_update_slice_in_dim(a, u, c, axis - 1))
    return put(array, update.astype(array.dtype), columns)


def _shown(visible: chex.Array, own: chex.Array, window: int) -> chex.Array:
    """bool [B, S] and the queries' columns [B, T] -> bool [B, T, S]: the keys that each query sees.

    They are visible, not after the query's own column, and less than `window` columns before it. A row's visible
    columns are contiguous, in the order of their positions.
    """
    back = own[:, :, None] - jnp.arange(visible.shape[1])[None, None]
    shown = visible[:, None] & (back >= 0)
    return shown & (back < window) if window else shown


def attend_cache(
    q: chex.Array, keys: chex.Array, values: chex.Array, mask: chex.Array, *, scale: float, softcap: float = 0.0
) -> chex.Array:
    """Queries against the cache.

    Args:
      q: [B,T,H,h].
      keys: [B,K,h,S].
      values: [B,K,S,h].
      mask: bool [B,T,S].
      scale: as in attention.attend.
      softcap: as in attention.attend.

    Returns:
      [B,T,H,h].
    """
    batch, length, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    # [B, K, G * T, h]: products of plain matrices. With one einsum over all axes, XLA puts the cache first and
    # transposes the result.
    grouped = jnp.moveaxis(q.reshape(batch, length, num_kv_heads, -1, head_dim), 1, 3)
    scores = (
        jnp.matmul(
            grouped.reshape(batch, num_kv_heads, -1, head_dim), keys, preferred_element_type=jnp.float32
        ).reshape(*grouped.shape[:-1], -1)
        * scale
    )
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, NEGATIVE), axis=-1).astype(values.dtype)
    attended = jnp.matmul(weights.reshape(batch, num_kv_heads, -1, weights.shape[-1]), values)
    return jnp.moveaxis(attended.reshape(grouped.shape), 3, 1).reshape(batch, length, num_heads, head_dim)
