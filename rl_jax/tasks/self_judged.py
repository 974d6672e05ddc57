"""Sums that are solved, and solutions that are judged, by one model: Self-PRM (arXiv 2505.11227).

    "13+5-2+7="                "18=16=23"   a problem and its running totals
    "13+5-2+7=18=15=22=="      "1"          a solution, and its first wrong step from 0; -1 if no step is wrong

The verdict is ProcessBench's (arXiv 2412.06559): the first wrong step or -1. With made=True, for a model that makes its
own tasks as well (arXiv 2411.02337), it is shown

    "=13+5-2+7=9-1+4-6="       "9-2+1+7="   two problems, and one like them
"""

import json
import random
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.rewards import arithmetic
from rl_jax.selection import evolving
from rl_jax.tasks.base import RecordSource, Task

MARK = "=="  # after a solution that is to be judged
OFFS = (-10, -2, -1, 1, 2, 10)


class SolvedAndJudged(RecordSource):
    """Two records for each of a source: its own, and one of its solution, which is wrong in `wrong_share` of them."""

    def __init__(self, source, wrong_share: float, separator: str):
        """source: of the task. The rest: see `load`."""
        super().__init__(source, name="self_judged", split=source.split, report=source.report)
        self._share, self._separator = wrong_share, separator

    def __len__(self) -> int:
        return 2 * len(self._data)

    def __getitem__(self, index: int) -> dict[str, str]:
        index = range(len(self))[index]
        record = self._data[index // 2]
        if index % 2 == 0:
            return {**record, "source": "solved", "info": _with_steps(record, self._separator)}
        rng = random.Random(f"{record['prompt']} {index}")
        steps, place = record["completion"].split(self._separator), -1
        if rng.random() < self._share:
            place, off = rng.randrange(len(steps)), rng.choice(OFFS)
            steps = steps[:place] + [str(int(step) + off) for step in steps[place:]]
        prompt = record["prompt"] + self._separator.join(steps) + MARK
        info = json.dumps({"answer": place, "verdict": True})
        return {"prompt": prompt, "completion": str(place), "info": info, "source": "wrong" if place >= 0 else "right"}


class WithMade(RecordSource):
    """The records of a source, then one for each problem of another: two problems, and one that is made of them."""

    def __init__(self, source, problems):
        """source: what comes first. problems: of the task."""
        super().__init__(source, name="self_judged", split=source.split, report=source.report)
        self._problems = problems

    def __len__(self) -> int:
        return len(self._data) + len(self._problems)

    def __getitem__(self, index: int) -> dict[str, str]:
        index = range(len(self))[index]
        if index < len(self._data):
            return self._data[index]
        place = index - len(self._data)
        two = [self._problems[place], self._problems[(place + 1) % len(self._problems)]]
        said = evolving.similar_sum(two, random.Random(place))["prompt"]
        prompt = "=" + "".join(record["prompt"] for record in two)
        return {"prompt": prompt, "completion": said, "info": two[0]["info"], "source": "made"}


class Problems(RecordSource):
    """The problems alone, with their true steps in info."""

    def __init__(self, source, separator: str):
        """source: of the task."""
        super().__init__(source, name="self_judged", split=source.split, report=source.report)
        self._separator = separator

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        return {**record, "info": _with_steps(record, self._separator)}


def _with_steps(record: dict, separator: str) -> str:
    return json.dumps({**json.loads(record["info"]), "steps": record["completion"].split(separator)})


def first_error(completion: str, steps: list[str], separator: str = "=") -> int:
    """The first step of the completion that is not the true one, or is missing or too much; -1 if there is none."""
    said = completion.split(separator)
    for place in range(max(len(said), len(steps))):
        if said[place : place + 1] != steps[place : place + 1]:
            return place
    return -1


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """rewards.arithmetic.score of a problem's solution; of a verdict, 1 if it names the first wrong step."""
    if not info.get("verdict"):
        return arithmetic.score(prompt, completion, info)
    said = completion.strip()
    right = float(said == str(info["answer"]))
    return {"reward": right, "correct": right, "format": float(said == "-1" or said.isdecimal())}


def load(*, of: Mapping, wrong_share: float = 0.5, separator: str = "=", made: bool = False) -> Task:
    """A task whose records are problems and verdicts on their solutions.

    Splits: sft_train and test have both, with metrics of their own for each `source` (solved, wrong, right); train and
    problems (of the test split) have the problems alone. The reward of a verdict: 1 if it names the first wrong step.

    Args:
      of: keywords of rl_jax.tasks.load of arithmetic, the name among them; its solutions are right ones.
      wrong_share: of the solutions that are judged, in [0, 1], with a wrong step.
      separator: between the steps.
      made: whether sft_train also shows how a problem is made of two others.

    Returns:
      Task.

    Raises:
      ValueError: if wrong_share is no share, or `of` is another task or stops too early.
    """
    if not 0 <= wrong_share <= 1:
        raise ValueError(f"wrong_share={wrong_share} must be in [0, 1]")
    if of.get("name") != "arithmetic":
        raise ValueError(f"of.name={of.get('name')!r}: only the steps of 'arithmetic' are judged")
    if of.get("unfinished_share"):
        raise ValueError(f"of.unfinished_share={of['unfinished_share']}: solutions to judge are whole ones; leave it 0")
    task = tasks.load(**of)

    def source(split: str) -> RecordSource:
        base = task.data_source("test" if split == "problems" else split)
        alone = split in ("train", "problems")
        both = Problems(base, separator) if alone else SolvedAndJudged(base, wrong_share, separator)
        return WithMade(both, base) if made and split == "sft_train" else both

    return task._replace(name=f"self_judged_{task.name}", data_source=source, reward_fn=score)
