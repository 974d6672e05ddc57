"""What a step of a policy logs: its metrics, its timings, samples, and a group token by token."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.parts.judging import Judged, judged_metrics, rewards_by_source, sample_rows
from experiments.parts.prompt_limits import num_skipped
from experiments.parts.run import Run, Step
from experiments.parts.sample_groups import Collected
from experiments.parts.setup import Setup
from rl_jax.core.types import Params, PolicyBatch, TokenScores
from rl_jax.experience import lag


def step_metrics(config, collected: Collected, source, updates: list[dict[str, float]]) -> dict[str, float]:
    """The metrics of one step: of the data, of the sampler in the first update, and the mean over the updates.

    An update without a token, as where all its rows are cut off and masked, has no mean over tokens and is left out.

    Args:
      config: of the run.
      collected: the step's rows.
      source: the prompts' source, for its num_skipped.
      updates: metrics of each update.
    """
    rollout = collected.judged.rollout
    weight, squared = updates[0]["sampler/weight"], updates[0]["sampler/weight_squared"]
    # Of an update without a token the largest deviation is -inf, and all else is 0, the squared weight too.
    updates = [
        update
        if update["sampler/weight_squared"] != 0.0
        else {name: 0.0 if value == -np.inf else value for name, value in update.items()}
        for update in updates
    ]
    measured = [update for update in updates if update["sampler/weight_squared"] != 0.0] or updates
    metrics = {name: np.mean([update[name] for update in measured]) for name in updates[0]}
    del metrics["sampler/weight"], metrics["sampler/weight_squared"]  # folded into sampler/ess
    metrics |= {
        "ratio/first_max_dev": updates[0]["ratio/max_dev"],
        "nonfinite/skipped": updates[-1]["nonfinite/skipped"],  # a running count, not to be averaged
        "sampler/gap_max": updates[0]["sampler/gap_max"],
        "sampler/ess": weight**2 / squared if squared else 1.0,
        "truncated": rollout.truncated.mean(),
        "mask_occupancy": rollout.completion_mask.mean(),
    }
    metrics |= judged_metrics(collected.judged, config.sample.group_size) | rewards_by_source(collected.judged)
    return metrics | collected.metrics | {"data/skipped_records": num_skipped(source)}


def group_view(setup: Setup, judged: Judged, batch: PolicyBatch, before: TokenScores, after: TokenScores) -> dict:
    """The step's first group with a signal, token by token, for the report.

    Args:
      setup: of the run.
      judged: the step's rows.
      batch: the whole step's batch.
      before: TokenScores before the step's updates.
      after: TokenScores after them.
    """
    size = setup.config.sample.group_size
    groups = judged.result.rewards.reshape(-1, size)
    chosen = int(np.argmax(np.ptp(groups, axis=1) > 0)) * size
    length = judged.rollout.completion_mask.shape[1]
    rows = []
    for i in range(chosen, chosen + size):
        # Padding is left out; one masked column shows where it begins.
        used = min(int(judged.rollout.completion_mask[i].sum()) + 1, length)
        tokens = judged.rollout.batch.tokens[i, -length:][:used].tolist()
        columns = {
            "mask": batch.completion_mask[i],
            "log_prob": before.log_probs[i],
            "log_ratio": after.log_probs[i] - before.log_probs[i],
            "advantage": batch.advantages[i],
            "entropy": before.entropy[i],
        }
        columns |= lag.columns(judged.rollout.versions, judged.rollout.completion_mask, i)
        row = {name: np.asarray(values)[:used].tolist() for name, values in columns.items()}
        row["tokens"] = [setup.task.tokenizer.token_text(t) for t in tokens]
        row["reward"] = float(judged.result.rewards[i])
        rows.append(row)
    return {"prompt": judged.records[chosen]["prompt"], "rows": rows}


def look(
    loop: Run,
    step: Step,
    setup: Setup,
    evaluate: Callable,
    params: Params,
    judged: Judged,
    batch: PolicyBatch,
    before: TokenScores,
    after: TokenScores,
) -> dict[str, float]:
    """Evaluates after the step's updates, and logs samples and the group view.

    Args:
      loop: its logger.
      step: of the loop.
      setup: of the run.
      evaluate: params -> (metrics, sample rows).
      params: of the policy.
      judged: the step's rows.
      batch: the whole step's batch.
      before: TokenScores before the step's updates.
      after: TokenScores after them.

    Returns:
      The evaluation's metrics.
    """
    metrics, samples = evaluate(params)
    loop.log.samples(step.number, samples + sample_rows(judged, "train", setup.config.log.sample_rows))
    loop.log.group_view(step.number, group_view(setup, judged, batch, before, after))
    return metrics


def timings(step: Step, collected: Collected, programs: Any) -> dict[str, float]:
    """The timings of one step."""
    return step.clock.totals(collected.judged.rollout.completion_mask.sum()) | {
        "compile_count": programs.compile_count()
    }
