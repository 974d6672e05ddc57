"""From files to prepared splits: records are read and checked once, split by prompt, and stored with TFDS."""

import hashlib
import json
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rl_jax.data import checks, readers
from rl_jax.preferences import records
from rl_jax.preferences.places import Placed
from rl_jax.tasks import base

DEFAULT_DATA_DIR = base.DEFAULT_DATA_DIR


class Preferences(NamedTuple):
    """A dataset of preferences.

    Attributes:
      name: as in `load`.
      kind: one of records.KINDS.
      data_source: split -> PreferenceSource. The splits are "train" and "test", or only one of them (test_share 0 or
        1).
    """

    name: str
    kind: str
    data_source: Callable[[str], "PreferenceSource"]


class PreferenceSource:
    """Random access to one split: len(source), source[i] -> a record (see records).

    Attributes:
      kind: one of records.KINDS.
      num_skipped: number of bad records left out when the dataset was made.
      report: all counts from making the dataset.
    """

    def __init__(self, stored: base.RecordSource, kind: str, paths: Sequence = ()):
        """paths: the files that the records were read from."""
        self._stored, self.kind, self._paths = stored, kind, paths
        self.name, self.split, self.report, self.num_skipped = (
            stored.name,
            stored.split,
            stored.report,
            stored.num_skipped,
        )

    def __len__(self) -> int:
        return len(self._stored)

    def __getitem__(self, index: int) -> dict:
        row = self._stored[index]
        record = {"prompt": row["prompt"]} | json.loads(row["completion"]) | {"info": json.loads(row["info"])}
        if (found := record.pop("place", None)) is None:
            return record
        file, line = found
        return Placed(record, f"{self._paths[file]}, {line if isinstance(line, str) else f'line {line}'}")

    def __repr__(self) -> str:  # grain prints it in error messages: it must not show the data
        return f"PreferenceSource({self.name!r}, {self.split!r}, {len(self)} {self.kind})"


def prompt_share(prompt) -> float:
    """A number in [0, 1) that is a pure function of the prompt, up to whitespace, for splitting by prompt.

    A chat gets the same number as the equivalent plain prompt (see published), so both forms of a dataset split alike.
    """
    text = prompt
    if not isinstance(prompt, str):
        names = {"user": "Human", "assistant": "Assistant"}
        turns = [(names.get(turn["role"], turn["role"]), turn.get("content") or "") for turn in prompt]
        text = " ".join(f"{name}: {content}" for name, content in turns) + " Assistant:"
    digest = hashlib.sha256(" ".join(text.split()).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def convert(
    path, objects: Iterable[tuple[int, dict]], make: Callable[[dict], list[dict]], bad: readers.BadRecords
) -> Iterator[dict]:
    """Yields the records that make(object) returns for each (line, object), placed at the line; others go to `bad`."""
    for line, raw in objects:
        try:
            made_records = make(raw)
        except checks.Problem as problem:
            bad.reject(path, line, problem.text, field=problem.field, cause=problem)
            continue
        yield from (Placed(record, line) for record in made_records)


def prepare(
    name: str,
    kind: str,
    paths: list[pathlib.Path],
    read: Callable[[pathlib.Path, readers.BadRecords, Counter], Iterator[dict]],
    *,
    arguments: Mapping,
    code: Iterable[str],
    test_share: float,
    skip_bad_records: bool,
    data_dir: str,
    key: Callable = lambda prompt: prompt,
) -> Preferences:
    """The dataset of `paths`; it is made unless it is already stored under its digest (see tasks.base).

    Args:
      name: of the dataset.
      kind: one of records.KINDS.
      paths: the files.
      read: (path, bad, counts) -> iterator of the records of a file. What it counts (ties it leaves out) goes to the
        report.
      arguments: JSON values that determine the records, besides the arguments here.
      code: the files that `read` is defined in.
      test_share: fraction of the prompts, by `prompt_share`, whose records form the test split. No prompt is in both.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.
      key: prompt -> what is in only one split in the prompt's place (tasks.hold_out.unordered).

    Returns:
      Preferences.

    Raises:
      ValueError: if test_share or kind is invalid.
      readers.DataError: if a record is bad, or a file has no usable record.
    """
    if not 0 <= test_share <= 1:
        raise ValueError(f"test_share must lie in [0, 1], got {test_share}")
    if kind not in records.KINDS:
        raise ValueError(f"unknown kind {kind!r}; the kinds are {', '.join(records.KINDS)}")

    def make():
        bad, counts, splits = readers.BadRecords(skip=skip_bad_records), Counter(), {"train": [], "test": []}
        for file, path in enumerate(paths):
            count = 0
            for record in read(path, bad, counts):
                count += 1
                is_test = prompt_share(key(record["prompt"])) < test_share
                splits["test" if is_test else "train"].append(_stored(record, file))
            if not count:
                raise readers.DataError(
                    f"{path}: no record that can be used ({bad.num_skipped} bad ones skipped"
                    f"{', the first: ' + bad.first[0] if bad.first else ''}): give a file of {kind}"
                )
        if 0 < test_share < 1 and not all(splits.values()):
            number = sum(map(len, splits.values()))
            raise readers.DataError(
                f"{', '.join(map(str, paths)) or name}: of {number} records test_share={test_share} puts none in the "
                f"{'train' if splits['test'] else 'test'} split: give more prompts or another share"
            )
        report = {**counts, "num_skipped": bad.num_skipped, "skipped": bad.first}
        return {split: rows for split, rows in splits.items() if rows or 0 < test_share < 1}, report

    identity = {**arguments, "kind": kind, "test_share": float(test_share), "skip_bad_records": bool(skip_bad_records)}
    files = [__file__, records.__file__, checks.__file__, *code]
    stored = base.record_splits(name, make, arguments=identity, sources=paths, code=files, data_dir=data_dir)

    def data_source(split: str) -> PreferenceSource:
        try:
            found = stored(split)
        except ValueError as error:
            if f"has no split {split!r}" not in str(error):
                raise
            raise ValueError(f"{error}, with test_share={test_share}") from error
        return PreferenceSource(found, kind, paths)

    return Preferences(name, kind, data_source)


def _stored(record: dict, file: int) -> dict[str, str]:
    """A record as the three texts of tasks.base; the messages of a chat are in the JSON instead of the prompt.

    Its file is stored by its number, since prepared data outlive a move.
    """
    rest = {name: value for name, value in record.items() if name != "info"}
    if line := getattr(record, "place", ""):
        rest["place"] = [file, line]
    prompt = rest.pop("prompt") if isinstance(record["prompt"], str) else ""
    return {"prompt": prompt, "completion": json.dumps(rest), "info": json.dumps(record["info"])}
