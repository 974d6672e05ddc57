"""Reinforcement learning of masked-diffusion language models: BGPO, the ELBO's ratio, diffu-GRPO; hints by inpainting.

    python -m experiments.masked_diffusion --config=configs/masked_diffusion.py --workdir=runs/masked
    python -m experiments.masked_diffusion --config=configs/masked_diffusion.py:igpo --workdir=runs/masked_igpo

Each step: prompts -> answers, denoised from masks -> rewards -> hints for the groups that are all wrong -> advantages
-> masks and the old policy's log-probs under them -> updates. The first start fine-tunes by denoising in WORKDIR/sft;
the same command resumes an interrupted run, bit for bit.
"""

import pathlib

import jax

from experiments.parts import flags, masked_lm, masked_steps, processes
from experiments.parts.judging import make_evaluate, need_reward, sample_rows
from experiments.parts.masked_groups import Collector
from experiments.parts.prompts import make_prompts
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.warm_start import warm_start
from rl_jax.tasks import Task


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    masked_lm.check(config)
    loop, setup = Run(config, workdir, "masked_diffusion", config.train), masked_lm.make_setup(config, task)
    need_reward(setup)
    loop.record(setup)
    own = masked_lm.own(setup)
    if (params := warm_start(setup, workdir, loop.stop, own)) is None:
        return
    programs, state = masked_steps.build(setup, params)
    prompts = make_prompts(setup, setup.task.data_source("train"), batch_size=config.sample.prompts_per_step)
    rewards = loop.carry(make_rewards(setup))
    state = state_of(loop.restore(checkpoint_items(state), prompts))
    with loop, rewards:
        collect, evaluate = Collector(setup, rewards, prompts), make_evaluate(setup, rewards, own.sample)
        loop.begin(lambda: evaluate(state.params))
        for step in loop.steps():
            sample_key, update_key = jax.random.split(processes.step_key(state, step.number))
            answers = collect(state.params, sample_key, step.number, step.clock)
            state, metrics = masked_steps.update(loop, setup, programs, state, answers, update_key)
            step.clock.lap("train_s", state.params)
            if step.evaluates:
                found, rows = evaluate(state.params)
                metrics |= found
                rows = sample_rows(answers.judged, "train", config.log.sample_rows) + rows
                loop.log.samples(step.number, rows)
            tokens = answers.judged.rollout.completion_mask.sum()
            step.end(checkpoint_items(state), metrics | answers.metrics, step.clock.totals(tokens))
    loop.finish(setup, state.params)


if __name__ == "__main__":
    flags.main(run, several_processes=False)
