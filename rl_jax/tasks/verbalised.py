"""Arithmetic whose answers end with a confidence from 0 to 9: "3+5-2+7=" -> "8=6=13=4". For RLCR (arXiv 2507.16806).

A demonstration's confidence is a digit drawn at random, by a hash of the prompt: it teaches the form and nothing else.
"""

import hashlib

from rl_jax.rewards import confidence
from rl_jax.tasks import arithmetic
from rl_jax.tasks.base import RecordSource, Task

PATTERN = r"(.*)=([0-9])\Z"
SCALE = 9.0
VERIFIER = "rl_jax.rewards.arithmetic:score"


class _WithConfidence(RecordSource):
    """A source whose completions have a confidence at the end."""

    def __init__(self, source: RecordSource):
        super().__init__(source, name="verbalised", split=source.split, report=source.report)

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[index]
        digit = hashlib.sha256(record["prompt"].encode()).digest()[0] % 10
        return record | {"completion": f"{record['completion']}={digit}"}


def load(*, calibration_weight: float = 1.0, **settings) -> Task:
    """The arithmetic task with confidences.

    Args:
      calibration_weight: of the reward, rl_jax.rewards.confidence.calibrated; 0 rewards right answers alone.
      **settings: of rl_jax.tasks.arithmetic.load.
    """
    task = arithmetic.load(**settings)
    keywords = dict(verifier=VERIFIER, pattern=PATTERN, scale=SCALE, calibration_weight=calibration_weight)
    return task._replace(
        name="verbalised",
        data_source=lambda split: _WithConfidence(task.data_source(split)),
        reward_fn=confidence.calibrated,
        reward_kwargs=keywords,
    )
