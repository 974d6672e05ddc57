"""Heads: one linear layer on a model's hidden states, in float32, as a group of params next to the model's.

A reward head may have hidden layers before its linear one. They are params["reward_head"][ACTIVATION], so a head says
itself how it is read: whoever has the params needs no config, and a head of one layer is what it always was.

A value head turns any policy into a critic: a separate critic with a copy of a policy's params, a shared trunk with the
policy's own. A reward head reads the last token of a response, or of each step; its outputs can be an ensemble over one
trunk, the bins of a categorical reward, or attributes. A degree head tells how degraded a response is. Rows may be
packed (rl_jax.training.packing): an output is that of the padded row.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_at, hidden_of_one, hidden_of_parts, pick
from rl_jax.core.types import Model, Packed, Params, TokenBatch

NAME = "value_head"
REWARD = "reward_head"
DEGREE = "degree_head"
MEMBERS = "members"  # of a value head: several heads, whose arrays have one more axis
HEADS = (REWARD, DEGREE)  # that are saved apart from the model
ACTIVATIONS = {"none": lambda x: x, "tanh": jnp.tanh, "silu": jax.nn.silu}


def add_value_head(model: Model, params: Params, *, num_outputs: int = 1) -> Params:
    """`params` with a head of `num_outputs` values per state, initialised to 0.

    The first value is then 0, or the middle of a symmetric support, so the first advantages are the plain returns
    rather than the noise of a random layer.

    Args:
      model: whose hidden states the head reads.
      params: the model's.
      num_outputs: 1, or the bins of a categorical head.
    """
    width = hidden_of_one(model.apply, params).shape[-1]
    return {**params, NAME: {"kernel": jnp.zeros((width, num_outputs)), "bias": jnp.zeros(num_outputs)}}


def add_value_heads(model: Model, params: Params, key: chex.PRNGKey, *, members: int, num_outputs: int) -> Params:
    """`params` with several value heads on one trunk, each with two hidden layers of its own.

        h_i = silu(W_i h_{i-1}), i = 1, 2, W_i ~ N(0, 1 / D),   v = W h_2 + b, which begin with 0

    So the first values are equal, as of `add_value_head`, and the heads are not: of linear ones that all begin with 0
    and learn the same target, the smallest is any of them. As VLMDoubleCritic of THUDM/WebRL, which has ReLU, W_i of
    std .2 and a random last layer.

    Args:
      model: whose hidden states the heads read.
      params: the model's.
      key: a typed key.
      members: M, heads.
      num_outputs: K of each; the outputs of all, M K, lie side by side.
    """
    width = hidden_of_one(model.apply, params).shape[-1]
    hidden = jax.random.normal(key, (members, 2, width, width)) / jnp.sqrt(float(width))
    head = {"kernel": jnp.zeros((members, width, num_outputs)), "bias": jnp.zeros((members, num_outputs))}
    head["silu"] = {"kernel": hidden, "bias": jnp.zeros((members, 2, width))}
    return {**params, NAME: {MEMBERS: head}}


def add_reward_head(
    model: Model, params: Params, key: chex.PRNGKey, *, num_outputs: int = 1, layers: int = 1, activation: str = "silu"
) -> Params:
    """`params` with a head of `num_outputs` rewards: kernels N(0, 1 / (D + 1)), biases 0.

        h_i = f(W_i h_{i-1} + b_i), i = 1 .. layers - 1,   r = W h_{layers-1} + b,   h_0 the hidden state, D wide

    Not 0 like a value head, because the members of an ensemble differ in this initialisation only; they share the
    hidden layers. Source: arXiv 2009.01325 (its code) for one layer; arXiv 2509.16127 (BaseReward) compares 1 to 5
    layers and these activations and takes 2 with SiLU. How wide its hidden layers are could not be read: D is ours.

    Args:
      model: whose hidden states the head reads.
      params: the model's.
      key: a typed key.
      num_outputs: of the head.
      layers: of the head, the linear one included.
      activation: f, one of ACTIVATIONS. Of one layer it is not used.

    Raises:
      ValueError: if layers is below 1, or the activation is unknown.
    """
    if layers < 1:
        raise ValueError(f"a reward head of {layers} layers: it has at least 1, the linear one")
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation {activation!r} of a reward head is none of {', '.join(ACTIVATIONS)}")
    width = hidden_of_one(model.apply, params).shape[-1]
    kernel = jax.random.normal(key, (width, num_outputs)) / jnp.sqrt(width + 1.0)
    head = {"kernel": kernel, "bias": jnp.zeros(num_outputs)}
    if layers > 1:
        drawn = jax.random.normal(jax.random.fold_in(key, 1), (layers - 1, width, width)) / jnp.sqrt(width + 1.0)
        head[activation] = {"kernel": drawn, "bias": jnp.zeros((layers - 1, width))}
    return {**params, REWARD: head}


def add_degree_head(model: Model, params: Params, *, num_outputs: int) -> Params:
    """`params` with a head of `num_outputs` logits, initialised to 0: every degree is as likely as another.

    Args:
      model: whose hidden states the head reads.
      params: the model's.
      num_outputs: D, degrees of degradation.
    """
    width = hidden_of_one(model.apply, params).shape[-1]
    return {**params, DEGREE: {"kernel": jnp.zeros((width, num_outputs)), "bias": jnp.zeros(num_outputs)}}


def without_head(params: Params) -> Params:
    """The model's own params, without HEADS."""
    return {name: group for name, group in params.items() if name not in HEADS}


def without_value_head(params: Params) -> Params:
    """The model's own params."""
    return {name: group for name, group in params.items() if name != NAME}


def make_predict(model: Model, *, completion_length: int) -> Callable:
    """A pure function predict(params, batch) -> float32 [B, C + 1, K] of C = completion_length.

    Column t is for the state before completion token t is sampled, from the hidden state of the token before it, as
    log-probs are scored (rl_jax.training.scoring). Column C is for the state after the last column's token, from which
    a truncated row would have continued. K is the head's num_outputs.

    Args:
      model: network as pure functions.
      completion_length: C.

    Returns:
      predict. batch: TokenBatch [B, T], or the same rows as a Packed, whose columns after the last scored token get 0.

    Raises:
      ValueError: when traced, if the rows have no prompt before the C columns.
    """

    def predict_padded(params: Params, batch: TokenBatch) -> chex.Array:
        chex.assert_rank(batch.tokens, 2)
        length = batch.tokens.shape[1]
        if length <= completion_length:
            raise ValueError(
                f"rows of {length} tokens leave no room for a prompt before {completion_length} completion tokens"
            )
        return _outputs(params[NAME], hidden_at(model.apply, params, batch, lambda x: x[:, -completion_length - 1 :]))

    def predict_packed(params: Params, batch: Packed) -> chex.Array:
        chex.assert_axis_dimension(batch.columns, 2, completion_length + 1)
        outputs = _outputs(params[NAME], _read(model, params, batch, batch.columns))
        kept = jnp.broadcast_to(_flat(batch.columns)[:, :, None] >= 0, outputs.shape)
        return jnp.where(kept, outputs, 0.0)

    def predict(params: Params, batch: TokenBatch | Packed) -> chex.Array:
        return (predict_packed if isinstance(batch, Packed) else predict_padded)(params, batch)

    return predict


def make_predict_last(model: Model, name: str = REWARD) -> Callable:
    """A pure function reward(params, batch) -> float32 [B, K] of the head `name`, read at each row's last real token.

    K is the head's num_outputs. batch: TokenBatch [B, T] with one sequence per row, or the same rows as a Packed whose
    mask covers the last token of each. The position depends on segment_ids only (rows may be padded on both sides); a
    row without tokens, or one that was not packed, gets the reward of some other token.
    """
    hidden_last = make_hidden_last(model)

    def predict(params: Params, batch: TokenBatch | Packed) -> chex.Array:
        return _outputs(params[name], hidden_last(params, batch))

    return predict


def make_hidden_last(model: Model) -> Callable:
    """A pure function hidden(params, batch) -> float32 [B, D]: what `make_predict_last` reads, before its layer."""

    def hidden_last(params: Params, batch: TokenBatch | Packed) -> chex.Array:
        if isinstance(batch, Packed):
            last = jnp.max(batch.columns, axis=2, keepdims=True)  # tokens of a row are in order
            return _read(model, params, batch, last)[:, 0].astype(jnp.float32)
        chex.assert_rank(batch.tokens, 2)
        places = jnp.arange(batch.tokens.shape[1])[None, :]
        last = jnp.max(jnp.where(batch.segment_ids != 0, places, 0), axis=1)
        return hidden_at(model.apply, params, batch, lambda x: pick(x, last[:, None]))[:, 0].astype(jnp.float32)

    return hidden_last


def make_hidden_mean(model: Model) -> Callable:
    """A pure function hidden(params, batch, mask) -> float32 [B, D]: the mean over a row's masked tokens.

    batch: TokenBatch [B, P + C]. mask: bool [B, C], of the last C columns; a row without a token gets 0.
    """

    def hidden_mean(params: Params, batch: TokenBatch, mask: chex.Array) -> chex.Array:
        chex.assert_rank([batch.tokens, mask], 2)
        chex.assert_type(mask, bool)
        hidden = model.apply(params, batch)[:, -mask.shape[1] :].astype(jnp.float32)
        total = jnp.sum(jnp.where(mask[:, :, None], hidden, 0.0), axis=1)
        return total / jnp.maximum(jnp.sum(mask, axis=1), 1)[:, None]

    return hidden_mean


def make_predict_at(model: Model) -> Callable:
    """A pure function rewards(params, batch, columns int32 [B, S]) -> float32 [B, S, K] at those columns.

    K is the head's num_outputs. batch: TokenBatch [B, T] and columns of its rows, 0 .. T - 1; or a Packed and places in
    Packed.columns, 0 .. C. A negative column (a missing step) reads column 0, one that was not packed some other token.
    """

    def predict(params: Params, batch: TokenBatch | Packed, columns: chex.Array) -> chex.Array:
        chex.assert_rank(columns, 2)
        if isinstance(batch, Packed):
            places = jnp.take_along_axis(_flat(batch.columns), jnp.maximum(columns, 0), axis=1)
            return _outputs(params[REWARD], _read(model, params, batch, places))
        chex.assert_rank(batch.tokens, 2)
        chosen = jnp.maximum(columns, 0)

        def places(x):  # a column that does not exist gives nan
            return jnp.take_along_axis(x, chosen[:, :, None], axis=1)

        return _outputs(params[REWARD], hidden_at(model.apply, params, batch, places))

    return predict


def _flat(x: chex.Array) -> chex.Array:
    """The parts' rows, one after the other: [S, B / S, n] -> [B, n]."""
    return x.reshape(-1, x.shape[-1])


def _read(model: Model, params: Params, batch: Packed, indices: chex.Array) -> chex.Array:
    """Hidden states by their index in the part: int32 [B, n] or [S, B / S, n] -> [B, n, D]; index 0 if negative."""
    number = indices.shape[-1]
    hidden = hidden_of_parts(model.apply, params, batch, jnp.maximum(indices, 0).reshape(len(batch.places), -1))
    return hidden.reshape(-1, number, hidden.shape[-1])


def _outputs(head: Params, hidden: chex.Array) -> chex.Array:
    """hidden [..., D] -> float32 [..., K]: the head's hidden layers, if it has any, and its linear one.

    Of several heads (MEMBERS) the outputs side by side.
    """
    if MEMBERS in head:
        each = [jax.tree.map(lambda x, i=i: x[i], head[MEMBERS]) for i in range(len(head[MEMBERS]["bias"]))]
        return jnp.concatenate([_outputs(one, hidden) for one in each], axis=-1)
    flat = hidden.astype(jnp.float32).reshape(-1, hidden.shape[-1])
    for name, activation in ACTIVATIONS.items():
        if name in head:
            for layer in range(len(head[name]["bias"])):
                flat = activation(_linear(jax.tree.map(lambda x, i=layer: x[i], head[name]), flat))
    return _linear(head, flat).reshape(*hidden.shape[:-1], -1)


def _linear(layer: Params, flat: chex.Array) -> chex.Array:
    """float32 [N, D] -> float32 [N, K]."""
    outputs = jnp.matmul(flat, layer["kernel"], precision=jax.lax.Precision.HIGHEST)  # otherwise TPUs round to bfloat16
    return outputs + jnp.broadcast_to(layer["bias"], outputs.shape)
