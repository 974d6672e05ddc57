"""A judge whose questions evolve during the run: meta policy optimization (MPO, arXiv 2504.20157).

    reward   R(x, y) = mean_k s_k / high, s_k the grade that the judge gives for criterion k of the rubric
    every n steps, a meta judge reads rows of the step: prescreen (good, ok, bad) -> analyse and refine, for each row
    -> merge: the new rubric

The rubric is text. It is in every checkpoint, so that a run that was stopped goes on with it.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from experiments.parts.judges import generative
from experiments.parts.judges.base import Judge, Rows, Verdict, judge_prompts
from experiments.parts.processes import replicate
from experiments.parts.setup import Setup
from rl_jax.preferences.judge_task import fill

SCORE = (
    "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nCriterion: {criterion}\n\nGrade the answer by the criterion "
    "from 0 to {high}. Grade:"
)
PRESCREEN = (
    "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nRubric:\n{rubric}\n\nGrade that it was given: {score} of 1\n\n"
    "How good is this grading, good, ok or bad? Verdict:"
)
REFINE = (
    "Question:\n{prompt}\n\nAnswer:\n{completion}\n\nRubric:\n{rubric}\n\nGrade that it was given: {score} of 1\n\n"
    "What does the rubric miss? Write a better rubric, each criterion on a line that begins with '- ':\n"
)
MERGE = "Rubrics:\n{rubrics}\n\nMerge them into one, each criterion once, on a line that begins with '- ':\n"
MAX_BYTES = 8192  # of a rubric
NEWLINE = "\n"


def evolving(
    setup: Setup,
    *,
    path: str,
    rubric: Sequence[str],
    meta: str = "",
    retrain_every: int = 10,
    samples: int = 20,
    most: int = 8,
    high: int = 10,
    score: str = SCORE,
    prescreen: str = PRESCREEN,
    refine: str = REFINE,
    merge: str = MERGE,
    max_tokens: int = 8,
    meta_tokens: int = 256,
    batch_size: int = 16,
) -> Judge:
    """The mean grade over the criteria of a rubric, in [0, 1]; the rubric is rewritten every `retrain_every` steps.

    Prescreening puts the rows whose grading the meta judge calls bad first, then those that are ok, then the others. A
    refinement or a merged rubric without criteria is left out (`refined`, `criteria` are logged), so that a meta judge
    that says nothing changes nothing. Asked greedily; the paper's code samples at a temperature of .02.

    Args:
      setup: of the run.
      path: the judge: workdir of a run or a Hugging Face folder.
      rubric: the first criteria.
      meta: the meta judge; "": the judge itself.
      retrain_every: n, steps between updates of the rubric; 10 in the paper's code, 20 in its mathematics.
        0: a fixed rubric.
      samples: rows that the meta judge reads, 20 in the paper's code.
      most: criteria of a rubric.
      high: best grade of a criterion.
      score: the judge's question, with {prompt}, {completion}, {criterion} and {high}.
      prescreen: the meta judge's, with {prompt}, {completion}, {rubric} and {score}.
      refine: likewise.
      merge: with {rubrics}.
      max_tokens: longest answer of the judge and of prescreening.
      meta_tokens: longest rubric that the meta judge writes.
      batch_size: questions per call of the sampler.

    Raises:
      ValueError: if the rubric is empty or too long, or a number is out of its range.
    """
    if not rubric or isinstance(rubric, str) or not all(str(line).strip() for line in rubric):
        raise ValueError(f"evolving.rubric={rubric!r}: give a sequence of texts, one for each criterion")
    if min(samples, most, high) < 1:
        raise ValueError(f"evolving: samples={samples}, most={most} and high={high} must be at least 1")
    ask = generative.Cached(generative.make_ask(setup, path, "evolving.path", max_tokens, batch_size))
    source, what = meta or path, "evolving.meta" if meta else "evolving.path"
    screen, write = (generative.make_ask(setup, source, what, size, batch_size) for size in (max_tokens, meta_tokens))
    state = Rubric(setup, [" ".join(str(line).split()) for line in rubric], retrain_every)
    texts = dict(score=score, prescreen=prescreen, refine=refine, merge=merge)
    return _Evolving(state, ask, (screen, write), texts, (samples, most, high))


class Rubric:
    """The criteria, and when they are rewritten: what a checkpoint holds of the judge.

    Attributes:
      criteria: texts.
      seen: steps so far.
      needs_labels: False, the meta judge is the teacher.
    """

    needs_labels = False

    def __init__(self, setup: Setup, criteria: Sequence[str], every: int):
        self._setup, self._every, self.seen = setup, every, 0
        self.criteria: tuple[str, ...] = ()
        self.set(criteria)

    def set(self, criteria: Sequence[str]) -> None:
        """Replaces the criteria. Raises ValueError if they are longer than MAX_BYTES."""
        size = len(NEWLINE.join(criteria).encode())
        if size > MAX_BYTES:
            raise ValueError(f"evolving.rubric has {size} bytes, more than {MAX_BYTES}: use fewer or shorter criteria")
        self.criteria = tuple(criteria)

    def due(self) -> bool:
        """Counts a step. Returns whether the rubric is to be rewritten in it."""
        self.seen += 1
        return self._every > 0 and self.seen % self._every == 0

    def carried(self) -> dict[str, Any]:
        """What a checkpoint holds of it: the text as bytes, 0 after its end."""
        found = np.zeros(MAX_BYTES, np.uint8)
        written = np.frombuffer(NEWLINE.join(self.criteria).encode(), np.uint8)
        found[: len(written)] = written
        return replicate(self._setup.mesh, {"rubric": jnp.asarray(found), "seen": jnp.int32(self.seen)})

    def set_carried(self, items: dict[str, Any]) -> None:
        """Puts back what `carried` gave."""
        text = np.asarray(items["rubric"]).tobytes().rstrip(b"\0").decode()
        self.criteria, self.seen = tuple(text.split(NEWLINE)), int(items["seen"])


class _Evolving:
    """The judge of `evolving`."""

    def __init__(self, state: Rubric, ask: Callable, meta: tuple[Callable, Callable], texts: dict, numbers: tuple):
        self.learner, self._ask, self._meta, self._texts, self._numbers = state, ask, meta, texts, numbers

    def __call__(self, judged: Rows) -> Verdict:
        criteria, high = self.learner.criteria, self._numbers[2]
        questions = [
            fill(self._texts["score"], prompt=prompt, completion=text, criterion=criterion, high=str(high))
            for prompt, text in zip(judge_prompts(judged.records), judged.completions, strict=True)
            for criterion in criteria
        ]
        found = [re.search(r"\d{1,6}", said) for said in self._ask(questions)]
        grades = np.array([min(int(match[0]), high) / high if match else 0.0 for match in found], np.float32)
        lost = np.array([match is None for match in found], np.float32)
        shape = (len(judged.completions), len(criteria))
        parts = {"unparsed": lost.reshape(shape).mean(axis=1)}
        parts["criteria"] = np.full(shape[0], shape[1], np.float32)
        return Verdict(grades.reshape(shape).mean(axis=1), components=parts)

    def learn(self, judged: Rows, labels: np.ndarray | None) -> dict[str, float]:
        """Rewrites the rubric by the step's rows. labels: not read. Returns metrics."""
        samples, most, _ = self._numbers
        rubric = listed(self.learner.criteria)
        scores = self(judged).rewards
        rows = [
            dict(prompt=prompt, completion=text, rubric=rubric, score=f"{score:.2f}")
            for prompt, text, score in zip(judge_prompts(judged.records), judged.completions, scores, strict=True)
        ]
        rows = list({(row["prompt"], row["completion"]): row for row in rows}.values())
        said = self._meta[0]([fill(self._texts["prescreen"], **row) for row in rows])
        ranks = [next((k for k, word in enumerate(("bad", "ok")) if word in text.lower()), 2) for text in said]
        chosen = sorted(range(len(rows)), key=lambda place: ranks[place])[:samples]
        written = self._meta[1]([fill(self._texts["refine"], **rows[place]) for place in chosen])
        refined = [criteria for criteria in map(read_criteria, written) if criteria]
        merged: list[str] = []
        if refined:
            asked = fill(self._texts["merge"], rubrics=(NEWLINE * 2).join([rubric, *map(listed, refined)]))
            merged = read_criteria(self._meta[1]([asked])[0])[:most]
        if merged and len(NEWLINE.join(merged).encode()) <= MAX_BYTES:
            self.learner.set(merged)
        changed = tuple(merged) == self.learner.criteria and bool(merged)
        return {
            "bad": float(np.mean([rank == 0 for rank in ranks])),
            "refined": float(len(refined)),
            "criteria": float(len(self.learner.criteria)),
            "merged": float(changed),
        }


def listed(criteria: Sequence[str]) -> str:
    """The criteria, each on a line after "- "."""
    return NEWLINE.join(f"- {text}" for text in criteria)


def read_criteria(text: str) -> list[str]:
    """The different criteria of a text, those of its lines that begin with "- "."""
    lines = [line.strip().removeprefix("- ").strip() for line in text.split(NEWLINE) if line.strip().startswith("- ")]
    return list(dict.fromkeys(line for line in lines if line))
