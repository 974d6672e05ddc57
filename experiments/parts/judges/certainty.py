"""A judge that needs no label: how sure a language model is of each completion."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts.judges.base import Judge, Rows, Verdict, in_batches, lay_out, load_run, mode_of, token_rows
from experiments.parts.judges.language_models import texts_to_score
from experiments.parts.setup import Setup
from rl_jax.core.types import Model, Params, TokenBatch
from rl_jax.training.scoring import map_columns


def self_certainty(log_probs: chex.Array) -> chex.Array:
    """KL(uniform || p) = -1/V sum_j log(V p_j): 0 for a uniform p (arXiv 2505.19590). float [..., V] -> [...]."""
    return -jnp.mean(log_probs, axis=-1) - jnp.log(jnp.float32(log_probs.shape[-1]))


def negative_entropy(log_probs: chex.Array) -> chex.Array:
    """sum_j p_j log p_j: 0 for a p that is certain (arXiv 2505.22660). float [..., V] -> [...]."""
    return jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


MEASURES: dict[str, Callable] = {"self_certainty": self_certainty, "entropy": negative_entropy}


def confidence(
    setup: Setup, *, path: str, measure: str = "self_certainty", rows: str = "", batch_size: int = 64
) -> Judge:
    """The mean over a completion's tokens of how sure a frozen language model is at each, a reward of each row.

        self_certainty   KL(uniform || p_t), Intuitor's (arXiv 2505.19590)
        entropy          minus the entropy of p_t, RENT's (arXiv 2505.22660)

    Both papers ask the policy of the moment; a frozen model cannot be made surer of what it is given.

    Args:
      setup: of the run.
      path: workdir of a run or a Hugging Face folder: what the policy starts from, or another model.
      measure: one of these names.
      rows: "tokens" reads the sampled ids, "texts" the texts; "": tokens if the tokenizer is the policy's.
      batch_size: rows per forward pass.

    Raises:
      FileNotFoundError: if the folder is neither.
      ValueError: if measure or rows is unknown, or the ids of the rows mean nothing to the model.
    """
    if measure not in MEASURES:
        raise ValueError(f"confidence.measure={measure!r} is none of {', '.join(MEASURES)}")
    own, params = load_run(setup, path, "confidence.path")
    tokenizer, length = own.task.tokenizer, setup.config.rollout.completion_length
    mode = mode_of(setup, tokenizer, rows, f"the model {path}")
    read = jax.jit(make_read(own.model, MEASURES[measure], length, setup.config.score.chunk))

    def judge(judged: Rows) -> Verdict:
        if mode == "tokens":
            batch, mask = token_rows(judged, tokenizer), np.asarray(judged.rollout.completion_mask)
        else:
            texts = texts_to_score(judged, tokenizer, "completion", "", length)
            batch = lay_out(texts, tokenizer, length)
            mask = np.arange(length) < np.array([len(ids) for _, ids in texts])[:, None]
        sure = np.where(mask, in_batches(own, read, params, batch, batch_size), np.float32(0))
        return Verdict(sure.sum(axis=1) / np.maximum(mask.sum(axis=1), 1))

    return judge


def make_read(model: Model, measure: Callable, length: int, chunk: int) -> Callable:
    """Makes read(params, TokenBatch [B, P + C]) -> float32 [B, C]: the measure of what each of C tokens was drawn from.

    Args:
      model: network as pure functions.
      measure: log-probs float [..., V] -> [...].
      length: C.
      chunk: columns whose logits are in memory at the same time.
    """

    def head(params: Params, hidden: chex.Array, tokens: chex.Array) -> chex.Array:
        return measure(jax.nn.log_softmax(model.unembed(params, hidden).astype(jnp.float32)))

    def read(params: Params, batch: TokenBatch) -> chex.Array:
        hidden = model.apply(params, batch)[:, -length - 1 : -1]
        return map_columns(head, params, hidden, batch.tokens[:, -length:], chunk)

    return read
