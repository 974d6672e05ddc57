"""config.algorithm.ptx: InstructGPT's pretraining term, an SFT loss beside the policy's (PPO-ptx, arXiv 2203.02155).

    L = L_policy + coef * mean over tokens of -log pi(demonstration)

Each row of a step carries one record of the split, which is split over minibatches and micro-batches with it. Which
record is decided by the number of the step alone, so a resumed run reads the same ones.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts.encoding import encode_sft
from experiments.parts.setup import Setup
from experiments.parts.training import with_adapters
from rl_jax import grpo, sft
from rl_jax.core.binding import supply
from rl_jax.core.masked import Mean
from rl_jax.core.types import Metrics, Params, PolicyBatch, TokenBatch
from rl_jax.training.scoring import make_score

TOKENS = ("tokens", "positions", "segment_ids")
NAMES = tuple(f"ptx/{name}" for name in (*TOKENS, "mask"))
WEIGHTS = "ptx/weights"


def records_of(setup: Setup, step: int, count: int) -> list[dict]:
    """`count` records of the split for a step, from 1: each epoch in another random order."""
    source = setup.task.data_source(setup.config.algorithm.ptx.split)
    size, seed = len(source), setup.config.seed
    epochs, indices = np.divmod(np.arange((step - 1) * count, step * count), size)
    orders = {epoch: np.random.default_rng([seed, epoch]).permutation(size) for epoch in np.unique(epochs)}
    return [source[int(orders[epoch][index])] for epoch, index in zip(epochs, indices, strict=True)]


def attach(setup: Setup, batch: Any, step: int) -> Any:
    """The batch of a step with a record on each row; unchanged if the coefficient is 0.

    Args:
      setup: of the run.
      batch: a PolicyBatch, or a batch that has one as `policy`.
      step: from 1.
    """
    if not setup.config.algorithm.ptx.coef:
        return batch
    if not isinstance(batch, PolicyBatch):
        return batch._replace(policy=attach(setup, batch.policy, step))
    tokens, mask = encode_sft(setup, records_of(setup, step, len(batch.completion_mask)))
    arrays = dict(zip(NAMES, (tokens.tokens, tokens.positions, tokens.segment_ids, mask), strict=True))
    return batch._replace(extras=batch.extras | arrays)


def weigh(config: ConfigDict, objective: grpo.Objective, batch: Any) -> Any:
    """An update's batch with the weight of its records' tokens, which its micro-batches cannot know.

    The loss is divided by the policy's count, so a token of a record counts coef * count / tokens of the records.
    """
    if not config.algorithm.ptx.coef:
        return batch
    if not isinstance(batch, PolicyBatch):
        return batch._replace(policy=weigh(config, objective, batch.policy))
    mask = jnp.asarray(batch.completion_mask)
    count = supply(objective.aggregate, batch.extras)(jnp.zeros(mask.shape), mask).count
    weight = config.algorithm.ptx.coef * count / jnp.maximum(jnp.sum(jnp.asarray(batch.extras[NAMES[-1]])), 1)
    return batch._replace(extras=batch.extras | {WEIGHTS: jnp.full(mask.shape[:1], weight, jnp.float32)})


def make_term(setup: Setup) -> Callable[[Params, PolicyBatch, Mean, Metrics], tuple[Mean, Metrics]]:
    """Makes add(params, batch, loss, metrics) -> (loss with the term, metrics with ptx/loss)."""
    length, chunk = setup.config.rollout.completion_length, setup.config.score.chunk
    score = with_adapters(setup, make_score(setup.model, completion_length=length, chunk=chunk))

    def add(params: Params, batch: PolicyBatch, loss: Mean, metrics: Metrics) -> tuple[Mean, Metrics]:
        if WEIGHTS not in batch.extras:
            return loss, metrics
        *tokens, mask = (jax.lax.stop_gradient(batch.extras[name]) for name in NAMES)
        term, _ = sft.loss(score(params, TokenBatch(*tokens)), mask)
        total = loss.total + batch.extras[WEIGHTS][0] * term.total
        return Mean(total, loss.count), metrics | {"ptx/loss": jax.lax.stop_gradient(term)}

    return add
