"""Recorded answers as Rows, so that experiments.parts.rewards scores them without a model."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.parts.rewards import Rows
from rl_jax.core.types import Rollout
from rl_jax.rewards.pool import RewardResult


def make_rows(answers: Sequence[Mapping[str, Any]], group_size: int) -> Rows:
    """The Rows of answers.

    Args:
      answers: "prompt", "completion", "info" (a dict); "length" in tokens (default: characters), "truncated" (default:
        False), "source" and "id" if they have one. Those of a prompt are neighbours.
      group_size: answers per prompt.
    """
    lengths = np.array([answer.get("length", len(answer["completion"])) for answer in answers], np.int64)
    mask = np.arange(max(lengths, default=0)) < lengths[:, None]
    truncated = np.array([bool(answer.get("truncated", False)) for answer in answers], bool)
    records = [
        {"prompt": answer["prompt"], "info": json.dumps(answer["info"])}
        | {name: answer[name] for name in ("id", "source") if name in answer}
        for answer in answers
    ]
    rollout = Rollout(None, mask, None, None, ~truncated, truncated)
    return Rows(rollout, records, [answer["completion"] for answer in answers], group_size)


def groups(answers: Sequence[Mapping[str, Any]], same: Callable) -> Iterator[list[int]]:
    """Places of neighbours with an equal `same(answer)`, group by group."""
    start = 0
    for place in range(1, len(answers) + 1):
        if place == len(answers) or same(answers[place]) != same(answers[start]):
            yield list(range(start, place))
            start = place


def score_answers(score: Callable[[Rows], RewardResult], answers: Sequence[Mapping[str, Any]], same: Callable):
    """Scores answers, those with an equal `same(answer)` as one group.

    Args:
      score: experiments.parts.rewards.Rewards.
      answers: as make_rows takes them.
      same: what the answers of a group share.

    Returns:
      RewardResult of all answers, in their order.
    """
    by_size: dict[int, list[int]] = {}
    for places in groups(answers, same):
        by_size.setdefault(len(places), []).extend(places)
    rewards, failed = np.zeros(len(answers), np.float32), np.zeros(len(answers), bool)
    components: dict[str, np.ndarray] = {}
    timeouts, errors, first = 0, 0, None
    for size, places in by_size.items():
        result = score(make_rows([answers[place] for place in places], size))
        rewards[places], failed[places] = result.rewards, result.failed
        for name, column in result.components.items():
            components.setdefault(name, np.zeros(len(answers), np.float32))[places] = column
        timeouts, errors = timeouts + result.num_timeouts, errors + result.num_errors
        first = first or result.first_error
    return RewardResult(rewards, components, timeouts, errors, first, failed)
