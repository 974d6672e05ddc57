"""Files of a folder that somebody else has written: regular ones only, up to a size, JSON up to a depth."""

import json
import os
import pathlib
import stat
from typing import Any

from rl_jax.data.readers import DataError

MAX_JSON = 256 << 20  # bytes; the largest tokenizer.json have some 40 million


def check_regular(path: str | os.PathLike) -> None:
    """Checks that opening a file cannot wait for ever: it is no pipe, device or socket.

    Raises:
      DataError: if it is one of them, or a folder.
      OSError: if it is not there.
    """
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFIFO: "a named pipe", stat.S_IFDIR: "a folder", stat.S_IFSOCK: "a socket"}
        kind = kinds.get(stat.S_IFMT(mode), "a device")
        raise DataError(f"{path}: is {kind}, not a regular file: it is not opened")


def read_bytes(path: str | os.PathLike, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
      DataError: if it is none, or larger than `max_bytes`.
      OSError: if it cannot be read.
    """
    check_regular(path)  # a pipe would be opened below, and a reader that opens one may be seen by its writer
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(number, "rb") as file:
        found = os.fstat(number)
        # Python makes a buffer of what it is asked for: not of max_bytes.
        content = file.read(min(found.st_size, max_bytes) + 1) if stat.S_ISREG(found.st_mode) else b""
    if len(content) > max_bytes:
        raise DataError(f"{path}: over {max_bytes} bytes, more than such a file has: is it the right one?")
    return content


def read_text(path: str | os.PathLike, max_bytes: int) -> str:
    """The UTF-8 text of a regular file.

    Raises:
      DataError: if it is none, larger than `max_bytes`, not there, or not UTF-8.
    """
    try:
        return read_bytes(path, max_bytes).decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is no UTF-8 text ({error})") from error


def parse_json(path: str | os.PathLike, text: str | bytes) -> Any:
    """The value in a file's JSON text.

    Raises:
      DataError: if there is none, or lists are nested so deep that Python cannot read them; names the file.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{path}: lists or objects are nested too deep to be read") from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error}): is the download complete? Fetch the file again") from error


def read_json(path: str | os.PathLike) -> Any:
    """The value in a JSON file.

    Raises:
      DataError: naming the file, if there is none, or it is no regular file, too large, or nested too deep.
      OSError: if it cannot be read.
    """
    return parse_json(pathlib.Path(path), read_bytes(path, MAX_JSON))
