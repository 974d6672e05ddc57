"""Files that are there as a whole or not at all."""

import json
import os
import pathlib
import secrets
from collections.abc import Callable
from typing import Any

import safetensors
from safetensors.numpy import load_file

from rl_jax.flow.ledger import Done
from rl_jax.flow.payload import nest
from rl_jax.flow.protocol import Params
from rl_jax.runs import disk

PARTIAL = ".partial"


def write(path: pathlib.Path, content: str | bytes | Callable[[pathlib.Path], Any], *, durable: bool = False) -> None:
    """Writes a file under a temporary name and renames it.

    Args:
      path: of the file, which is replaced.
      content: of the file, or what writes it under the path that it is given.
      durable: it survives the machine's death too, and not only the process's.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    with disk.named(path.parent):
        if isinstance(content, str):
            content = content.encode()
        partial.write_bytes(content) if isinstance(content, bytes) else content(partial)
        if durable:
            _sync(partial)
        rename(partial, path)
        if durable:
            _sync(path.parent)


def rename(partial: pathlib.Path, path: pathlib.Path) -> None:
    """The moment in which a file is there."""
    os.replace(partial, path)


def remove(path: pathlib.Path) -> None:
    """Removes a file, if it is there."""
    path.unlink(missing_ok=True)


def remove_partial(folder: pathlib.Path) -> None:
    """Removes what a killed process left over. Only for folders in which nobody else writes."""
    for path in folder.glob(f".*{PARTIAL}"):
        remove(path)


def _sync(path: pathlib.Path) -> None:
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def read_settled(folder: pathlib.Path) -> tuple[int, Done]:
    """(the last settled step, numbers that are finished with)."""
    found = read_json(folder / "settled.json", default={"step": -1, "below": 0, "others": []})
    return found["step"], Done(found["below"], found["others"])


def read_used(path: pathlib.Path, **default) -> tuple[list[int], list[int]]:
    """(groups that a step used, numbers that are never put) of a file of the ledger. default: see `read_json`."""
    found = read_json(path, **default)
    return (found, []) if isinstance(found, list) else (found["groups"], found["dropped"])


def read_json(path: pathlib.Path, **default) -> Any:
    """A JSON value. With `default`, that if there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if default:
            return default["default"]
        raise
    except ValueError as error:
        raise ValueError(f"{path}: damaged ({error}): it was not written by this link") from error


def read_weights(path: pathlib.Path) -> Params | None:
    """None if a newer version has just replaced them."""
    try:
        return nest(load_file(path))
    except FileNotFoundError:
        return None
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path}: truncated or not weights ({error})") from error
