"""A mixture of experts: a router picks k of E gated MLPs for each token; `jax.lax.ragged_dot` runs them.

The routing can be observed (RouterStats, the load-balancing loss, metrics) and replayed: the experts that another
forward chose, the sampler's or the old policy's, are given as an argument, and only their weights come from the
router of these params (arXiv 2510.11370, Rollout Routing Replay).
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp

from rl_jax.masked import Mean
from rl_jax.models.config import TransformerConfig
from rl_jax.types import Metrics


class Routing(NamedTuple):
    """One layer's decisions. chosen: int32 [N, k], the experts. probs: float32 [N, E], the router's softmax."""

    chosen: chex.Array
    probs: chex.Array


class RouterStats(NamedTuple):
    """Sums over the real tokens of a batch, which add over micro-batches, and the decisions themselves.

    chosen: int32 [L, B, T, k]. The experts of each token; give them to another forward to replay them.
    assignments: float32 [L, E]. How many tokens chose each expert.
    probs: float32 [L, E]. The sum of the router's probabilities.
    tokens: float32 []. How many real tokens there are.
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
        """x: [N, D]. chosen: int32 [N, k] to replay, None asks the router. Returns (y [N, D], Routing)."""
        c, dtype, stored = self.config, jnp.dtype(self.config.dtype), jnp.dtype(self.config.param_dtype)
        chex.assert_rank(x, 2)
        logits = nn.Dense(c.num_experts, use_bias=False, dtype=dtype, param_dtype=stored, name="router")(x)
        probs = jax.nn.softmax(logits.astype(jnp.float32), axis=-1)
        if chosen is None:
            chosen = jax.lax.top_k(jax.lax.stop_gradient(probs), c.experts_per_token)[1]
        weights = jnp.take_along_axis(probs, chosen, axis=-1)
        if c.norm_topk_prob:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)

        # Each token stands k times in the rows, sorted by expert: one group of rows an expert, of any size.
        order = jnp.argsort(chosen.reshape(-1), stable=True)
        rows = x[order // c.experts_per_token]
        sizes = jnp.bincount(chosen.reshape(-1), length=c.num_experts).astype(jnp.int32)

        def expert_dense(name, rows, width, init):
            shape = (c.num_experts, rows.shape[-1], width)
            kernel = self.param(name, init, shape, stored)
            return jax.lax.ragged_dot(rows, kernel.astype(dtype), sizes)

        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))
        gated = self.activation(expert_dense("gate", rows, c.mlp_dim, init))
        gated = gated * expert_dense("up", rows, c.mlp_dim, init)
        out = expert_dense("down", gated, c.embed_dim, init)
        out = out[jnp.argsort(order)].reshape(*chosen.shape, -1)  # back to the tokens' order: [N, k, D]
        return jnp.sum(out * weights[..., None].astype(dtype), axis=1), Routing(chosen, probs)


def router_stats(routing: Routing, real: chex.Array) -> RouterStats:
    """What one layer decided for the real tokens. real: bool [B, T]. The fields come without the axis L."""
    num_experts = routing.probs.shape[-1]
    chex.assert_shape(routing.probs, (real.size, num_experts))
    weight = real.reshape(-1, 1).astype(jnp.float32)
    hits = jnp.sum(jax.nn.one_hot(routing.chosen, num_experts), axis=1)
    return RouterStats(
        chosen=routing.chosen.reshape(*real.shape, -1).astype(jnp.int32),
        assignments=jnp.sum(hits * jnp.broadcast_to(weight, hits.shape), axis=0),
        probs=jnp.sum(routing.probs * jnp.broadcast_to(weight, hits.shape), axis=0),
        tokens=jnp.sum(weight),
    )


def load_balancing_loss(stats: RouterStats) -> Mean:
    """E * sum_e f_e P_e over the layers together: f_e, how often a token chose e; P_e, e's mean probability.

    k where the load is even. It is a product of means: over micro-batches it is the token-weighted mean of theirs, and
    not that of the whole batch. The caller adds coefficient * total to its loss. Source: arXiv 2101.03961, eq. 4-6.
    """
    chex.assert_rank([stats.assignments, stats.probs], 2)
    num_layers, num_experts = stats.probs.shape
    rows = jnp.maximum(stats.tokens * num_layers, 1.0)
    frequency = jax.lax.stop_gradient(jnp.sum(stats.assignments, axis=0)) / rows
    loss = num_experts * jnp.sum(frequency * jnp.sum(stats.probs, axis=0) / rows)
    return Mean(loss * stats.tokens, stats.tokens)


def router_metrics(stats: RouterStats) -> Metrics:
    """The balance loss, and the load of the busiest and of the idlest expert of any layer, 1 where the load is even."""
    chex.assert_rank([stats.assignments, stats.probs], 2)
    even = jnp.sum(stats.assignments, axis=1, keepdims=True) / stats.assignments.shape[1]
    load = stats.assignments / jnp.broadcast_to(jnp.maximum(even, 1e-9), stats.assignments.shape)
    return {
        "router/balance_loss": load_balancing_loss(stats),
        "router/max_load": Mean(jnp.max(load) * stats.tokens, stats.tokens),
        "router/min_load": Mean(jnp.min(load) * stats.tokens, stats.tokens),
    }
