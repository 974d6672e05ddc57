"""The prompts of a run: the stream that config.sample.prompts names, and what its steps report back."""

from collections.abc import Sequence

import numpy as np

from experiments.parts import processes, prompt_limits
from experiments.parts.judging import Judged
from experiments.parts.revisits import newest_of
from experiments.parts.row_rewards import without_errors
from experiments.parts.setup import Setup
from rl_jax.core.binding import bind
from rl_jax.experience import Feedback, PromptMemory, PromptStream, PromptTable, sources


def make_prompts(setup: Setup, records, *, batch_size: int) -> PromptStream:
    """Endless batches of this process's share of the records, in the order of config.sample.prompts.

    What the records leave out is said.

    Args:
      setup: of the run.
      records: of the task's training split.
      batch_size: records per batch in all processes together.
    """
    sample, seed = setup.config.sample, setup.config.seed
    prompt_limits.say_skipped(setup.config, records)
    source = bind(sample.prompts.to_dict(), sources, seed=seed)(PromptTable(records))
    remembers = sample.memory.on or sample.memory.last
    memory = PromptMemory(successes=sample.memory.successes) if remembers else None
    rows = processes.rows_here(setup.mesh, batch_size)
    return PromptStream(records, source, batch_size=batch_size, rows=rows, memory=memory)


def feedback_of(batches: Sequence[Judged], group_size: int, *, newest: bool = False) -> Feedback:
    """What became of the groups of a step's batches, those that were dropped included.

    A group none of whose rows says anything of its prompt (see `success_of`) is left out.

    Args:
      batches: Judged with all rows of every process, samples of one prompt side by side.
      group_size: G.
      newest: whether to report the tokens of one completion per group.
    """
    records = [record for judged in batches for record in judged.records[::group_size]]
    texts = [text for judged in batches for text in judged.completions]
    rewards = np.concatenate([judged.result.rewards for judged in batches])
    success = np.concatenate([success_of(judged, group_size) for judged in batches])
    lengths = np.concatenate([judged.rollout.completion_mask.sum(axis=1) for judged in batches])
    told = ~np.concatenate([_silent(judged).reshape(-1, group_size).all(axis=1) for judged in batches])
    found = Feedback(
        indices=np.asarray([record["index"] for record in records], np.int64),
        ids=[record["id"] for record in records],
        rewards=rewards.reshape(-1, group_size),
        success=success.reshape(-1, group_size),
        lengths=lengths.reshape(-1, group_size),
        completions=[texts[start : start + group_size] for start in range(0, len(texts), group_size)],
        newest=[kept for judged in batches for kept in newest_of(judged, group_size)] if newest else None,
    )
    return found.of_groups(np.flatnonzero(told).tolist())


def success_of(judged: Judged, group_size: int) -> np.ndarray:
    """Each row's success, float [B], from 0 to 1: `correct` of the reward or of a term, or else the reward itself.

    A row whose verifier or environment failed says nothing of its prompt, nor does one that was played in an earlier
    step: it gets the mean of its group's others (0 if there are none), below 1, so that it is not kept as a success.
    """
    columns = judged.result.components
    named = sorted(name for name in columns if name == "correct" or name.endswith("/correct"))
    success = np.clip(columns[named[0]] if named else judged.result.rewards, 0.0, 1.0)
    silent = _silent(judged)
    others = without_errors(success, silent, group_size)
    return np.where(silent, np.minimum(others, np.nextafter(np.float32(1.0), np.float32(0.0))), others)


def _silent(judged: Judged) -> np.ndarray:
    """bool [B], the rows that say nothing of their prompts."""
    silent = np.asarray([_is_silent(record) for record in judged.records])
    return silent if judged.result.failed is None else silent | judged.result.failed


def _is_silent(record: dict) -> bool:
    return record.get("replayed", False) or ("episode" in record and record["episode"].status == "error")
