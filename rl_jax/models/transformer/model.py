"""A decoder-only transformer as pure functions over params; `config.py` selects the model, `blocks.py` is a layer.

A block is a Flax Linen module; the stack is ours. The layers' params are stacked on a leading axis L, a full forward
scans over them (one compiled block for any depth; a few layers on a CPU are unrolled), and decoding unrolls them so
that the KV cache is updated in place. What differs between layers (window, rotary frequencies) is computed once per
kind of layer, and each layer of the scan selects its own. Caches are arguments and results. The head is separate from
the body: `apply` returns hidden states, and the caller chooses the positions whose logits it needs.
"""

import functools
from collections.abc import Callable

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from rl_jax.core.axis_table import constrain, devices_over
from rl_jax.core.split_head import SplitHead, split_head
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.models import quantization
from rl_jax.models.transformer.attention import layer_kinds, rotation
from rl_jax.models.transformer.blocks import Block, make_norm
from rl_jax.models.transformer.config import (
    LAYER_INPUT,
    REMAT_POLICIES,
    UNROLLED_LAYERS,
    UNROLLED_WIDTH,
    TransformerConfig,
)
from rl_jax.models.transformer.decoding import as_cache, make_decode, routes_of, unstack
from rl_jax.models.transformer.kinds import make_attention
from rl_jax.models.transformer.moe import RouterStats, router_stats

__all__ = ["TransformerConfig", "init_params", "make_routed_apply", "make_transformer"]


def init_params(config: TransformerConfig, key: chex.PRNGKey) -> Params:
    """Random params of param_dtype, those of the layers stacked on a leading axis L. key: a typed key."""
    embed_key, layer_key, head_key = jax.random.split(key, 3)
    x, positions = jnp.zeros((1, 1, config.embed_dim), config.dtype), jnp.zeros((1, 1), jnp.int32)
    block, angles = Block(config), rotation(layer_kinds(config)[0][0], positions)

    def init_layer(key):
        return block.init(key, x, angles, lambda q, k, v: (q, None))["params"]

    shape, dtype = (config.vocab_size, config.embed_dim), jnp.dtype(config.param_dtype)
    # A head of D^-1/2 gives logits of unit size. Embeddings of unit size, if the head is not tied to them, keep the
    # first norm from inflating their gradients: with 0.02, usual for wide models, Adam's steps on a model of width
    # 64 are so large there that the noise of a policy gradient undoes what it learns.
    head_scale = config.embed_dim**-0.5
    embed_scale = head_scale if config.tied_head else 1.0
    params = {
        "embed": {"embedding": nn.initializers.normal(embed_scale)(embed_key, shape, dtype)},
        "layers": jax.vmap(init_layer)(jax.random.split(layer_key, config.num_layers)),
        "final_norm": make_norm(config).init(embed_key, x)["params"],
    }
    if config.learned_positions:
        table = nn.initializers.normal(0.1 * embed_scale)
        shape_of_table = (config.learned_positions, config.embed_dim)
        params["position_embed"] = {"embedding": table(jax.random.fold_in(embed_key, 1), shape_of_table, dtype)}
    if not config.tied_head:
        params["head"] = {"kernel": nn.initializers.normal(head_scale)(head_key, shape[::-1], dtype)}
    return params


def _embed(config: TransformerConfig, params: Params, tokens: chex.Array, positions: chex.Array) -> chex.Array:
    """Embeddings [B, T, D] of dtype. A position beyond a learned table gives nan; a neighbour's would go unnoticed."""
    dtype = jnp.dtype(config.dtype)
    x = params["embed"]["embedding"].astype(dtype)[tokens]
    if config.embed_scale != 1.0:
        x = x * jnp.asarray(config.embed_scale, dtype)
    if config.learned_positions:
        x = x + jnp.take(params["position_embed"]["embedding"].astype(dtype), positions, axis=0, mode="fill")
    return x


def _layers_per_turn(config: TransformerConfig) -> int:
    """TransformerConfig.unroll, chosen where it is 0."""
    few = config.num_layers <= UNROLLED_LAYERS and config.embed_dim >= UNROLLED_WIDTH and config.remat == "none"
    return config.unroll or (config.num_layers if few and jax.default_backend() == "cpu" else 1)


def _forward(
    config: TransformerConfig,
    params: Params,
    batch: TokenBatch,
    *,
    chosen: chex.Array | None = None,
    cache: str = "",
    keep: Callable = lambda cache, routing: None,
    places: Callable | None = None,
):
    """(hidden [B, T, D], the results of `keep` on each layer's (k, v) and routing, stacked on L).

    chosen: int32 [L, B, T, k], experts to replay.
    cache: a kind of quantization.KINDS that keys and values go through; "": none.
    places: picks the places whose hidden states are needed, [B, T, n] -> [S, N, n]; where layers are unrolled, the last
      one's MLP then runs on them alone, and nothing is kept.
    """
    chex.assert_rank([batch.tokens, batch.positions, batch.segment_ids], 2)
    if batch.routes is not None:
        chex.assert_shape(batch.routes, (*batch.tokens.shape, config.num_layers, config.experts_per_token))
        chosen = jnp.moveaxis(batch.routes.astype(jnp.int32), 2, 0)
    batch = batch._replace(allowed=None, routes=None)  # the former is read by a Score, after the head
    chex.assert_equal_shape(jax.tree.leaves(batch))
    if batch.tokens.shape[1] % devices_over("tokens"):
        raise ValueError(
            f"rows of {batch.tokens.shape[1]} tokens do not divide over the mesh's context={devices_over('tokens')}"
        )
    batch = jax.tree.map(lambda x: constrain(x, "rows", "tokens"), batch)
    gathers = batch.tokens.shape[0] % devices_over("rows") == 0 and not quantization.any_quantized(params["layers"])
    block = Block(config, gathers=gathers)
    kinds, kind_of_layer = layer_kinds(config)
    needs, attend = make_attention(config, batch, kinds)
    shared = [(own, rotation(kind, batch.positions)) for own, kind in zip(needs, kinds, strict=True)]
    if len(kinds) == 1:
        (of_kind,), per_layer = shared, None
    else:
        of_kind = jax.tree.map(lambda *leaves: jnp.stack(leaves), *shared)
        per_layer = jnp.array(kind_of_layer, jnp.int32)

    def layer(x, xs, places=None):
        layer_params, kind, layer_chosen = xs
        x = checkpoint_name(constrain(x, "rows", "tokens", None), LAYER_INPUT)
        own, angles = of_kind if kind is None else jax.tree.map(lambda leaf: leaf[kind], of_kind)

        def full_attention(q, k, v):
            kept = (k, v)
            if cache:  # a prompt attends to what later tokens will read
                kept = tuple(quantization.quantize(part, cache, axis=-1) for part in kept)
                k, v = (quantization.dequantize(part, k.dtype) for part in kept)
            return attend(q, k, v, own), kept

        layer_params = _rounded(quantization.read(layer_params, x, config.dtype), config.dtype)
        x, kept, routing = block.apply({"params": layer_params}, x, angles, full_attention, layer_chosen, places)
        return x, keep(kept, routing)

    # Only here: a decode step is cheaper if its few tokens are not split and the products with the weights are.
    x = constrain(_embed(config, params, batch.tokens, batch.positions), "looked_up_rows", "tokens", "embed")
    x = constrain(x, "rows", "tokens", None)
    x, kept = _through_layers(config, layer, x, (params["layers"], per_layer, chosen), places)
    return make_norm(config).apply({"params": params["final_norm"]}, x), kept


@jax.custom_jvp
def _round(x: chex.Array) -> chex.Array:
    """float32 x with as many bits as bfloat16 has. Its gradient is not rounded."""
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


_round.defjvp(lambda primals, tangents: (_round(*primals), *tangents))


def _rounded(layer_params: Params, dtype: str) -> Params:
    """One layer's params, float32 matrices rounded to bfloat16 but held as before, if the products cast them to that.

    A cast alone is moved out of the loop over layers by XLA, which then keeps all layers' matrices in both dtypes: 0.2
    GiB a chip of an 8B model on 64 chips. What is rounded stays in the loop. Not for float16, whose range is smaller:
    rounded to that, its subnormal numbers would be 0.
    """
    if jnp.dtype(dtype) != jnp.bfloat16:
        return layer_params

    def one(leaf: chex.Array) -> chex.Array:
        return _round(leaf) if leaf.ndim > 1 and leaf.dtype == jnp.float32 else leaf

    return jax.tree.map(one, layer_params)


def _through_layers(config: TransformerConfig, layer: Callable, x: chex.Array, xs: tuple, places: Callable | None):
    """(x [B, T, D], or places of it, the second results of `layer` stacked on L). layer: (x, xs of it, places)."""
    unroll = _layers_per_turn(config)

    def call(places=None):
        one = functools.partial(layer, places=places)
        if config.remat == "none":
            return one
        # Between turns of a loop nothing is common that XLA could find.
        loop = unroll == 1 and places is None
        return jax.checkpoint(one, policy=REMAT_POLICIES[config.remat], prevent_cse=not loop)

    # In a loop over layers the last one would be a second program, and its weights a copy.
    apart = places and unroll >= config.num_layers and not config.num_experts and devices_over("tokens") == 1
    if not apart:
        x, kept = jax.lax.scan(call(), x, xs, unroll=unroll)
        return (places(x) if places else x), kept
    if config.num_layers > 1:
        x, _ = jax.lax.scan(call(), x, jax.tree.map(lambda leaf: leaf[:-1], xs), unroll=unroll)
    x, _ = call(places)(x, jax.tree.map(lambda leaf: leaf[-1], xs))
    return x, None


def make_transformer(config: TransformerConfig, *, record_routes: bool = False, cache: str = "") -> Model:
    """The model's pure functions, closed over `config` (see types.Model).

    Args:
      config: of the model.
      record_routes: whether caches record the chosen experts, so that a rollout carries them (TokenBatch.routes).
      cache: how caches hold keys and values, a kind of quantization.KINDS; "": in the model's dtype.

    Raises:
      ValueError: if there are no experts to record, or the kind is unknown.
    """
    if record_routes and not config.num_experts:
        raise ValueError("record_routes needs a model with experts: num_experts is 0")
    quantization.check_kind("cache", cache)
    block, final_norm = Block(config), make_norm(config)
    kinds, kind_of_layer = layer_kinds(config)

    def apply(params: Params, batch: TokenBatch, places: Callable | None = None) -> chex.Array:
        return _forward(config, params, batch, places=places)[0]

    def prefill(params: Params, batch: TokenBatch):
        def keep(layer, routing):
            shape = (*batch.tokens.shape, -1)
            return (*layer, routing.chosen.reshape(shape).astype(jnp.int16)) if record_routes else layer

        hidden, kept = _forward(config, params, batch, cache=cache, keep=keep)
        return hidden, as_cache(*kept)

    def head_weights(params: Params) -> chex.Array:
        return params["embed"]["embedding"].T if config.tied_head else params["head"]["kernel"]

    def product(weights: chex.Array, hidden: chex.Array) -> chex.Array:
        # Accumulated and kept in float32: a ratio from bfloat16 logits is not 1 on the first minibatch.
        if hidden.ndim == 3 and devices_over("tokens") > 1:
            flat = constrain(hidden, "rows", "tokens", None)
        else:
            flat = hidden.reshape(-1, config.embed_dim)
        logits = jnp.matmul(flat, weights.astype(jnp.dtype(config.dtype)), preferred_element_type=jnp.float32)
        return logits.reshape(*hidden.shape[:-1], -1)

    def cap(logits: chex.Array) -> chex.Array:
        return config.logit_softcap * jnp.tanh(logits / config.logit_softcap) if config.logit_softcap else logits

    def unembed(params: Params, hidden: chex.Array) -> chex.Array:
        return cap(product(head_weights(params), hidden))

    def own_split_head(params: Params) -> SplitHead | None:
        return split_head(lambda: head_weights(params), config.vocab_size, product, cap)

    def run_layer(params: Params, i: int, x: chex.Array, positions: chex.Array, attend: Callable):
        """Layer i only: x [B, T, D], positions int32 [B, T], attend as in Block -> Block's results."""
        layers = params["layers"]
        layer_params = layers[i] if isinstance(layers, tuple) else jax.tree.map(lambda p: p[i], layers)
        layer_params = quantization.read(layer_params, x, config.dtype)
        angles = rotation(kinds[kind_of_layer[i]], positions)  # XLA computes equal ones once
        return block.apply({"params": layer_params}, x, angles, attend)

    def normed(params, x):
        return final_norm.apply({"params": params["final_norm"]}, x)

    embed = functools.partial(_embed, config)
    extend, decode, init_cache = make_decode(config, embed, run_layer, normed, record_routes=record_routes, kind=cache)
    init = functools.partial(init_params, config)
    routes = routes_of if record_routes else None
    if not config.causal:
        prefill = decode = extend = init_cache = _no_cache
    functions = (init, apply, unembed, prefill, decode, init_cache)
    with_cache = functools.partial(_with_cache, config, record_routes)
    return Model(*functions, config.vocab_size, extend, unstack, own_split_head, routes, config.causal, with_cache)


def _with_cache(config: TransformerConfig, record_routes: bool, kind: str) -> Model:
    return make_transformer(config, record_routes=record_routes, cache=kind)


def _no_cache(*_, **__):
    raise ValueError(
        "causal=False: what a token's keys and values are changes with the tokens after it, so there is no KV cache. "
        "Sample this model with rl_jax.rollout.lm.masked.make_masked_generate (python -m experiments.masked_diffusion)"
    )


def make_routed_apply(config: TransformerConfig) -> Callable:
    """A pure function (params, TokenBatch [B, T], chosen=None) -> (hidden [B, T, D], RouterStats) with given experts.

    chosen: int32 [L, B, T, k], the `chosen` of another forward's RouterStats. Those experts run again, weighted by the
    probabilities under these params.

    Raises:
      ValueError: if the model has no experts.
    """
    if not config.num_experts:
        raise ValueError("make_routed_apply needs a model with experts: num_experts is 0")

    def apply(params: Params, batch: TokenBatch, chosen: chex.Array | None = None) -> tuple[chex.Array, RouterStats]:
        real = batch.segment_ids > 0
        if chosen is not None:
            chex.assert_shape(chosen, (config.num_layers, *real.shape, config.experts_per_token))
        hidden, stats = _forward(
            config, params, batch, chosen=chosen, keep=lambda cache, routing: router_stats(routing, real)
        )
        return hidden, stats._replace(tokens=jnp.sum(real, dtype=jnp.float32))

    return apply
