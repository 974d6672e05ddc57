"""Generation: one prefill per prompt, G samples that share it, and a KV cache that is an ordinary array.

Shapes come in buckets (see data.encode_prompts), so that nothing is compiled after warm-up.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.types import Model, Params, Rollout, TokenBatch
from rl_jax.rollout.lm.sampling import Sampling, check_counts, sample


def prompt_batch(tokens: chex.Array, prompt_mask: chex.Array) -> TokenBatch:
    """Left-padded prompts as a TokenBatch: positions count the real tokens, padding is segment 0.

    Args:
      tokens: int32 [B, P].
      prompt_mask: bool [B, P].
    """
    chex.assert_equal_shape([tokens, prompt_mask])
    chex.assert_type(prompt_mask, bool)
    positions = jnp.maximum(jnp.cumsum(prompt_mask, axis=1) - 1, 0).astype(jnp.int32)
    return TokenBatch(tokens, positions, prompt_mask.astype(jnp.int32))


def for_decoding(model: Model) -> Callable | None:
    """A function params -> params for decoding many steps, or None if params are used unchanged.

    On the CPU backend it unstacks them, because slices of stacked params are copied in each step. None on other
    backends, and for models without such a form.
    """
    return model.unstack if jax.default_backend() == "cpu" else None


def fold_rows(key: chex.PRNGKey, rows: int) -> chex.PRNGKey:
    """Row i's key, fold_in(key, i): typed keys [B]."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(rows))


def uniforms_at(row_keys: chex.PRNGKey, steps: chex.Array) -> chex.Array:
    """Each row's uniform number for its token of index `steps`, int32 [B] or []: float32 [B] in [0, 1)."""
    steps = jnp.broadcast_to(steps, row_keys.shape)
    return jax.vmap(lambda key, step: jax.random.uniform(jax.random.fold_in(key, step)))(row_keys, steps)


def is_any(tokens: chex.Array, ids: tuple[int, ...]) -> chex.Array:
    """Whether each token is one of `ids`: int32 [B] -> bool [B]."""
    return jnp.isin(tokens, jnp.array(ids, jnp.int32)) if ids else jnp.zeros(tokens.shape, bool)


def seen_tokens(tokens: chex.Array, mask: chex.Array, vocab_size: int) -> chex.Array:
    """Which tokens occur in each row: int32 [B, T], bool [B, T] -> bool [B, V]."""
    chex.assert_equal_shape([tokens, mask])
    put = jax.vmap(lambda tokens, mask: jnp.zeros(vocab_size, bool).at[tokens].max(mask))
    return put(tokens, mask)


def mark_seen(seen: chex.Array | None, tokens: chex.Array) -> chex.Array | None:
    """`seen` bool [B, V] with one more token per row; None stays None."""
    return None if seen is None else seen | jax.nn.one_hot(tokens, seen.shape[1], dtype=bool)


def make_generate(
    model: Model,
    *,
    completion_length: int,
    group_size: int = 1,
    sampling: Sampling = Sampling(),
    eos_ids: tuple[int, ...],
    pad_id: int = 0,
) -> Callable:
    """A pure function generate(params, tokens, prompt_mask, key, max_tokens=None) -> Rollout of B x G rows, to jit.

    generate takes tokens int32 [B, P], left-padded; prompt_mask bool [B, P]; one typed key, of which row i samples from
    fold_in(key, i), so that it does not depend on other rows; and max_tokens int32 [B x G], a limit of 1 to C tokens
    per row, None for C. It stops early when every row has ended.

    Args:
      model: with prefill and decode.
      completion_length: C, the most tokens to sample.
      group_size: G.
      sampling: the sampling rule; an invalid one raises ValueError.
      eos_ids: any of them ends a row; () never ends.
      pad_id: fills the columns after a row's end.
    """
    sampling.check(model.vocab_size)
    check_counts(completion_length, group_size)

    def generate(
        params: Params,
        tokens: chex.Array,
        prompt_mask: chex.Array,
        key: chex.PRNGKey,
        max_tokens: chex.Array | None = None,
    ) -> Rollout:
        chex.assert_rank([tokens, prompt_mask], 2)
        prompts = prompt_batch(tokens, prompt_mask)
        prompt_length = tokens.shape[1]
        hidden, prompt_cache = model.prefill(params, prompts)
        prompts, last_hidden, mask = jax.tree.map(
            lambda x: jnp.repeat(x, group_size, axis=0), (prompts, hidden[:, -1], prompt_mask)
        )
        rows = mask.shape[0]
        cache = _share(model.init_cache(rows, prompt_length + completion_length), prompt_cache, group_size)
        row_keys = fold_rows(key, rows)
        prompt_lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
        prompt_columns = jnp.concatenate([mask, jnp.ones((rows, completion_length), bool)], axis=1)
        blank = jnp.zeros((rows, completion_length), jnp.float32)
        limits = jnp.broadcast_to(completion_length if max_tokens is None else max_tokens, (rows,))

        def draw_column(step, hidden, carry):
            """Sample the token of column `step` for every row that has not ended."""
            (out, sampled, raw), seen, ended = carry
            drawn = sample(model.unembed(params, hidden), uniforms_at(row_keys, step), sampling, seen)
            token, live = jnp.where(ended, pad_id, drawn[0]), ~ended

            def put(array, value):
                return jax.lax.dynamic_update_slice(array, value.astype(array.dtype)[:, None], (0, step))

            out = put(out, token)
            sampled, raw = (put(x, jnp.where(live, y, 0.0)) for x, y in zip((sampled, raw), drawn[1:], strict=True))
            ended |= is_any(token, eos_ids) | (step + 1 >= limits)
            return token, ((out, sampled, raw), mark_seen(seen, token), ended)

        unstacked = unstack(params) if (unstack := for_decoding(model)) else params

        def body(state):
            step, token, cache, lengths, carry = state
            lengths += ~carry[-1]
            hidden, cache = model.decode(
                unstacked, token, prompt_lengths + step, cache, prompt_length + step, prompt_columns
            )
            token, carry = draw_column(step + 1, hidden, carry)
            return step + 1, token, cache, lengths, carry

        out = jnp.full((rows, completion_length), pad_id, jnp.int32)
        seen = seen_tokens(prompts.tokens, mask, model.vocab_size) if sampling.repetition_penalty != 1.0 else None
        token, carry = draw_column(0, last_hidden, ((out, blank, blank), seen, jnp.zeros(rows, bool)))
        state = (jnp.int32(0), token, cache, jnp.ones(rows, jnp.int32), carry)
        state = jax.lax.while_loop(lambda s: (s[0] < completion_length - 1) & ~jnp.all(s[4][-1]), body, state)
        _, _, cache, lengths, ((out, sampled, raw), _, _) = state
        completion_mask = jnp.arange(completion_length)[None] < lengths[:, None]
        finished = jnp.any(completion_mask & is_any(out, eos_ids), axis=1)
        batch = _join(prompts, out, completion_mask)
        if model.routes is not None:
            batch = batch._replace(routes=model.routes(cache))
        return Rollout(batch, completion_mask, sampled, raw, finished, ~finished)

    return generate


def _share(empty, filled, group_size: int):
    """Empty caches of B x G rows with the caches of B prompts copied into their first columns."""

    def share(to, source):
        return jax.lax.dynamic_update_slice(to, jnp.repeat(source, group_size, axis=0), (0,) * to.ndim)

    return jax.tree.map(share, empty, filled)


def _join(prompts: TokenBatch, completions: chex.Array, completion_mask: chex.Array) -> TokenBatch:
    """Prompt columns, then completion columns. Positions continue from the prompt's last one."""
    steps = jnp.arange(completions.shape[1], dtype=jnp.int32)
    tail = TokenBatch(
        tokens=completions,
        positions=jnp.where(completion_mask, prompts.positions[:, -1:] + 1 + steps[None], 0),
        segment_ids=completion_mask.astype(jnp.int32),
    )
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), prompts, tail)
