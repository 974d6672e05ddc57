"""GRPO, from prompts to report: the loop to fork.

    python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic

Each step: prompts -> rollouts -> rewards -> advantages -> old and reference log-probs -> updates. The first start runs
the config's SFT warm start in WORKDIR/sft; the same command resumes an interrupted run, bit for bit.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import jax

from experiments.parts import (
    action_mask,
    flags,
    mirror,
    perception,
    policy,
    pretraining,
    processes,
    references,
    schedules,
    trackers,
)
from experiments.parts.judging import make_evaluate
from experiments.parts.packers import RolloutPacker
from experiments.parts.processes import to_host
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.sample_groups import Collected, Collector
from experiments.parts.setup import Setup, make_setup
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.core.types import Packed, Params, PolicyBatch, TokenBatch, TokenScores
from rl_jax.tasks import Task
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


def compile_ahead(
    loop: Run,
    setup: Setup,
    programs: policy.PolicyPrograms,
    packer: RolloutPacker,
    collect: Collector,
    state: TrainState,
) -> None:
    """Compiles what the first step calls by running it on its prompts, with zeros in place of samples.

    The shapes of packed rows depend on the samples: with packing only the rollout is compiled.

    Args:
      loop: compiles and reports; nothing happens if the run is complete.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      collect: samples the rows.
      state: before the first step.
    """
    config, ahead, key = setup.config, loop.ahead, processes.step_key(state, 0)
    collected = None if loop.done else collect.compile_ahead(ahead, state.params, key)
    if collected is None or config.packing.mode != "padded":
        return
    rows = to_mesh(setup, packer.to_score(collected.judged.rollout))
    before = to_host(ahead("score", programs.score)(state.params, rows))
    reference = before.log_probs if policy.needs_ref_log_probs(config) else None
    batch, _ = make_policy_batch(ahead("assign", programs.assign), collected, before, reference, key, state.trackers)
    batch = perception.attach(setup, pretraining.attach(setup, batch, 1), 1)
    part = to_mesh(setup, packer.to_train(policy.minibatches(config, batch, key)[0]))
    ahead("train_step", programs.train_step)(state, part, *mirror.beside(config, state.params))


def score(
    config,
    programs: policy.PolicyPrograms,
    rows: TokenBatch | Packed,
    params: Params,
    ref_params: Params,
    *,
    looks: bool,
) -> tuple[TokenScores | None, jax.Array | None]:
    """Scores the rows before the updates.

    Args:
      config: of the run.
      programs: compiled functions.
      rows: as the model reads them.
      params: of the policy.
      ref_params: of the reference.
      looks: whether the step's group view will show the scores.

    Returns:
      (the policy's TokenScores, the reference's log-probs float32 [B, C]); each None if no term needs it.
    """
    scores = programs.on_host(params, rows) if needs_scores(config) or looks else None
    ref_params = action_mask.reference_of(ref_params)
    reference = programs.on_host(ref_params, rows).log_probs if policy.needs_ref_log_probs(config) else None
    return scores, reference


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


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    loop, setup = Run(config, workdir, "grpo", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy.check_sizes(setup)
    loop.record(setup.mesh.devices.flat)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    move, ref_params = references.start(setup, params)
    (programs, state), (source, prompts) = policy.build(setup, params), policy.own_prompts(setup)
    rewards = loop.carry(make_rewards(setup))
    items = loop.restore(checkpoint_items(state, reference=ref_params), prompts)
    state, ref_params = state_of(items), items["reference"]
    with loop, rewards:
        collect, evaluate = Collector(setup, rewards, prompts, programs), make_evaluate(setup, rewards)
        compile_ahead(loop, setup, programs, packer, collect, state)
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(state, step.number), 3)
            collected = collect(state.params, rollout_key, step.clock, ref_params)
            rows = to_mesh(setup, packer.to_score(collected.judged.rollout))
            scores, reference = score(config, programs, rows, state.params, ref_params, looks=step.evaluates)
            state = trackers.see(estimators, state, collected, step.number)
            batch, earned = make_policy_batch(programs.assign, collected, scores, reference, credit_key, state.trackers)
            step.clock.lap("score_s", batch)
            state, updates, metrics = update(loop, setup, programs, packer, state, batch, order_key)
            step.clock.lap("train_s")
            metrics |= policy.step_metrics(config, collected, source, updates)
            state, metrics = trackers.observe_step(setup.mesh, estimators, state, collected, metrics, earned)
            if step.evaluates:
                views = (collected.judged, batch, scores, programs.on_host(state.params, rows))
                metrics |= policy.look(loop, step, setup, evaluate, state.params, *views)
            ref_params = move(ref_params, state.params, step.number)
            step.end(checkpoint_items(state, reference=ref_params), metrics, policy.timings(step, collected, programs))
    loop.finish(setup, state.params)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
