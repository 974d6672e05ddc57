"""Length bias on real pairs: how much of a trained implicit reward is the length of the response."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.stats

from experiments.studies.base import Outcome, make_objective
from rl_jax import dpo, preferences
from rl_jax.core.masked import zero_masked
from rl_jax.core.types import PreferenceBatch, TokenBatch
from rl_jax.models.hf import llama2c
from rl_jax.models.transformer.model import make_transformer
from rl_jax.tokenizers import Llama2cTokenizer
from rl_jax.training.scoring import make_score

ROW_FIELDS = ("tokens", "positions", "segment_ids")


def length_bias(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    data: Mapping,
    checkpoint: str,
    tokenizer_path: str,
    prompt_length: int,
    completion_length: int,
    held_out: int,
    batch_size: int,
    steps: int,
    learning_rate: float,
) -> Outcome:
    """Trains a model on real preference pairs with each objective, and measures how its margins depend on length.

    Each seed shuffles the pairs, holds out `held_out` of them and trains on the others. Metrics, on the held-out pairs:
    correlation, Spearman's between the margin u_chosen - u_rejected (u as the objective sums or averages it) and the
    difference of the lengths; size, its absolute value; accuracy, the fraction of positive margins.
    Source: arXiv 2405.14734, 2411.15124.

    Args:
      seeds: of the shuffles.
      arms: name -> slots of rl_jax.dpo.Objective.
      data: keywords of rl_jax.preferences.load.
      checkpoint: path of the pretrained model.
      tokenizer_path: path of the tokenizer.
      prompt_length: tokens of a prompt that are kept, the last ones.
      completion_length: pairs with a response that does not end within it are left out: a cut response has no length.
      held_out: number of held-out pairs.
      batch_size: pairs per step.
      steps: of the training.
      learning_rate: of the optimizer.

    Raises:
      ValueError: if there are fewer pairs than held_out and one batch take.
    """
    config, params = llama2c.load(checkpoint)
    params = jax.tree.map(jnp.asarray, params)
    score = make_score(make_transformer(config), completion_length=completion_length)
    arrays = _encoded(data, Llama2cTokenizer(tokenizer_path), prompt_length, completion_length)
    count = len(arrays["present"])
    if count < held_out + batch_size:
        raise ValueError(f"{count} short pairs are fewer than held_out={held_out} plus batch_size={batch_size}")

    def scored(params, batch):
        rows = TokenBatch(*(x.reshape(-1, x.shape[-1]) for x in batch.batch[:3]))
        return score(params, rows)

    reference = jax.jit(lambda batch: scored(params, batch).log_probs.reshape(batch.completion_mask.shape))
    ref_log_probs = np.concatenate(
        [np.asarray(reference(_batch(arrays, rows, None))) for rows in _chunks(count, batch_size)]
    )[:count]
    adam = optax.adam(learning_rate)

    values = {}
    for arm, slots in arms.items():
        objective = make_objective(slots)

        @jax.jit
        def update(params, state, batch, objective=objective):
            def loss(params):
                return dpo.loss(scored(params, batch), batch, objective)[0].value()

            updates, state = adam.update(jax.grad(loss)(params), state)
            return optax.apply_updates(params, updates), state

        @jax.jit
        def margins(params, batch, objective=objective):
            mask = batch.completion_mask
            log_probs = zero_masked(scored(params, batch).log_probs.reshape(mask.shape), mask)
            ratios = log_probs - dpo.reference_log_probs(batch, objective.reference, mask)
            u = dpo.sequence_scores(ratios, mask, jnp.ones(mask.shape), objective.length_power)
            return u[:, 0] - u[:, 1]

        result = []
        for seed in seeds:
            order = np.random.default_rng(seed).permutation(count)
            test, train = order[:held_out], order[held_out:]
            trained, state = params, adam.init(params)
            for step in range(steps):
                rows = np.take(train, np.arange(step * batch_size, (step + 1) * batch_size), mode="wrap")
                trained, state = update(trained, state, _batch(arrays, rows, ref_log_probs))
            batches = (_batch(arrays, test[rows], ref_log_probs) for rows in _chunks(held_out, batch_size))
            gaps = np.concatenate([np.asarray(margins(trained, batch)) for batch in batches])[:held_out]
            result.append(_describe(gaps, arrays["completion_mask"][test].sum(axis=-1)))
        values[arm] = {name: np.array([row[name] for row in result]) for name in result[0]}
    return Outcome(values)


def _encoded(data: Mapping, tokenizer, prompt_length: int, completion_length: int) -> dict[str, np.ndarray]:
    """All pairs of a dataset, train and test, in which both responses end within completion_length."""
    loaded = preferences.load(**data)
    sources = [loaded.data_source(split) for split in ("train", "test")]
    records = [source[i] for source in sources for i in range(len(source))]
    arrays, _ = preferences.encode_preferences(
        tokenizer,
        records,
        prompt_buckets=(prompt_length,),
        completion_length=completion_length,
        responses=2,
        truncate="left",
        identical="drop",
    )
    ended = ~arrays["completion_mask"].all(axis=-1).any(axis=-1)  # with one free column, nothing was cut
    return {name: x[ended] for name, x in arrays.items()}


def _chunks(count: int, size: int) -> list[np.ndarray]:
    """The indices 0 .. count - 1 in full batches; the last one wraps around."""
    return [np.arange(start, start + size) % count for start in range(0, count, size)]


def _batch(arrays: Mapping[str, np.ndarray], rows: np.ndarray, ref_log_probs: np.ndarray | None) -> PreferenceBatch:
    return PreferenceBatch(
        batch=TokenBatch(*(arrays[name][rows] for name in ROW_FIELDS)),
        completion_mask=arrays["completion_mask"][rows],
        present=arrays["present"][rows],
        rewards=arrays["rewards"][rows],
        ref_log_probs=None if ref_log_probs is None else ref_log_probs[rows],
    )


def _describe(margins: np.ndarray, lengths: np.ndarray) -> dict[str, float]:
    """Metrics of held-out pairs. margins: float [N]. lengths: int [N, 2], in tokens with the EOS."""
    chex.assert_shape(lengths, (*margins.shape, 2))
    correlation = float(scipy.stats.spearmanr(margins, lengths[:, 0] - lengths[:, 1]).statistic)
    return {"correlation": correlation, "size": abs(correlation), "accuracy": float(np.mean(margins > 0))}
