"""One layer of a transformer as a Flax Linen module: norms, attention, an MLP or experts, residuals."""

import functools
from collections.abc import Callable

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from rl_jax.core.axis_table import constrain, devices_over
from rl_jax.models.transformer.attention import rotate
from rl_jax.models.transformer.config import ADAPTED, TransformerConfig
from rl_jax.models.transformer.gathered import gathered_products
from rl_jax.models.transformer.moe import Experts, Routing

ACTIVATIONS = {"silu": nn.silu, "gelu_tanh": functools.partial(nn.gelu, approximate=True)}


class RMSNorm(nn.Module):
    """x * (scale + offset) / sqrt(mean(x^2) + eps), in float32. Source: arXiv 1910.07467."""

    eps: float
    param_dtype: str
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        init = nn.initializers.constant(1.0 - self.offset)
        scale = self.param("scale", init, (x.shape[-1],), jnp.dtype(self.param_dtype))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        if self.offset:
            scale = scale.astype(jnp.float32) + self.offset
        return (wide * jnp.broadcast_to(scale, wide.shape)).astype(x.dtype)


class LayerNorm(nn.Module):
    """(x - mean(x)) / sqrt(var(x) + eps) * scale + bias, in float32. Source: arXiv 1607.06450."""

    eps: float
    param_dtype: str

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        dtype = jnp.dtype(self.param_dtype)
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), dtype)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), dtype)
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        return (wide * jnp.broadcast_to(scale, wide.shape) + jnp.broadcast_to(bias, wide.shape)).astype(x.dtype)


def make_norm(config: TransformerConfig, name: str | None = None) -> nn.Module:
    """The config's norm over the last axis."""
    if config.norm == "layer":
        return LayerNorm(config.norm_eps, config.param_dtype, name=name)
    return RMSNorm(config.norm_eps, config.param_dtype, config.norm_offset, name=name)


def _last_by_first(x: chex.Array) -> tuple:
    """dot_general's dimension numbers of x W."""
    return ((x.ndim - 1,), (0,)), ((), ())


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _adapted(product: Callable, of_sum: DTypeLike, x: chex.Array, kernel: chex.Array, low: chex.Array, b: chex.Array):
    """x W + low b in float32, each summed up in `of_sum`. Gradients are computed in x's own dtype; W gets none.

    To jax.checkpoint it is no product, so that a policy which keeps those keeps the named sum instead (ADAPTED).
    """
    y = product(x, kernel, _last_by_first(x), preferred_element_type=of_sum).astype(jnp.float32)
    return y + jnp.matmul(low, b).astype(jnp.float32)


@_adapted.defjvp
def _adapted_jvp(product, of_sum, primals, tangents):
    (x, kernel, low, b), (x_dot, _, low_dot, b_dot) = primals, tangents
    y_dot = product(x_dot, kernel, _last_by_first(x)) + jnp.matmul(low_dot, b) + jnp.matmul(low, b_dot)
    return _adapted(product, of_sum, *primals), y_dot.astype(jnp.float32)


class Dense(nn.Dense):
    """A linear layer; with low-rank adapters in its params (models.lora.attach) lora_factor * (x W + (x a) b) + bias.

    The sum is rounded to `dtype` once: a change that is small beside x W is not lost in each of its numbers. With
    adapters W gets no gradient.

    Attributes:
      split_sum: whether devices each have a part of the sum x W. They then send it in `dtype`: half of the bytes.
    """

    split_sum: bool = False

    def __call__(self, x: chex.Array) -> chex.Array:
        if not self.has_variable("params", "lora_a"):
            return super().__call__(x)
        kernel, a, b = (self.get_variable("params", name).astype(self.dtype) for name in ("kernel", "lora_a", "lora_b"))
        x, of_sum = x.astype(self.dtype), self.dtype if self.split_sum else jnp.float32
        y = _adapted(self.dot_general or jax.lax.dot_general, of_sum, x, kernel, jnp.matmul(x, a), b)
        for name, combine in (("lora_factor", jnp.multiply), ("bias", jnp.add)):
            if self.has_variable("params", name):
                y = combine(y, jnp.broadcast_to(self.get_variable("params", name).astype(jnp.float32), y.shape))
        return checkpoint_name(y.astype(self.dtype), ADAPTED)


class Block(nn.Module):
    """Attention and an MLP, each after a norm and with a residual. `attend` determines what the queries may see.

    Attributes:
      config: of the model.
      gathers: whether weights may be gathered by hand (see gathered.py): the rows are split over the mesh, and the
        weights are not in 8 bits. In a decode step they stay, and the products are split.
    """

    config: TransformerConfig
    gathers: bool = False

    @nn.compact
    def __call__(
        self,
        x: chex.Array,
        angles: tuple | None,
        attend: Callable,
        chosen: chex.Array | None = None,
        places: Callable | None = None,
    ) -> tuple[chex.Array, chex.ArrayTree, Routing | None]:
        """One layer.

        Args:
          x: [B, T, D].
          angles: from attention.rotation.
          attend: (q [B,T,H,h], k [B,T,K,h], v) -> ([B,T,H,h], anything).
          chosen: int32 [B, T, k], the experts to use instead of the router's.
          places: [B, T, n] -> [S, N, n], picks the places whose x is needed. What follows the attention runs on them
            alone. Not with experts, nor where a mesh splits the tokens.

        Returns:
          (x, of `places` if given; the second result of attend; the routing).
        """
        c = self.config
        dense = functools.partial(Dense, dtype=jnp.dtype(c.dtype), param_dtype=jnp.dtype(c.param_dtype))
        batch_and_time = x.shape[:2]
        heads = functools.partial(jnp.reshape, shape=(*batch_and_time, -1, c.head_dim))
        # Dense layers get [B * T, D]: XLA's CPU backend turns that into plain GEMMs, but not [B, T, D] (4.6 x slower
        # in the gradient of this MLP on 2 cores). Other backends do not care. If a mesh splits T as well as B, no
        # layout of [B * T] matches that of [B, T].
        if devices_over("tokens") == 1:
            x = x.reshape(-1, c.embed_dim)
        y = make_norm(c, "attention_norm")(x)
        into, out_of = gathered_products(again=c.remat == "none") if self.gathers else (None, None)
        splits_embed = not self.gathers and devices_over("embed") > 1
        into = functools.partial(dense, dot_general=into, split_sum=splits_embed)
        out_of = functools.partial(dense, dot_general=out_of, split_sum=devices_over("mlp") > 1)
        q = heads(into(c.num_heads * c.head_dim, use_bias=c.qkv_bias, name="q")(y))
        k = heads(into(c.num_kv_heads * c.head_dim, use_bias=c.qkv_bias, name="k")(y))
        v = heads(into(c.num_kv_heads * c.head_dim, use_bias=c.qkv_bias, name="v")(y))
        if c.qk_norm:
            q, k = make_norm(c, "q_norm")(q), make_norm(c, "k_norm")(k)
        attended, extra = attend(rotate(q, angles), rotate(k, angles), v)
        # The sum of 2 L branches keeps the residual stream at its own scale at initialisation (GPT-2, section 2.3).
        into_residual = nn.initializers.variance_scaling(0.5 / c.num_layers, "fan_in", "normal")
        out = out_of(c.embed_dim, use_bias=c.o_bias, name="o", kernel_init=into_residual)
        if places:
            x, attended = (places(part.reshape(*batch_and_time, -1)) for part in (x, attended))
            x, attended = constrain(x, "rows", None, None), constrain(attended, "rows", None, "heads")
            batch_and_time = x.shape[:-1]
            x = x.reshape(-1, c.embed_dim)
        y = out(attended.reshape(*x.shape[:-1], -1))
        x = x + (make_norm(c, "attention_post_norm")(y) if c.post_norms else y)
        y = make_norm(c, "mlp_norm")(x)
        activation, routing = ACTIVATIONS[c.activation], None
        if c.num_experts:
            chosen = None if chosen is None else chosen.reshape(*x.shape[:-1], c.experts_per_token)
            y, routing = Experts(c, activation, into_residual, name="experts")(y, chosen)
        else:
            up = into(c.mlp_dim, use_bias=c.mlp_bias, name="up")(y)
            if c.gated_mlp:
                y = activation(into(c.mlp_dim, use_bias=c.mlp_bias, name="gate")(y)) * up
            else:
                y = activation(up)
            down = out_of(c.embed_dim, use_bias=c.mlp_bias, name="down", kernel_init=into_residual)
            y = down(y)
        x = x + (make_norm(c, "mlp_post_norm")(y) if c.post_norms else y)
        return x.reshape(*batch_and_time, -1), extra, routing
