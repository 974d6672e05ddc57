"""Your own data: one JSON object per line, plain or gzip, with the fields of rl_jax.preferences.records."""

import functools
import pathlib
from collections import Counter

from rl_jax.data import readers
from rl_jax.preferences import records, sources


def load(
    *,
    path: str,
    kind: str = "pairs",
    marker: str | None = None,
    sort_by_reward: bool = False,
    test_share: float = 0.1,
    skip_bad_records: bool = False,
    data_dir: str = sources.DEFAULT_DATA_DIR,
) -> sources.Preferences:
    """The records of a file.

    Args:
      path: the file.
      kind: "pairs", "rankings", "labels" or "steps".
      marker: see records.parse.
      sort_by_reward: see records.parse.
      test_share: fraction of the prompts in the test split.
      skip_bad_records: whether to skip and count bad records instead of refusing them.
      data_dir: where the prepared dataset is stored.

    Returns:
      Preferences.

    Raises:
      readers.DataError: if a record is bad; names file, line and field.
    """
    make = functools.partial(records.parse, kind, marker=marker, sort_by_reward=sort_by_reward)

    def read(file, bad, counts: Counter):
        return sources.convert(file, readers.read_objects(file, bad), lambda raw: [make(raw)], bad)

    return sources.prepare(
        "jsonl",
        kind,
        [pathlib.Path(path)],
        read,
        arguments={"marker": marker, "sort_by_reward": bool(sort_by_reward)},
        code=[__file__],
        test_share=test_share,
        skip_bad_records=skip_bad_records,
        data_dir=data_dir,
    )
