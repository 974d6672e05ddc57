"""DPO and its family on given preferences: the loop to fork.

    python -m experiments.dpo --config=configs/preferences/given.py --config.data.path=PAIRS.jsonl --workdir=runs/dpo

Each step: records -> token ids -> the reference's log-probs -> statistics of the batch, if the method has some ->
update. The first start runs the config's SFT on the chosen responses in WORKDIR/sft; the same command resumes an
interrupted run, bit for bit. The method is config.algorithm, slot by slot (rl_jax.dpo).
"""

import math
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments.parts import flags
from experiments.parts.preference_data import (
    SCORED,
    Arrays,
    Encoder,
    PreferencePacker,
    flat,
    for_sft,
    load_pairs,
    records_of,
)
from experiments.parts.preference_steps import (
    PreferencePrograms,
    add_batch_statistics,
    build,
    check_mismatched,
    make_batch_statistics,
    make_objective,
    with_degree_head,
)
from experiments.parts.processes import to_host
from experiments.parts.prompt_limits import say_skipped
from experiments.parts.run import Run
from experiments.parts.setup import Setup, check_batches, make_setup, policies_of
from experiments.parts.trained_heads import checkpoint_items, head_of, state_of
from experiments.parts.training import to_mesh
from experiments.parts.warm_start import keep_reference, warm_start
from rl_jax import dpo, preferences
from rl_jax.core.masked import merge
from rl_jax.core.types import Params, PreferenceBatch, TokenBatch
from rl_jax.data import pipeline
from rl_jax.models.heads import without_head
from rl_jax.rewards.benchmarks import length_correlation
from rl_jax.tasks import Task
from rl_jax.training import checkpoint, distributed
from rl_jax.training.ref_log_prob_cache import ReferenceCache
from rl_jax.training.step import TrainState


def needs_reference(config) -> bool:
    """Whether anything compares with the reference: its share in the score, a KL to it, KTO's anchor."""
    objective = make_objective(config)
    asked = bool(objective.needs() & {"sequence_kl", "token_rewards"})
    return bool(objective.reference) or asked or make_batch_statistics(config).reads_mismatched


def with_reference(config, workdir: pathlib.Path, score: Callable, params: Params, arrays: Arrays) -> Arrays:
    """`arrays` with the log-probs of every response under `params`, read from disk if they were computed before.

    Args:
      config: of the run.
      workdir: the cache is in its folder `reference`, unless train.reference_cache names another one.
      score: (params, rows) -> TokenScores on the host.
      params: of the reference.
      arrays: N records, K responses each.

    Returns:
      `arrays` and ref_log_probs, float32 [N, K, C].
    """
    folder = pathlib.Path(config.train.reference_cache or workdir / "reference").expanduser()
    # dtype="auto" is another one on another device.
    settings = {"model": config.model.to_dict() | policies_of(config.model), "chunk": config.score.chunk}
    cache = ReferenceCache(folder, identity={"params": checkpoint.checksum(params), "score": settings})

    def score_rows(rows):
        tokens = flat(TokenBatch(rows["tokens"], rows["positions"], rows["segment_ids"]))
        return np.asarray(score(params, tokens).log_probs).reshape(rows["completion_mask"].shape)

    return arrays | {"ref_log_probs": cache.get_or_make(arrays, score_rows, batch_size=config.train.batch_size)}


def with_token_rewards(config, workdir: pathlib.Path, score: Callable, params: Params, arrays: Arrays) -> Arrays:
    """`arrays` with T-REG's token_rewards, from two contrasting instructions.

        token_rewards = sigma(logp(token | better instruction) - logp(token | worse instruction)) - 1/2

    Args:
      config: of the run.
      workdir: for the cache of log-probs.
      score: (params, rows) -> TokenScores on the host.
      params: of the reference.
      arrays: N records, K responses each, with the rows of both instructions (Encoder).

    Returns:
      `arrays` and token_rewards, float32 [N, K, C], without the rows of the instructions.
    """
    arrays, result = dict(arrays), []
    for side in ("better", "worse"):
        rows = {name: arrays.pop(f"{side}_{name}") for name in SCORED} | {"completion_mask": arrays["completion_mask"]}
        result.append(with_reference(config, workdir, score, params, rows)["ref_log_probs"])
    # sigma(x) - 1/2 = tanh(x / 2) / 2, which cannot overflow.
    return arrays | {"token_rewards": 0.5 * np.tanh(0.5 * (result[0] - result[1]))}


def make_evaluate(
    setup: Setup, programs: PreferencePrograms, encoder: Encoder, arrays: Arrays, reference: Params | None
):
    """Makes evaluate(state) -> metrics of the held-out prompts.

    These are eval/loss, eval/rewards/accuracy and the loss's other metrics, and eval/length_correlation, the
    correlation of the scores u with the response lengths.

    Args:
      setup: of the run.
      programs: compiled functions.
      encoder: of the run.
      arrays: of the held-out prompts.
      reference: params of the reference, or None; see add_batch_statistics.
    """
    size, number = setup.config.eval.batch_size, len(arrays["tokens"])
    parts = [np.arange(number)[start : start + size] for start in range(0, number, size)]

    def evaluate(state: TrainState) -> dict[str, float]:
        total, points = None, []
        for part in parts:
            batch = encoder.batch(arrays, part, size)
            batch = add_batch_statistics(setup, programs, state, batch, reference, held_out=True)[1]
            batch = to_mesh(setup, batch)
            means, scored = jax.device_get(to_host(programs.evaluate(state.params, batch, reference)))
            total = means if total is None else merge(total, means)
            points.append(np.stack([scored.sequence_scores, scored.lengths])[:, scored.present])
        metrics = {f"eval/{name}": float(mean.value()) for name, mean in total.items()}
        return metrics | {"eval/length_correlation": length_correlation(*np.concatenate(points, axis=1))}

    return evaluate


def check(config) -> dpo.Objective:
    """The objective. Raises ValueError if it needs more than given preferences, or larger batches."""
    check_mismatched(config, "train.batch_size", "eval.batch_size")
    objective = make_objective(config)
    if "prev" in objective.reference:
        raise ValueError("algorithm.reference has 'prev', which only experiments.online_dpo supports")
    return objective


def read(
    setup: Setup, pairs: preferences.Preferences, encoder: Encoder, packer: PreferencePacker
) -> tuple[Arrays, Arrays, dict[str, int]]:
    """Reads and encodes the data.

    Args:
      setup: of the run.
      pairs: the preferences.
      encoder: of the run.
      packer: of the run; fits its rows to the training records.

    Returns:
      (arrays of the training records, arrays of the held-out ones, counts of truncated, dropped and skipped records by
      metric name).
    """
    config = setup.config
    arrays, counts = encoder(records_of(pairs, "train", config.algorithm.responses))
    packer.fit(arrays)
    held_out, _ = encoder(records_of(pairs, "test", config.algorithm.responses, limit=config.eval.num_prompts))
    counts["skipped_records"] = say_skipped(config, pairs.data_source("train"))
    return arrays, held_out, {f"data/{name}": count for name, count in counts.items()}


def score_reference(
    setup: Setup,
    workdir: pathlib.Path,
    programs: PreferencePrograms,
    reference: Params | None,
    parts: tuple,
) -> tuple[Arrays, ...]:
    """Adds what the reference gives: log-probs, and token rewards if the method needs them.

    Args:
      setup: of the run.
      workdir: for the cache of log-probs.
      programs: compiled functions.
      reference: params, or None if the method has no reference.
      parts: arrays of the splits.

    Returns:
      `parts` with the added arrays; unchanged if there is no reference.
    """
    if reference is None:
        return parts
    config = setup.config
    if config.log.progress and distributed.is_main():
        print(f"the reference scores {sum(len(x['tokens']) for x in parts)} records, unless it has done so before")

    def score(params, rows):
        return programs.on_host(params, to_mesh(setup, rows))

    if "token_rewards" in make_objective(config).needs():
        parts = tuple(with_token_rewards(config, workdir, score, reference, x) for x in parts)
    return tuple(with_reference(config, workdir, score, reference, x) for x in parts)


def compile_ahead(
    loop: Run,
    setup: Setup,
    programs: PreferencePrograms,
    state: TrainState,
    batch: PreferenceBatch,
    packer: PreferencePacker,
    reference,
) -> None:
    """Compiles the train step, unless the run is complete.

    Args:
      loop: compiles and reports.
      setup: of the run.
      programs: compiled functions.
      state: before the first step.
      batch: the first step's, for its shapes.
      packer: of the run.
      reference: params of the reference, or None.
    """
    if loop.done:
        return
    batch = add_batch_statistics(setup, programs, state, batch, reference)[1]
    placed = to_mesh(setup, packer(batch, setup.config.train.micro_batches))
    loop.ahead("train_step", programs.train_step)(state, placed, reference)


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Warm start, restore the latest checkpoint if any, loop, save. task: replaces config.task."""
    settings, objective = config.train, check(config)
    loop, pairs = Run(config, workdir, "dpo", settings), load_pairs("data", config.data)
    setup = for_sft(make_setup(config, task), pairs)
    check_batches(setup)
    loop.record(setup)
    encoder, packer = Encoder(setup, objective.needs()), PreferencePacker(setup)
    arrays, held_out, counts = read(setup, pairs, encoder, packer)
    if (params := warm_start(setup, workdir, loop.stop)) is None:
        return
    reference = keep_reference(workdir, jax.tree.map(jnp.copy, params)) if needs_reference(config) else None
    programs, state = build(setup, with_degree_head(setup, params))
    arrays, held_out = score_reference(setup, workdir, programs, reference, (arrays, held_out))
    loop.total = math.ceil(settings.data_epochs * len(arrays["tokens"]) / settings.batch_size) or settings.steps
    batches = pipeline.train_iterator(range(len(arrays["tokens"])), batch_size=settings.batch_size, seed=config.seed)
    state = state_of(loop.restore(checkpoint_items(state), batches))
    with loop:
        first = encoder.batch(arrays, np.array(pipeline.peek(batches)))
        compile_ahead(loop, setup, programs, state, first, packer, reference)
        evaluate = make_evaluate(setup, programs, encoder, held_out, reference)
        loop.begin(lambda: (evaluate(state) | counts, []))
        for step in loop.steps():
            batch = encoder.batch(arrays, np.array(next(batches)))
            state, batch = add_batch_statistics(setup, programs, state, batch, reference)
            batch = to_mesh(setup, packer(batch, settings.micro_batches))
            step.clock.lap("prepare_s", batch)
            state, metrics = programs.train_step(state, batch, reference)
            metrics = jax.device_get(metrics)
            step.clock.lap("train_s")
            loop.check_finite(state, batch)
            metrics |= evaluate(state) if step.evaluates else {}
            timings = step.clock.totals(batch.completion_mask.sum()) | {"compile_count": programs.compile_count()}
            step.end(checkpoint_items(state), metrics, timings)
    loop.finish(setup, without_head(state.params), **head_of(state.params))


if __name__ == "__main__":
    flags.main(run, several_processes=True)
