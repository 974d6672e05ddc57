"""Hints as completions: the policy of directional stimulus prompting (arXiv 2302.11520).

    "3+5-2+7=" -> "8="      the first totals, which a frozen model is given after the prompt and goes on from

The paper's hints are keywords of a reference summary, extracted by a rule; ours are the first steps of a demonstration.
"""

import random
from collections.abc import Mapping

from rl_jax import tasks
from rl_jax.tasks.base import RecordSource, Task


class Hinted(RecordSource):
    """The records of a source whose demonstrations are hints."""

    def __init__(self, source, steps: int, separator: str, wrong_share: float):
        """source: of the task. The rest: see `load`."""
        super().__init__(source, name="hinted", split=source.split, report=source.report)
        self._steps, self._separator, self._share = steps, separator, wrong_share

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        parts = record["completion"].split(self._separator)[: self._steps]
        rng = random.Random(record["prompt"])
        if rng.random() < self._share:
            parts = [str(rng.randint(0, 9)) for _ in parts]
        return {**record, "completion": "".join(part + self._separator for part in parts)}


def load(*, of: Mapping, steps: int = 1, separator: str = "=", wrong_share: float = 0.5) -> Task:
    """A task whose completions are hints for another model; its reward is that of the other model's answer.

    Args:
      of: keywords of rl_jax.tasks.load, its name among them.
      steps: of a demonstration, that a hint has.
      separator: after each step.
      wrong_share: of the demonstrated hints, in [0, 1], that are random digits.

    Returns:
      Task, with the reward of the task `of`.

    Raises:
      ValueError: if a number is out of its range.
    """
    if steps < 1 or not separator or not 0 <= wrong_share <= 1:
        raise ValueError(f"steps={steps} must be 1 or more, separator={separator!r} a text, wrong_share in [0, 1]")
    task = tasks.load(**of)
    return task._replace(
        name=f"hinted_{task.name}",
        data_source=lambda split: Hinted(task.data_source(split), steps, separator, wrong_share),
    )
