"""A value head: one linear layer on a model's hidden states, in float32. It turns any policy into a critic.

The head is a group of params of its own, "value_head", beside the model's. With a copy of a policy's params it is a
separate critic; with the policy's own it shares their trunk.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.types import Model, Params, TokenBatch

NAME = "value_head"


def add_value_head(model: Model, params: Params, *, num_outputs: int = 1) -> Params:
    """`params` with a head of `num_outputs` values a state, all 0 at first.

    So is the first value: 0, or the middle of a symmetric support; the first advantages are then the plain returns,
    and not the noise of a random layer. num_outputs: 1, or the bins of a categorical head.
    """
    blank = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    width = jax.eval_shape(model.apply, params, TokenBatch(blank, blank, blank)).shape[-1]
    return {**params, NAME: {"kernel": jnp.zeros((width, num_outputs)), "bias": jnp.zeros(num_outputs)}}


def without_value_head(params: Params) -> Params:
    """The model's own params."""
    return {name: group for name, group in params.items() if name != NAME}


def make_predict(model: Model, *, completion_length: int) -> Callable:
    """A pure function predict(params, TokenBatch [B, T]) -> float32 [B, C + 1, K] of C = completion_length.

    Column t is of the state before completion token t is sampled, from the hidden state of the token before it, as
    log-probs are scored (rl_jax.scoring). Column C is of the state after the last column's token, where a row that was
    cut off would have gone on. K: the head's num_outputs. Raises ValueError where the rows hold no prompt before C.
    """

    def predict(params: Params, batch: TokenBatch) -> chex.Array:
        chex.assert_rank(batch.tokens, 2)
        length = batch.tokens.shape[1]
        if length <= completion_length:
            raise ValueError(f"rows of {length} tokens hold no prompt before {completion_length} completion tokens")
        hidden = model.apply(params, batch)[:, -completion_length - 1 :].astype(jnp.float32)
        head = params[NAME]
        flat = hidden.reshape(-1, hidden.shape[-1])
        outputs = jnp.matmul(flat, head["kernel"], precision=jax.lax.Precision.HIGHEST)  # else TPUs round to bfloat16
        outputs += jnp.broadcast_to(head["bias"], outputs.shape)
        return outputs.reshape(*hidden.shape[:-1], -1)

    return predict
