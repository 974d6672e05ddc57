"""Reward models: trained on preferences, rankings, labels or process labels, evaluated on held-out ones and benchmarks.

    python -m experiments.reward_model --config=configs/preferences/reward_models.py --workdir=runs/reward_model

Each step: records -> token ids -> the head's outputs at the last token of each response (or step) -> update. The
objective is config.algorithm, slot by slot (rl_jax.reward_model). With LoRA (config.model.lora) adapters are trained on
a frozen base, and the head in full. The same command resumes an interrupted run, bit for bit. Other programs load the
result as a judge (config.judge, experiments.parts.judges).
"""

import json
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from experiments.parts import flags, reward_shift, reward_traces
from experiments.parts.preference_data import Arrays, load_pairs
from experiments.parts.prompt_limits import say_skipped
from experiments.parts.reward_readers import (
    Reader,
    base_params,
    check_labels,
    load_records,
    make_reader,
    make_rewards,
)
from experiments.parts.run import Run
from experiments.parts.setup import Setup, check_batches, make_setup
from experiments.parts.trained_heads import add_head, checkpoint_items, head_of, state_of
from experiments.parts.training import make_trainer, to_mesh
from experiments.parts.warm_start import keep_reference
from rl_jax.core.types import Params
from rl_jax.data import pipeline
from rl_jax.models.heads import without_head
from rl_jax.runs.logging import write_atomically
from rl_jax.tasks import Task
from rl_jax.training import distributed
from rl_jax.training.step import TrainState


def check(config) -> None:
    """Raises ValueError if several members or layers are asked for and only one can be read."""
    layers, reads = config.algorithm.head.layers, config.algorithm.reads
    if layers > 1 and reads not in ("response", "steps"):
        raise ValueError(f"algorithm.head.layers={layers}: algorithm.reads={reads!r} has no such head")
    if reads != "response" and config.algorithm.members > 1:
        raise ValueError(f"algorithm.members: only reads='response' has several, not {reads!r}")
    reward_shift.check(config)
    reward_traces.check(config)


def load_benchmarks(config, reader: Reader) -> dict[str, tuple]:
    """(arrays, records, number of those that were kept) of each benchmark: before the training, as some may be wrong.

    Raises:
      ValueError: if one has no keywords in benchmarks.sets, or cannot be loaded.
    """
    result = {}
    for name in config.benchmarks.names:
        if name not in config.benchmarks.sets:
            known = ", ".join(config.benchmarks.sets) or "nothing"
            raise ValueError(f"benchmarks.names has {name!r}, but benchmarks.sets has {known}")
        fields = ConfigDict({"data_dir": config.data.data_dir} | config.benchmarks.sets[name].to_dict())
        records = load_records(config, load_pairs(f"benchmarks.sets.{name}", fields), "test")
        arrays, counts = reader.encode(records)
        result[name] = arrays, records, counts["num_kept"]
    return result


def finish(
    setup: Setup, reader: Reader, workdir: pathlib.Path, params: Params, held_out: tuple, others: dict[str, tuple]
) -> dict:
    """Evaluates the trained model. Writes WORKDIR/evaluation.json, and rewards.json for `standardize`.

    Args:
      setup: of the run.
      reader: of the run.
      workdir: where the files are written, by the first process.
      params: trained.
      held_out: (arrays, records).
      others: of load_benchmarks.

    Returns:
      Metrics of the held-out records and of each benchmark, by name.
    """
    config, rewards = setup.config, make_rewards(setup, reader)
    arrays, records = held_out
    held_out_rewards = rewards(params, arrays)
    report = {"held_out": reader.evaluate(arrays, held_out_rewards, records)}
    for name, (arrays, records, kept) in others.items():
        report[name] = reader.evaluate(arrays, rewards(params, arrays), records) | {"num_kept": kept}
    if not distributed.is_main():
        return report
    write_atomically(workdir / "evaluation.json", (json.dumps(report, indent=2) + "\n").encode())
    if config.algorithm.reads == "response":
        of_members = held_out_rewards[held_out[0]["present"]]
        moments = {"means": of_members.mean(0).tolist(), "stds": of_members.std(0).tolist()}
        write_atomically(workdir / "rewards.json", (json.dumps(moments) + "\n").encode())
    return report


def take(setup: Setup, reader: Reader, arrays: Arrays, indices: list[int]) -> tuple[Any, int]:
    """One update's records: (what the loss takes, on the mesh and packed per micro-batch; tokens before packing)."""
    batch = reader.batch(arrays, np.array(indices), setup.config.train.batch_size)
    num_tokens = int(np.sum(batch.batch.segment_ids != 0))
    return to_mesh(setup, reader.pack(batch, setup.config.train.micro_batches)), num_tokens


def start_params(setup: Setup, workdir: pathlib.Path) -> Params:
    """The language model that the run starts from, which for log-ratios is their reference."""
    base = base_params(setup, workdir)
    return keep_reference(workdir, base) if setup.config.algorithm.reads == "log_ratio" else base


def run(config, workdir: pathlib.Path, *, task: Task | None = None) -> None:
    """Data, params, restore, loop, save, evaluate. task: its tokenizer replaces that of config.task."""
    check(config)
    loop = Run(config, workdir, "reward_model", config.train)
    data = load_pairs("data", config.data)
    setup, size = make_setup(config, task), config.train.batch_size
    check_batches(setup)
    loop.record(setup)
    reader = make_reader(setup, workdir)
    arrays, counts = reader.encode(load_records(config, data, "train"))
    counts |= {"skipped_records": say_skipped(config, data.data_source("train"))}
    check_labels(config, arrays)
    records = load_records(config, data, "test", config.eval.num_prompts)
    held_out, others = (reader.encode(records)[0], records), load_benchmarks(config, reader)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    params = add_head(setup, lambda own: reader.add_head(own, key), start_params(setup, workdir))
    train_step, state = make_trainer(setup, config.train, reader.loss, params)
    batches = pipeline.train_iterator(range(len(arrays["tokens"])), batch_size=size, seed=config.seed)
    state = state_of(loop.restore(checkpoint_items(state), batches))
    evaluate = make_evaluate(setup, reader, *held_out)
    with loop:
        if not loop.done:
            loop.ahead("train_step", train_step)(state, take(setup, reader, arrays, pipeline.peek(batches))[0])
        loop.begin(lambda: (evaluate(state) | {f"data/{name}": count for name, count in counts.items()}, []))
        for step in loop.steps():
            batch, num_tokens = take(setup, reader, arrays, next(batches))
            state, metrics = train_step(state, batch)
            metrics = jax.device_get(metrics)
            step.clock.lap("train_s")
            loop.check_finite(state, batch, head=False)
            metrics |= evaluate(state) if step.evaluates else {}
            step.end(checkpoint_items(state), metrics, step.clock.totals(num_tokens))
    if loop.done:
        loop.say(json.dumps(finish(setup, reader, workdir, state.params, held_out, others), indent=2))
    loop.finish(setup, without_head(state.params), **head_of(state.params))


def make_evaluate(setup: Setup, reader: Reader, arrays, records: list[dict]):
    """Makes evaluate(state) -> metrics of the held-out records.

    Args:
      setup: of the run.
      reader: of the run.
      arrays: of the held-out records.
      records: the held-out records.
    """
    rewards = make_rewards(setup, reader)

    def evaluate(state: TrainState) -> dict[str, float]:
        metrics = reader.evaluate(arrays, rewards(state.params, arrays), records)
        return {f"eval/{name}": number for name, number in metrics.items()}

    return evaluate


if __name__ == "__main__":
    flags.main(run, several_processes=True)
