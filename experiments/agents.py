"""Agents: GRPO on episodes of several turns, with tools and environments of text.

    python -m experiments.agents --config=configs/agents.py:calculator --workdir=runs/calculator

Each step: prompts -> episodes -> rewards of turns -> advantages -> old and reference log-probs -> updates. An episode
is one row: what the model sampled is trained on, what the environment says is not. config.agent names the environment
and the limits; config.algorithm.advantage the credit, of the whole episode or of its turns. The first start runs the
config's SFT warm start in WORKDIR/sft; the same command resumes an interrupted run, bit for bit.
"""

import contextlib
import pathlib

import jax

from experiments.parts import flags, logged, players, policy, processes, recordings, references, trackers
from experiments.parts.packers import RolloutPacker
from experiments.parts.play_groups import EpisodeCollector, look, make_episode_evaluate
from experiments.parts.policy_steps import make_policy_batch, score, update
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.setup import make_setup
from experiments.parts.step_model import make_step_model
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import warm_start
from rl_jax.tasks import Task


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    players.check(config)
    loop, setup = Run(config, workdir, "agents", config.train), make_setup(config, task)
    packer, estimators = RolloutPacker(setup), trackers.make_trackers(config, setup.task)
    policy.check_sizes(setup)
    loop.record(setup)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    (move, ref_params), step_model = references.start(setup, params), loop.carry(make_step_model(setup, params))
    (programs, state), (source, prompts) = policy.build(setup, params), policy.own_prompts(setup)
    programs, rewards = players.with_player(setup, programs), loop.carry(make_rewards(setup))
    items = loop.restore(checkpoint_items(state, reference=ref_params), prompts)
    state, ref_params = state_of(items), items.get("reference")
    with loop, rewards, contextlib.closing(programs.generate):
        collect = EpisodeCollector(setup, rewards, prompts, programs, loop)
        evaluate = make_episode_evaluate(setup, rewards, players.eval_player(setup, programs.generate))
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            rollout_key, credit_key, order_key = jax.random.split(processes.step_key(state, step.number), 3)
            collected = recordings.keep(loop, step, collect(state.params, rollout_key, step.clock, ref_params))
            rows = to_mesh(setup, packer.to_score(collected.judged.rollout))
            scores, reference = score(config, programs, rows, state.params, ref_params, looks=False)
            state, collected = trackers.see(estimators, state, collected, step.number), step_model(collected, scores)
            batch, earned = make_policy_batch(programs.assign, collected, scores, reference, credit_key, state.trackers)
            step.clock.lap("score_s", batch)
            state, updates, metrics = update(loop, setup, programs, packer, state, batch, order_key)
            step.clock.lap("train_s")
            metrics |= logged.step_metrics(config, collected, source, updates)
            state, metrics = trackers.observe_step(setup.mesh, estimators, state, collected, metrics, earned)
            if step.evaluates:
                metrics |= look(loop, step, setup, evaluate, state.params, collected.judged)
            ref_params = move(ref_params, state.params, step.number)
            step.end(checkpoint_items(state, reference=ref_params), metrics, logged.timings(step, collected, programs))
    loop.finish(setup, state.params)


if __name__ == "__main__":
    flags.main(run)
