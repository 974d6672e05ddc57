"""Log-probs and entropies of given tokens, with logits for only a few columns at a time.

The head runs on slices of `chunk` columns and is recomputed in the backward pass, so the largest array is [B, chunk, V]
in both directions. The sum over slices is exactly that of the whole head. Packed rows (rl_jax.training.packing) go
through the body only; the head sees just the scored tokens.

On a mesh the head is split over the vocabulary (rl_jax.core.split_head), unless the distribution is cut off, columns
have tokens of their own that are allowed, or the model or the rows cannot be split.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from rl_jax.core.packed_rows import hidden_at, hidden_of_parts, pick
from rl_jax.core.split_head import make_split_scores
from rl_jax.core.types import Model, Packed, Params, Score, TokenBatch, TokenScores
from rl_jax.rollout.lm.sampling import Sampling, sampled_log_softmax, take_log_probs
from rl_jax.training.step import deal


def make_score(
    model: Model,
    *,
    completion_length: int,
    sampling: Sampling = Sampling(),
    chunk: int = 32,
    sum_pi_squared: bool = False,
) -> Score:
    """Builds the Score of a language model: score(params, batch) -> TokenScores [B, C] of the last C columns.

    The log-prob of column t comes from the hidden state of column t - 1.

    Args:
      model: network as pure functions.
      completion_length: C.
      sampling: the distribution to score. With temperature only, it is the policy that a loss differentiates. With
        top_k and top_p it is the distribution that was sampled from, and tokens it cuts off get -inf.
      chunk: maximum columns per slice. Memory is B x chunk x V floats, for Packed rows too.
      sum_pi_squared: also give TokenScores.sum_pi_squared, which has no gradient.

    Returns:
      score(params, batch) -> TokenScores [B, C], float32. batch: TokenBatch [B, T], or the same rows as a Packed, whose
      unscored tokens get 0.

    Raises:
      ValueError: if the model is not causal. When traced, if the rows are not longer than C: the first completion token
        would have nothing before it.
    """
    sampling.check(_causal(model).vocab_size)

    def of_logits(logits, tokens):
        log_probs = sampled_log_softmax(logits, sampling)
        # 0 * -inf is nan; tokens that were cut off add nothing to the entropy.
        kept = jnp.isfinite(log_probs)
        safe = jnp.where(kept, log_probs, 0.0)
        entropy = -jnp.sum(jnp.where(kept, jnp.exp(safe) * safe, 0.0), axis=-1)
        squares = jnp.sum(jnp.where(kept, jnp.exp(2.0 * safe), 0.0), axis=-1) if sum_pi_squared else None
        return TokenScores(take_log_probs(log_probs, tokens), entropy, squares)

    def whole_head(params, hidden, tokens):
        return of_logits(model.unembed(params, hidden), tokens)

    def head_of(params, rows, columns):
        """(head, the params it takes) for slices of that many rows and columns."""
        split = model.split_head(params) if model.split_head and not sampling.cuts() else None
        if split is None or not split.takes(rows):
            return whole_head, params
        keywords = {"temperature": sampling.temperature, "sum_pi_squared": sum_pi_squared}
        ring = split.ring(rows, columns)
        return make_split_scores(split, ring, **keywords), split.parts(ring)

    @jax.checkpoint
    def head_inside(params, hidden, tokens, allowed):
        inside = jnp.unpackbits(allowed, axis=-1, count=model.vocab_size).astype(bool)
        return of_logits(jnp.where(inside, model.unembed(params, hidden), -jnp.inf), tokens)

    def score_padded(params: Params, batch: TokenBatch) -> TokenScores:
        chex.assert_rank(batch.tokens, 2)
        length = batch.tokens.shape[1]
        if length <= completion_length:
            raise ValueError(
                f"rows of {length} tokens leave no room for a prompt before {completion_length} completion tokens"
            )
        hidden = hidden_at(model.apply, params, batch, lambda x: x[:, -completion_length - 1 : -1])
        tokens = batch.tokens[:, -completion_length:]
        if batch.allowed is None:
            return map_columns(*head_of(params, len(hidden), min(chunk, completion_length)), hidden, tokens, chunk)
        slices = [slice(start, start + chunk) for start in range(0, completion_length, chunk)]
        parts = [head_inside(params, hidden[:, c], tokens[:, c], batch.allowed[:, c]) for c in slices]
        return jax.tree.map(lambda *found: jnp.concatenate(found, axis=1), *parts)

    def score_packed(params: Params, batch: Packed) -> TokenScores:
        parts, rows, length = batch.places.shape
        hidden = hidden_of_parts(model.apply, params, batch, batch.sources)
        head = head_of(params, parts, min(rows * chunk, hidden.shape[1]))
        scores = map_columns(*head, hidden, batch.targets, rows * chunk, jnp.max(batch.counts))

        def place(x):
            result = pick(x, jnp.maximum(batch.places, 0).reshape(parts, -1)).reshape(parts * rows, length)
            return jnp.where(batch.places.reshape(parts * rows, length) >= 0, result, 0.0)

        return jax.tree.map(place, scores)

    def score(params: Params, batch: TokenBatch | Packed) -> TokenScores:
        return (score_packed if isinstance(batch, Packed) else score_padded)(params, batch)

    return score


def _causal(model: Model) -> Model:
    if not model.causal:
        raise ValueError(
            "make_score: this model is not causal (model.causal=False), it would read the tokens that it scores; use "
            "rl_jax.training.masked_scoring.make_masked_score (python -m experiments.masked_diffusion)"
        )
    return model


def in_micro_batches(fn: Callable, count: int) -> Callable:
    """fn(params, batch) -> tree [B, ...] on `count` parts of the rows, one after the other.

    The result is the same, and memory is that of one part's forward. Rows are dealt out as in the train step
    (step.deal), so a batch that is split over devices stays in place. count 1: `fn` itself.

    Args:
      fn: a Score, or another function of rows; batch: TokenBatch [B, T], or the same rows as a Packed, packed for as
        many micro-batches.
      count: number of parts; must divide B.
    """
    if count == 1:
        return fn

    def call(params: Params, batch: TokenBatch | Packed):
        parts = jax.tree.map(lambda x: deal(x, count), batch)
        result = jax.lax.map(functools.partial(fn, params), parts)
        return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), result)

    return call


def map_columns(
    head: Callable, params: Params, hidden: chex.Array, tokens: chex.Array, chunk: int, count: chex.Array | None = None
) -> TokenScores:
    """Applies head(params, hidden [B, c, D], tokens [B, c]) -> TokenScores [B, c] to slices of the columns.

    The backward pass recomputes each slice. It is written by hand because jax cannot differentiate a loop of
    data-dependent length. Scan over cond can be differentiated, but keeps several arrays of the head's size.

    Args:
      head: scores one slice.
      params: of the head.
      hidden: float [B, C, D].
      tokens: int32 [B, C].
      chunk: upper bound of the slice width c, which is the largest even share of C below it.
      count: int32 []. Columns from `count` on are not needed. The loop skips whole slices of them, in both directions,
        and their scores are 0. None: all columns.

    Returns:
      TokenScores [B, C], float32.
    """
    rows, length = tokens.shape
    slices = -(-length // chunk)
    width = -(-length // slices)

    def split(x):  # [B, C, ...] -> [slices, B, c, ...]: rows stay whole, so a sharded batch stays in place
        x = jnp.pad(x, [(0, 0), (0, slices * width - length)] + [(0, 0)] * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, slices, width, *x.shape[2:]), 1, 0)

    hidden, tokens = split(hidden), split(tokens)
    live = jnp.int32(slices) if count is None else (count + width - 1) // width
    # The params that the head reads, as explicit arguments: only they get a gradient to accumulate.
    call, weights = jax.closure_convert(lambda h, t: head(params, h, t), hidden[0], tokens[0])
    scores = _loop(call, hidden, tokens, live, *weights)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(rows, -1)[:, :length], scores)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loop(
    call: Callable, hidden: chex.Array, tokens: chex.Array, live: chex.Array, *weights: chex.Array
) -> TokenScores:
    """call on each of the first `live` slices. hidden: [n, B, c, D]; tokens: [n, B, c] -> TokenScores [n, B, c]."""

    def step(i, scores):
        return jax.tree.map(lambda all_, one: all_.at[i].set(one), scores, call(hidden[i], tokens[i], *weights))

    blank = jnp.zeros(tokens.shape, jnp.float32)
    shapes = jax.eval_shape(call, hidden[0], tokens[0], *weights)
    return jax.lax.fori_loop(0, live, step, jax.tree.map(lambda _: blank, shapes))


def _loop_forward(call, hidden, tokens, live, *weights):
    values = [x.value for x in (hidden, tokens, live, *weights)]
    return _loop(call, *values), values


def _loop_backward(call, residuals, cotangents):
    hidden, tokens, live, *weights = residuals
    # If the loss has no entropy term, the gradient needs none either.
    has_cotangent = [x is not None and not isinstance(x, SymbolicZero) for x in cotangents]

    def step(i, sums):
        def scores(x, *weights):
            return [score for score, want in zip(call(x, tokens[i], *weights), has_cotangent, strict=True) if want]

        pull = jax.vjp(scores, hidden[i], *weights)[1]
        by_hidden, *by_weights = pull([x[i] for x, want in zip(cotangents, has_cotangent, strict=True) if want])
        return sums[0].at[i].set(by_hidden), jax.tree.map(jnp.add, sums[1], by_weights)

    zeros = jnp.zeros_like(hidden), [jnp.zeros_like(x) for x in weights]
    by_hidden, by_weights = jax.lax.fori_loop(0, live, step, zeros)
    return by_hidden, None, None, *by_weights


_loop.defvjp(_loop_forward, _loop_backward, symbolic_zeros=True)
