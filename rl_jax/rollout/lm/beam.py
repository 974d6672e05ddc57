"""Beam search by the likelihood of a model. For a DPO policy it searches by Q*: arXiv 2404.12358.

sum_t log pi(a_t | s_t) is, up to the reference's own likelihood, the sum of the implicit advantages (Q* - V*) / beta.
Each step is a whole forward: for reading a few answers, not for sampling many.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.rollout.lm.engine import is_any


class Beams(NamedTuple):
    """The K likeliest completions found of each of N prompts, best first.

    Attributes:
      tokens: int32 [N, K, C], pad_id after each end.
      mask: bool [N, K, C]. Tokens of the completion, its EOS included.
      log_probs: float32 [N, K]. Of the whole completion; -inf if there are fewer than K completions.
    """

    tokens: chex.Array
    mask: chex.Array
    log_probs: chex.Array


def make_beam_search(
    model: Model, *, beams: int, completion_length: int, eos_ids: tuple[int, ...], pad_id: int = 0
) -> Callable:
    """A pure function search(params, tokens, prompt_mask) -> Beams, to jit.

    search takes tokens int32 [N, P], left-padded, and prompt_mask bool [N, P]. Each step continues every open beam by
    every token and keeps the K likeliest of all, ended ones included; there is no length normalisation.

    Args:
      model: a network.
      beams: K. 1 is greedy decoding.
      completion_length: C, the most tokens.
      eos_ids: any of them ends a completion.
      pad_id: fills what comes after.

    Raises:
      ValueError: if beams or completion_length is below 1.
    """
    if beams < 1 or completion_length < 1:
        raise ValueError(f"beams={beams} and completion_length={completion_length} must be at least 1")

    def search(params: Params, tokens: chex.Array, prompt_mask: chex.Array) -> Beams:
        chex.assert_rank([tokens, prompt_mask], 2)
        count, prompt_length = tokens.shape

        def many(x: chex.Array) -> chex.Array:
            return jnp.repeat(x, beams, axis=0)

        def next_log_probs(out: chex.Array, live: chex.Array, step: chex.Array) -> chex.Array:
            """log pi of the token of column `step`, float32 [N, K, V]."""
            real = jnp.concatenate([many(prompt_mask), live.reshape(count * beams, -1)], axis=1)
            rows = jnp.concatenate([many(tokens), out.reshape(count * beams, -1)], axis=1)
            positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0).astype(jnp.int32)
            hidden = model.apply(params, TokenBatch(rows, positions, real.astype(jnp.int32)))
            last = jax.lax.dynamic_index_in_dim(hidden, prompt_length + step - 1, axis=1, keepdims=False)
            return jax.nn.log_softmax(model.unembed(params, last)).reshape(count, beams, -1)

        def extend(step: chex.Array, state: tuple) -> tuple:
            out, live, ended, total = state
            log_probs = next_log_probs(out, live, step)
            # An ended beam goes on as it is, in one way only.
            stay = jnp.where(jnp.arange(model.vocab_size) == pad_id, 0.0, -jnp.inf)
            scores = total[:, :, None] + jnp.where(ended[:, :, None], stay, log_probs)
            total, chosen = jax.lax.top_k(scores.reshape(count, -1), beams)
            parent, token = chosen // model.vocab_size, (chosen % model.vocab_size).astype(jnp.int32)
            out, live, ended = (
                jnp.take_along_axis(x, parent.reshape(count, beams, *(1,) * (x.ndim - 2)), axis=1)
                for x in (out, live, ended)
            )
            out = out.at[:, :, step].set(jnp.where(ended, pad_id, token))
            live = live.at[:, :, step].set(~ended)
            return out, live, ended | is_any(token.reshape(-1), eos_ids).reshape(token.shape), total

        shape = (count, beams, completion_length)
        total = jnp.where(jnp.arange(beams)[None] == 0, 0.0, -jnp.inf) * jnp.ones((count, 1))
        first = jnp.full(shape, pad_id, jnp.int32), jnp.zeros(shape, bool), jnp.zeros(shape[:2], bool), total
        out, live, _, total = jax.lax.fori_loop(0, completion_length, extend, first)
        return Beams(out, live, total)

    return search
