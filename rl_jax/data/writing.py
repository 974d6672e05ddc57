"""Files that are written whole, and errors of a disk that say which file it was and what to do."""

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space and run the same command again; a run then resumes",
    errno.EDQUOT: "the disk quota is used up: free some space and run the same command again; a run then resumes",
    errno.EROFS: "the disk can only be read: give a folder on a disk that can be written",
    errno.EACCES: "this user may not write there: give another folder, or change its rights",
    errno.EPERM: "this user may not write there: give another folder, or change its rights",
    errno.ENOTDIR: "a file is where a folder is needed: give another folder, or move the file away",
}


@contextlib.contextmanager
def named(path: str | os.PathLike) -> Iterator[None]:
    """Around writes to a file or a folder: a full or read-only disk becomes an OSError that names path and remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        raise OSError(f"{error.filename or path} cannot be written: {REMEDIES[error.errno]}") from error


def write_arrays(path: str | os.PathLike, arrays: Mapping[str, np.ndarray], *, compressed: bool = False) -> None:
    """Replaces an .npz file in one move, as write_atomically does.

    Args:
      path: of it.
      arrays: by their names in it.
      compressed: whether it takes less room, and longer to write.

    Raises:
      OSError: if it cannot be written; names it.
    """
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    with named(path):
        with open(partial, "wb") as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)
        os.replace(partial, path)
