"""Your own data: JSON lines, plain or gzip, or Parquet, with the fields of rl_jax.preferences.records."""

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Mapping

from rl_jax.data import readers
from rl_jax.data.checks import Problem
from rl_jax.preferences import records, sources
from rl_jax.tasks import record_files


def load(
    *,
    path: str,
    kind: str = "pairs",
    columns: Mapping[str, str] | None = None,
    marker: str | None = None,
    sort_by_reward: bool = False,
    test_share: float = 0.1,
    contradictions: str = "stop",
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """The records of files.

    Args:
      path: a file, several with commas between them, a glob or a folder.
      kind: "pairs", "rankings", "labels" or "steps".
      columns: field of records.FIELDS -> the name that it has in the files, as in {"chosen": "better"}.
      marker: see records.parse.
      sort_by_reward: see records.parse.
      test_share: fraction of the prompts in the test split.
      contradictions: of pairs: "stop" makes a pair a bad record if an earlier one says the opposite of it, with the
        same prompt and the same two responses; "keep" keeps both.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences.

    Raises:
      ValueError: if columns names a field that this kind does not have, or contradictions is unknown.
      readers.DataError: if a record is bad; names file, line and field.
    """
    columns = dict(columns or {})
    unknown = sorted(set(columns) - set(records.FIELDS.get(kind, columns)))
    if unknown:
        raise ValueError(f"columns: {kind} have no field {unknown[0]!r}; they have {', '.join(records.FIELDS[kind])}")
    if contradictions not in ("stop", "keep"):
        raise ValueError(f"data.contradictions={contradictions!r} is neither 'stop' nor 'keep'")
    make = functools.partial(records.parse, kind, marker=marker, sort_by_reward=sort_by_reward)
    seen: dict[bytes, tuple[bool, str]] = {}  # of all files

    def read(file, bad, counts: Counter):
        place = ""

        def numbered():
            nonlocal place
            for line, raw in readers.read_records(file, bad):
                place = f"{file}, {line if isinstance(line, str) else f'line {line}'}"
                yield line, raw

        def checked(raw):
            try:
                record = make(_renamed(raw, columns))
            except Problem as problem:
                if problem.field in records.FIELDS.get(kind, ()) and problem.field not in (*raw, *columns):
                    problem.text += f": name its column, data.columns={{{problem.field!r}: COLUMN}}"
                raise
            if kind == "pairs" and contradictions == "stop":
                _refuse_opposite(record, seen, place)
            return [record]

        return sources.convert(file, numbered(), checked, bad)

    return sources.prepare(
        "jsonl",
        kind,
        list(record_files.find_files([part.strip() for part in str(path).split(",") if part.strip()])),
        read,
        arguments={
            "marker": marker,
            "sort_by_reward": bool(sort_by_reward),
            "columns": columns,
            "contradictions": contradictions,
        },
        code=[__file__],
        test_share=test_share,
        skip_bad_records=skip_bad_records,
        data_dir=data_dir,
    )


def _refuse_opposite(record: Mapping, seen: dict[bytes, tuple[bool, str]], place: str) -> None:
    """Refuses a pair of which an earlier one says the opposite. Pairs with a label_prob below 1 may differ.

    Args:
      record: of kind "pairs".
      seen: what prompt and responses -> (whether the first of them, in order, was chosen; where); extended.
      place: of the record.

    Raises:
      Problem: if an earlier pair says the opposite; names its place.
    """
    if record["label_prob"] < 1:
        return
    first, second = sorted(record["responses"])
    key = hashlib.sha256(json.dumps([record["prompt"], first, second], sort_keys=True).encode()).digest()
    is_first, where = seen.setdefault(key, (record["responses"][0] == first, place))
    if is_first != (record["responses"][0] == first):
        raise Problem(
            f"contradicts {where}, where of the same two responses the other one is chosen (contradictions=keep "
            "trains on both)",
            "chosen",
        )


def _renamed(raw: Mapping, columns: Mapping[str, str]) -> Mapping:
    """The record with its columns under the names of records.FIELDS.

    Raises:
      Problem: if a named column is missing.
    """
    for name in columns.values():
        if name not in raw:
            raise Problem(f"missing (the record has {sorted(raw)})", name)
    taken = {name: raw[column] for name, column in columns.items()}
    return {name: value for name, value in raw.items() if name not in (*columns, *columns.values())} | taken
