"""Your own data: JSON lines, plain or gzip, or Parquet, with the fields of rl_jax.preferences.records."""

import functools
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
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences.

    Raises:
      ValueError: if columns names a field that this kind does not have.
      readers.DataError: if a record is bad; names file, line and field.
    """
    columns = dict(columns or {})
    unknown = sorted(set(columns) - set(records.FIELDS.get(kind, columns)))
    if unknown:
        raise ValueError(f"columns: {kind} have no field {unknown[0]!r}; they have {', '.join(records.FIELDS[kind])}")
    make = functools.partial(records.parse, kind, marker=marker, sort_by_reward=sort_by_reward)

    def read(file, bad, counts: Counter):
        return sources.convert(file, readers.read_records(file, bad), lambda raw: [make(_renamed(raw, columns))], bad)

    return sources.prepare(
        "jsonl",
        kind,
        list(record_files.find_files([part.strip() for part in str(path).split(",") if part.strip()])),
        read,
        arguments={"marker": marker, "sort_by_reward": bool(sort_by_reward), "columns": columns},
        code=[__file__],
        test_share=test_share,
        skip_bad_records=skip_bad_records,
        data_dir=data_dir,
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
