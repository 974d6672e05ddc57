"""Heads: one linear layer on a model's hidden states, in float32, as a group of params next to the model's.

A value head turns any policy into a critic: a separate critic with a copy of a policy's params, a shared trunk with the
policy's own. A reward head reads the last token of a response, or of each step; its outputs can be an ensemble over one
trunk, the bins of a categorical reward, or attributes.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Model, Params, TokenBatch

NAME = "value_head"
REWARD = "reward_head"


def add_value_head(model: Model, params: Params, *, num_outputs: int = 1) -> Params:
    """`params` with a head of `num_outputs` values per state, initialised to 0.

    The first value is then 0, or the middle of a symmetric support, so the first advantages are the plain returns
    rather than the noise of a random layer.

    Args:
      model: whose hidden states the head reads.
      params: the model's.
      num_outputs: 1, or the bins of a categorical head.
    """
    width = _width(model, params)
    return {**params, NAME: {"kernel": jnp.zeros((width, num_outputs)), "bias": jnp.zeros(num_outputs)}}


def add_reward_head(model: Model, params: Params, key: chex.PRNGKey, *, num_outputs: int = 1) -> Params:
    """`params` with a head of `num_outputs` rewards: kernel N(0, 1 / (D + 1)), bias 0.

    Not 0 like a value head, because the members of an ensemble differ in this initialisation only. D is the width of
    the hidden states. Source: arXiv 2009.01325 (its code).

    Args:
      model: whose hidden states the head reads.
      params: the model's.
      key: a typed key.
      num_outputs: of the head.
    """
    width = _width(model, params)
    kernel = jax.random.normal(key, (width, num_outputs)) / jnp.sqrt(width + 1.0)
    return {**params, REWARD: {"kernel": kernel, "bias": jnp.zeros(num_outputs)}}


def without_reward_head(params: Params) -> Params:
    """The model's own params."""
    return {name: group for name, group in params.items() if name != REWARD}


def without_value_head(params: Params) -> Params:
    """The model's own params."""
    return {name: group for name, group in params.items() if name != NAME}


def make_predict(model: Model, *, completion_length: int) -> Callable:
    """A pure function predict(params, TokenBatch [B, T]) -> float32 [B, C + 1, K] of C = completion_length.

    Column t is for the state before completion token t is sampled, from the hidden state of the token before it, as
    log-probs are scored (rl_jax.training.scoring). Column C is for the state after the last column's token, from which
    a truncated row would have continued. K is the head's num_outputs. predict raises ValueError if the rows have no
    prompt before the C columns.
    """

    def predict(params: Params, batch: TokenBatch) -> chex.Array:
        chex.assert_rank(batch.tokens, 2)
        length = batch.tokens.shape[1]
        if length <= completion_length:
            raise ValueError(
                f"rows of {length} tokens leave no room for a prompt before {completion_length} completion tokens"
            )
        hidden = model.apply(params, batch)[:, -completion_length - 1 :]
        return _linear(params[NAME], hidden)

    return predict


def make_predict_last(model: Model) -> Callable:
    """A pure function reward(params, TokenBatch [B, T]) -> float32 [B, K], read at the last real token of each row.

    That position depends on segment_ids only (rows may be padded on both sides); a row without tokens gets the reward
    of its first column. K is the head's num_outputs. Rows hold one sequence each (no packing).
    """
    predict_at = make_predict_at(model)

    def predict(params: Params, batch: TokenBatch) -> chex.Array:
        chex.assert_rank(batch.tokens, 2)
        places = jnp.arange(batch.tokens.shape[1])[None, :]
        last = jnp.max(jnp.where(batch.segment_ids != 0, places, 0), axis=1)
        return predict_at(params, batch, last[:, None])[:, 0]

    return predict


def make_predict_at(model: Model) -> Callable:
    """A pure function rewards(params, TokenBatch [B, T], columns int32 [B, S]) -> float32 [B, S, K] at those columns.

    columns: 0 .. T - 1; a negative one (a missing step) reads column 0. K is the head's num_outputs.
    """

    def predict(params: Params, batch: TokenBatch, columns: chex.Array) -> chex.Array:
        chex.assert_rank([batch.tokens, columns], 2)
        hidden = model.apply(params, batch)
        picked = jnp.take_along_axis(hidden, jnp.maximum(columns, 0)[:, :, None], axis=1)
        return _linear(params[REWARD], picked)

    return predict


def _width(model: Model, params: Params) -> int:
    """The width of the hidden states."""
    blank = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    return jax.eval_shape(model.apply, params, TokenBatch(blank, blank, blank)).shape[-1]


def _linear(head: Params, hidden: chex.Array) -> chex.Array:
    """hidden [..., D] -> float32 [..., K]."""
    flat = hidden.astype(jnp.float32).reshape(-1, hidden.shape[-1])
    outputs = jnp.matmul(flat, head["kernel"], precision=jax.lax.Precision.HIGHEST)  # otherwise TPUs round to bfloat16
    outputs += jnp.broadcast_to(head["bias"], outputs.shape)
    return outputs.reshape(*hidden.shape[:-1], -1)
