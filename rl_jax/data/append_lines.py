"""Lines at the end of a file that is opened for them now and then, by processes that may be killed while they write."""

import contextlib
import fcntl
import os
import warnings
from collections.abc import Iterable

from rl_jax.data.writing import named


def append_lines(path: str | os.PathLike, lines: Iterable[str]) -> None:
    """Appends lines to a text file, which is made if it is not there.

    A last line without its end, which a killed writer left, is cut off first, with a warning: what is appended to it
    would be damaged, too. Processes that append to the same file wait for each other.

    Args:
      path: of the file; its folder exists.
      lines: without their ends.

    Raises:
      OSError: if the file cannot be written; names it.
    """
    content = "".join(line + "\n" for line in lines).encode()
    with named(path), open(path, "ab+", buffering=0) as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        _cut(file, path)
        while content:  # the rest, should the system take a part
            content = content[file.write(content) :]


def _cut(file, path: str | os.PathLike) -> None:
    """Cuts an open file back to the end of its last whole line."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        return
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    kept = file.readall().rfind(b"\n") + 1
    file.truncate(kept)
    warnings.warn(f"{path}: cut {size - kept} bytes of a last line that was not written to its end", stacklevel=3)
