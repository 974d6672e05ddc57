"""Log-probs of the masked tokens of an answer: the Score of a masked-diffusion language model."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.packed_rows import hidden_at
from rl_jax.core.types import Model, Params, Score, TokenBatch, TokenScores
from rl_jax.rollout.lm.masked import without
from rl_jax.rollout.lm.sampling import take_log_probs


class MaskedRows(NamedTuple):
    """Rows with masks in their answers, and what is behind the masks."""

    batch: TokenBatch
    """TokenBatch of [B, P + C], corrupted."""
    targets: chex.Array
    """int32 [B, C]. The answers."""


def corrupted(batch: TokenBatch, masked: chex.Array, mask_id: int) -> MaskedRows:
    """M corrupted copies of each row, its neighbours: TokenBatch [N, P + C], bool [N, M, C] -> MaskedRows of N x M."""
    chex.assert_rank([batch.tokens, masked], [2, 3])
    chex.assert_equal_shape_prefix([batch.tokens, masked], 1)
    samples, length = masked.shape[1:]
    batch = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), batch)
    targets = batch.tokens[:, -length:]
    hidden = jnp.where(masked.reshape(-1, length), mask_id, targets)
    tokens = jnp.concatenate([batch.tokens[:, :-length], hidden], axis=1)
    return MaskedRows(batch._replace(tokens=tokens), targets)


def make_masked_score(model: Model, *, mask_id: int) -> Score:
    """Builds score(params, MaskedRows of [B, P + C]) -> TokenScores [B, C]: log p(target i | the row) at position i.

    The log-prob of a column comes from the hidden state of that column, whatever it holds; it is a prediction only
    where the column is masked. The mask token itself has probability 0.

    Raises:
      ValueError: if the model is causal.
    """
    if model.causal:
        raise ValueError("make_masked_score: this model is causal and cannot fill in masks: set model.causal=False")

    def score(params: Params, rows: MaskedRows) -> TokenScores:
        hidden = hidden_at(model.apply, params, rows.batch, lambda x: x[:, -rows.targets.shape[1] :])
        log_probs = jax.nn.log_softmax(without(model.unembed(params, hidden), mask_id), axis=-1)
        safe = jnp.where(jnp.isfinite(log_probs), log_probs, 0.0)
        entropy = -jnp.sum(jnp.where(jnp.isfinite(log_probs), jnp.exp(safe), 0.0) * safe, axis=-1)
        return TokenScores(take_log_probs(log_probs, rows.targets), entropy)

    return score
