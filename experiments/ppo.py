"""PPO with a critic, from prompts to report: the loop of experiments.grpo with values in it.

    python -m experiments.ppo --config=configs/tasks/arithmetic_ppo.py --workdir=runs/arithmetic_ppo

Each step: prompts -> rollouts -> rewards -> values -> advantages and returns -> updates of critic and policy.
config.algorithm sets the policy's side. config.critic sets the critic: a network of its own, initialised from the
policy's params, or a value head on the policy. With LoRA (config.model.lora) the policy trains adapters on a frozen
base, and a critic of its own trains further adapters on a copy of that base, and its head in full; a shared critic
trains the policy's adapters and the head. With config.agent the rows are episodes of several turns
(configs/agents_ppo.py). The same command resumes an interrupted run, bit for bit.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from experiments.parts import (
    action_mask,
    critic_stages,
    evolving_tasks,
    familiar_episodes,
    flags,
    logged,
    play_groups,
    players,
    pretraining,
    processes,
    recordings,
    references,
    trackers,
    turn_replay,
)
from experiments.parts import policy as policy_parts
from experiments.parts.actor_critic import LearnerState, PPOPrograms, build, has_targets, make_estimator
from experiments.parts.packers import RolloutPacker
from experiments.parts.processes import to_host
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, Step
from experiments.parts.sample_groups import Collected, Collector
from experiments.parts.setup import Setup, make_setup
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax import ppo
from rl_jax.core.binding import needs
from rl_jax.core.names import describe
from rl_jax.core.types import Params, TokenScores
from rl_jax.tasks import Task
from rl_jax.training.step import TrainState

# The policy's metrics in a step that updates only the critic.
NO_UPDATE = {"ratio/max_dev": 0.0, "sampler/gap_max": 0.0, "sampler/weight": 1.0, "sampler/weight_squared": 1.0}


def step_metrics(config, collected: Collected, source, state: TrainState, updates, critic_updates) -> dict[str, float]:
    """The metrics of one step: those of experiments.grpo, and the mean over the critic's updates.

    Args:
      config: of the run.
      collected: the step's rows.
      source: the prompts' source, for its num_skipped.
      state: the policy's, after the step.
      updates: metrics of the policy's updates; empty while only the critic is trained.
      critic_updates: metrics of a separate critic's updates, or empty dicts.
    """
    if updates:
        metrics = logged.step_metrics(config, collected, source, updates)
    else:
        idle = NO_UPDATE | {"nonfinite/skipped": float(state.skipped)}
        metrics = logged.step_metrics(config, collected, source, [idle])
        for name in ("ratio/max_dev", "ratio/first_max_dev", "sampler/gap_max", "sampler/ess"):
            del metrics[name]
    for name in critic_updates[0]:
        found = [float(update[name]) for update in critic_updates]
        mean = found[-1] if name == "nonfinite/skipped" else sum(found) / len(found)  # a running count
        metrics[name if name.startswith("value/") else f"critic/{name}"] = mean
    metrics.pop("critic/loss", None)  # the same as value/loss
    return metrics


def check_config(config) -> None:
    """Checks what only this program reads.

    Raises:
      ValueError: if the config has GRPO's estimator, if the critic's asks for an array that nothing supplies, if the
        aggregate cannot be the critic's, or if critic.replay or config.agent has a problem.
    """
    if "advantage" in config.algorithm:
        raise ValueError(
            "algorithm.advantage: PPO's advantages are those of critic.advantage; remove the field, as "
            "configs.ppo_common.with_critic does"
        )
    for name in sorted(needs(make_estimator(config).advantage) & set(policy_parts.SUPPLIED_BY)):
        supplied, remedy = policy_parts.SUPPLIED_BY[name]
        if not supplied(config):
            raise ValueError(
                f"critic.advantage={config.critic.advantage.fn!r} needs {describe(name)}. Nothing in this config "
                f"supplies it: {remedy}"
            )
    counted = needs(policy_parts.make_objective(config).aggregate) & {"batch_rows", "group_tokens"}
    if counted and (has_targets(config) or config.rollout.window):
        raise ValueError(
            f"algorithm.aggregate={config.algorithm.aggregate.fn!r} counts where the policy learns, and this critic "
            "learns elsewhere: at ends of turns, or with rollout.window from whole answers. Take 'token_mean' or one "
            "of seq_mean_..."
        )
    critic_stages.check(config, of_turns=has_targets(config))
    turn_replay.check(config)
    if "agent" in config:
        players.check(config)


def score(
    setup: Setup,
    programs: PPOPrograms,
    packer: RolloutPacker,
    learner: LearnerState,
    ref_params: Params,
    collected: Collected,
    key,
) -> tuple[ppo.PPOBatch, dict, Any]:
    """Scores the step's rows and assigns credit, before the updates.

    Args:
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      learner: before the updates.
      ref_params: of the reference.
      collected: the step's rows.
      key: a typed key.

    Returns:
      On the host: (batch to train on, metrics of the advantages, the policy's TokenScores).
    """
    judged = collected.judged
    rollout, rewards = to_mesh(setup, (judged.rollout, judged.result.rewards))
    rows = rollout.batch if packer.padded else to_mesh(setup, packer.to_score(judged.rollout))
    before = programs.score(learner.policy_params(), rows)
    reference = None
    if policy_parts.needs_ref_log_probs(setup.config):
        reference = programs.score(action_mask.reference_of(ref_params), rows).log_probs
    values = programs.predict(learner.critic_params(), rows)
    states = jax.device_get(learner.policy.trackers)
    named = policy_parts.arrays_of(collected)
    if learner.target is not None:
        named["target_values"] = programs.predict(learner.target, rows)
    batch, metrics = programs.assign(rollout, rewards, values, before, reference, key, states, named)
    before, batch, metrics = to_host((before, batch, jax.device_get(metrics)))
    return batch, metrics, before


def scored(
    loop: Run,
    setup: Setup,
    programs: PPOPrograms,
    packer: RolloutPacker,
    learner: LearnerState,
    ref_params: Params,
    collected: Collected,
    key,
) -> tuple[list[ppo.PPOBatch], dict, Any]:
    """`score` of the step's rows, and of what is learned from again (config.agent.replay), whose batches follow."""
    assign = functools.partial(score, setup, programs, packer, learner, ref_params)
    batch, metrics, before = assign(collected, key)
    again, replayed = familiar_episodes.again(loop, setup, programs, collected, key, assign)
    return [batch, *again], metrics | replayed, before


def compile_ahead(
    loop: Run, setup: Setup, programs: PPOPrograms, packer: RolloutPacker, collect: Collector, learner: LearnerState
) -> None:
    """Compiles what the first step calls by running it on its prompts, with zeros in place of samples.

    The shapes of packed rows depend on the samples: with packing only the rollout is compiled.

    Args:
      loop: compiles and reports; nothing happens if the run is complete.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      collect: samples the rows.
      learner: before the first step.
    """
    ahead, key = loop.ahead, processes.step_key(learner.policy, 0)
    collected = None if loop.done else collect.compile_ahead(ahead, learner.policy_params(), key)
    if collected is None or not packer.padded:
        return
    rows = to_mesh(setup, collected.judged.rollout.batch)
    scored = ahead("score", programs.score)(learner.policy_params(), rows)  # compiled once, called for two params
    compiled = {name: ahead(name, getattr(programs, name)) for name in ("predict", "assign")}
    compiled = programs._replace(score=lambda *_: scored, **compiled)
    batch, _, _ = score(setup, compiled, packer, learner, learner.policy_params(), collected, key)
    batch = pretraining.attach(setup, batch, 1)
    part = to_mesh(setup, policy_parts.minibatches(setup.config, batch, key)[0])
    if programs.critic_step:
        ahead("critic_step", programs.critic_step)(learner.critic, part)
        part = part.policy
    ahead("policy_step", programs.policy_step)(learner.policy, part)


def update(
    loop: Run,
    setup: Setup,
    programs: PPOPrograms,
    packer: RolloutPacker,
    learner: LearnerState,
    batches: Sequence[ppo.PPOBatch],
    key,
) -> tuple[LearnerState, list[dict], list[dict], dict[str, float]]:
    """All updates of one step.

    Args:
      loop: knows the step, and checks that the gradients are finite.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      learner: before the updates.
      batches: of the whole step, and what is learned from again among its rows (config.agent.replay).
      key: of the shuffles.

    Returns:
      (learner, metrics of the policy's updates, metrics of the critic's updates, metrics of the packing).
    """
    updates, settings = [], setup.config.critic
    only = critic_stages.learner_of(settings, loop.step)
    batch, *again = (pretraining.attach(setup, one, loop.step) for one in batches)
    learner, critic_updates = turn_replay.train(loop, setup, programs, learner, batch, key)
    batch, count = familiar_episodes.mixed(batch, again, setup.config.train.minibatches)
    alike = packer.padded or settings.shared or settings.micro_batches == setup.config.train.micro_batches
    for extra in range(1, 1 if only == critic_stages.POLICY else settings.epochs):
        for part in policy_parts.minibatches(setup.config, batch, jax.random.fold_in(key, extra), count):
            rows = to_mesh(setup, packer.to_train(part, settings.micro_batches))
            learner, _, metrics = programs.update(learner, rows, rows, only=critic_stages.CRITIC)
            critic_updates.append(jax.device_get(metrics))
            loop.check_finite(learner.critic, rows, head=False)
    for part in policy_parts.minibatches(setup.config, batch, key, count):
        rows = to_mesh(setup, packer.to_train(part))
        of_critic = rows if alike else to_mesh(setup, packer.to_train(part, settings.micro_batches))
        learner, metrics, critic_metrics = programs.update(learner, rows, of_critic, only=only)
        updates += [] if metrics is None else [jax.device_get(metrics)]
        critic_updates.append(jax.device_get(critic_metrics))
        loop.check_finite(learner.policy, rows, counts=only != critic_stages.CRITIC)
        if learner.critic is not None:
            loop.check_finite(learner.critic, rows, head=False, counts=only != critic_stages.POLICY)
    if learner.target is not None:
        learner = learner._replace(target=programs.follow(learner.target, learner.critic.params))
    return learner, updates, critic_updates, packer.metrics(rows)


def observed(
    setup: Setup, estimators: dict, learner: LearnerState, collected: Collected, metrics: dict
) -> tuple[LearnerState, dict]:
    """trackers.observe_step, which tells the policy's trackers of a step: (learner, metrics)."""
    policy, metrics = trackers.observe_step(setup.mesh, estimators, learner.policy, collected, metrics)
    return learner._replace(policy=policy), metrics


def look(
    loop: Run,
    step: Step,
    setup: Setup,
    programs: PPOPrograms,
    packer: RolloutPacker,
    evaluate: Callable,
    learner: LearnerState,
    collected: Collected,
    batch: ppo.PPOBatch,
    before: TokenScores,
) -> dict[str, float]:
    """Evaluates after the step's updates, and logs samples and the group view, or episodes. Returns metrics.

    Args:
      loop: its logger.
      step: of the loop.
      setup: of the run.
      programs: compiled functions.
      packer: of the run.
      evaluate: params -> (metrics, sample rows).
      learner: after the updates.
      collected: the step's rows.
      batch: of the whole step.
      before: TokenScores before the step's updates.
    """
    judged, params = collected.judged, learner.policy_params()
    if "agent" in setup.config:
        return play_groups.look(loop, step, setup, evaluate, params, judged)
    after = programs.on_host(params, to_mesh(setup, packer.to_score(judged.rollout)))
    return logged.look(loop, step, setup, evaluate, params, judged, batch.policy, before, after)


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    check_config(config)
    loop, setup = Run(config, workdir, "ppo", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy_parts.check_sizes(setup, **{"critic's micro_batch": config.critic.micro_batches})
    loop.record(setup)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    move, ref_params = references.start(setup, params)
    (programs, learner), (source, prompts) = build(setup, params), policy_parts.own_prompts(setup)
    rewards, items = loop.carry(make_rewards(setup)), loop.restore(learner.checkpoint_items(ref_params), prompts)
    learner, ref_params = LearnerState.of(items), items.get("reference")
    with loop, rewards, players.closing(programs.generate):
        collect = play_groups.make_collector(setup, rewards, prompts, programs)
        evaluate = play_groups.make_loop_evaluate(setup, rewards, programs.generate)
        compile_ahead(loop, setup, programs, packer, collect, learner)
        loop.begin(lambda: evaluate(learner.policy_params()))
        for step in loop.steps():
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(learner.policy, step.number), 3)
            rows = collect(learner.sampler(config.critic, ref_params), rollout_key, step.clock, ref_params)
            collected = recordings.keep(loop, step, rows)
            learner = learner._replace(policy=trackers.see(estimators, learner.policy, collected, step.number))
            batches, metrics, before = scored(loop, setup, programs, packer, learner, ref_params, collected, credit_key)
            step.clock.lap("score_s", batches)
            learner, *updates, packed = update(loop, setup, programs, packer, learner, batches, order_key)
            step.clock.lap("train_s")
            metrics |= step_metrics(config, collected, source, learner.policy, *updates) | packed
            learner, metrics = observed(setup, estimators, learner, collected, metrics)
            if step.evaluates:
                metrics |= look(loop, step, setup, programs, packer, evaluate, learner, collected, batches[0], before)
            ref_params = move(ref_params, learner.policy_params(), step.number)
            metrics |= evolving_tasks.evolve(setup, programs, learner, prompts, step.number, order_key)
            step.end(learner.checkpoint_items(ref_params), metrics, logged.timings(step, collected, programs))
    loop.finish(setup, learner.policy_params(), critic=learner.critic_params())


if __name__ == "__main__":
    flags.main(run, several_processes=True)
