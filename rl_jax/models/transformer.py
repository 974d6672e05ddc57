"""A decoder-only transformer (RMSNorm, RoPE, grouped-query attention, SwiGLU) as pure functions over params.

One block is a Flax Linen module; the stack is ours: the layers' params are stacked on a leading axis L, a full
forward scans over them (one compiled block whatever the depth), and decoding unrolls them so that the KV cache is
updated in place. Caches are arguments and results. The head is apart from the body: `apply` returns hidden states,
and whoever wants logits says for which positions.
"""

import dataclasses
import functools
from collections.abc import Callable

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rl_jax.types import Model, Params, TokenBatch

NEGATIVE = -1e30  # finite, so that a row that attends to nothing stays finite

REMAT_POLICIES = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and policies. dtype is what the matmuls run in, param_dtype what is stored and optimised.

    num_kv_heads divides num_heads. rope_theta and norm_eps as in the checkpoint. remat: a key of REMAT_POLICIES.
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    tied_head: bool = True
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: str = "none"

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary embeddings")
        if self.remat not in REMAT_POLICIES:
            raise ValueError(f"remat={self.remat!r} is none of {', '.join(REMAT_POLICIES)}")


def rotate(x: chex.Array, positions: chex.Array, theta: float) -> chex.Array:
    """Rotary position embedding on halves: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), angle pos * theta^(-2i/h).

    x: float [B, T, H, h]. positions: int32 [B, T]. The angles are float32 whatever x is. Source: arXiv 2104.09864.
    """
    half = x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = positions[..., None, None].astype(jnp.float32) * frequency[None, None, None, :]
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def attention_mask(query_segments: chex.Array, key_segments: chex.Array) -> chex.Array:
    """Causal, and only inside one's own segment. int32 [B, T] x2 -> bool [B, 1, T, T]. Padding is segment 0."""
    length = query_segments.shape[1]
    same = query_segments[:, :, None] == key_segments[:, None, :]
    return (same & jnp.tril(jnp.ones((length, length), bool))[None])[:, None]


class RMSNorm(nn.Module):
    """x * scale / sqrt(mean(x^2) + eps), in float32. Source: arXiv 1910.07467."""

    eps: float
    param_dtype: str

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.dtype(self.param_dtype))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        return (wide * jnp.broadcast_to(scale, wide.shape)).astype(x.dtype)


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm and a residual. `attend` decides what the queries may see."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: chex.Array, positions: chex.Array, attend: Callable) -> tuple[chex.Array, chex.ArrayTree]:
        """x: [B, T, D]. attend: (q [B,T,H,h], k [B,T,K,h], v) -> ([B,T,H,h], anything). Returns (x, that anything)."""
        c = self.config
        dense = functools.partial(
            nn.Dense, use_bias=False, dtype=jnp.dtype(c.dtype), param_dtype=jnp.dtype(c.param_dtype)
        )
        norm = functools.partial(RMSNorm, eps=c.norm_eps, param_dtype=c.param_dtype)
        batch_and_time = x.shape[:2]
        heads = functools.partial(jnp.reshape, shape=(*batch_and_time, -1, c.head_dim))
        # Dense layers see [B * T, D]: XLA's CPU backend makes plain GEMMs of that, and not of [B, T, D] (4.6 x slower
        # in the gradient of this MLP on 2 cores). Elsewhere it makes no difference.
        x = x.reshape(-1, c.embed_dim)
        y = norm(name="attention_norm")(x)
        q = rotate(heads(dense(c.num_heads * c.head_dim, name="q")(y)), positions, c.rope_theta)
        k = rotate(heads(dense(c.num_kv_heads * c.head_dim, name="k")(y)), positions, c.rope_theta)
        v = heads(dense(c.num_kv_heads * c.head_dim, name="v")(y))
        attended, extra = attend(q, k, v)
        # What 2 L branches add to the residual stream stays of its own size at the start (GPT-2, section 2.3).
        into_residual = nn.initializers.variance_scaling(0.5 / c.num_layers, "fan_in", "normal")
        x = x + dense(c.embed_dim, name="o", kernel_init=into_residual)(attended.reshape(x.shape[0], -1))
        y = norm(name="mlp_norm")(x)
        gated = nn.silu(dense(c.mlp_dim, name="gate")(y)) * dense(c.mlp_dim, name="up")(y)
        x = x + dense(c.embed_dim, name="down", kernel_init=into_residual)(gated)
        return x.reshape(*batch_and_time, -1), extra


def init_params(config: TransformerConfig, key: chex.PRNGKey) -> Params:
    """Random params of param_dtype, the layers' stacked on a leading axis L. key: a typed key."""
    embed_key, layer_key, head_key = jax.random.split(key, 3)
    x, positions = jnp.zeros((1, 1, config.embed_dim), config.dtype), jnp.zeros((1, 1), jnp.int32)
    block, final_norm = Block(config), RMSNorm(eps=config.norm_eps, param_dtype=config.param_dtype)

    def init_layer(key):
        return block.init(key, x, positions, lambda q, k, v: (q, None))["params"]

    shape, dtype = (config.vocab_size, config.embed_dim), jnp.dtype(config.param_dtype)
    # A head of D^-1/2 gives logits of unit size. Embeddings of unit size, where the head is not tied to them, keep
    # the first norm from blowing their gradients up: with 0.02, usual for wide models, Adam's steps on a model of
    # width 64 are so large there that the noise of a policy gradient undoes what it learns.
    head_scale = config.embed_dim**-0.5
    embed_scale = head_scale if config.tied_head else 1.0
    params = {
        "embed": {"embedding": nn.initializers.normal(embed_scale)(embed_key, shape, dtype)},
        "layers": jax.vmap(init_layer)(jax.random.split(layer_key, config.num_layers)),
        "final_norm": final_norm.init(embed_key, x)["params"],
    }
    if not config.tied_head:
        params["head"] = {"kernel": nn.initializers.normal(head_scale)(head_key, shape[::-1], dtype)}
    return params


def make_transformer(config: TransformerConfig) -> Model:
    """The model's pure functions, closed over `config` (see types.Model)."""
    block = Block(config)
    final_norm = RMSNorm(eps=config.norm_eps, param_dtype=config.param_dtype)
    dtype = jnp.dtype(config.dtype)

    def embed(params, tokens):
        return params["embed"]["embedding"].astype(dtype)[tokens]

    def full_attention(mask, q, k, v):
        return jax.nn.dot_product_attention(q, k, v, mask=mask), (k, v)

    def forward(params: Params, batch: TokenBatch, keep_cache: bool):
        chex.assert_rank([batch.tokens, batch.positions, batch.segment_ids], 2)
        chex.assert_equal_shape(list(batch))
        mask = attention_mask(batch.segment_ids, batch.segment_ids)

        def layer(x, layer_params):
            attend = functools.partial(full_attention, mask)
            x, cache = block.apply({"params": layer_params}, x, batch.positions, attend)
            return x, cache if keep_cache else None

        if config.remat != "none":
            layer = jax.checkpoint(layer, policy=REMAT_POLICIES[config.remat], prevent_cse=False)
        x, cache = jax.lax.scan(layer, embed(params, batch.tokens), params["layers"])
        return final_norm.apply({"params": params["final_norm"]}, x), cache

    def apply(params: Params, batch: TokenBatch) -> chex.Array:
        return forward(params, batch, keep_cache=False)[0]

    def prefill(params: Params, batch: TokenBatch):
        return forward(params, batch, keep_cache=True)

    def decode(params: Params, tokens, positions, cache, column, visible):
        """One token a row: tokens, positions int32 [B]; cache (k, v) [L, B, S, K, h]; column: where this token's
        key goes; visible: bool [B, S], the columns it may attend to, its own included. -> hidden [B, D], cache."""
        x = embed(params, tokens)[:, None]
        keys, values = cache
        for i in range(config.num_layers):

            def attend(q, k, v, i=i):
                nonlocal keys, values
                keys = jax.lax.dynamic_update_slice(keys, k[None], (i, 0, column, 0, 0))
                values = jax.lax.dynamic_update_slice(values, v[None], (i, 0, column, 0, 0))
                return _attend_cache(q, keys[i], values[i], visible), None

            layer_params = jax.tree.map(lambda p, i=i: p[i], params["layers"])
            x, _ = block.apply({"params": layer_params}, x, positions[:, None], attend)
        return final_norm.apply({"params": params["final_norm"]}, x)[:, 0], (keys, values)

    def init_cache(batch: int, length: int):
        shape = (config.num_layers, batch, length, config.num_kv_heads, config.head_dim)
        return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)

    def unembed(params: Params, hidden: chex.Array) -> chex.Array:
        weights = params["embed"]["embedding"].T if config.tied_head else params["head"]["kernel"]
        # Accumulated and kept in float32: a ratio from bfloat16 logits is not 1 on the first minibatch.
        flat = hidden.reshape(-1, config.embed_dim)
        logits = jnp.matmul(flat, weights.astype(dtype), preferred_element_type=jnp.float32)
        return logits.reshape(*hidden.shape[:-1], -1)

    init = functools.partial(init_params, config)
    return Model(init, apply, unembed, prefill, decode, init_cache, config.vocab_size)


def _attend_cache(q: chex.Array, keys: chex.Array, values: chex.Array, visible: chex.Array) -> chex.Array:
    """One query a row against the cache. q [B,1,H,h], keys and values [B,S,K,h], visible bool [B,S] -> [B,1,H,h]."""
    batch, _, num_heads, head_dim = q.shape
    grouped = q.reshape(batch, keys.shape[2], -1, head_dim)
    scores = jnp.einsum("bkgh,bskh->bkgs", grouped, keys, preferred_element_type=jnp.float32) * head_dim**-0.5
    weights = jax.nn.softmax(jnp.where(visible[:, None, None, :], scores, NEGATIVE), axis=-1)
    attended = jnp.einsum("bkgs,bskh->bkgh", weights.astype(values.dtype), values)
    return attended.reshape(batch, 1, num_heads, head_dim)
