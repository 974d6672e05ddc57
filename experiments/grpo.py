"""GRPO, from prompts to report: the loop to fork.

    python -m experiments.grpo --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic

Each step: prompts -> rollouts -> rewards -> advantages -> old and reference log-probs -> updates. The first start runs
the config's SFT warm start in WORKDIR/sft; the same command resumes an interrupted run, bit for bit.
"""

import pathlib

import jax

from experiments.parts import flags, logged, mirror, perception, policy, pretraining, processes, references, trackers
from experiments.parts.judging import make_evaluate
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import make_policy_batch, score, update
from experiments.parts.processes import to_host
from experiments.parts.rewards import make_rewards
from experiments.parts.routers import make_router_metrics
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.sample_groups import Collector
from experiments.parts.setup import Setup, make_setup
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.tasks import Task
from rl_jax.training.step import TrainState


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


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    loop, setup = Run(config, workdir, "grpo", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy.check_sizes(setup)
    loop.record(setup)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    move, ref_params = references.start(setup, params)
    (programs, state), (source, prompts) = policy.build(setup, params), policy.own_prompts(setup)
    rewards, routers = loop.carry(make_rewards(setup)), make_router_metrics(setup)
    items = loop.restore(checkpoint_items(state, reference=ref_params), prompts)
    state, ref_params = state_of(items), items.get("reference")
    with loop, rewards:
        collect, evaluate = Collector(setup, rewards, prompts, programs), make_evaluate(setup, rewards)
        compile_ahead(loop, setup, programs, packer, collect, state)
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(state, step.number), 3)
            collected = collect(state.params, rollout_key, step.clock, ref_params)
            rows = to_mesh(setup, packer.to_score(collected.judged.rollout))
            scores, reference = score(config, programs, rows, state.params, ref_params, looks=step.evaluates)
            routed, state = routers(state.params, rows), trackers.see(estimators, state, collected, step.number)
            batch, earned = make_policy_batch(programs.assign, collected, scores, reference, credit_key, state.trackers)
            step.clock.lap("score_s", batch)
            state, updates, metrics = update(loop, setup, programs, packer, state, batch, order_key)
            step.clock.lap("train_s")
            metrics |= routed | logged.step_metrics(config, collected, source, updates)
            state, metrics = trackers.observe_step(setup.mesh, estimators, state, collected, metrics, earned)
            if step.evaluates:
                views = (collected.judged, batch, scores, programs.on_host(state.params, rows))
                metrics |= logged.look(loop, step, setup, evaluate, state.params, *views)
            ref_params = move(ref_params, state.params, step.number)
            step.end(checkpoint_items(state, reference=ref_params), metrics, logged.timings(step, collected, programs))
    loop.finish(setup, state.params)


if __name__ == "__main__":
    flags.main(run, several_processes=True)
