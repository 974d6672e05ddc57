"""A file of one's own, one JSON object a line, plain or gzip; rl_jax.preferences.records says what stands in it."""

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
    """The records of `path`. kind: "pairs", "rankings", "labels" or "steps". marker, sort_by_reward: see records.parse.

    Raises readers.DataError with file, line and field for a bad record, unless skip_bad_records counts it instead.
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
