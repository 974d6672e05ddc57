"""Rollouts on the host, decoded and scored; and evaluation on held-out prompts."""

import contextlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from experiments.parts import processes, rollout_mesh
from experiments.parts.encoding import encode_prompts
from experiments.parts.setup import Setup, check_rows, sampling_of
from experiments.parts.training import jit_generate
from rl_jax.core.types import Rollout
from rl_jax.data import pipeline
from rl_jax.rewards.pool import RewardPool, RewardResult
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import distributed


class Judged(NamedTuple):
    """A rollout on the host with its texts and rewards, row by row. Every process holds all rows.

    Attributes:
      rollout: Rollout, numpy leaves [B, ...].
      records: B records; a record is repeated for each of its samples.
      completions: B texts.
      result: RewardResult of B rows.
    """

    rollout: Rollout
    records: list[dict]
    completions: list[str]
    result: RewardResult


def make_pool(setup: Setup) -> RewardPool | contextlib.nullcontext:
    """The processes that score completions, as a context manager. Gives None if the task has no reward_fn."""
    if setup.task.reward_fn is None:
        return contextlib.nullcontext()
    settings = setup.config.reward.to_dict()
    del settings["function"]  # make_setup reads it
    return RewardPool(setup.task.reward_fn, kwargs=setup.task.reward_kwargs, **settings)


def judge(
    setup: Setup,
    pool: RewardPool,
    rollout: Rollout,
    records: list[dict],
    own_prompts: np.ndarray | None = None,
    count: int | None = None,
) -> Judged:
    """Brings a rollout to the host, decodes its completions and scores them.

    Args:
      setup: of the run.
      pool: scores the texts.
      rollout: one or several samples per prompt.
      records: one per prompt, this process's own.
      own_prompts: int [n]. Indices of these records in the batch, if other processes have the rest. None: all are here.
      count: how many prompts of the batch are wanted, from the first on. None: all.

    Returns:
      Judged, with the rows of all processes.
    """
    rollout = distributed.local_rows(rollout)
    samples = len(rollout.completion_mask) // len(records)
    own_prompts = np.arange(len(records)) if own_prompts is None else own_prompts
    count = len(records) if count is None else count
    kept_prompts = np.flatnonzero(own_prompts < count)
    rows = (kept_prompts[:, None] * samples + np.arange(samples)).ravel()
    rollout = jax.tree.map(lambda x: x[rows], rollout)
    judged = _judge_rows(setup, pool, rollout, [records[i] for i in kept_prompts for _ in range(samples)])
    places = (own_prompts[kept_prompts][:, None] * samples + np.arange(samples)).ravel()
    return _bring_together(judged, places, count * samples)


def _judge_rows(setup: Setup, pool: RewardPool, rollout: Rollout, records: list[dict]) -> Judged:
    """Decodes and scores rows on the host, one record each."""
    length = rollout.completion_mask.shape[1]
    tokens = rollout.batch.tokens[:, -length:]
    sampled = [row[mask].tolist() for row, mask in zip(tokens, rollout.completion_mask, strict=True)]
    completions = [setup.task.tokenizer.decode(ids) for ids in sampled]
    prompts, infos = [r["prompt"] for r in records], [r["info"] for r in records]
    return Judged(rollout, records, completions, pool(prompts, completions, infos))


def _bring_together(judged: Judged, places: np.ndarray, count: int) -> Judged:
    """The Judged of all processes' rows. places: int [n], indices of this one's rows among `count`."""
    if jax.process_count() == 1:
        return judged
    result = judged.result
    texts = list(zip(judged.records, judged.completions, strict=True))
    failures = (result.num_timeouts, result.num_errors, result.first_error)
    gathered = distributed.gather([places.tolist(), sorted(result.components), texts, *failures])
    names = sorted({name for _, found, *_ in gathered for name in found})  # none if all rows of a process failed
    columns = {name: result.components.get(name, np.zeros_like(result.rewards)) for name in names}
    rollout, rewards, components = distributed.gather_rows((judged.rollout, result.rewards, columns), places, count)
    texts, owners = [None] * count, {}
    for rows, _, found, *numbers in reversed(gathered):
        owners[tuple(rows)] = numbers  # processes that share rows have each scored them
        for row, text in zip(rows, found, strict=True):
            texts[row] = text
    timeouts, errors, first = zip(*reversed(owners.values()), strict=True)
    return Judged(
        rollout,
        [record for record, _ in texts],
        [text for _, text in texts],
        RewardResult(rewards, components, sum(timeouts), sum(errors), next(filter(None, first), None)),
    )


def sample_rows(judged: Judged, split: str, limit: int) -> list[dict]:
    """The first `limit` completions as rows of samples.jsonl."""
    return [
        {
            "split": split,
            "prompt": judged.records[i]["prompt"],
            "completion": judged.completions[i],
            "reward": float(judged.result.rewards[i]),
            "finished": bool(judged.rollout.finished[i]),
            "truncated": bool(judged.rollout.truncated[i]),
        }
        for i in range(min(limit, len(judged.completions)))
    ]


def make_evaluate(setup: Setup, pool: RewardPool | None) -> Callable:
    """Makes evaluate(params) -> (metrics, sample rows), with the same prompts and random numbers at every call.

    Metrics: eval/reward, eval/pass@1 (mean of the reward component `correct`, if the task has it),
    eval/completion_length, eval/truncated, and the components.

    Args:
      setup: of the run.
      pool: scores the texts. None: evaluate returns ({}, []).
    """
    if pool is None:
        return lambda params: ({}, [])
    config = setup.config.eval
    rollout = setup.config.rollout
    generate = jit_generate(
        make_generate(
            setup.model,
            completion_length=rollout.completion_length,
            group_size=config.samples_per_prompt,
            sampling=sampling_of(config),
            eos_ids=setup.task.tokenizer.eos_ids,
            pad_id=setup.task.tokenizer.pad_id,
        ),
        setup,
    )
    source = setup.task.data_source("test")
    check_rows(setup, **{"eval.batch_size": config.batch_size})
    own_prompts = processes.rows_here(setup.mesh, config.batch_size)
    key = jax.random.key(setup.config.seed + 1)

    def evaluate(params):
        params, values, rows = rollout_mesh.place(setup.rollout, params), {}, []
        for index, records in enumerate(pipeline.eval_batches(source, config.batch_size, config.num_prompts)):
            full = records + records[:1] * (config.batch_size - len(records))  # one shape, compiled once
            mine = [full[i] for i in own_prompts]
            prompts = processes.own_to_mesh(setup.mesh, encode_prompts(setup, mine))
            rollout = generate(params, *prompts, jax.random.fold_in(key, index))
            judged = judge(setup, pool, rollout, mine, own_prompts, len(records))
            batch = {"reward": judged.result.rewards, **judged.result.components}
            batch["completion_length"] = judged.rollout.completion_mask.sum(axis=1)
            batch["truncated"] = judged.rollout.truncated
            for name, column in batch.items():
                values.setdefault(name, []).append(column)
            rows += sample_rows(judged, "eval", setup.config.log.sample_rows - len(rows))
        metrics = {f"eval/{name}": np.concatenate(columns).mean(dtype=np.float64) for name, columns in values.items()}
        if "eval/correct" in metrics:
            metrics["eval/pass@1"] = metrics.pop("eval/correct")
        return metrics, rows

    return evaluate
