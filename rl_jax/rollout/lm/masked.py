"""Sampling from masked-diffusion language models: an answer of masks, of which a few are filled in at every step.

Each step is one forward over the whole row; there is no cache. Positions that are filled in stay as they are, and so do
those that are given (inpainting).
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Model, Params, Rollout, TokenBatch
from rl_jax.rollout.lm.engine import fold_rows, is_any, prompt_batch
from rl_jax.rollout.lm.sampling import Sampling, check_counts, sampled_log_softmax, take_log_probs

ORDERS = ("confidence", "random")


def joined(tokens: chex.Array, prompt_mask: chex.Array, answers: chex.Array) -> TokenBatch:
    """Rows [B, P + C] of left-padded prompts [B, P] and answers int32 [B, C], none of which is padding."""
    prompts = prompt_batch(tokens, prompt_mask)
    steps = jnp.arange(answers.shape[1], dtype=jnp.int32)
    lengths = jnp.sum(prompt_mask, axis=1, dtype=jnp.int32)
    tail = TokenBatch(answers, lengths[:, None] + steps[None], jnp.ones_like(answers))
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), prompts, tail)


def without(logits: chex.Array, token: int) -> chex.Array:
    """Logits float [..., V] whose `token` has probability 0: a mask is never an answer."""
    return logits.at[..., token].set(-jnp.inf)


def check_schedule(length: int, steps: int, block_length: int, order: str) -> None:
    """Raises ValueError, naming the field, if C tokens cannot be filled in so."""
    if order not in ORDERS:
        raise ValueError(f"denoise.order={order!r} is none of {', '.join(ORDERS)}")
    if block_length < 1 or length % block_length:
        raise ValueError(f"denoise.block_length={block_length} must divide the {length} tokens of an answer")
    blocks = length // block_length
    if steps % blocks or not blocks <= steps <= length:
        raise ValueError(
            f"denoise.steps={steps} must be a multiple of the {blocks} blocks and {length} at most, one token per step"
        )


def most_confident(confidence: chex.Array, is_open: chex.Array, steps_left: chex.Array) -> chex.Array:
    """The ceil(n / steps_left) open positions of the highest confidence, of the n of each row. bool [B, C].

    Args:
      confidence: float [B, C].
      is_open: bool [B, C].
      steps_left: int [], 1 or more; after that many steps none is open.
    """
    number = -(-jnp.sum(is_open, axis=1, keepdims=True) // steps_left)
    doubt = jnp.minimum(-confidence, jnp.finfo(jnp.float32).max)  # so that one of -inf is still before the closed ones
    rank = jnp.argsort(jnp.argsort(jnp.where(is_open, doubt, jnp.inf), axis=1), axis=1)
    return is_open & (rank < number)


def make_masked_generate(
    model: Model,
    *,
    mask_id: int,
    completion_length: int,
    steps: int,
    block_length: int,
    order: str = "confidence",
    group_size: int = 1,
    sampling: Sampling = Sampling(),
    eos_ids: tuple[int, ...],
) -> Callable:
    """A pure function generate(params, tokens, prompt_mask, key, given=None) -> Rollout of B x G rows, to jit.

    In each step every masked position gets a token from the model; those of the most confident positions (the model's
    probability of that token), or of random ones, are kept: ceil(masked positions left / steps left). Blocks are filled
    in from left to right (semi-autoregressive). Source: LLaDA, arXiv 2502.09992, low-confidence and random remasking,
    and its generate.py, whose Gumbel noise at temperature T is sampling at T.

    generate takes tokens int32 [B, P], left-padded; prompt_mask bool [B, P]; one typed key, of which row i samples from
    fold_in(key, i); given int32 [B x G, C], tokens that stay, mask_id where none is given.

    The Rollout's completion_mask ends with the first EOS; its tokens are all C that were sampled, and what scores them
    reads all of them: the answer of a masked-diffusion model has a fixed length. sampled_log_probs and raw_log_probs
    are of each token when it was filled in, 0 if it was given.

    Args:
      model: its `apply` reads whole rows (TransformerConfig.causal=False).
      mask_id: the mask token, which is never sampled.
      completion_length: C.
      steps: forwards per answer.
      block_length: tokens of a block; C is one block.
      order: a name in ORDERS.
      group_size: G.
      sampling: the sampling rule, of each token.
      eos_ids: any of them ends an answer.

    Raises:
      ValueError: if an argument is out of its range, or the model is causal.
    """
    _check(model, completion_length, steps, block_length, order, group_size, sampling)
    turns = steps // (completion_length // block_length)
    blocks = jnp.arange(completion_length) // block_length

    def generate(
        params: Params,
        tokens: chex.Array,
        prompt_mask: chex.Array,
        key: chex.PRNGKey,
        given: chex.Array | None = None,
    ) -> Rollout:
        chex.assert_rank([tokens, prompt_mask], 2)
        tokens, prompt_mask = (jnp.repeat(x, group_size, axis=0) for x in (tokens, prompt_mask))
        shape = (len(tokens), completion_length)
        given = jnp.full(shape, mask_id, jnp.int32) if given is None else given
        chex.assert_shape(given, shape)
        row_keys = fold_rows(key, len(tokens))

        def turn(carry, step):
            answers, sampled, raw = carry
            hidden = model.apply(params, joined(tokens, prompt_mask, answers))[:, -completion_length:]
            logits = without(model.unembed(params, hidden), mask_id)
            rule = sampled_log_softmax(logits, sampling)
            draw_keys, order_keys = jax.vmap(lambda key: jax.random.split(jax.random.fold_in(key, step)))(row_keys).T
            drawn = jax.vmap(jax.random.categorical)(draw_keys, rule).astype(jnp.int32)
            own = take_log_probs(jax.nn.log_softmax(logits, axis=-1), drawn)
            if order == "random":
                confidence = jax.vmap(lambda key: jax.random.uniform(key, shape[1:]))(order_keys)
            else:
                confidence = own
            is_open = (answers == mask_id) & (blocks == step // turns)[None]
            taken = most_confident(confidence, is_open, turns - step % turns)
            new = (drawn, take_log_probs(rule, drawn), own)
            return tuple(jnp.where(taken, x, old) for x, old in zip(new, carry, strict=True)), None

        blank = jnp.zeros(shape, jnp.float32)
        (answers, sampled, raw), _ = jax.lax.scan(turn, (given, blank, blank), jnp.arange(steps))
        ends = is_any(answers, eos_ids)
        completion_mask = jnp.cumsum(ends, axis=1) - ends == 0
        finished = jnp.any(ends, axis=1)
        batch = joined(tokens, prompt_mask, answers)
        return Rollout(batch, completion_mask, sampled, raw, finished, ~finished)

    return generate


def _check(model, completion_length, steps, block_length, order, group_size, sampling) -> None:
    if model.causal:
        raise ValueError("make_masked_generate: this model is causal and cannot fill in masks: set model.causal=False")
    sampling.check(model.vocab_size)
    check_counts(completion_length, group_size)
    check_schedule(completion_length, steps, block_length, order)
    if sampling.repetition_penalty != 1.0:
        raise ValueError(f"repetition_penalty={sampling.repetition_penalty} must be 1: tokens have no order here")
