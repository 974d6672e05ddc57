"""Generation: one prefill a prompt, G samples that share it, a KV cache that is an array like any other.

Shapes are buckets (see data.encode_prompts), so that nothing is compiled after warm-up.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.rollout.sampling import Sampling, draw, sampled_log_softmax, take_log_probs
from rl_jax.types import Model, Params, Rollout, TokenBatch


def prompt_batch(tokens: chex.Array, prompt_mask: chex.Array) -> TokenBatch:
    """Left-padded prompts as a TokenBatch: positions count the real tokens, padding is segment 0.

    tokens: int32 [B, P]. prompt_mask: bool [B, P].
    """
    chex.assert_equal_shape([tokens, prompt_mask])
    chex.assert_type(prompt_mask, bool)
    positions = jnp.maximum(jnp.cumsum(prompt_mask, axis=1) - 1, 0).astype(jnp.int32)
    return TokenBatch(tokens, positions, prompt_mask.astype(jnp.int32))


def make_generate(
    model: Model,
    *,
    completion_length: int,
    group_size: int = 1,
    sampling: Sampling = Sampling(),
    eos_ids: tuple[int, ...],
    pad_id: int = 0,
) -> Callable:
    """A pure function generate(params, tokens, prompt_mask, key) -> Rollout of B x G rows; the caller jits it.

    tokens: int32 [B, P], left-padded. prompt_mask: bool [B, P]. key: one typed key for the whole call; row i draws
    from fold_in(key, i), so a row's samples do not depend on the other rows.
    completion_length: C, the most tokens to sample. group_size: G. eos_ids: any of them ends a row; () never ends.
    Stops early when every row has ended. Raises ValueError for a sampling rule that makes no sense.
    """
    sampling.check(model.vocab_size)
    if completion_length < 1 or group_size < 1:
        raise ValueError(f"completion_length={completion_length} and group_size={group_size} must be at least 1")

    def generate(params: Params, tokens: chex.Array, prompt_mask: chex.Array, key: chex.PRNGKey) -> Rollout:
        chex.assert_rank([tokens, prompt_mask], 2)
        prompts = prompt_batch(tokens, prompt_mask)
        prompt_length = tokens.shape[1]
        hidden, prompt_cache = model.prefill(params, prompts)
        prompts, last_hidden, mask = jax.tree.map(
            lambda x: jnp.repeat(x, group_size, axis=0), (prompts, hidden[:, -1], prompt_mask)
        )
        rows = mask.shape[0]
        cache = jax.tree.map(
            lambda empty, filled: empty.at[:, :, :prompt_length].set(jnp.repeat(filled, group_size, axis=1)),
            model.init_cache(rows, prompt_length + completion_length),
            prompt_cache,
        )
        row_keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(rows))
        prompt_lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
        prompt_columns = jnp.concatenate([mask, jnp.ones((rows, completion_length), bool)], axis=1)
        columns = jnp.arange(prompt_length + completion_length)
        blank = jnp.zeros((rows, completion_length), jnp.float32)

        def sample(step, hidden, carry):
            """Draw the token of column `step` for every row that has not ended."""
            out, sampled, raw, finished = carry
            logits = model.unembed(params, hidden)
            log_probs = sampled_log_softmax(logits, sampling)
            uniforms = jax.vmap(lambda k: jax.random.uniform(jax.random.fold_in(k, step)))(row_keys)
            token = jnp.where(finished, pad_id, draw(log_probs, uniforms))
            live = ~finished

            def put(array, value):
                return jax.lax.dynamic_update_slice(array, value.astype(array.dtype)[:, None], (0, step))

            out = put(out, token)
            sampled = put(sampled, jnp.where(live, take_log_probs(log_probs, token), 0.0))
            raw = put(raw, jnp.where(live, take_log_probs(jax.nn.log_softmax(logits, axis=-1), token), 0.0))
            ended = jnp.isin(token, jnp.array(eos_ids, jnp.int32)) if eos_ids else jnp.zeros(rows, bool)
            return token, (out, sampled, raw, finished | (live & ended))

        def body(state):
            step, token, cache, lengths, carry = state
            lengths += ~carry[-1]
            column = prompt_length + step
            visible = prompt_columns & (columns <= column)[None]
            hidden, cache = model.decode(params, token, prompt_lengths + step, cache, column, visible)
            token, carry = sample(step + 1, hidden, carry)
            return step + 1, token, cache, lengths, carry

        empty = (jnp.full((rows, completion_length), pad_id, jnp.int32), blank, blank, jnp.zeros(rows, bool))
        token, carry = sample(0, last_hidden, empty)
        state = (jnp.int32(0), token, cache, jnp.ones(rows, jnp.int32), carry)
        state = jax.lax.while_loop(
            lambda s: (s[0] < completion_length - 1) & ~jnp.all(s[4][3]), body, state
        )
        _, _, _, lengths, (out, sampled, raw, finished) = state
        completion_mask = jnp.arange(completion_length)[None] < lengths[:, None]
        return Rollout(_join(prompts, out, completion_mask), completion_mask, sampled, raw, finished, ~finished)

    return generate


def _join(prompts: TokenBatch, completions: chex.Array, completion_mask: chex.Array) -> TokenBatch:
    """Prompt columns, then completion columns. The positions go on from the prompt's last."""
    steps = jnp.arange(completions.shape[1], dtype=jnp.int32)
    tail = TokenBatch(
        tokens=completions,
        positions=jnp.where(completion_mask, prompts.positions[:, -1:] + 1 + steps[None], 0),
        segment_ids=completion_mask.astype(jnp.int32),
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), prompts, tail)
