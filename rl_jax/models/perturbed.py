"""Values of every next token beside a language model, and the policy that they perturb (ILQL, MC returns).

    Q_k(s, .) = W2_k relu(W1_k h(s) + b1_k) + b2_k,  k = 1 .. K;   V(s) the same with one output
    log pi(a | s) = log pi_beta(a | s) + beta min_k Q_k(s, a) + const

h(s) are hidden states of the values' own copy of the model; pi_beta, cloned from the data, is another, so both run side
by side and each has its cache. W2 and b2 begin at 0: the first policy is pi_beta. Source: arXiv 2206.11871 and
2311.18232, abdulhaim/LMRL-Gym LLM_RL/heads/mlp_head.py and LLM_RL/algorithms/value_rl_base/gpt2/generation.py.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_of_one
from rl_jax.core.types import Model, Params, TokenBatch

NAMES = ("policy", "values")


def add_token_values(model: Model, params: Params, key: chex.PRNGKey, *, critics: int = 2) -> Params:
    """{"model": params, "q": K heads of V outputs, "v": a head of one}; each head as wide inside as the hidden states.

    Args:
      model: whose hidden states the heads read.
      params: the model's.
      key: a typed key.
      critics: K; 2 for ILQL, 1 for MC returns.
    """
    width = hidden_of_one(model.apply, params).shape[-1]

    def head(key, outputs):
        inside = jax.nn.initializers.lecun_normal()(key, (width, width))
        return {
            "inside": {"kernel": inside, "bias": jnp.zeros(width)},
            "outside": {"kernel": jnp.zeros((width, outputs)), "bias": jnp.zeros(outputs)},
        }

    *of_q, of_v = jax.random.split(key, critics + 1)
    heads = [head(key, model.vocab_size) for key in of_q]
    return {"model": params, "q": jax.tree.map(lambda *leaves: jnp.stack(leaves), *heads), "v": head(of_v, 1)}


def make_token_values(model: Model, *, completion_length: int) -> Callable:
    """A pure function (params, TokenBatch [B, P + C]) -> (Q [K, B, C, V], V [B, C + 1]), both float32.

    Column t is of the state before completion token t; V's column C is of the state after the last column.

    Args:
      model: of params["model"].
      completion_length: C; rows need a prompt before.
    """

    def values(params: Params, batch: TokenBatch) -> tuple[chex.Array, chex.Array]:
        chex.assert_rank(batch.tokens, 2)
        chex.assert_axis_dimension_gt(batch.tokens, 1, completion_length)
        hidden = model.apply(params["model"], batch)[:, -completion_length - 1 :]
        return _q(params["q"], hidden[:, :-1]), _mlp(params["v"], hidden)[..., 0]

    return values


def make_perturbed(model: Model, *, beta: float) -> Model:
    """The model of params {"policy": pi_beta's, "values": of `add_token_values`} whose logits are perturbed.

    Args:
      model: of both.
      beta: weight of min_k Q_k; 0 is pi_beta. LMRL-Gym: 8 to 16, for returns of its own size.
    """

    def of(params, name):
        return params["policy"] if name == "policy" else params["values"]["model"]

    def join(parts):
        return jnp.concatenate(parts, axis=-1)

    def apply(params, batch):
        return join([model.apply(of(params, name), batch) for name in NAMES])

    def prefill(params, batch):
        hidden, caches = zip(*(model.prefill(of(params, name), batch) for name in NAMES), strict=True)
        return join(hidden), dict(zip(NAMES, caches, strict=True))

    def extend(params, batch, cache, columns, visible):
        result = (model.extend(of(params, name), batch, cache[name], columns, visible) for name in NAMES)
        hidden, caches = zip(*result, strict=True)
        return join(hidden), dict(zip(NAMES, caches, strict=True))

    def decode(params, tokens, positions, cache, columns, visible):
        result = (model.decode(of(params, name), tokens, positions, cache[name], columns, visible) for name in NAMES)
        hidden, caches = zip(*result, strict=True)
        return join(hidden), dict(zip(NAMES, caches, strict=True))

    def unembed(params, hidden):
        policy, values = jnp.split(hidden, 2, axis=-1)
        return model.unembed(params["policy"], policy) + beta * jnp.min(_q(params["values"]["q"], values), axis=0)

    def init(key):
        of_policy, of_model, of_heads = jax.random.split(key, 3)
        values = add_token_values(model, model.init(of_model), of_heads)
        return {"policy": model.init(of_policy), "values": values}

    def unstack(params):
        values = params["values"]
        own = {**values, "model": model.unstack(values["model"])}
        return {"policy": model.unstack(params["policy"]), "values": own}

    return Model(
        init=init,
        apply=apply,
        unembed=unembed,
        prefill=prefill,
        decode=decode,
        init_cache=lambda batch, length: {name: model.init_cache(batch, length) for name in NAMES},
        vocab_size=model.vocab_size,
        extend=extend if model.extend else None,
        unstack=unstack if model.unstack else None,
    )


def _q(heads: Params, hidden: chex.Array) -> chex.Array:
    """float [..., D] -> float32 [K, ..., V]."""
    return jax.vmap(_mlp, in_axes=(0, None))(heads, hidden)


def _mlp(head: Params, hidden: chex.Array) -> chex.Array:
    """Two layers, relu between: float [..., D] -> float32 [..., outputs]."""
    flat = hidden.astype(jnp.float32).reshape(-1, hidden.shape[-1])
    inside = jax.nn.relu(_linear(head["inside"], flat))
    return _linear(head["outside"], inside).reshape(*hidden.shape[:-1], -1)


def _linear(layer: Params, x: chex.Array) -> chex.Array:
    product = jnp.matmul(x, layer["kernel"], precision=jax.lax.Precision.HIGHEST)
    return product + jnp.broadcast_to(layer["bias"], product.shape)
