"""Supervised fine-tuning on a task's own solutions; the warm start of experiments.grpo.

    python -m experiments.sft --config=configs/tasks/arithmetic.py --workdir=runs/arithmetic/sft

Runs config.sft.steps steps, or until the evaluated pass@1 reaches config.sft.stop_at. The same command resumes.
"""

import contextlib
import pathlib

import jax
import numpy as np

from experiments.evaluate import make_evaluate, make_pool
from experiments.parts import common, processes
from rl_jax import sft
from rl_jax.core.types import TokenBatch
from rl_jax.data import pipeline
from rl_jax.training import checkpoint, distributed
from rl_jax.training.scoring import make_score


def make_batch(setup: common.Setup, records: list[dict]) -> tuple[TokenBatch, np.ndarray]:
    """(TokenBatch [B, P + C], completion_mask bool [B, C]) as the train step reads it.

    records: this process's own. All processes get the width that the longest prompt of them all needs.
    """
    settings = setup.config.rollout
    length = settings.completion_length
    rows = pipeline.encode_sft(
        setup.task.tokenizer, records, prompt_buckets=settings.prompt_buckets, completion_length=length
    )
    width = distributed.largest(rows["tokens"].shape[1])
    padding = {"tokens": setup.task.tokenizer.pad_id, "positions": 0, "segment_ids": 0}
    batch = TokenBatch(**{name: pipeline.pad_left(rows[name], width, value) for name, value in padding.items()})
    return batch, rows["completion_mask"][:, -length:]


def run(
    config, workdir: pathlib.Path, stop: checkpoint.StopSignal | None = None, setup: common.Setup | None = None
) -> bool:
    """The whole of it: set up, restore if there is something, loop, save. False where a signal ended it early.

    setup: of `config`, where the caller has one. A task without a reward_fn is not evaluated.
    """
    stop = stop or checkpoint.StopSignal()
    settings = config.sft
    setup = setup or common.setup(config)
    common.check_rows(setup, **{"sft.batch_size": settings.batch_size})
    common.record_run(setup, workdir, "sft")
    score = make_score(setup.model, completion_length=config.rollout.completion_length, chunk=config.score.chunk)
    score = common.on_merged(setup, score)

    def loss_fn(params, batch):
        tokens, completion_mask = batch
        return sft.loss(score(params, tokens), completion_mask)

    train_step, state = common.make_trainer(setup, settings, loss_fn, setup.init_params())
    source = setup.task.data_source("sft_train")
    batches = processes.own_batches(setup.mesh, source, batch_size=settings.batch_size, seed=config.seed)
    checkpoints = checkpoint.Checkpointer(workdir / "checkpoints", every=config.checkpoint.every)
    step, done = 0, settings.steps == 0
    if checkpoints.latest_step() is not None:
        items, host = checkpoints.restore(common.checkpoint_items(state), in_place=True)
        state = common.state_of(items)
        batches.set_state(host["data"])
        step, done = host["step"], host["done"]
    log = processes.run_logger(workdir, step, total_steps=settings.steps, **common.log_options(config, "sft"))
    judged = setup.task.reward_fn is not None
    with checkpoints, make_pool(setup) if judged else contextlib.nullcontext() as pool, log:
        evaluate = make_evaluate(setup, pool) if judged else lambda params: ({}, [])
        if not done:
            first = make_batch(setup, pipeline.peek(batches))
            common.ahead(setup)("train_step", train_step)(state, processes.place_own(setup.mesh, first))
        stopping = distributed.any_process(stop.received)
        while not done and not stopping:
            step += 1
            clock = common.Clock()
            batch = processes.place_own(setup.mesh, make_batch(setup, next(batches)))
            state, metrics = train_step(state, batch)
            metrics = jax.device_get(metrics)
            clock.lap("train_s")
            done = step == settings.steps
            if step % settings.eval_every == 0 or done:
                evaluated, rows = evaluate(state.params)
                metrics |= evaluated
                log.samples(step, rows)
                done = done or bool(evaluated.get("eval/pass@1", 0.0) >= settings.stop_at)
            log.log(step, metrics, clock.totals(batch[1].sum()))
            stopping = distributed.any_process(stop.received)
            if done or checkpoints.due(step) or stopping:
                host = {"step": step, "done": done, "data": batches.get_state()}
                checkpoints.save(step, common.checkpoint_items(state), host)
    if done:
        common.write_final(setup, workdir, step, state.params)
    return done


if __name__ == "__main__":
    common.main(run, several_processes=True)
