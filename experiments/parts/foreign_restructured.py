"""A kind of config.foreign: the policy itself rewrites the problems it finds hard or half hard, and learns to (CLPO).

Named in a config by its import path, "experiments.parts.foreign_restructured:restructured".
"""

from collections.abc import Sequence

import jax
import numpy as np

from experiments.parts.encoding import encode_prompts
from experiments.parts.foreign_stage import Candidates, Stage, put, rephrased
from experiments.parts.judging import Judged
from experiments.parts.prompt_limits import prompt_of
from rl_jax.core.binding import resolve
from rl_jax.selection import foreign_rows, rewriting
from rl_jax.tasks.restructured import INSTRUCTIONS


def restructured(
    stage: Stage,
    judged: Judged,
    wanted: np.ndarray,
    *,
    hard: float = 0.3,
    medium: float = 0.7,
    instructions: Sequence[str] = INSTRUCTIONS,
    reads: str = "rl_jax.selection.rewriting:a_sum",
    answers: int = 2,
    unreadable: float = -1.0,
    train_rewriting: bool = True,
) -> Candidates | None:
    """Groups of problems that the policy has rewritten, and the groups of rewritings themselves.

    Of a hard or medium problem x the policy writes G rewritings x'_i and answers each `answers` times. The one whose
    answers differ most is asked G times; if some of these are right and some wrong, the group takes the place that
    rewriting.slots gives it. The rewritings are a group, too, with the reward acc(x'_i) - acc(x), the gain in accuracy:
    it takes the place of a group whose rewards are all equal. Every answer is judged by the record of x, so that a
    rewriting with another answer loses. Source: arXiv 2509.25004 (its second version trains the rewriting by this
    gain; its loss could not be read, nor how often a rewriting is answered).

    Args:
      stage: of the step.
      judged: the step's rows.
      wanted: bool [N].
      hard: a group with at most this share of right answers is hard.
      medium: one with more, up to this share, is medium; the others are easy.
      instructions: templates with {prompt}, for hard problems and for medium ones.
      reads: import path of (completion, problem) -> the rewritten problem, or None if it is none.
      answers: samples of each rewriting, for its accuracy.
      unreadable: reward of a rewriting that is no problem.
      train_rewriting: whether rewritings are trained on (the second version); False: only what was rewritten (the
        first).

    Raises:
      ValueError: if a threshold is out of its range, or answers is below 1.
    """
    if answers < 1:
        raise ValueError(f"answers={answers} must be at least 1")
    size, records = stage.group_size, stage.records(judged)
    accuracy = foreign_rows.right_rows(judged.result.rewards, size, above=stage.above) / size
    kinds = rewriting.difficulty(accuracy, hard=hard, medium=medium)
    asked = wanted & (kinds < 2)
    if not asked.any():
        return None
    told = [
        rephrased(record, lambda text, kind=kind: instructions[kind].format(prompt=text)) if of_kind else record
        for record, kind, of_kind in zip(records, kinds, asked, strict=True)
    ]
    written = _ask(stage, told, 2)
    read, texts = resolve(reads), np.full((len(records), size), None, object)
    for group in np.flatnonzero(asked):
        for row in range(size):
            said = read(written.completions[group * size + row], records[group]["prompt"])
            texts[group, row] = said if said and _fits(stage, records[group], said) else None
    readable = np.array([[text is not None for text in row] for row in texts])
    shares = _accuracies(stage, records, texts, answers)
    gains = np.where(readable, shares - accuracy[:, None], np.float32(unreadable)).astype(np.float32)
    chosen = np.argmax(np.where(readable, 1.0 + shares * (1.0 - shares), 0.0), axis=1)
    changed = [
        rephrased(record, lambda _, text=texts[group, chosen[group]]: text) if readable[group].any() else record
        for group, record in enumerate(records)
    ]
    found = _ask(stage, changed, 3)
    right = foreign_rows.right_rows(found.result.rewards, size, above=stage.above)
    places = rewriting.slots(kinds, asked & readable.any(axis=1) & (right > 0) & (right < size))
    spread = np.ptp(judged.result.rewards.reshape(-1, size), axis=1) > 0
    learned = asked & (np.ptp(gains, axis=1) > 0) & train_rewriting
    spare = rewriting.spare_slots(spread, [slot for slot, _ in places], learned)
    written = written._replace(result=written.result._replace(rewards=gains.ravel()))
    metrics = {
        "hard": float(np.mean(kinds == 0)),
        "medium": float(np.mean(kinds == 1)),
        "readable": float(readable[asked].mean()),
        "gain": float((shares - accuracy[:, None])[readable].mean()) if readable.any() else 0.0,
        "kept": float(len(places)),
        "rewriting_groups": float(len(spare)),
    }
    moved = _moved(stage, _moved(stage, found, found, places), written, spare)
    usable = np.zeros((len(records), size), bool)
    usable[[slot for slot, _ in places + spare]] = True
    return Candidates(moved, usable, foreign=False, metrics=metrics)


def _ask(stage: Stage, records: list[dict], number: int) -> Judged:
    """G samples of each of N records' prompts, judged."""
    prompts = encode_prompts(stage.setup, [records[i] for i in stage.own_prompts])
    return stage.judge(stage.draw(*prompts, jax.random.fold_in(stage.key, number)), records)


def _accuracies(stage: Stage, records: list[dict], texts: np.ndarray, answers: int) -> np.ndarray:
    """The share of right answers to each rewriting, float [N, G]; of one that is None, to the problem itself."""
    rows = [
        rephrased(records[group], lambda _, text=text: text) if text is not None else records[group]
        for group in stage.own_prompts
        for text in texts[group]
    ]
    prompts, right = encode_prompts(stage.setup, rows), np.zeros(texts.shape)
    for number in range(answers):
        drawn = stage.draw_rows(*prompts, jax.random.fold_in(stage.key, 4 + number))
        right += stage.judge(drawn, records).result.rewards.reshape(texts.shape) > stage.above
    return right / answers


def _fits(stage: Stage, record: dict, text: str) -> bool:
    """Whether the rewritten problem fits the largest bucket of prompts."""
    prompt = prompt_of(rephrased(record, lambda _: text))
    if not isinstance(prompt, str):
        return True  # ids are cut as config.rollout says
    return len(stage.setup.task.tokenizer.encode(prompt, bos=True)) <= max(stage.setup.config.rollout.prompt_buckets)


def _moved(stage: Stage, into: Judged, source: Judged, places: list[tuple[int, int]]) -> Judged:
    """`into` with groups of `source` at (slot, group)."""
    if not places:
        return into
    size = stage.group_size
    targets, rows = (np.array(x)[:, None] * size + np.arange(size) for x in zip(*places, strict=True))
    return put(into, source, targets.ravel(), rows.ravel(), stage.ends["pad_id"])
