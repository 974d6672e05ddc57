"""Reward models that use a tool before they grade: the language-model term on their traces (Themis, arXiv 2310.01045).

    L = L_rm + traces.coef mean_i -1/n_i sum_{t in trace_i} log p(y_it | x_i, y_i<t)

The mean is over prompts, each as heavy as in L_rm; one without a trace counts as 0.
"""

from typing import Any

import jax
import numpy as np

from experiments.parts.preference_data import flat
from experiments.parts.setup import Setup
from experiments.parts.training import with_adapters
from rl_jax.core.masked import masked_mean
from rl_jax.core.types import Params, PreferenceBatch
from rl_jax.losses.reward_model.traces import trace_nll
from rl_jax.preferences.traced import trace_mask
from rl_jax.training.scoring import make_score

MASK = "trace_mask"


def extended(setup: Setup, reader: Any) -> Any:
    """A reward_readers.Reader with the term of config.algorithm.traces; the same one if it is off.

    Raises:
      ValueError: if its marks are no single tokens.
    """
    config = setup.config.algorithm.get("traces")
    if not config or not config.coef:
        return reader
    start, observed = token_of(setup, config.start), token_of(setup, config.observed) if config.observed else -1
    length = setup.config.rollout.completion_length
    score = with_adapters(
        setup, make_score(setup.model, completion_length=length, chunk=setup.config.score.chunk)
    )

    def batch(arrays: dict, places: np.ndarray, size: int) -> PreferenceBatch:
        found = reader.batch(arrays, places, size)
        tokens, mask = np.asarray(found.batch.tokens)[..., -length:], np.asarray(found.completion_mask)
        mask = mask & np.asarray(found.present)[..., None]
        own = trace_mask(tokens, mask, start=start, observed=observed, answers=config.answers)
        return found._replace(extras={**found.extras, MASK: own})

    def loss(params: Params, batch: PreferenceBatch) -> tuple[Any, dict]:
        mask = batch.extras[MASK]
        terms = trace_nll(score(params, flat(batch.batch)).log_probs.reshape(mask.shape), mask)
        result, metrics = reader.loss(params, batch, config.coef * terms.loss)
        return result, metrics | {"traces": jax.tree.map(jax.lax.stop_gradient, masked_mean(*terms))}

    return reader._replace(batch=batch, loss=loss)


def token_of(setup: Setup, text: str) -> int:
    """The id of a text that is one token.

    Raises:
      ValueError: if it is none, or several.
    """
    ids = setup.task.tokenizer.encode_continuation(text)
    if len(ids) != 1:
        raise ValueError(f"algorithm.traces: {text!r} must be one token of the tokenizer, not {len(ids)}")
    return int(ids[0])


def check(config) -> None:
    """Raises ValueError if config.algorithm.traces are of a model that does not read responses."""
    traces = config.algorithm.get("traces")
    if traces and traces.coef and config.algorithm.reads != "response":
        raise ValueError(f"algorithm.traces.coef={traces.coef} needs reads='response', not {config.algorithm.reads!r}")
