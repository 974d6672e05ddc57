"""Kinds of config.foreign, of WebRL: tasks that are made from failed ones, and a replay filtered by perplexity.

Named in a config by their import paths, "experiments.parts.foreign_evolved:evolved" (a rule makes the tasks),
":written" (the policy does) and ":familiar_replay".
"""

import functools
import random
from collections.abc import Callable, Sequence

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts
from experiments.parts.foreign_kinds import replay
from experiments.parts.foreign_stage import Candidates, Stage, rephrased
from experiments.parts.judging import Judged
from experiments.parts.prompt_limits import prompt_of
from experiments.parts.training import with_adapters
from rl_jax.core.binding import resolve
from rl_jax.core.types import TokenBatch
from rl_jax.selection import evolving, foreign_rows
from rl_jax.training.scoring import make_score

FAILED = "evolved_from"  # of the memory


def evolved(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    generator: str = "rl_jax.selection.evolving:similar_sum",
    seeds: int = 10,
    keep: int = 64,
    low: float = 0.05,
    high: float = 0.75,
) -> Candidates | None:
    """Groups of new tasks, made from tasks that failed, in the place of groups that are solved.

    The tasks of this step without a right answer are remembered. Each wanted group whose answers are all right is given
    a task that `generator` makes of `seeds` failed ones; the policy answers it G times, and the group is kept if the
    share of right answers is from `low` to `high`: a sampled estimate in place of the critic's. What is right is what
    the run's reward says: an outcome model's judgement if config.judge has one. Source: arXiv 2411.02337.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      generator: import path of (failed records, rng) -> record.
      seeds: failed tasks that a new one is made from.
      keep: failed tasks that are remembered, the newest.
      low: least success of a task that is trained on.
      high: its most.

    Raises:
      ValueError: if the generator cannot use a failed task.
    """
    make = resolve(generator)
    return _evolved(
        stage,
        judged,
        wanted,
        lambda drawn: {group: make(failed, rng) for group, (failed, rng) in drawn.items()},
        seeds=seeds,
        keep=keep,
        low=low,
        high=high,
    )


def written(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    template: str = "={tasks}",
    reads: str = "rl_jax.selection.evolving:read_sum",
    seeds: int = 2,
    keep: int = 64,
    low: float = 0.05,
    high: float = 0.75,
) -> Candidates | None:
    """`evolved` with the policy itself as the author: it reads failed tasks and writes G new ones.

    Of these the first one is taken that can be read, fits a prompt and is none of those that it has read. The author
    of the paper is GPT-4o. Source: arXiv 2411.02337.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      template: what the policy is asked, with {tasks}, the failed ones one after the other; a small model has to be
        shown it (rl_jax.tasks.self_judged, made=True), a large one is asked in words.
      reads: import path of (text) -> record or None.
      seeds: failed tasks that it reads.
      keep: failed tasks that are remembered, the newest.
      low: least success of a task that is trained on.
      high: its most.
    """
    read, fits = resolve(reads), functools.partial(_fits, stage)

    def make(drawn: dict[int, tuple[list[dict], random.Random]]) -> dict[int, dict]:
        records = stage.records(judged)
        asked = list(records)
        for group, (failed, _) in drawn.items():
            told = "".join(one["prompt"] for one in failed)
            asked[group] = rephrased(asked[group], lambda _, told=told: template.replace("{tasks}", told))
        prompts = encode_prompts(stage.setup, [asked[i] for i in stage.own_prompts])
        said = stage.judge(stage.draw(*prompts, jax.random.fold_in(stage.key, 3)), asked).completions
        found = {}
        for group, (failed, _) in drawn.items():
            texts, size = {one["prompt"] for one in failed}, stage.group_size
            tasks = filter(None, map(read, said[group * size : (group + 1) * size]))
            task = next((one for one in tasks if one["prompt"] not in texts and fits(records[group], one)), None)
            found |= {} if task is None else {group: task}
        return found

    return _evolved(stage, judged, wanted, make, seeds=seeds, keep=keep, low=low, high=high)


def _asking(record: dict, task: dict) -> dict:
    """The record with a task in the place of its own; of a chat, the user's last message asks it."""
    return rephrased(record, lambda _: task["prompt"]) | task


def _fits(stage: Stage, record: dict, task: dict) -> bool:
    """Whether a task fits the largest bucket of prompts where the record's own stood."""
    length = len(stage.setup.task.tokenizer.encode(prompt_of(_asking(record, task)), bos=True))
    return length <= max(stage.setup.config.rollout.prompt_buckets)


def _evolved(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    make: Callable[[dict[int, tuple[list[dict], random.Random]]], dict[int, dict]],
    *,
    seeds: int,
    keep: int,
    low: float,
    high: float,
) -> Candidates | None:
    """The candidates of `evolved`. make: {group: (failed records, rng)} -> {group: new record} of those it can make."""
    size, records, memory = stage.group_size, stage.records(judged), stage.memory.answers
    right = foreign_rows.right_rows(judged.result.rewards, size, above=stage.above)
    failed = memory.get(FAILED)["successes"]
    asked = wanted & (right == size) if failed else np.zeros(len(records), bool)
    found, made = None, {}
    if asked.any():
        made = make(_drawn(np.asarray(jax.random.key_data(stage.key)).tolist(), failed, np.flatnonzero(asked), seeds))
    if made:
        told, new = list(records), np.isin(np.arange(len(records)), list(made))
        for group, record in made.items():
            told[group] = _asking(records[group], record)
        prompts = encode_prompts(stage.setup, [told[i] for i in stage.own_prompts])
        answered = stage.judge(stage.draw(*prompts, jax.random.fold_in(stage.key, 2)), told)
        success = foreign_rows.right_rows(answered.result.rewards, size, above=stage.above) / size
        kept = new & evolving.learnable(success, low=low, high=high)
        metrics = {"asked": float(asked.sum()), "success": float(success[new].mean()), "kept": float(kept.sum())}
        metrics |= {"made": float(new.sum())}
        found = Candidates(answered, np.repeat(kept[:, None], size, axis=1), foreign=False, metrics=metrics)
    for group in np.flatnonzero(right == 0):
        memory.add_success(FAILED, {name: records[group][name] for name in ("prompt", "info")}, keep=keep)
    return found


def _drawn(
    seed: list, failed: Sequence[dict], groups: np.ndarray, seeds: int
) -> dict[int, tuple[list[dict], random.Random]]:
    """For each group some failed tasks, and the dice that drew them."""
    found = {}
    for group in groups.tolist():
        rng = random.Random(f"{seed} {group}")
        found[group] = (rng.sample(failed, min(seeds, len(failed))), rng)
    return found


def familiar_replay(
    stage: Stage, judged: Judged, wanted: np.ndarray, *, size: int = 8, low: float = 0.5, high: float = 0.95
) -> Candidates | None:
    """`replay` without answers that the policy of the moment has by heart, or finds strange (evolving.familiar).

    Source: arXiv 2411.02337, which keeps actions of a perplexity from 1 / .95 to 1 / .5.

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      size: answers kept per prompt.
      low: least geometric mean of an answer's probabilities.
      high: its most.
    """
    found = replay(stage, judged, wanted, size=size)
    if found is None:
        return None
    rollout, score = found.judged.rollout, stage.setup.config.score
    read = _scorer(stage.setup, rollout.completion_mask.shape[1], score.chunk)
    log_probs = np.asarray(read(stage.params, TokenBatch(*rollout.batch[:3])))
    fits = evolving.familiar(log_probs, np.asarray(rollout.completion_mask), low=low, high=high)
    usable = found.usable & fits.reshape(found.usable.shape)
    return found._replace(usable=usable, metrics={"familiar": float(fits[found.usable.ravel()].mean())})


@functools.lru_cache(maxsize=1)
def _scorer(setup, length: int, chunk: int):
    """Compiled (params, TokenBatch) -> log-probs float [B, C]."""
    score = with_adapters(setup, make_score(setup.model, completion_length=length, chunk=chunk))
    return jax.jit(lambda params, rows: score(params, rows).log_probs)
