"""Weights as named arrays and groups as bytes, the same in files and in streams."""

import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow

from rl_jax.flow.protocol import Group, Params

KEY = b"rl_jax.group"
MOST = 10**12  # of a group's number and of `finished`: names of files have so many digits
DTYPES = {
    **{name: np.dtype(name) for name in ("bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def on_host(name: str, value: Any) -> np.ndarray:
    """A leaf as an array in C order. Raises ValueError if its dtype is not in DTYPES."""
    array = np.asarray(value, order="C")
    if array.dtype.name not in DTYPES:
        raise ValueError(f"params {name!r}: {array.dtype} is none of {', '.join(DTYPES)}")
    return array


def flatten(params: Params, prefix: str = "", leaf: Callable[[str, Any], Any] = on_host) -> dict[str, Any]:
    """{"layers/0/q": array} of a nested dict of arrays, on the host.

    Args:
      params: the nested dict.
      prefix: of the names.
      leaf: (name, leaf) -> what takes its place.

    Raises:
      ValueError: if a key is not a string, is empty or has a "/", a dict is empty, or a dtype is not in DTYPES.
    """
    if not params:
        raise ValueError(f"params under {prefix!r}: an empty dict; leave it out")
    flat = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not key or "/" in key:
            raise ValueError(f"params under {prefix!r}: the key {key!r} should be a string without '/'")
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}/", leaf)
        else:
            flat[name] = leaf(name, value)
    return flat


def nest(flat: Mapping[str, Any]) -> Params:
    """The nested dict of `flatten`."""
    params: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split("/")
        place = params
        for key in path:
            place = place.setdefault(key, {})
        place[last] = value
    return params


def to_bytes(group: Group) -> bytes:
    """A group as an Arrow file, with its number inside."""
    words = json.dumps({"number": group.number, "finished": group.finished})
    table = group.table.replace_schema_metadata({**(group.table.schema.metadata or {}), KEY: words})
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_bytes(content: bytes, where: str | pathlib.Path) -> Group:
    """The group of `to_bytes`.

    Raises:
      ValueError: if it is truncated, or anything else; names `where`.
    """
    try:
        table = pyarrow.ipc.open_file(pyarrow.py_buffer(content)).read_all()
        table.validate(full=True)
        metadata = dict(table.schema.metadata or {})
        words = json.loads(metadata.pop(KEY))
        number, finished = words["number"], words["finished"]
        if not (type(number) is type(finished) is int and 0 <= min(number, finished) <= max(number, finished) < MOST):
            raise ValueError(f"number {number!r:.20}, finished {finished!r:.20}")
    except (pyarrow.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: truncated or not a group ({error!s:.200})") from error
    return Group(number, finished, table.replace_schema_metadata(metadata or None))
