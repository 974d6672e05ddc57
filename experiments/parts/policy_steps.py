"""The stages of a training step after its rows are judged: scores, credit, updates. Of GRPO's loop and of agents'."""

from collections.abc import Callable
from typing import Any

import jax

from experiments.parts import action_mask, mirror, perception, policy, pretraining, schedules, trackers
from experiments.parts.packers import RolloutPacker
from experiments.parts.processes import to_host
from experiments.parts.run import Run
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup
from experiments.parts.training import to_mesh
from rl_jax.core.types import Packed, Params, PolicyBatch, TokenBatch, TokenScores
from rl_jax.training.step import TrainState


def make_policy_batch(
    assign: Callable, collected: Collected, before: TokenScores | None, reference, key, states: trackers.States
) -> tuple[PolicyBatch, jax.Array]:
    """The batch of one step, and the rows' rewards after shaping and KL.

    Args:
      assign: PolicyPrograms.assign.
      collected: the step's rows.
      before: TokenScores [B, C] of the policy before the updates, or None if unused.
      reference: float32 [B, C] log-probs, or None.
      key: a typed key.
      states: tracker states, after this step's rewards were observed.

    Returns:
      (PolicyBatch, float32 [B]).
    """
    judged, named = collected.judged, policy.arrays_of(collected)
    return assign(judged.rollout, judged.result.rewards, before, reference, key, to_host(states), named)


def needs_scores(config) -> bool:
    """Whether a step needs the policy's own log-probs before its updates, which cost a forward pass."""
    moved = bool(config.algorithm.trackers.reward_kl.fn)
    in_reward = moved or schedules.may_be_used(config, "algorithm.reward_kl_coef")
    needed = policy.has_several_updates(config) or policy.make_credit(config).needs_scores()
    return needed or in_reward or bool(config.foreign)


def score(
    config,
    programs: policy.PolicyPrograms,
    rows: TokenBatch | Packed,
    params: Params,
    ref_params: Params | None,
    *,
    looks: bool,
) -> tuple[TokenScores | None, jax.Array | None]:
    """Scores the rows before the updates.

    Args:
      config: of the run.
      programs: compiled functions.
      rows: as the model reads them.
      params: of the policy.
      ref_params: of the reference; None if no term needs it.
      looks: whether the step's group view will show the scores.

    Returns:
      (the policy's TokenScores, the reference's log-probs float32 [B, C]); each None if no term needs it.
    """
    scores = programs.on_host(params, rows) if needs_scores(config) or looks else None
    if not policy.needs_ref_log_probs(config):
        return scores, None
    if isinstance(rows, TokenBatch):
        rows = rows._replace(routes=None)  # the reference routes by itself
    return scores, programs.on_host(action_mask.reference_of(ref_params), rows).log_probs


def update(
    loop: Run,
    setup: Setup,
    programs: policy.PolicyPrograms,
    packer: RolloutPacker,
    state: TrainState,
    batch: PolicyBatch,
    key,
) -> tuple[TrainState, list[dict[str, Any]], dict[str, float]]:
    """All updates of one step.

    Args:
      loop: checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      state: before the updates.
      batch: of the whole step.
      key: of the shuffles.

    Returns:
      (state, the metrics of each update, metrics of the packing).
    """
    updates, batch = [], perception.attach(setup, pretraining.attach(setup, batch, loop.step), loop.step)
    beside = mirror.beside(setup.config, state.params)
    for part in policy.minibatches(setup.config, batch, key):
        part = to_mesh(setup, packer.to_train(part))
        state, metrics = programs.train_step(state, part, *beside)
        updates.append(jax.device_get(metrics))
        loop.check_finite(state, part)
    return state, updates, packer.metrics(part)
