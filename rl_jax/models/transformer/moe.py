"""A mixture of experts: a router picks k of E gated MLPs for each token; `jax.lax.ragged_dot` runs them.

The routing can be observed (RouterStats, the load-balancing loss, metrics) and replayed: the experts chosen by another
forward, of the sampler or the old policy, are passed as an argument, and only their weights come from the router of
these params (arXiv 2510.11370, Rollout Routing Replay).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rl_jax.core.axis_table import mesh_sizes, spec
from rl_jax.core.masked import Mean
from rl_jax.core.types import Metrics
from rl_jax.models.transformer.config import TransformerConfig


class Routing(NamedTuple):
    """One layer's decisions for N tokens, or [B, T].

    Attributes:
      chosen: int32 [N, k], the experts.
      probs: float32 [N, E], the router's softmax.
    """

    chosen: chex.Array
    probs: chex.Array


class RouterStats(NamedTuple):
    """Sums over the real tokens of a batch, which add up over micro-batches, and the decisions themselves.

    Attributes:
      chosen: int32 [L, B, T, k]. The experts of each token; pass them to another forward to replay them.
      assignments: float32 [L, E]. Number of tokens that chose each expert.
      probs: float32 [L, E]. The sum of the router's probabilities.
      tokens: float32 []. Number of real tokens.
    """

    chosen: chex.Array
    assignments: chex.Array
    probs: chex.Array
    tokens: chex.Array


class Experts(nn.Module):
    """y = sum over the k chosen experts e of w_e down_e(act(gate_e x) * up_e x), w the router's probabilities."""

    config: TransformerConfig
    activation: Callable
    into_residual: Callable

    @nn.compact
    def __call__(self, x: chex.Array, chosen: chex.Array | None = None) -> tuple[chex.Array, Routing]:
        """Runs the experts.

        Args:
          x: [N, D] or [B, T, D].
          chosen: int32 [N, k] or [B, T, k] to replay; the router's where it is below 0, or if it is None.

        Returns:
          (y like x, Routing).
        """
        c, dtype, stored = self.config, jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        chex.assert_rank(x, {2, 3})
        logits = nn.Dense(c.num_experts, use_bias=False, dtype=dtype, param_dtype=stored, name="router")(x)
        probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        own = jax.lax.top_k(jax.lax.stop_gradient(probs), c.experts_per_token)[1]
        chosen = own if chosen is None else jnp.where(chosen < 0, own, chosen)
        weights = jnp.take_along_axis(probs, chosen, axis=-1)
        if c.norm_topk_prob:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)

        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))
        wide, narrow = (c.num_experts, c.embed_dim, c.mlp_dim), (c.num_experts, c.mlp_dim, c.embed_dim)
        named = (("gate", wide), ("up", wide), ("down", narrow))
        kernels = [self.param(name, init, shape, stored).astype(dtype) for name, shape in named]
        return _run_experts(self.activation, x, chosen, weights.astype(dtype), *kernels), Routing(chosen, probs)


def _run_experts(activation: Callable, x, chosen, weights, gate, up, down):
    """The mixture on the context's mesh: each device sorts its own tokens, by the experts that it holds.

    Devices along the axis `expert` hold different experts and different rows. They gather each other's rows, run their
    own experts on them, and sum and scatter the results (no token is dropped, and shapes do not depend on the load).
    XLA's partitioner would do all this for the whole batch on every device, because it cannot split a sort.
    """
    sizes = mesh_sizes()
    if math.prod(sizes.values()) == 1:
        return _mix(activation, x, chosen, weights, gate, up, down)
    rows = spec(x.shape, ("rows", "tokens", None) if x.ndim == 3 else ("rows", None), sizes)
    wide, narrow = (
        spec(kernel.shape, names, sizes)
        for kernel, names in ((gate, ("experts", None, "mlp")), (down, ("experts", "mlp", None)))
    )
    experts, inner = wide[0], wide[2]
    gathered = experts is not None and experts in jax.tree.leaves(rows[0])

    def share(x, chosen, weights, *kernels):
        first = None
        if experts:
            first = jax.lax.axis_index(experts) * kernels[0].shape[0]
        if gathered:
            gather = functools.partial(jax.lax.all_gather, axis_name=experts, tiled=True)
            x, chosen, weights = map(gather, (x, chosen, weights))
        y = _mix(activation, x, chosen, weights, *kernels, first=first)
        if gathered:
            y = jax.lax.psum_scatter(y, experts, tiled=True)
        elif experts:
            y = jax.lax.psum(y, experts)
        return jax.lax.psum(y, inner) if inner else y

    in_specs = (rows, rows, rows, wide, wide, narrow)
    return jax.shard_map(share, in_specs=in_specs, out_specs=rows)(x, chosen, weights, gate, up, down)


def _mix(activation: Callable, x, chosen, weights, gate, up, down, *, first=None):
    """The sum over the experts of these kernels, [E, ...].

    first: int32 [], the index of their first one among all experts; contributions of other experts are left out. None:
    these are all experts.
    """
    num_experts, k, shape = gate.shape[0], chosen.shape[-1], x.shape
    x, chosen, weights = x.reshape(-1, shape[-1]), chosen.reshape(-1), weights.reshape(-1, k, 1)
    own_experts = None
    if first is not None:
        own_experts = (chosen >= first) & (chosen < first + num_experts)
        chosen = jnp.where(own_experts, chosen - first, num_experts)  # after all groups
    # Each token is k times in the rows, sorted by expert: one group of rows per expert, of any size.
    order = jnp.argsort(chosen, stable=True)
    rows, sizes = x[order // k], jnp.bincount(chosen, length=num_experts).astype(jnp.int32)

    def only_here(rows):  # the result of ragged_dot on rows after its groups is undefined, forwards and backwards
        return rows if own_experts is None else jnp.where(own_experts[order][:, None], rows, 0.0)

    rows = only_here(rows)
    gated = activation(jax.lax.ragged_dot(rows, gate, sizes)) * jax.lax.ragged_dot(rows, up, sizes)
    out = only_here(jax.lax.ragged_dot(gated, down, sizes))
    out = out[jnp.argsort(order)].reshape(-1, k, shape[-1])  # back to the tokens' order
    return jnp.sum(out * weights, axis=1).reshape(shape)


def router_stats(routing: Routing, real: chex.Array) -> RouterStats:
    """One layer's decisions for the real tokens. real: bool [B, T]. The fields have no axis L."""
    num_experts = routing.probs.shape[-1]
    chosen, probs = (x.reshape(*real.shape, x.shape[-1]) for x in routing)
    weight = real[..., None].astype(jnp.float32)
    hits = jnp.sum(jax.nn.one_hot(chosen, num_experts), axis=-2)
    return RouterStats(
        chosen=chosen.astype(jnp.int32),
        assignments=jnp.sum(hits * jnp.broadcast_to(weight, hits.shape), axis=(0, 1)),
        probs=jnp.sum(probs * jnp.broadcast_to(weight, hits.shape), axis=(0, 1)),
        tokens=jnp.sum(weight),
    )


def load_balancing_loss(stats: RouterStats) -> Mean:
    """E * sum_e f_e P_e over all layers together: f_e, how often a token chose e; P_e, e's mean probability.

    k if the load is even. It is a product of means: over micro-batches it is the token-weighted mean of theirs, not
    that of the whole batch. The caller adds coefficient * total to its loss. Source: arXiv 2101.03961, eq. 4-6.
    """
    chex.assert_rank([stats.assignments, stats.probs], 2)
    num_layers, num_experts = stats.probs.shape
    rows = jnp.maximum(stats.tokens * num_layers, 1.0)
    frequency = jax.lax.stop_gradient(jnp.sum(stats.assignments, axis=0)) / rows
    loss = num_experts * jnp.sum(frequency * jnp.sum(stats.probs, axis=0) / rows)
    return Mean(loss * stats.tokens, stats.tokens)


def router_metrics(stats: RouterStats) -> Metrics:
    """The balance loss, and the load of the most and the least used expert of any layer; 1 if the load is even."""
    chex.assert_rank([stats.assignments, stats.probs], 2)
    even = jnp.sum(stats.assignments, axis=1, keepdims=True) / stats.assignments.shape[1]
    load = stats.assignments / jnp.broadcast_to(jnp.maximum(even, 1e-9), stats.assignments.shape)
    return {
        "router/balance_loss": load_balancing_loss(stats),
        "router/max_load": Mean(jnp.max(load) * stats.tokens, stats.tokens),
        "router/min_load": Mean(jnp.min(load) * stats.tokens, stats.tokens),
    }
