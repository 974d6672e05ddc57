"""What an outcome model of episodes reads, its verdict, and how far verdicts agree with what is right. No jax.

    verdict(I, a_1 ... a_T, page_T) = [P(YES) > P(NO)]

I is the instruction, a_t what was said, page_T the newest page; earlier pages are not read. Source: arXiv 2411.02337
(WebRL), the layout from THUDM/WebRL scripts/process_data.py, whose verdict is YES if both are as likely, too, and which
puts a sentence on the judge's part before it.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.data.readers import BadRecords, DataError, read_jsonl
from rl_jax.experience.trajectory import Trajectory

YES, NO = "YES", "NO"
RIGHT = 0.5  # a reward above it is a success


class Seen(NamedTuple):
    """What is read of an episode.

    Attributes:
      instruction: what was asked.
      actions: what was said, turn by turn.
      page: the newest one.
    """

    instruction: str
    actions: list[str]
    page: str


def seen_of(episode: Trajectory, instruction: str, decode: Callable[[list[int]], str]) -> Seen:
    """An episode as the outcome model reads it. What was read after the last action counts as a page, if there is any.

    Args:
      episode: of at least one segment.
      instruction: what was asked; without an answer of the environment the page is the prompt without it.
      decode: token ids -> text.
    """
    pages = [decode(span.ids.tolist()) for span in episode.segments[-1] if span.kind == "observation"]
    first = decode(episode.segments[-1][0].ids.tolist()).removeprefix(instruction)
    return Seen(instruction, [decode(span.ids.tolist()) for span in episode.sampled()], pages[-1] if pages else first)


def question(seen: Seen) -> str:
    """What the outcome model is asked, in the layout of the released code. An action of several lines becomes one."""
    actions = "".join("; ".join(said.split("\n")).strip() + "\n" for said in seen.actions)
    return (
        f"The User Intent:\n{seen.instruction.strip()}\n\nAction History:\n{actions}\n"
        f"The Current Screenshot:\n{seen.page.strip()}"
    )


def verdicts(log_probs: np.ndarray) -> np.ndarray:
    """Whether P(YES) > P(NO). float [N, 2], of YES and of NO -> bool [N].

    Raises:
      ValueError: if there are not two columns.
    """
    log_probs = np.asarray(log_probs)
    if log_probs.ndim != 2 or log_probs.shape[1] != 2:
        raise ValueError(f"log_probs {log_probs.shape} must be [N, 2], of {YES} and of {NO}")
    return log_probs[:, 0] > log_probs[:, 1]


def agreement(said: np.ndarray, right: np.ndarray) -> dict[str, float]:
    """accuracy, precision (right among YES) and recall (YES among right); those without a denominator are left out.

    Args:
      said: bool [N], the verdicts.
      right: bool [N].
    """
    said, right = np.asarray(said, bool), np.asarray(right, bool)
    parts = {"accuracy": said == right, "precision": right[said], "recall": said[right]}
    return {name: float(part.mean()) for name, part in parts.items() if part.size}


def record(seen: Seen, right: bool, **more: Any) -> dict[str, Any]:
    """A line of the outcome model's data: a prompt with its completion (tasks.records), and what they are made of."""
    said = YES if right else NO
    asked = {"prompt": question(seen), "completion": said, "answer": said}
    return asked | seen._asdict() | {"right": bool(right)} | more


def read(path: str | pathlib.Path) -> list[Mapping[str, Any]]:
    """The lines of a file of `record`.

    Raises:
      DataError: if the file is missing or empty, or a line lacks a field; names the file and the line.
    """
    if not pathlib.Path(path).is_file():
        raise DataError(f"{path} is no file: make one with python -m experiments.tools.outcomes play")
    found = [row for _, row in read_jsonl(path, {"prompt": str, "right": bool}, BadRecords())]
    if not found:
        raise DataError(f"{path} is empty: it holds no episode to judge")
    return found


def split(rows: Sequence[Mapping[str, Any]], held_out: Sequence[bool]) -> dict[str, list[Mapping[str, Any]]]:
    """{"train", "test"}: the rows, those of held-out tasks apart. A question that both ask is left out of "test"."""
    train = [row for row, out in zip(rows, held_out, strict=True) if not out]
    asked = {row["prompt"] for row in train}
    test = [row for row, out in zip(rows, held_out, strict=True) if out and row["prompt"] not in asked]
    return {"train": train, "test": test}
