"""An action mask from a second policy (NLPO, arXiv 2210.01241): only tokens of its nucleus may be sampled.

    pi_mask(v | s) ~ pi(v | s) 1[v in nucleus of the mask policy at s]

Source: RL4LMs, learned_top_p of its logits_processor.py: the most likely tokens until their mass is above top_p, the
one that crosses it included, at least min_tokens of them, and the special tokens always.
"""

from collections.abc import Callable, Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.models.mixture import make_mixture


def in_nucleus(logits: chex.Array, *, top_p: float, min_tokens: int = 1, always: Sequence[int] = ()) -> chex.Array:
    """Whether each token may be sampled. Of equally likely ones the first come first.

    Args:
      logits: float [..., V], of the mask policy.
      top_p: mass that the nucleus reaches.
      min_tokens: the least number of tokens in it.
      always: ids that are in it whatever their mass, such as the end of the text.

    Returns:
      bool [..., V], without gradient.

    Raises:
      ValueError: if top_p is not above 0, or min_tokens is below 1.
    """
    if top_p <= 0 or min_tokens < 1:
        raise ValueError(f"top_p={top_p} must be above 0, and min_tokens={min_tokens} at least 1")
    probs = jax.nn.softmax(jax.lax.stop_gradient(logits), axis=-1)
    order = jnp.argsort(-probs, axis=-1, stable=True)
    ranked = jnp.take_along_axis(probs, order, axis=-1)
    before = jnp.cumsum(ranked, axis=-1) - ranked
    place = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    inside = jnp.take_along_axis((before <= top_p) | (place < min_tokens), jnp.argsort(order, axis=-1), axis=-1)
    return inside | jnp.isin(place, jnp.asarray(tuple(always), jnp.int32))


def make_masked(model: Model, **nucleus) -> Model:
    """A model of params {"policy", "reference"}, for lockstep decoding: the policy inside the reference's nucleus.

    Args:
      model: of both sets of params; they run side by side, each with its own cache.
      **nucleus: keywords of in_nucleus.
    """

    def unembed(params, hidden):
        policy, mask = jnp.split(hidden, 2, axis=-1)
        inside = in_nucleus(model.unembed(params["reference"], mask), **nucleus)
        return jnp.where(inside, model.unembed(params["policy"], policy), -jnp.inf)

    return make_mixture(model, 0.0)._replace(unembed=unembed)


def make_allowed(model: Model, *, completion_length: int, chunk: int = 32, **nucleus) -> Callable:
    """Builds allowed(mask params, TokenBatch [B, T]) -> uint8 [B, C, V / 8]: the nuclei of the last C columns, as bits.

    A sampled token is always in: another kernel may have put it on the other side of the bound.

    Args:
      model: network as pure functions.
      completion_length: C.
      chunk: maximum columns per slice. Memory is B x chunk x V floats.
      **nucleus: keywords of in_nucleus.
    """

    def allowed(params: Params, batch: TokenBatch) -> chex.Array:
        hidden = hidden_at(model.apply, params, batch, lambda x: x[:, -completion_length - 1 : -1])
        tokens, parts = batch.tokens[:, -completion_length:], []
        for start in range(0, completion_length, chunk):
            columns = slice(start, start + chunk)
            inside = in_nucleus(model.unembed(params, hidden[:, columns]), **nucleus)
            inside |= jax.nn.one_hot(tokens[:, columns], inside.shape[-1], dtype=bool)
            parts.append(jnp.packbits(inside, axis=-1))
        return jnp.concatenate(parts, axis=1)

    return allowed
