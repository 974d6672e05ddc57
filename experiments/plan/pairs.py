"""The programs of a DPO run as the run would compile them, for devices that are described, not present."""

import jax
import jax.numpy as jnp

from experiments.parts.preference_steps import make_objective, make_scores
from experiments.parts.setup import Setup
from experiments.parts.training import make_step
from experiments.plan.programs import Planned, forward, update
from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch, TokenBatch


def train(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The train step on padded responses of algorithm.responses each prompt. micro_batches: overrides the config's.

    Args:
      setup: of the run.
      rows: responses of an update.
      micro_batches: overrides the config's.

    Raises:
      ValueError: if the objective compares with the reference's whole vocabulary, whose params are a third argument, or
        asks for a head of its own.
    """
    config = setup.config
    settings, objective = config.train.copy_and_resolve_references(), make_objective(config)
    if "sequence_kl" in objective.needs():
        raise ValueError("plans have no KL to the reference's whole vocabulary: choose a method without sequence_kl")
    if "degree_logits" in objective.needs():
        raise ValueError("plans have no head of degrees: choose a method without degree_logits")
    if micro_batches:
        settings.update(micro_batches=micro_batches)
    score_more = make_scores(setup, objective.needs())[1]

    def loss(params, batch):
        scores, extras = score_more(params, batch, None)
        return dpo.loss(scores, batch, objective, extras)

    optimizer, step = make_step(setup, settings, loss)
    batch = _batch(setup, rows // config.algorithm.responses)
    return update("train", setup, step, optimizer, setup.param_shapes, batch)


def score(setup: Setup, rows: int, micro_batches: int | None = None) -> Planned:
    """The forward for the reference's log-probs, all rows at once. micro_batches: not used, as in the run."""
    del micro_batches
    batch = _batch(setup, rows // setup.config.algorithm.responses)
    tokens = TokenBatch(*(jax.ShapeDtypeStruct((rows, x.shape[2]), x.dtype) for x in batch.batch[:3]))
    return forward(setup, make_scores(setup, make_objective(setup.config).needs())[0], tokens)


def _batch(setup: Setup, count: int) -> PreferenceBatch:
    """Shapes of `count` prompts with their responses."""
    config = setup.config
    pair, length = (count, config.algorithm.responses), config.rollout.completion_length
    tokens = jax.ShapeDtypeStruct((*pair, max(config.rollout.prompt_buckets) + length), jnp.int32)
    log_probs = jax.ShapeDtypeStruct((*pair, length), jnp.float32)
    return PreferenceBatch(
        batch=TokenBatch(tokens, tokens, tokens),
        completion_mask=jax.ShapeDtypeStruct((*pair, length), jnp.bool_),
        present=jax.ShapeDtypeStruct(pair, jnp.bool_),
        rewards=jax.ShapeDtypeStruct(pair, jnp.float32),
        ref_log_probs=log_probs if make_objective(config).reference else None,
        extras={},
    )
