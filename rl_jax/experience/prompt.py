"""A prompt's id, the table of a split's prompts, what a step reports about them, and what is remembered of each."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


def info_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record's info as a dict; {} if it has none."""
    info = record.get("info") or "{}"
    return dict(info) if isinstance(info, Mapping) else json.loads(info)


def source_of(record: Mapping[str, Any]) -> str:
    """The name of the source that a record comes from: its field `source`, or that of its info; "" if it has none."""
    if "source" in record:
        return str(record["source"])
    return str(info_of(record).get("source", "")) if "source" in str(record.get("info", "")) else ""


def prompt_id(record: Mapping[str, Any]) -> str:
    """The record's field `id`, or else a hash of source, prompt and info: the same in every run and after a resume."""
    if record.get("id"):
        return str(record["id"])
    named = [source_of(record), record["prompt"], record.get("info") or ""]
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


class PromptTable:
    """The prompts of one split, by their index, with the columns that a choice may depend on.

    Attributes:
      records: random access to {"prompt", "info", ...}.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]]):
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def text(self, index: int) -> str:
        """The prompt's text."""
        return str(self.records[int(index)]["prompt"])

    def column(self, name: str) -> list:
        """One value per prompt: the record's field `name`, or that of its info. Reads all records.

        Raises:
          ValueError: if a record has no such field; the message names the record and what it has.
        """
        values = []
        for index in range(len(self.records)):
            record = self.records[index]
            fields = record if name in record else info_of(record)
            if name not in fields:
                given = ", ".join(sorted(fields)) or "nothing"
                raise ValueError(
                    f"{self.records!r}, {_place(record, index)}, field {name!r}: it is missing; its info has {given}. "
                    f"Add {name!r} to the record, or name another column in sample.prompts"
                )
            values.append(fields[name])
        return values

    def numbers(self, name: str) -> np.ndarray:
        """A column of numbers, float64 [N].

        Raises:
          ValueError: if a value is missing or is not a finite number.
        """
        values = self.column(name)
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
                place = _place(self.records[index], index)
                raise ValueError(f"{self.records!r}, {place}, field {name!r}: {value!r} must be a finite number")
        return np.asarray(values, np.float64)


def _place(record: Mapping[str, Any], index: int) -> str:
    """Where a record is from, as far as it says so."""
    info = info_of(record)
    if "file" in info and "line" in info:
        return f"{info['file']}, line {info['line']}"
    return f"record {index}"


class Feedback(NamedTuple):
    """What became of n groups of G samples.

    Attributes:
      indices: int [n]. The prompts' places in the split.
      ids: n ids of these prompts.
      rewards: float [n, G].
      success: float [n, G], from 0 to 1: the reward's component `correct`, or else the reward within [0, 1].
      lengths: int [n, G]. Tokens of each completion.
      completions: n lists of G texts.
      newest: one completion per group, {"tokens": ids, "log_probs": of each}; None if the memory does not keep it.
    """

    indices: np.ndarray
    ids: list[str]
    rewards: np.ndarray
    success: np.ndarray
    lengths: np.ndarray
    completions: list[list[str]]
    newest: list[dict[str, list]] | None = None

    def of_groups(self, groups: Sequence[int]) -> "Feedback":
        """That of some of the n groups."""
        return Feedback(
            **{
                name: value[groups] if isinstance(value, np.ndarray) else value and [value[group] for group in groups]
                for name, value in self._asdict().items()
            }
        )


class PromptMemory:
    """What is remembered of each prompt that was seen, by id.

    An entry has visits (int, groups so far), value (float, mean success over all samples so far), best_length (int,
    tokens of the shortest completion whose success is 1; None before the first), successes (list, the newest last:
    texts, or what `add_success` was given) and last ({"tokens", "log_probs"} of a completion of the last visit; None if
    it is not kept).

    Args:
      successes: how many successful completions are kept per prompt, for replay.
    """

    def __init__(self, *, successes: int = 0):
        if successes < 0:
            raise ValueError(f"successes must be 0 or more, got {successes}")
        self._kept, self._entries = successes, {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, prompt: str) -> dict[str, Any]:
        """The entry of a prompt's id; of a new one no visits, value .5, no length and no successes."""
        entry = self._entries.get(prompt)
        if entry is None:
            return {"visits": 0, "value": 0.5, "best_length": None, "successes": [], "last": None}
        samples, passed = entry["samples"], entry["passed"]
        return {
            "visits": entry["visits"],
            "value": passed / samples if samples else 0.5,
            "best_length": entry["best_length"],
            "successes": list(entry["successes"]),
            "last": entry.get("last"),
        }

    def update(self, seen: Feedback) -> None:
        """Adds what a step has shown."""
        for row, name in enumerate(seen.ids):
            entry = self._entry(name)
            entry["visits"] += 1
            if seen.newest is not None:
                entry["last"] = seen.newest[row]
            entry["samples"] += len(seen.success[row])
            entry["passed"] += float(np.sum(seen.success[row], dtype=np.float64))
            for place in np.flatnonzero(seen.success[row] >= 1.0):
                length, best = int(seen.lengths[row][place]), entry["best_length"]
                entry["best_length"] = length if best is None else min(best, length)
                if self._kept:
                    text = seen.completions[row][place]
                    entry["successes"] = [other for other in entry["successes"] if other != text]
                    self.add_success(name, text, keep=self._kept)

    def add_success(self, prompt: str, completion: Any, *, keep: int) -> None:
        """Adds one successful completion to a prompt's.

        Args:
          prompt: its id.
          completion: a JSON value: a text, or what a replay needs.
          keep: the newest that stay, 1 or more.
        """
        successes = self._entry(prompt)["successes"]
        successes.append(completion)
        del successes[:-keep]

    def _entry(self, prompt: str) -> dict[str, Any]:
        blank = {"visits": 0, "samples": 0, "passed": 0.0, "best_length": None, "successes": []}
        return self._entries.setdefault(prompt, blank)

    def state(self) -> dict[str, Any]:
        """A JSON value."""
        return json.loads(json.dumps(self._entries))

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from what `state` returned."""
        self._entries = json.loads(json.dumps(dict(state)))
