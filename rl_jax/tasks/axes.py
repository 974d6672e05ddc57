"""Sums asked in the ways that tell what a model lacks: the axes of SPARKLE (arXiv 2506.04723).

    plain         3+5-2+7=
    plan          3,+5,-2,+7:3+5-2+7=                what to do next, without results
    knowledge     6+7=13,8-2=6,3+5=8:3+5-2+7=        what one has to know, in another order
    partial       3+5-2+7=8=6=                       the first steps of the solution
    subproblems   3+5=    8-2=    6+7=               each step on its own, with the right total before it

A model that gains by the plan cannot plan, one that gains by knowledge does not know; one that solves all subproblems
but not the problem cannot put them together. `partial` is also how the paper trains on problems that are too hard.
"""

import itertools
import json
import re
from collections.abc import Mapping, Sequence

from rl_jax import tasks
from rl_jax.tasks.base import RecordSource, Task
from rl_jax.tokenizers import CharTokenizer

ARMS = ("plain", "plan", "knowledge", "partial", "subproblems")
ALPHABET = "0123456789+-=,:"
SPLITS = ("sft_train", "train", "test")


def load(
    *,
    of: Mapping,
    sft_arms: Sequence[str] = ARMS,
    train_arms: Sequence[str] = ("plain",),
    test_arms: Sequence[str] = ("plain",),
    fraction: float = 0.5,
) -> Task:
    """The task arithmetic with its problems asked in several ways.

    Args:
      of: keywords of rl_jax.tasks.load of the task arithmetic, worked.
      sft_arms: of ARMS, the ways in which demonstrations are asked.
      train_arms: the same of the training prompts.
      test_arms: the same of the test prompts.
      fraction: of the steps, rounded down, that `partial` gives; never the last one.

    Returns:
      Task. A record's info has `arm`, `problem` (the index of its problem in the split) and its own `answer`.

    Raises:
      ValueError: if an arm is unknown, or the fraction is not in [0, 1].
    """
    arms = dict(zip(SPLITS, (tuple(sft_arms), tuple(train_arms), tuple(test_arms)), strict=True))
    for split, chosen in arms.items():
        if not chosen or set(chosen) - set(ARMS):
            raise ValueError(f"{split.removesuffix('_train')}_arms={chosen} must be of {', '.join(ARMS)}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction={fraction} must be in [0, 1]")
    task = tasks.load(**of)
    return task._replace(
        name="axes",
        tokenizer=CharTokenizer(ALPHABET),
        data_source=lambda split: Asked(task.data_source(split), arms[split], fraction),
    )


class Asked(RecordSource):
    """The problems of a source, each asked in some ways; the ways of a problem follow each other."""

    def __init__(self, source, arms: Sequence[str], fraction: float):
        """source: of the task arithmetic. arms: of ARMS. fraction: see `load`."""
        super().__init__(source, name="axes", split=source.split, report=source.report)
        self._places = []
        for problem in range(len(source)):
            for arm in arms:
                parts = len(terms_of(source[problem]["prompt"])) - 1 if arm == "subproblems" else 1
                self._places += [(problem, arm, part) for part in range(parts)]
        self._fraction = fraction

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> dict[str, str]:
        problem, arm, part = self._places[index]
        record = self._data[problem]
        info = json.loads(record["info"]) | {"arm": arm, "problem": problem}
        prompt, completion = ask(record["prompt"], record["completion"], arm, part=part, fraction=self._fraction)
        if arm == "subproblems":
            info["answer"] = int(completion)
        return {"prompt": prompt, "completion": completion, "info": json.dumps(info)}


def terms_of(prompt: str) -> list[int]:
    """The signed terms of "3+5-2="."""
    return [int(x) for x in re.findall(r"[+-]?\d+", prompt)]


def ask(prompt: str, completion: str, arm: str, *, part: int = 0, fraction: float = 0.5) -> tuple[str, str]:
    """(prompt, completion) of a sum asked in one way.

    Args:
      prompt: "3+5-2+7=".
      completion: a demonstration, "8=6=13", which may stop early.
      arm: of ARMS.
      part: of a subproblem, counted from 0.
      fraction: of the steps that `partial` gives.
    """
    terms = terms_of(prompt)
    totals = list(itertools.accumulate(terms))
    steps = [f"{before}{term:+d}={after}" for before, term, after in zip(totals, terms[1:], totals[1:], strict=False)]
    if arm == "subproblems":
        question, _, answer = steps[part].rpartition("=")
        return question + "=", answer
    if arm == "plan":
        return ",".join([str(terms[0]), *(f"{term:+d}" for term in terms[1:])]) + ":" + prompt, completion
    if arm == "knowledge":
        return ",".join(sorted(steps, reverse=True)) + ":" + prompt, completion
    if arm == "partial":
        given = min(int(fraction * len(steps)), len(steps) - 1)
        rest = completion.split("=")[given:] or [str(totals[given + 1])]
        return prompt + "".join(f"{total}=" for total in totals[1 : given + 1]), "=".join(rest)
    return prompt, completion
