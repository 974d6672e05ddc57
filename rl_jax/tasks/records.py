"""Your own prompts from JSONL or Parquet files: texts or chats, one source or several with weights.

    load(path="prompts.jsonl", prompt="question", answer="solution")
    load(path="math=math/*.jsonl@2,code=code.jsonl", test_path="math=math_test.jsonl")
    load(sources={"math": {"path": "m.jsonl", "weight": 2.0, "prompt": "problem"}, "code": {"path": "c.jsonl"}})

Without a test file some of the prompts are held out, by a hash of the prompt: the same ones in every run. A source with
a weight has that share of the training prompts, and of the completions of supervised fine-tuning; its records are
repeated evenly, none is left out. Without any weight each record counts the same.
"""

import json
import os
import pathlib
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rl_jax.data import checks, readers
from rl_jax.tasks import base, record_files
from rl_jax.tasks.record_files import Columns, Source
from rl_jax.tokenizers import ByteTokenizer, Llama2cTokenizer, PlainPrompts

EXAMPLE = "EXAMPLE"  # as a path: a small generated file of sums, to try things with
OF_SOURCE = ("path", "test_path", "weight", *Columns._fields)


def exact_match(prompt: str, completion: str, info: Mapping) -> dict[str, float]:
    """1 if the completion is info["answer"] up to whitespace around it, else 0."""
    correct = float(completion.strip() == str(info["answer"]).strip())
    return {"reward": correct, "correct": correct}


def load(
    *,
    path: str = "",
    test_path: str = "",
    sources: Mapping[str, Mapping[str, Any]] | None = None,
    prompt: str = "prompt",
    answer: str = "answer",
    completion: str = "completion",
    source: str = "source",
    test_share: float = 0.1,
    system: str = "",
    tokenizer_path: str = "",
    skip_bad_records: bool = False,
    data_dir: str = base.DEFAULT_DATA_DIR,
) -> base.Task:
    """The task of a user's own files.

    Args:
      path: files (see record_files), or "EXAMPLE" for generated sums.
      test_path: files of the held-out prompts. "": a share of the prompts of each source is held out.
      sources: name -> {"path", "test_path", "weight", and the columns below}, each optional; a source without a path
        gives a weight to what the records' own column `source` names.
      prompt: column of the prompt, a text or a chat.
      answer: column of what the reward compares with, info["answer"].
      completion: column of the target of supervised fine-tuning.
      source: column of the name of a record's source.
      test_share: fraction of the prompts to hold out, above 0 and below 1.
      system: system message before every prompt.
      tokenizer_path: llama2.c tokenizer.bin. "": bytes. A model's folder brings its own tokenizer.
      skip_bad_records: whether to skip and count bad records instead of refusing them. Then one without an answer is
        bad, too, if others of its source and split have one; its completion is still fine-tuned on.
      data_dir: where the prepared dataset is stored.

    Returns:
      Task. Its reward is exact_match if every record has an answer, else None. A record has "prompt", "completion" and
      "info", and "messages" (a chat), "source" and "id" where the file has them.

    Raises:
      ValueError: if an argument is invalid or a source unknown.
      readers.DataError: if a record is bad, or a file is missing or has none.
    """
    if not 0 < test_share < 1:
        raise ValueError(f"test_share must lie between 0 and 1, got {test_share}")
    if path == EXAMPLE:
        path = str(write_example(data_dir))
    columns = Columns(prompt=prompt, answer=answer, completion=completion, source=source)
    parts = _parts(path, test_path, dict(sources or {}), columns)
    weights = {name: part.weight for name, part in parts.items() if part.weight is not None}
    read = [part for part in parts.values() if part.train.paths]
    if not read:
        raise ValueError(
            "no file: give path=PROMPTS.jsonl, a JSON object per line with `prompt` (a text or chat messages) and, for "
            f"a reward that compares with it, `answer`; or path={EXAMPLE} for generated sums"
        )

    files = [file for part in read for file in (*part.train.paths, *part.test.paths)]

    def make():
        return _make(read, files, test_share=test_share, system=system, skip_bad_records=skip_bad_records)

    arguments = {
        "parts": [
            [part.train.name, *part.train.columns, [[file.suffix for file in s.paths] for s in (part.train, part.test)]]
            for part in read
        ],
        "test_share": float(test_share),
        "system": system,
        "skip_bad_records": bool(skip_bad_records),
    }
    code = [__file__, record_files.__file__, checks.__file__]
    stored = base.record_splits("records", make, arguments=arguments, sources=files, code=code, data_dir=data_dir)
    report = stored("train").report
    _check_weights(weights, list(report["sources"]["train"]))
    tokenizer = Llama2cTokenizer(tokenizer_path) if tokenizer_path else ByteTokenizer()
    no_reward = _without_answers(report, answer, files)
    return base.Task(
        "records",
        PlainPrompts(tokenizer),
        _views(stored, weights, files),
        None if no_reward else exact_match,
        check_prompts=True,
        no_reward=no_reward,
    )


class Records(base.RecordSource):
    """A split's records in an order of their own; see base.RecordSource."""

    def __init__(self, stored: base.RecordSource, order: np.ndarray, files: Sequence[pathlib.Path]):
        """order: int [N], places in `stored`; a place may come several times. files: that the records are from."""
        super().__init__(stored, name=stored.name, split=stored.split, report=stored.report)
        self._order, self._files = order, files

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self._data[int(self._order[index])]  # of `stored`, a RecordSource itself
        more = json.loads(record["info"])
        del more["place"]
        return record | {"info": json.dumps(more.pop("info"))} | more

    def place_of(self, index: int) -> str:
        return _place(self._files, *json.loads(self._data[int(self._order[index])]["info"])["place"])


def mixture_order(counts: Sequence[int], weights: Sequence[float] | None = None) -> np.ndarray:
    """The order in which the records of several sources are read: each source spread evenly, as often as weighted.

        n_s = round(w_s / sum(w) L),   L = max_s m_s sum(w) / w_s   over sources with w_s > 0

    L is the length at which the scarcest source (by weight) is read once and every other one at least once.

    Args:
      counts: int [S], records m_s of each source, which lie one after the other.
      weights: float [S], 0 or more. None: every record once.

    Returns:
      int64 [L], places of the records.
    """
    starts = np.cumsum([0, *counts[:-1]])
    numbers = list(counts)
    if weights is not None:
        total = sum(weights)
        length = max(m * total / w for m, w in zip(counts, weights, strict=True) if w > 0)
        numbers = [max(round(w / total * length), 1) if w > 0 else 0 for w in weights]
    places = [start + np.arange(n) % m for start, n, m in zip(starts, numbers, counts, strict=True)]
    ranks = [(np.arange(n) + 0.5) / max(n, 1) for n in numbers]
    return np.concatenate(places)[np.argsort(np.concatenate(ranks), kind="stable")].astype(np.int64)


def write_example(data_dir: str) -> pathlib.Path:
    """Writes the example, all sums of two digits, and returns its path."""
    path = pathlib.Path(data_dir).expanduser() / "records" / "example.jsonl"
    lines = [
        json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b), "completion": str(a + b), "id": f"{a}+{b}"}) + "\n"
        for a in range(10)
        for b in range(10)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    scratch.write_text("".join(lines), encoding="utf-8")
    os.replace(scratch, path)
    return path


class _Part(NamedTuple):
    """A source as it was asked for: its files for training and for testing, and its weight."""

    train: Source
    test: Source
    weight: float | None


def _parts(path: str, test_path: str, sources: Mapping, columns: Columns) -> dict[str, _Part]:
    """The sources of the arguments of `load`, by name."""
    asked: dict[str, dict[str, Any]] = {}
    for name, (paths, weight) in record_files.parse_paths(path).items():
        asked[name] = {"path": paths, "weight": weight, "columns": columns}
    for name, fields in sources.items():
        unknown = sorted(set(fields) - set(OF_SOURCE))
        if unknown:
            raise ValueError(f"source {name!r} takes no {', '.join(unknown)}; it takes {', '.join(OF_SOURCE)}")
        if name in asked:
            raise ValueError(f"source {name!r} is in path and in sources: name it once")
        own = {key: value for key, value in fields.items() if key in Columns._fields}
        asked[name] = {
            "path": _of_one(name, fields.get("path", "")),
            "test": _of_one(name, fields.get("test_path", "")),
            "weight": fields.get("weight"),
            "columns": columns._replace(**own),
        }
    for name, (paths, weight) in record_files.parse_paths(test_path).items():
        known = [other for other, found in asked.items() if found["path"]]
        if name and name not in known:
            raise ValueError(f"test_path has the unknown source {name!r}; the sources are {', '.join(known) or 'none'}")
        if weight is not None:
            raise ValueError(f"test_path gives {name!r} a weight: weights are for training")
        if not name and known != [""]:
            raise ValueError(f"test_path={paths[0]!r} has no name, but the sources have: write NAME={paths[0]}")
        asked[name]["test"] = paths
    parts = {}
    for name, fields in asked.items():
        weight = fields["weight"]
        if weight is not None and not 0 <= float(weight) < np.inf:
            raise ValueError(f"source {name!r}: its weight must be 0 or more, got {weight}")
        train, test = (
            Source(name, record_files.find_files(fields.get(key, ())), fields["columns"]) for key in ("path", "test")
        )
        parts[name] = _Part(train, test, weight)
    return parts


def _of_one(name: str, path: str) -> list[str]:
    """The paths of one source."""
    found = record_files.parse_paths(path)
    if set(found) - {""}:
        raise ValueError(f"source {name!r}: path={path!r} names sources again; give files only")
    return found[""][0] if found else []


def _make(parts: Sequence[_Part], files: Sequence, *, test_share: float, system: str, skip_bad_records: bool):
    """(records by split, report), as base.record_splits makes them."""
    bad = readers.BadRecords(skip=skip_bad_records)
    found: dict[str, dict[str, list]] = {"train": {}, "test": {}}
    counts = {"num_train_in_test": 0}
    for part in parts:
        train = list(record_files.read_source(part.train, bad, system=system))
        if part.test.paths:
            test = list(record_files.read_source(part.test, bad, system=system))
            held_out = {record["key"] for record in test}
            counts["num_train_in_test"] += sum(record["key"] in held_out for record in train)
        else:
            train, test = record_files.hold_out(train, test_share, part.train)
        for split, records in (("train", train), ("test", test)):
            for record in records:
                found[split].setdefault(record["source"], []).append(record)
    _name_apart(found, several=len(parts) > 1)
    # One source after the other, by name: the order of the report, whose keys are sorted.
    ordered = {split: [r for name in sorted(by_name) for r in by_name[name]] for split, by_name in found.items()}
    worked = [record for record in ordered["train"] if record["completion"]]
    if skip_bad_records:  # what is fine-tuned on needs no answer
        ordered = record_files.with_answers(ordered, bad)
    splits = {split: [_stored(record, files) for record in records] for split, records in ordered.items()}
    targets = [_stored(record, files) for record in worked]
    if targets and targets != splits["train"]:
        splits["sft_train"] = targets
    report = counts | {
        "sources": {split: dict(Counter(record["source"] for record in rows)) for split, rows in ordered.items()},
        "num_completions": len(targets),
        "completions": dict(Counter(record["source"] for record in worked)),
        **_answers([record for records in ordered.values() for record in records], files),
        "num_skipped": bad.num_skipped,
        "skipped": bad.first,
    }
    return splits, report


def _answers(records: Sequence[Mapping], files: Sequence[pathlib.Path]) -> dict[str, Any]:
    """Of a report: how many records have an answer, the place of the first without one, the columns of the first."""
    places = [[files.index(r["place"][0]), r["place"][1]] for r in records if "answer" not in r["info"]]
    columns = sorted(set(records[0]["info"]) - {"messages"}) if records else []
    return {
        "num_answers": len(records) - len(places),
        "unanswered": min(places, default=None),
        "columns": columns,
    }


def _without_answers(report: Mapping[str, Any], column: str, files: Sequence[pathlib.Path]) -> str:
    """Why exact_match cannot compare each record with its answer; "" if it can."""
    if report["unanswered"] is None:
        return ""
    if report["num_answers"]:
        place = _place(files, *report["unanswered"])
        return (
            f"{place}: the record has no {column!r}, or null, and {report['num_answers']} others have one "
            "(skip_bad_records=True leaves it out if some are of its source and split)"
        )
    others = ", ".join(map(repr, report["columns"])) or "nothing"
    return f"no record has a column {column!r} to compare a completion with: beside the prompt, one has {others}"


def _place(files: Sequence[pathlib.Path], file: int, line: int | str) -> str:
    return f"{files[file]}, {line if isinstance(line, str) else f'line {line}'}"


def _name_apart(found: Mapping[str, Mapping[str, list]], *, several: bool) -> None:
    """Puts the source before the ids of records, if there are several, and checks that an id names one prompt.

    Raises:
      readers.DataError: if it names two.
    """
    known: dict[str, str] = {}
    for record in (r for by_name in found.values() for rows in by_name.values() for r in rows if r["id"]):
        if several:
            record["id"] = f"{record['source']}/{record['id']}"
        if known.setdefault(record["id"], record["key"]) != record["key"]:
            raise readers.DataError(
                f"the id {record['id']!r} is of two prompts, {known[record['id']]!r:.60} and {record['key']!r:.60}: "
                "what is remembered of a prompt goes by its id. Make the ids unique, or remove the field"
            )


def _stored(record: Mapping, files: Sequence[pathlib.Path]) -> dict[str, str]:
    """A record as the three texts of tasks.base. Its file is stored by its number: prepared data outlive a move."""
    more = {key: record[key] for key in ("messages", "source", "id") if record[key]}
    path, line = record["place"]
    more["place"] = [files.index(path), line]
    info = json.dumps({"info": record["info"], **more})
    return {"prompt": record["prompt"], "completion": record["completion"], "info": info}


def _views(
    stored: Callable[[str], base.RecordSource], weights: Mapping[str, float], files: Sequence[pathlib.Path]
) -> Callable[[str], Records]:
    """split -> its records, weighted if they are for training."""

    def data_source(split: str) -> Records:
        source = stored(split)
        if split == "sft_train" and not source.report["num_completions"]:
            raise readers.DataError(
                "supervised fine-tuning needs a completion in the records, and none has one: name its column, "
                "completion=COLUMN, or do without, sft.steps=0"
            )
        counts = source.report["completions"] if split == "sft_train" else source.report["sources"][split]
        counts = dict(sorted(counts.items()))
        share = [weights.get(name, 1.0) for name in counts] if weights and split != "test" else None
        if share and not any(share):
            raise readers.DataError("there is nothing to fine-tune on: all sources with completions have weight 0")
        return Records(source, mixture_order(list(counts.values()), share), files)

    return data_source


def _check_weights(weights: Mapping[str, float], names: Sequence[str]) -> None:
    unknown = sorted(set(weights) - set(names))
    if unknown:
        raise ValueError(f"unknown source {unknown[0]!r}; the sources of the records are {', '.join(names) or 'none'}")
    if weights and not any(weights.get(name, 1.0) for name in names):
        raise ValueError("every source has the weight 0: give at least one a weight above 0")
