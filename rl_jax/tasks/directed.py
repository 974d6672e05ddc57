"""Prompts that say which of two rewards is wanted how much: directional preference alignment (arXiv 2402.18571).

    "cMia saw a red bird." -> " She was glad."      c: the third of L directions v = (cos angle, sin angle)
    reward = v . (the task's own reward, verbosity)

The paper writes v into the system prompt as integers; here a letter before the prompt stands for it. Each record comes
once with each direction, so prompts and directions are drawn alike. A letter means nothing to a model that never saw
one: demonstrations can be chosen by the direction, too (`demonstrations="best"`).
"""

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping

from rl_jax import tasks
from rl_jax.tasks.base import RecordSource, Task


class Directed(RecordSource):
    """The records of a source, each once with each mark before its prompt."""

    def __init__(self, source, marks: str, angles: tuple[float, ...], choose: Callable | None = None):
        """source: of the task. marks: L letters. angles: of each, in degrees. choose: (prompt, record) -> its text."""
        super().__init__(source, name="directed", split=source.split, report=source.report)
        self._marks, self._angles, self._choose = marks, angles, choose

    def __len__(self) -> int:
        return len(self._data) * len(self._marks)

    def __getitem__(self, index: int) -> dict[str, str]:
        place, direction = divmod(range(len(self))[index], len(self._marks))
        record = self._data[place]
        source = f"{self._angles[direction]:+.0f}"
        prompt = self._marks[direction] + record["prompt"]
        if self._choose and "completion" in record:
            record = {**record, "completion": self._choose(prompt, record)}
        return {**record, "prompt": prompt, "source": source}


def cuts(text: str) -> list[str]:
    """The first 1, 2, ... and all of a text's sentences, each with those before it. Sentences end with ". "."""
    sentences = text.split(". ")
    return [". ".join(sentences[:count]) + "." for count in range(1, len(sentences))] + [text]


def drawn(prompt: str, record: Mapping) -> str:
    """One of the cuts of a record's completion, which a hash of the prompt draws: no direction can be told from it."""
    found = cuts(record["completion"])
    return found[hashlib.sha256(f"cut {prompt}".encode()).digest()[0] % len(found)]


def best(prompt: str, record: Mapping, **fields) -> str:
    """argmax_y v . r(x, y) over the cuts y of a record's completion, the shortest of equals.

    Args:
      prompt: with its direction's letter.
      record: with a completion.
      **fields: keywords of `directed`.
    """
    info = json.loads(record.get("info", "{}"))
    return max(cuts(record["completion"]), key=lambda text: directed(prompt, text, info, **fields)["reward"])


def load(
    *,
    of: Mapping,
    marks: str = "abcde",
    low: float = -45.0,
    high: float = 45.0,
    length: int = 64,
    demonstrations: str = "whole",
) -> Task:
    """A task whose prompts begin with a direction, and whose reward is that direction's sum of two rewards.

    Args:
      of: keywords of rl_jax.tasks.load, its name among them.
      marks: L different letters of the tokenizer, for angles from `low` to `high`.
      low: first angle, in degrees; 0 is the task's own reward, 90 verbosity, negative angles want short answers.
      high: last angle.
      length: characters of an answer whose verbosity is 1.
      demonstrations: "whole", as they are; "drawn", each ends after a sentence that is drawn, because samples of a
        policy that imitates texts of one length give a direction nothing to choose from; "best", after the sentence
        that its own direction wants, which is rejection sampling among the cuts.

    Returns:
      Task. Its reward has the components task and verbosity.

    Raises:
      ValueError: if marks are equal or fewer than two, the length is not positive, the demonstrations are of no known
        kind, or the task has no reward.
    """
    if len(marks) < 2 or len(set(marks)) < len(marks) or length < 1:
        raise ValueError(f"marks={marks!r} must be two different letters or more, and length={length} at least 1")
    if demonstrations not in ("whole", "drawn", "best"):
        raise ValueError(f"demonstrations={demonstrations!r} is none of whole, drawn, best")
    task = tasks.load(**of)
    if task.reward_fn is None:
        raise ValueError(f"the task {task.name} has no reward: its direction would be the length alone")
    angles = tuple(low + (high - low) * i / (len(marks) - 1) for i in range(len(marks)))
    kept = {"of": f"{task.reward_fn.__module__}:{task.reward_fn.__qualname__}", "keywords": dict(task.reward_kwargs)}
    fields = kept | {"marks": marks, "angles": angles, "length": length}
    choose = {"whole": None, "drawn": drawn, "best": functools.partial(best, **fields)}[demonstrations]
    return task._replace(
        name=f"directed_{task.name}",
        data_source=lambda split: Directed(task.data_source(split), marks, angles, choose),
        reward_fn=directed,
        reward_kwargs=fields,
    )


def directed(
    prompt: str, completion: str, info: dict, *, of: str, keywords: Mapping, marks: str, angles: tuple, length: int
) -> dict[str, float]:
    """v . (r, min(characters / length, 1)) with the v that the prompt's first letter stands for.

    Args:
      prompt: its first letter is one of `marks`.
      completion: the answer.
      info: of the task.
      of: import path of the task's reward.
      keywords: of that reward.
      marks: the letters.
      angles: of each, in degrees.
      length: characters whose verbosity is 1.
    """
    from rl_jax.core.binding import resolve

    angle = math.radians(angles[marks.index(prompt[0])])
    own = float(resolve(of)(prompt[1:], completion, info, **keywords)["reward"])
    verbosity = min(len(completion) / length, 1.0)
    return {"reward": math.cos(angle) * own + math.sin(angle) * verbosity, "task": own, "verbosity": verbosity}
