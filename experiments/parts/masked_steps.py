"""The updates of experiments.masked_diffusion: masks, the old policy's scores under them, the objective."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from experiments.parts.masked_groups import Answers
from experiments.parts.run import Run
from experiments.parts.setup import Setup
from experiments.parts.training import make_trainer, to_mesh
from rl_jax import advantages
from rl_jax.core.binding import bind
from rl_jax.core.types import Params, TokenBatch
from rl_jax.losses.aggregate import token_mean
from rl_jax.losses.masked_diffusion import (
    clipped_bound,
    draw_masks,
    elbo_ratio,
    elbo_terms,
    keep_uncertain,
    linear_bound,
)
from rl_jax.losses.policy import clipped_surrogate
from rl_jax.training import sharding
from rl_jax.training.masked_scoring import corrupted, make_masked_score
from rl_jax.training.scoring import in_micro_batches
from rl_jax.training.step import TrainState

BOUNDS = ("bgpo", "bgpo_clipped")  # sums over the draws of masks


class Rows(NamedTuple):
    """N answers with M draws of masks each. Of BOUNDS the rows are the draws, M = 1."""

    batch: TokenBatch
    """TokenBatch of [N, P + C]; prompts may be masked, answers are whole."""
    completion_mask: chex.Array
    """bool [N, C]. Tokens up to the first EOS."""
    masked: chex.Array
    """bool [N, M, C]. What the model does not see."""
    counted: chex.Array
    """bool [N, M, C]. What it is trained on: masked, and not a hint that it is sure of."""
    weights: chex.Array
    """float32 [N, M], of each draw."""
    old_log_probs: chex.Array
    """float32 [N, M, C], of the policy before the step, under the same masks."""
    advantages: chex.Array
    """float32 [N]."""


class Programs(NamedTuple):
    """Compiled functions.

    Attributes:
      prepare: (params, TokenBatch, completion_mask, hinted, rewards, key) -> (Rows, metrics).
      train_step: (state, Rows) -> (state, metrics).
    """

    prepare: Callable
    train_step: Callable


def make_prepare(setup: Setup) -> Callable:
    """The function `prepare` of Programs, not compiled: credit, masks, and the old policy's scores.

    They are taken in as many parts as the updates of an epoch have micro-batches, so that a forward has as many rows.
    """
    config, mask_id = setup.config, setup.task.tokenizer.mask_id
    algorithm, share = config.algorithm, config.hints.entropy_share
    parts = config.train.minibatches * config.train.micro_batches
    score = in_micro_batches(make_masked_score(setup.model, mask_id=mask_id), parts)
    advantage = bind(algorithm.advantage.to_dict(), advantages, group_size=config.sample.group_size)
    how = "all" if algorithm.objective == "diffu_grpo" else algorithm.masking

    def prepare(params: Params, batch: TokenBatch, completion_mask, hinted, rewards, key):
        mask_key, prompt_key = jax.random.split(key)
        count, length = completion_mask.shape
        masked, weights = draw_masks(jax.random.split(mask_key, count), algorithm.samples, length, how=how)
        batch = mask_prompts(batch, length, mask_id, algorithm.prompt_masking, prompt_key)
        scores = score(params, corrupted(batch, masked, mask_id))
        credit = advantage(rewards)
        log_probs, entropy = (x.reshape(masked.shape) for x in (scores.log_probs, scores.entropy))
        inside = masked & hinted[:, None]
        counted = (masked & ~inside) | keep_uncertain(entropy, inside, share)
        metrics = {
            "entropy": jnp.sum(entropy * masked) / jnp.sum(masked),
            "advantage/size": jnp.mean(jnp.abs(credit)),
            "hints/trained": jnp.sum(counted & inside) / jnp.maximum(jnp.sum(inside), 1),
        }
        rows = Rows(batch, completion_mask, masked, counted, weights, log_probs, credit)
        return (one_draw_per_row(rows) if algorithm.objective in BOUNDS else rows), metrics

    return prepare


def mask_prompts(batch: TokenBatch, length: int, mask_id: int, share: float, key) -> TokenBatch:
    """d1: each token of the prompt is masked with probability `share`, which is not scored. length: C."""
    if not share:
        return batch
    hidden = jax.random.uniform(key, batch.tokens.shape) < share
    prompt = (jnp.arange(batch.tokens.shape[1]) < batch.tokens.shape[1] - length)[None] & (batch.segment_ids != 0)
    return batch._replace(tokens=jnp.where(hidden & prompt, mask_id, batch.tokens))


def one_draw_per_row(rows: Rows) -> Rows:
    """Rows with N x M draws as rows of one: the linear bound is a sum over them, whatever the micro-batches."""
    samples = rows.weights.shape[1]
    whole, drawn = ("batch", "completion_mask", "advantages"), ("masked", "counted", "weights", "old_log_probs")
    fields = {name: jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), getattr(rows, name)) for name in whole}
    fields |= {name: getattr(rows, name).reshape(-1, 1, *getattr(rows, name).shape[2:]) for name in drawn}
    return Rows(**fields)


def make_loss(setup: Setup) -> Callable:
    """loss_fn(params, Rows) -> (Mean, metrics) of config.algorithm.objective."""
    algorithm, mask_id = setup.config.algorithm, setup.task.tokenizer.mask_id
    score = make_masked_score(setup.model, mask_id=mask_id)
    clips = dict(clip_low=algorithm.clip_low, clip_high=algorithm.clip_high)

    def loss_fn(params: Params, rows: Rows):
        found = score(params, corrupted(rows.batch, rows.masked, mask_id)).log_probs.reshape(rows.masked.shape)
        if algorithm.objective == "diffu_grpo":
            mask = rows.completion_mask & rows.counted[:, 0]
            of_tokens = jnp.broadcast_to(rows.advantages[:, None], mask.shape)
            surrogate = clipped_surrogate(found[:, 0], rows.old_log_probs[:, 0], of_tokens, mask, **clips)
            metrics = {"ratio/mean": token_mean(surrogate.ratio, mask)}
            return token_mean(surrogate.loss, mask), metrics
        terms, old = (
            elbo_terms(x, rows.counted, rows.weights, per_token=algorithm.per_token)
            for x in (found, rows.old_log_probs)
        )
        if algorithm.objective == "bgpo":
            return linear_bound(terms, old, rows.advantages)
        if algorithm.objective == "bgpo_clipped":
            return clipped_bound(terms, old, rows.advantages, **clips)
        return elbo_ratio(terms, old, rows.advantages, **clips)

    return loss_fn


def build(setup: Setup, params: Params) -> tuple[Programs, TrainState]:
    """(compiled functions, the state before the first step). params: their buffers are donated."""
    rows, everywhere = sharding.batch_sharding(setup.mesh), sharding.replicated(setup.mesh)
    train_step, state = make_trainer(setup, setup.config.train, make_loss(setup), params)
    shardings = (setup.param_shardings, rows, rows, rows, rows, everywhere)
    prepare = jax.jit(make_prepare(setup), in_shardings=shardings, out_shardings=(rows, everywhere))
    return Programs(prepare, train_step), state


def update(
    loop: Run, setup: Setup, programs: Programs, state: TrainState, answers: Answers, key
) -> tuple[TrainState, dict[str, Any]]:
    """All updates of one step: in each epoch new masks, of which each minibatch has some rows.

    The old policy's log-probs of all epochs are taken before the first update, under the masks of each.

    Args:
      loop: checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      state: before the updates.
      answers: of the step.
      key: of the masks and the orders.

    Returns:
      (state, metrics: the mean over the updates).
    """
    config, rollout = setup.config.train, answers.judged.rollout
    arrays = (rollout.batch, rollout.completion_mask, answers.hinted, answers.judged.result.rewards.astype(np.float32))
    arrays, updates = to_mesh(setup, arrays), []
    keys = jax.random.split(key, config.epochs)
    prepared = [programs.prepare(state.params, *arrays, jax.random.fold_in(one, 0)) for one in keys]
    for one, (rows, metrics) in zip(keys, prepared, strict=True):
        for part in split(rows, config, jax.random.fold_in(one, 1)):
            state, of_update = programs.train_step(state, to_mesh(setup, part))
            updates.append(jax.device_get(metrics | of_update))
            loop.check_finite(state, part)
    result = {name: np.mean([metrics[name] for metrics in updates]) for name in updates[0]}
    return state, result | {"nonfinite/skipped": updates[-1]["nonfinite/skipped"]}


def split(rows: Rows, config: ConfigDict, key) -> list[Rows]:
    """The minibatches of an epoch, of rows in a random order. config: config.train."""
    return [rows] if config.minibatches == 1 else _shuffled(rows, key, config.minibatches)


@functools.partial(jax.jit, static_argnums=2)
def _shuffled(rows: Rows, key, count: int) -> list[Rows]:
    order = jax.random.permutation(key, rows.advantages.shape[0])
    return [jax.tree.map(lambda x, part=part: x[part], rows) for part in jnp.split(order, count)]
