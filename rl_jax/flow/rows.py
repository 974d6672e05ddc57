"""Rows of numpy arrays, numbers and strings as an Arrow table, and back. Trajectories have a table of their own."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow

KEY = b"rl_jax.rows"


def to_table(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """A table with one row per mapping.

    Args:
      rows: with the same names in each. A value is an array of bools, ints or floats of any shape, a bool, an int, a
        float or a string; under one name, of one kind.

    Raises:
      ValueError: if a value is something else, or names differ between rows.
    """
    names = sorted(rows[0]) if rows else []
    for number, row in enumerate(rows):
        if sorted(row) != names:
            raise ValueError(f"row {number} has {sorted(row)}, but row 0 has {names}")
    columns, arrays = {}, []
    for name in names:
        values = [row[name] for row in rows]
        if all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values):
            arrays.append(name)
            columns[name] = [
                {"dtype": v.dtype.str, "shape": list(v.shape), "data": np.asarray(v, order="C").tobytes()}
                for v in values
            ]
            continue
        kinds = {type(value) for value in values}
        if len(kinds) != 1 or not kinds <= {bool, int, float, str}:
            found = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise ValueError(f"{name!r} is {found}: a column holds arrays, bools, ints, floats or strings")
        columns[name] = values
    return pyarrow.table(columns).replace_schema_metadata({KEY: json.dumps(arrays)})


def from_table(table: pyarrow.Table) -> list[dict[str, Any]]:
    """The rows of `to_table`, equal to those that it was made of. Of some of its columns, those.

    Raises:
      ValueError: if the table is not one of `to_table`, or an array's bytes do not fit its shape.
    """
    metadata = table.schema.metadata or {}
    if KEY not in metadata:
        raise ValueError(f"this table was not made by flow.rows.to_table; its columns are {table.column_names}")
    rows = table.to_pylist()
    for name in json.loads(metadata[KEY]):
        for row in rows if name in table.column_names else ():
            packed = row[name]
            row[name] = np.frombuffer(packed["data"], np.dtype(packed["dtype"])).reshape(packed["shape"]).copy()
    return rows
