"""Asynchronous GRPO with bounded staleness: rows are sampled while the policy is trained.

    python -m experiments.grpo_async --config=configs/grpo_async.py --workdir=runs/async

Each step: groups that have finished -> rewards -> advantages -> old and reference log-probs -> updates, and beside
them decode calls for the groups to come. config.flow says how far sampling may run ahead (eta), how old a row may get
(age), and what becomes of rows in flight when new weights arrive. With eta=0 a run is that of experiments.grpo, bit for
bit. The same command resumes an interrupted run, with every row that was begun. --replay=RUN repeats a run whose
schedule was free.
"""

import pathlib

import jax
from absl import flags as absl_flags

from experiments.parts import async_check, flags, policy, processes, references, trackers
from experiments.parts.async_collect import AsyncCollector
from experiments.parts.async_flow import Flow
from experiments.parts.judging import make_evaluate
from experiments.parts.packers import RolloutPacker
from experiments.parts.policy_steps import make_policy_batch, score, update
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.setup import make_setup
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.tasks import Task

absl_flags.DEFINE_string("replay", None, "workdir of a run whose schedule.jsonl decides, in place of the clock")


def run(config, workdir: pathlib.Path, *, task: Task | None = None, replay: pathlib.Path | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    async_check.check(config)
    loop, setup = Run(config, workdir, "grpo_async", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy.check_sizes(setup)
    loop.record(setup.mesh.devices.flat)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    move, ref_params = references.start(setup, params)
    (programs, state), (source, prompts) = policy.build(setup, params), policy.own_prompts(setup)
    rewards, flow = loop.carry(make_rewards(setup)), Flow(setup, prompts, workdir, replay)
    items = loop.restore(checkpoint_items(state, reference=ref_params), flow)
    state, ref_params = state_of(items), items["reference"]
    with loop, rewards, flow:
        collect, evaluate = AsyncCollector(setup, rewards, flow), make_evaluate(setup, rewards)
        loop.begin(lambda: evaluate(state.params))
        flow.publish(loop.step, state.params)
        for step in loop.steps():
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(state, step.number), 3)
            collected = collect(state.params, rollout_key, step.clock, ref_params)
            rows, looks = to_mesh(setup, packer.to_score(collected.judged.rollout)), step.evaluates or flow.measures
            scores, reference = score(config, programs, rows, state.params, ref_params, looks=looks)
            state = trackers.see(estimators, state, collected, step.number)
            batch, earned = make_policy_batch(programs.assign, collected, scores, reference, credit_key, state.trackers)
            step.clock.lap("score_s", batch)
            trained = flow.beside(lambda: update(loop, setup, programs, packer, state, batch, order_key))  # noqa: B023
            state, updates, metrics = trained
            step.clock.lap("train_s")
            metrics |= policy.step_metrics(config, collected, source, updates) | collect.gaps(collected, scores)
            state, metrics = trackers.observe_step(setup.mesh, estimators, state, collected, metrics, earned)
            if step.evaluates:
                views = (collected.judged, batch, scores, programs.on_host(state.params, rows))
                metrics |= policy.look(loop, step, setup, evaluate, state.params, *views)
            ref_params = move(ref_params, state.params, step.number)
            flow.publish(step.number, state.params)
            step.end(checkpoint_items(state, reference=ref_params), metrics, flow.timings(step, collected, programs))
    loop.finish(setup, state.params)


def main(config, workdir: pathlib.Path) -> None:
    """`run` with the flags of this program."""
    replay = absl_flags.FLAGS.replay
    run(config, workdir, replay=pathlib.Path(replay) if replay else None)


if __name__ == "__main__":
    flags.main(main)
