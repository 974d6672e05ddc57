"""Decoding with a KV cache: the layers are unrolled, so that the cache is updated in place.

Caches are arguments and results; a cache holds (keys [B, K, h, S], values [B, K, S, h]) a layer. Every leaf has rows
first, so that whoever moves rows about need not know what is inside; one buffer a layer, with the summed dimension of
each product where XLA's CPU backend wants it, makes a step of attention 5 times faster there than one [L, B, S, K, h].
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.axis_table import constrain
from rl_jax.core.types import TokenBatch

NEGATIVE = -1e30  # finite, so that a row that attends to nothing stays finite


def make_decode(config, embed: Callable, run_layer: Callable, normed: Callable) -> tuple[Callable, Callable, Callable]:
    """(extend, decode, init_cache) of types.Model, closed over a TransformerConfig and its pieces.

    embed: (params, tokens, positions) -> x. run_layer: (params, i, x, positions, attend) -> (x, extra). normed: the
    final norm, (params, x) -> hidden.
    """
    windows = config.windows or (0,) * config.num_layers
    dtype = jnp.dtype(config.dtype)

    def extend(params, batch: TokenBatch, cache, columns, visible):
        """T tokens a row behind what the cache holds: TokenBatch [B, T] -> hidden [B, T, D], cache.

        columns: where a row's first key goes, the others behind it; int32 [B], or [] where it is the same for all.
        visible: bool [B, S], the columns that a row's queries may attend to; of those no query sees a column behind
        its own. A row's columns from columns to columns + T must be there: XLA would shift what does not fit.
        """
        chex.assert_rank([batch.tokens, visible], 2)
        own = jnp.broadcast_to(columns, batch.tokens.shape[:1])[:, None] + jnp.arange(batch.tokens.shape[1])[None]
        masks = {window: _shown(visible, own, window) for window in set(windows)}
        x, filled = embed(params, batch.tokens, batch.positions), []
        for i, (keys, values) in enumerate(cache):

            def attend(q, k, v, i=i, keys=keys, values=values):
                keys = put_columns(keys, jnp.transpose(k, (0, 2, 3, 1)), columns, axis=3)
                values = put_columns(values, jnp.transpose(v, (0, 2, 1, 3)), columns, axis=2)
                filled.append((keys, values))
                scale, softcap = config.attention_scale, config.attention_softcap
                return attend_cache(q, keys, values, masks[windows[i]], scale=scale, softcap=softcap), None

            x, _ = run_layer(params, i, x, batch.positions, attend)
        return normed(params, x), tuple(filled)

    def decode(params, tokens, positions, cache, columns, visible):
        """extend by one token a row: tokens, positions int32 [B] -> hidden [B, D], cache."""
        batch = TokenBatch(tokens[:, None], positions[:, None], jnp.ones_like(tokens)[:, None])
        hidden, cache = extend(params, batch, cache, columns, visible)
        return hidden[:, 0], cache

    def init_cache(batch: int, length: int):
        keys = (batch, config.num_kv_heads, config.head_dim, length)
        values = (batch, config.num_kv_heads, length, config.head_dim)
        names = ("rows", "heads", None, None)
        shapes = ((keys, values) for _ in range(config.num_layers))
        return tuple(tuple(constrain(jnp.zeros(shape, dtype), *names) for shape in layer) for layer in shapes)

    return extend, decode, init_cache


def as_cache(keys: chex.Array, values: chex.Array):
    """The cache of a full forward: keys and values [L, B, T, K, h], as a scan over layers stacks them."""
    chex.assert_rank([keys, values], 5)
    layers = zip(keys, values, strict=True)
    return tuple((jnp.transpose(k, (0, 2, 3, 1)), jnp.transpose(v, (0, 2, 1, 3))) for k, v in layers)


def unstack(params):
    """Params whose "layers" are a tuple, one a layer, instead of stacked on L: a copy of them.

    XLA's CPU backend copies a layer out of stacked params each time that a loop's body runs it: for a model of 4 M
    params more than half of a small batch's decode step.
    """
    layers = params["layers"]
    number = jax.tree.leaves(layers)[0].shape[0]
    return {**params, "layers": tuple(jax.tree.map(lambda p, i=i: p[i], layers) for i in range(number))}


def put_columns(array: chex.Array, update: chex.Array, columns: chex.Array, *, axis: int) -> chex.Array:
    """`update` written into `array` [B, ...] along `axis`, from each row's own column; columns: int32 [B] or []."""
    if jnp.ndim(columns) == 0:
        return jax.lax.dynamic_update_slice_in_dim(array, update.astype(array.dtype), columns, axis)
    put = jax.vmap(lambda a, u, c: jax.lax.dynamic_update_slice_in_dim(a, u, c, axis - 1))
    return put(array, update.astype(array.dtype), columns)


def _shown(visible: chex.Array, own: chex.Array, window: int) -> chex.Array:
    """bool [B, S] and the queries' columns [B, T] -> bool [B, T, S]: what is visible and neither behind the query's own
    column nor `window` or more before it. A row's visible columns are neighbours, in the order of their positions."""
    back = own[:, :, None] - jnp.arange(visible.shape[1])[None, None]
    shown = visible[:, None] & (back >= 0)
    return shown & (back < window) if window else shown


def attend_cache(
    q: chex.Array, keys: chex.Array, values: chex.Array, mask: chex.Array, *, scale: float, softcap: float = 0.0
) -> chex.Array:
    """Queries against the cache. q [B,T,H,h], keys [B,K,h,S], values [B,K,S,h], mask bool [B,T,S] -> [B,T,H,h].

    scale, softcap: as in attention.attend.
    """
    batch, length, num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[1]
    # [B, K, G * T, h]: products of plain matrices. As an einsum over all the letters, XLA puts the cache first and
    # transposes what comes out.
    grouped = jnp.moveaxis(q.reshape(batch, length, num_kv_heads, -1, head_dim), 1, 3)
    scores = jnp.matmul(
        grouped.reshape(batch, num_kv_heads, -1, head_dim), keys, preferred_element_type=jnp.float32
    ).reshape(*grouped.shape[:-1], -1) * scale
    scores = softcap * jnp.tanh(scores / softcap) if softcap else scores
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, NEGATIVE), axis=-1).astype(values.dtype)
    attended = jnp.matmul(weights.reshape(batch, num_kv_heads, -1, weights.shape[-1]), values)
    return jnp.moveaxis(attended.reshape(grouped.shape), 3, 1).reshape(batch, length, num_heads, head_dim)
