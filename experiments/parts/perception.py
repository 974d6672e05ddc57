"""algorithm.perception: PAPO's terms, a KL to the policy that reads a corrupted prompt, and both entropies.

    --config.algorithm.perception.kl_coef=0.02 --config.algorithm.perception.share=0.6

Text stands in for the image: a share of the prompt's tokens, drawn anew in each step, is replaced by the padding token,
which the model reads as a token. The prompt's first token stays. One more forward and backward per update.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import schedules
from experiments.parts.setup import Setup
from rl_jax import grpo
from rl_jax.core.binding import supply
from rl_jax.core.masked import Mean, masked_mean
from rl_jax.core.types import Metrics, Params, PolicyBatch, TokenScores
from rl_jax.losses.perception import perception_kl, perception_terms

NAME = "perception/tokens"  # among a batch's extras
COEFS = ("kl_coef", "entropy_coef", "corrupted_entropy_coef")


def is_on(config) -> bool:
    """Whether the loss has one of the terms."""
    return any(config.algorithm.perception[name] > 0 for name in COEFS)


def corrupted(
    tokens: np.ndarray, segment_ids: np.ndarray, prompt: int, *, share: float, blank: int, seed
) -> np.ndarray:
    """Tokens of which a share of each prompt's is replaced, but for its first one.

    Args:
      tokens: int32 [B, T].
      segment_ids: int32 [B, T], 0 on padding.
      prompt: columns of the prompt, P.
      share: probability of each token.
      blank: what is put there.
      seed: of numpy's generator.
    """
    live = np.asarray(segment_ids)[:, :prompt] > 0
    inner = live & (np.cumsum(live, axis=1) > 1)
    hidden = inner & (np.random.default_rng(seed).random(live.shape) < share)
    result = np.array(tokens)
    result[:, :prompt] = np.where(hidden, blank, result[:, :prompt])
    return result


def attach(setup: Setup, batch: PolicyBatch, step: int) -> PolicyBatch:
    """The batch of a step with the corrupted tokens of its rows; unchanged if the terms are off."""
    config = setup.config
    if not is_on(config):
        return batch
    rows = batch.batch
    tokens = corrupted(
        np.asarray(rows.tokens),
        np.asarray(rows.segment_ids),
        rows.tokens.shape[1] - batch.completion_mask.shape[1],
        share=config.algorithm.perception.share,
        blank=setup.task.tokenizer.pad_id,
        seed=[config.seed, step, 258],
    )
    return batch._replace(extras=batch.extras | {NAME: tokens})


def of_the_loss(config: ConfigDict) -> ConfigDict:
    """The part of a run's config that its loss reads when it is traced: not the run's folders and its length."""
    whole = config.copy_and_resolve_references()
    groups = {name: whole[name] for name in ("algorithm", "schedules", "critic", "foreign") if name in whole}
    sizes = {"rollout": {"completion_length": whole.rollout.completion_length}}
    return ConfigDict(groups | sizes | {"sample": {"group_size": whole.sample.group_size}})


def make_term(config: ConfigDict, score: Callable) -> Callable:
    """Makes add(params, batch, scores, objective, loss, metrics) -> (loss, metrics) with the terms.

    Args:
      config: of_the_loss.
      score: (params, rows) -> TokenScores.
    """

    def add(
        params: Params, batch: PolicyBatch, scores: TokenScores, objective: Any, loss: Mean, metrics: Metrics
    ) -> tuple[Mean, Metrics]:
        if NAME not in batch.extras:
            return loss, metrics
        now = schedules.in_loss(config, batch.extras).algorithm.perception
        mask, other = batch.completion_mask, score(params, batch.batch._replace(tokens=batch.extras[NAME]))
        per_token = perception_terms(scores, other, mask, **{name: now[name] for name in COEFS})
        term = supply(objective.aggregate, batch.extras)(per_token, mask)
        told = jax.lax.stop_gradient(
            {
                "perception/kl": masked_mean(perception_kl(scores.log_probs, other.log_probs, mask), mask),
                "perception/entropy": masked_mean(other.entropy, mask),
            }
        )
        return Mean(loss.total + term.total, loss.count), metrics | told

    return add


def with_terms(setup: Setup, score: Callable, make_objective: Callable[[Any], grpo.Objective]) -> Callable:
    """(params, PolicyBatch) -> (Mean, metrics): grpo.loss, with the terms if they are on. score: (params, rows)."""
    config = of_the_loss(setup.config)
    add = make_term(config, score)

    def loss_fn(params, batch):
        objective, scores = make_objective(schedules.in_loss(config, batch.extras)), score(params, batch.batch)
        return add(params, batch, scores, objective, *grpo.loss(scores, batch, objective))

    return loss_fn
