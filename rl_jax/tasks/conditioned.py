"""Answers of any quality as demonstrations, each with what became of it: LeTI (arXiv 2305.10314).

    "+3+5-2+7=" -> "8=6=13"          a good answer, after the good token
    "-3+5-2+7=" -> "8=6+13"          a bad one, after the bad token, and what it was told

A model that is fine-tuned on both is asked with the good token. Answers come from the task's own demonstrations, or
from a file of sampled ones (rankings.jsonl of experiments.best_of_n), and the task's own reward says which are good.
"""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence

from rl_jax import tasks
from rl_jax.data import readers
from rl_jax.tasks.base import RecordSource, Task


class Conditioned(RecordSource):
    """The records of a source with the good or the bad token before the prompt, and feedback after a bad answer."""

    def __init__(self, source, label: Callable[[Mapping], tuple[str, str]]):
        """source: of the task. label: record -> (token, text after the completion)."""
        super().__init__(source, name="conditioned", split=source.split, report=source.report)
        self._label = label

    def __getitem__(self, index: int) -> dict[str, str]:
        record = self._data[range(len(self))[index]]
        token, after = self._label(record)
        return {**record, "prompt": token + record["prompt"], "completion": record["completion"] + after}


class Sampled(Sequence):
    """Sampled answers as demonstrations: one record for each response of each line of a rankings file."""

    def __init__(self, path: str, infos: Mapping[str, str]):
        """path: JSONL with prompt and responses. infos: prompt -> info of the task, JSON."""
        bad = readers.BadRecords()
        self._records, self.name, self.split, self.report = [], "sampled", "sft_train", {}
        for line, row in readers.read_objects(pathlib.Path(path), bad):
            prompt, responses = row.get("prompt"), row.get("responses")
            if prompt not in infos:
                bad.reject(path, line, f"{prompt!r:.60} is no training prompt of this task", field="prompt")
            if not isinstance(responses, list) or not all(isinstance(text, str) for text in responses):
                bad.reject(path, line, "expected a list of texts", field="responses")
            self._records += [{"prompt": prompt, "completion": text, "info": infos[prompt]} for text in responses]
        if not self._records:
            raise ValueError(f"{path} has no answers")

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, str]:
        return self._records[index]


def load(
    *,
    of: Mapping,
    path: str = "",
    good: str = "+",
    bad: str = "-",
    separator: str = "+",
    feedback: str = "{answer}",
    threshold: float = 0.5,
) -> Task:
    """A task whose demonstrations are marked as good or bad; prompts of the other splits are marked as good.

    Args:
      of: keywords of rl_jax.tasks.load, its name among them.
      path: a JSONL file of sampled answers, {"prompt", "responses": [...]}; "": the task's own demonstrations.
      good: the good token, before a prompt.
      bad: the bad token.
      separator: between a bad answer and its feedback; what follows it is not graded.
      feedback: what a bad answer is told, with {name} for what the record's info has; "": nothing.
      threshold: an answer is good if its reward is above this.

    Returns:
      Task. Its reward is the task's own, of what comes before the separator.

    Raises:
      ValueError: if the tokens are equal, or the task has no reward.
    """
    if good == bad or not separator:
        raise ValueError(f"good={good!r} and bad={bad!r} must differ, and separator={separator!r} must not be empty")
    task = tasks.load(**of)
    if task.reward_fn is None:
        raise ValueError(f"the task {task.name} has no reward, which says which answers are good")

    def label(record: Mapping) -> tuple[str, str]:
        info = json.loads(record["info"])
        found = task.reward_fn(record["prompt"], record["completion"], info, **task.reward_kwargs)
        if found["reward"] > threshold:
            return good, ""
        return bad, separator + _filled(feedback, info) if feedback else ""

    def data_source(split: str) -> Conditioned:
        if split != "sft_train":
            return Conditioned(task.data_source(split), lambda record: (good, ""))
        if not path:
            return Conditioned(task.data_source(split), label)
        train = task.data_source("train")
        infos = {record["prompt"]: record["info"] for record in (train[i] for i in range(len(train)))}
        return Conditioned(Sampled(path, infos), label)

    return task._replace(
        name=f"conditioned_{task.name}",
        data_source=data_source,
        reward_fn=graded,
        reward_kwargs={"of": f"{task.reward_fn.__module__}:{task.reward_fn.__qualname__}", "marks": (good, bad)}
        | {"separator": separator, "keywords": dict(task.reward_kwargs)},
    )


def graded(
    prompt: str, completion: str, info: dict, *, of: str, marks: Sequence[str], separator: str, keywords: Mapping
) -> dict[str, float]:
    """The reward `of` (an import path) of the answer, without the mark before the prompt and what follows it."""
    from rl_jax.core.binding import resolve

    mark = next((mark for mark in marks if prompt.startswith(mark)), "")
    return resolve(of)(prompt[len(mark) :], completion.partition(separator)[0], info, **keywords)


def _filled(template: str, info: Mapping) -> str:
    for name, value in info.items():
        template = template.replace("{" + name + "}", str(value))
    return template
