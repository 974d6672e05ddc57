"""Supervised fine-tuning on a task's own solutions, and the params that other programs start from."""

import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from absl import logging

from experiments.parts import origin, processes, prompt_limits
from experiments.parts.encoding import completion_length, encode_sft
from experiments.parts.judging import make_evaluate
from experiments.parts.packers import DemonstrationPacker
from experiments.parts.rewards import make_rewards
from experiments.parts.run import Run, checkpoint_items, state_of
from experiments.parts.setup import Setup, check_rows, load_params
from experiments.parts.training import make_trainer, with_adapters
from rl_jax import sft
from rl_jax.core.binding import bind
from rl_jax.core.masked import masked_mean
from rl_jax.core.types import Params
from rl_jax.data import pipeline
from rl_jax.experience import PromptStream, PromptTable, sources
from rl_jax.experience.sources.base import Source
from rl_jax.losses import one_token
from rl_jax.losses.aggregate import token_mean
from rl_jax.runs import run_record
from rl_jax.training import checkpoint, distributed, token_rollouts
from rl_jax.training.scoring import make_score


class Own(NamedTuple):
    """How a model that is no causal language model is fine-tuned and sampled."""

    loss_fn: Callable
    """(params, (TokenBatch, completion_mask, uint32 seeds [B])) -> (Mean, metrics)."""
    sample: Callable
    """(params, tokens, prompt_mask, key) -> Rollout of config.eval."""


MEASURED = 10_000  # demonstrations of which the lengths are counted before the first step
HARMFUL = 1e-4  # a learning rate above which fine-tuning all weights of a pretrained model is taken for a mistake


def warm_start(
    setup: Setup, workdir: pathlib.Path, stop: checkpoint.StopSignal, own: Own | None = None
) -> Params | None:
    """The params that a program starts from: a finished run's, those of the SFT in workdir/sft, or the model's own.

    Args:
      setup: of the run.
      workdir: its folder.
      stop: of the run, shared with the SFT.
      own: as in fine_tune.

    Returns:
      params on the mesh, or None if a signal ended the SFT.
    """
    config = setup.config
    if config.init_from:
        # One process reads for all, as run.json may just be written.
        return load_params(setup, distributed.gather(origin.started_from(config.init_from, workdir))[0])
    if not config.sft.steps:
        return setup.init_params()
    loop = sft_run(config, workdir / "sft", stop)
    loop.say(f"the warm start comes first: up to {config.sft.steps} steps of SFT in {workdir / 'sft'}")
    return load_params(setup, workdir / "sft") if fine_tune(setup, loop, own) else None


def keep_reference(workdir: pathlib.Path, params: Params) -> Params:
    """Notes the checksum of a run's reference at its first start, and compares it when the run goes on.

    For runs whose checkpoints do not have the reference: every start reads it again.

    Args:
      workdir: of the run, which has a run.json.
      params: of the reference.

    Returns:
      `params`.

    Raises:
      origin.ChangedError: if it is not the reference that the run was started with.
    """
    digest, wrong = checkpoint.checksum(params), ""
    if distributed.is_main() and not (wrong := origin.other_reference(workdir, digest)):
        run_record.note_origin(workdir, origin.REFERENCE, digest)
    if wrong := distributed.gather(wrong)[0]:
        raise origin.ChangedError(wrong)
    return params


def sft_run(config, workdir: pathlib.Path, stop: checkpoint.StopSignal | None = None) -> Run:
    """The Run of config.sft. From here on a signal ends it between two steps. stop: of the run that it is a part of."""
    settings, every = config.sft, {"every": config.checkpoint.every}
    return Run(config, workdir, "sft", settings, eval_every=settings.eval_every, stop=stop, checkpoints=every)


def fine_tune(setup: Setup, loop: Run, own: Own | None = None) -> bool:
    """Runs config.sft.steps steps, or until the evaluated pass@1 reaches config.sft.stop_at.

    A task without a reward_fn is not evaluated.

    Args:
      setup: of the run.
      loop: from sft_run.
      own: of a model that is no causal language model. None: make_loss.

    Returns:
      Whether the SFT is complete.
    """
    config, settings = setup.config, setup.config.sft
    if said := harmful_rate(config):
        logging.warning(said)
    check_rows(setup, **{"sft.batch_size": settings.batch_size})
    loop.record(setup)
    # A loss that draws counts on the columns of padded rows.
    layout = DemonstrationPacker(setup) if own is None and not settings.loss.fn else _as_they_are
    train_step, state = make_trainer(setup, settings, own.loss_fn if own else make_loss(setup), setup.init_params())
    source = setup.task.data_source("sft_train")
    batches = demonstrations(setup, source)
    state = state_of(loop.restore(checkpoint_items(state), batches))
    with loop, make_rewards(setup, judged=False) as rewards:
        evaluate = make_evaluate(setup, rewards, own and own.sample)
        if not loop.done:
            counts = {f"data/{name}": count for name, count in left_out(setup, source, loop.say).items()}
            first = _with_seeds(setup, layout(*encode_sft(setup, pipeline.peek(batches))), 0, own)
            loop.ahead("train_step", train_step)(state, processes.own_to_mesh(setup.mesh, first))
        for step in loop.steps():
            batch = _with_seeds(setup, layout(*encode_sft(setup, next(batches))), step.number, own)
            batch = processes.own_to_mesh(setup.mesh, batch)
            state, metrics = train_step(state, batch)
            metrics = jax.device_get(metrics)
            step.clock.lap("train_s")
            loop.check_finite(state, batch)
            evaluated = {}
            if step.evaluates:
                evaluated, rows = evaluate(state.params)
                loop.log.samples(step.number, rows)
            good = bool(evaluated.get("eval/pass@1", 0.0) >= settings.stop_at)
            step.end(
                checkpoint_items(state), metrics | counts | evaluated, step.clock.totals(batch[1].sum()), done=good
            )
    return loop.finish(setup, state.params)


def demonstrations(setup: Setup, source):
    """Endless batches of this process's share of the records, in the order of config.sft.prompts."""
    config, size = setup.config, setup.config.sft.batch_size
    spec = dict(config.sft.get("prompts", {"fn": ""}))  # runs of before there was a choice have none
    if not spec["fn"]:
        return processes.own_batches(setup.mesh, source, batch_size=size, seed=config.seed)
    chosen = bind(spec, sources, seed=config.seed)(PromptTable(source))
    if type(chosen).feedback is not Source.feedback:
        raise ValueError(f"sft.prompts.fn={spec['fn']!r} learns from what becomes of its prompts, which is unknown")
    return PromptStream(source, chosen, batch_size=size, rows=processes.rows_here(setup.mesh, size))


def left_out(setup: Setup, source, say: Callable[[str], None]) -> dict[str, int]:
    """What of the demonstrations is not learned: the log's counts under data/.

    Args:
      setup: of the run.
      source: of the demonstrations. Of more than MEASURED a part is measured, evenly spread.
      say: prints a line, about each count that is not 0.

    Returns:
      num_responses_cut, completions over rollout.completion_length; skipped_records, bad records and those with a
      prompt over the widest bucket.
    """
    limit, total = setup.config.rollout.completion_length, len(source)
    places = range(total) if total <= MEASURED else np.linspace(0, total - 1, MEASURED, dtype=int).tolist()
    long = sum(completion_length(setup, source[place]) > limit for place in places)
    cut, skipped = round(long * total / max(len(places), 1)), prompt_limits.num_skipped(source)
    if told := prompt_limits.told_of_skipped(source):
        say(told)
    if cut:
        about = "about " if len(places) < total else ""
        say(
            f"{about}{cut} of {total} completions have over {limit} tokens, EOS included, and are cut: the model does "
            "not learn to end there. rollout.completion_length is the limit"
        )
    return {"num_responses_cut": cut, "skipped_records": skipped}


def harmful_rate(config) -> str:
    """A warning if the fine-tuning would make a pretrained model forget what it knows; "" if it would not."""
    rate = config.sft.optimizer.learning_rate
    if not config.model.path or config.model.lora.rank or rate <= HARMFUL:
        return ""
    return (
        f"sft.optimizer.learning_rate={rate:g} is for a model from scratch: {config.model.path} would forget what it "
        "knows. About 1e-5 fits; --config.sft.steps=0 goes without the fine-tuning"
    )


def make_loss(setup: Setup):
    """Makes loss_fn(params, (rows, completion_mask)) -> (Mean, metrics) of rl_jax.sft, or of config.sft.loss.

    rows: TokenBatch [B, P + C], or the same rows as a Packed for rl_jax.sft's.
    """
    length, chunk = setup.config.rollout.completion_length, setup.config.score.chunk
    if setup.config.sft.loss.fn:
        return _make_drawn_loss(setup, length, chunk)
    score = with_adapters(setup, make_score(setup.model, completion_length=length, chunk=chunk))

    def loss_fn(params, batch):
        tokens, completion_mask = batch
        return sft.loss(score(params, tokens), completion_mask)

    return loss_fn


def _make_drawn_loss(setup: Setup, length: int, chunk: int):
    """The same for a loss that draws at each token, whose batch has seeds."""
    fn = bind(setup.config.sft.loss.to_dict(), one_token)
    score = with_adapters(
        setup, token_rollouts.make_token_rollouts(setup.model, fn, completion_length=length, chunk=chunk)
    )

    def loss_fn(params, batch):
        tokens, mask, seeds = batch
        found, entropy = score(params, tokens, seeds)
        metrics = {"entropy": masked_mean(entropy, mask), "sft/hits": masked_mean(found.hits, mask)}
        return token_mean(found.loss, mask), jax.lax.stop_gradient(metrics)

    return loss_fn


def _as_they_are(tokens, mask):
    return tokens, mask


def _with_seeds(setup: Setup, batch: tuple, step: int, own: Own | None) -> tuple:
    """The batch (tokens, mask) with a seed per row of this process, if config.sft.loss draws."""
    config = setup.config
    if not config.sft.loss.fn and own is None:
        return batch
    seeds = np.random.default_rng([config.seed, step]).integers(0, 2**32, config.sft.batch_size, dtype=np.uint32)
    return *batch, seeds[processes.rows_here(setup.mesh, config.sft.batch_size)]
