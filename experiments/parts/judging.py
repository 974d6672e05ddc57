"""Rollouts on the host, decoded and scored; and evaluation on held-out prompts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from experiments.parts import processes, rollout_mesh
from experiments.parts.encoding import encode_prompts, whole_text
from experiments.parts.failures import Failure, Failures, first_failure
from experiments.parts.judges.table import need_models
from experiments.parts.rewards import Rewards, Rows
from experiments.parts.setup import Setup, check_rows, sampling_of
from experiments.parts.training import jit_generate
from rl_jax.core.types import Rollout
from rl_jax.data import pipeline
from rl_jax.experience.prompt import info_of
from rl_jax.rewards.pool import RewardResult
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.rollout.lm.requests import cut_at_stops
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


def judge(
    setup: Setup,
    score: Callable,
    rollout: Rollout,
    records: list[dict],
    own_prompts: np.ndarray | None = None,
    count: int | None = None,
    *,
    stop_strings: Sequence[str] | None = None,
) -> Judged:
    """Brings a rollout to the host, ends its rows at stop strings, decodes its completions and scores them.

    Args:
      setup: of the run.
      score: Rows -> RewardResult (rewards.make_rewards).
      rollout: one or several samples per prompt.
      records: one per prompt, this process's own.
      own_prompts: int [n]. Indices of these records in the batch, if other processes have the rest. None: all are here.
      count: how many prompts of the batch are wanted, from the first on. None: all.
      stop_strings: texts that end a row. None: config.rollout.stop_strings.

    Returns:
      Judged, with the rows of all processes.

    Raises:
      RuntimeError: if no row at all could be scored and config.reward.all_failed is "stop".
    """
    rollout = processes.own_rows(setup.mesh, rollout)
    samples = len(rollout.completion_mask) // len(records)
    own_prompts = np.arange(len(records)) if own_prompts is None else own_prompts
    count = len(records) if count is None else count
    kept_prompts = np.flatnonzero(own_prompts < count)
    rows = (kept_prompts[:, None] * samples + np.arange(samples)).ravel()
    rollout, tokenizer = jax.tree.map(lambda x: x[rows], rollout), setup.task.tokenizer
    stop_strings = setup.config.rollout.stop_strings if stop_strings is None else stop_strings
    rollout = cut_at_stops(rollout, whole_text(tokenizer), stop_strings, pad_id=tokenizer.pad_id)
    judged = judge_rows(setup, score, rollout, [records[i] for i in kept_prompts for _ in range(samples)], samples)
    places = (own_prompts[kept_prompts][:, None] * samples + np.arange(samples)).ravel()
    first = first_failure(judged.result, [r["prompt"] for r in judged.records], judged.completions)
    judged, first = _bring_together(judged, places, count * samples, first)
    if np.any(judged.rollout.completion_mask):  # not zeros in place of samples, to compile ahead
        failures = score.failures if isinstance(score, Rewards) else Failures()
        failures.see(judged.result, first, setup.config.reward)
    return score.finish(judged) if isinstance(score, Rewards) else judged


def judge_rows(setup: Setup, score: Callable, rollout: Rollout, records: list[dict], samples: int) -> Judged:
    """Decodes and scores rows on the host, one record each.

    Args:
      setup: of the run.
      score: Rows -> RewardResult.
      rollout: on the host, its rows ended at stop strings.
      records: B of them.
      samples: rows of a prompt, which are neighbours.
    """
    length = rollout.completion_mask.shape[1]
    tokens = rollout.batch.tokens[:, -length:]
    sampled = [row[mask].tolist() for row, mask in zip(tokens, rollout.completion_mask, strict=True)]
    completions = [setup.task.tokenizer.decode(ids) for ids in sampled]
    return Judged(rollout, records, completions, score(Rows(rollout, records, completions, samples)))


def _bring_together(
    judged: Judged, places: np.ndarray, count: int, failure: Failure | None
) -> tuple[Judged, Failure | None]:
    """The Judged of all processes' rows, and a failure. places: int [n], indices of this one's rows among `count`."""
    if jax.process_count() == 1:
        return judged, failure
    result = judged.result
    texts = list(zip(judged.records, judged.completions, strict=True))
    failures = (result.num_timeouts, result.num_errors, result.first_error, failure)
    gathered = distributed.gather([places.tolist(), sorted(result.components), texts, *failures])
    names = sorted({name for _, found, *_ in gathered for name in found})  # none if all rows of a process failed
    columns = {name: result.components.get(name, np.zeros_like(result.rewards)) for name in names}
    rows_of_all = (judged.rollout, result.rewards, columns, result.failed)
    rollout, rewards, components, failed = distributed.gather_rows(rows_of_all, places, count)
    texts, owners = [None] * count, {}
    for rows, _, found, *numbers in reversed(gathered):
        owners[tuple(rows)] = numbers  # processes that share rows have each scored them
        for row, text in zip(rows, found, strict=True):
            texts[row] = text
    timeouts, errors, first, failed_rows = zip(*reversed(owners.values()), strict=True)
    failure = next((Failure(*found) for found in failed_rows if found), None)
    whole = Judged(
        rollout,
        [record for record, _ in texts],
        [text for _, text in texts],
        RewardResult(rewards, components, sum(timeouts), sum(errors), next(filter(None, first), None), failed),
    )
    return whole, failure


def need_reward(setup: Setup) -> None:
    """Checks, before a warm start, that something scores the completions of the run's task.

    Raises:
      ValueError: if nothing does.
      FileNotFoundError: if the model of a judge is missing.
    """
    need_models(setup.config.get("judge") or {})
    if "agent" in setup.config and setup.config.agent.env.fn != "one_answer":
        return  # the environment does
    if setup.task.reward_fn is None and not setup.config.reward.terms and not setup.config.judge:
        way = "name"
        if why := setup.task.no_reward:
            way = f"{why}. Give each an answer (--config.task.answer=COLUMN names its column), or name"
        raise ValueError(
            f"task.name={setup.config.task.name!r} has no reward of its own: {way} one of yours, "
            "--config.reward.terms=my_rewards:score, which is (prompt, completion, info) -> float, or a judge"
        )


def joined_columns(results: Sequence[RewardResult]) -> dict[str, np.ndarray]:
    """The rewards and components of several batches, name -> float [sum of B]; the rewards are "reward".

    A batch lacks a component if none of its rows has it, as where all of them failed: it is 0 there, as it is for a row
    that lacks it beside rows that have it.
    """
    names = dict.fromkeys(name for result in results for name in result.components)
    columns = {
        name: np.concatenate([result.components.get(name, np.zeros_like(result.rewards)) for result in results])
        for name in names
    }
    return {"reward": np.concatenate([result.rewards for result in results])} | columns


def by_source(records: list[dict], columns: dict[str, np.ndarray]) -> dict[str, float]:
    """The mean of each column over the rows of each source, by "NAME/source/SOURCE"; {} if records have no source.

    Args:
      records: B of them.
      columns: name -> float [B].
    """
    named = np.array([record.get("source", "") for record in records])
    return {
        f"{name}/source/{source}": column[named == source].mean(dtype=np.float64)
        for source in sorted(set(named.tolist()) - {""})
        for name, column in columns.items()
    }


def judged_metrics(judged: Judged, group_size: int) -> dict[str, float]:
    """Means over a step's rows: rewards and their components, failures, groups without a spread, lengths."""
    result, rollout = judged.result, judged.rollout
    groups = result.rewards.reshape(-1, group_size)
    metrics = {
        "reward/mean": result.rewards.mean(),
        "reward/std": result.rewards.std(),
        "reward/timeouts": result.num_timeouts,
        "reward/errors": result.num_errors,
        "finished": rollout.finished.mean(),
        "completion_length": rollout.completion_mask.sum(axis=1).mean(),
    }
    if group_size > 1:  # a single sample never has a spread
        metrics["group/zero_variance"] = np.mean(np.ptp(groups, axis=1) == 0)
    return metrics | {f"reward/{name}": column.mean() for name, column in result.components.items()}


def rewards_by_source(judged: Judged) -> dict[str, float]:
    """The mean reward of each source of the records: reward/source/NAME."""
    return by_source(judged.records, {"reward": judged.result.rewards})


def sample_rows(judged: Judged, split: str, limit: int) -> list[dict]:
    """The first `limit` completions as rows of samples.jsonl, with all that experiments.reverify needs."""
    return [
        {
            "split": split,
            "prompt": judged.records[i]["prompt"],
            "completion": judged.completions[i],
            "info": info_of(judged.records[i]),
            "length": int(judged.rollout.completion_mask[i].sum()),
            "reward": float(judged.result.rewards[i]),
            "terms": {name: float(column[i]) for name, column in judged.result.components.items()},
            "finished": bool(judged.rollout.finished[i]),
            "truncated": bool(judged.rollout.truncated[i]),
        }
        for i in range(min(limit, len(judged.completions)))
    ]


def make_evaluate(setup: Setup, score: Callable | None, sample: Callable | None = None) -> Callable:
    """Makes evaluate(params) -> (metrics, sample rows), with the same prompts and random numbers at every call.

    Metrics: eval/reward, eval/pass@1 (mean of the reward component `correct`, if the task has it),
    eval/completion_length, eval/truncated, the components, and reward and pass@1 of each source of the records.

    Args:
      setup: of the run.
      score: Rows -> RewardResult (rewards.make_rewards). None: evaluate returns ({}, []).
      sample: (params, tokens, prompt_mask, key) -> Rollout of config.eval. None: that of a causal language model.
    """
    if score is None:
        return lambda params: ({}, [])
    config = setup.config.eval
    rollout = setup.config.rollout
    generate = jit_generate(
        sample
        or make_generate(
            setup.model,
            completion_length=config.completion_length or rollout.completion_length,
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
        if isinstance(score, Rewards):
            score.see(params)
        params, results, rows, seen = rollout_mesh.place(setup.rollout, params), [], [], []
        for index, records in enumerate(pipeline.eval_batches(source, config.batch_size, config.num_prompts)):
            full = records + records[:1] * (config.batch_size - len(records))  # one shape, compiled once
            mine = [full[i] for i in own_prompts]
            prompts = processes.own_to_mesh(setup.mesh, encode_prompts(setup, mine))
            rollout = generate(params, *prompts, jax.random.fold_in(key, index))
            judged = judge(setup, score, rollout, mine, own_prompts, len(records), stop_strings=config.stop_strings)
            lengths = {"completion_length": judged.rollout.completion_mask.sum(axis=1)}
            own = judged.result.components | lengths | {"truncated": judged.rollout.truncated}
            results.append(judged.result._replace(components=own))
            rows += sample_rows(judged, "eval", setup.config.log.sample_rows - len(rows))
            seen += judged.records
        columns = joined_columns(results)
        if "correct" in columns:
            columns["pass@1"] = columns.pop("correct")
        elif right := [name for name in columns if name.endswith("/correct")]:  # of a term that has such a part
            columns["pass@1"] = columns[right[0]]
        metrics = {name: column.mean(dtype=np.float64) for name, column in columns.items()}
        metrics |= by_source(seen, {name: columns[name] for name in ("reward", "pass@1") if name in columns})
        return {f"eval/{name}": value for name, value in metrics.items()}, rows

    return evaluate
