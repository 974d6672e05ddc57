"""Which prompt's KV cache is in which row of the prompt store: a prefix cache by token hash with LRU eviction.

Host bookkeeping only; the arrays are in rollout/lm/programs.py. A row holds one prompt from column 0 on. Prompts that
share its first chunks copy the row and continue from there.
"""

import hashlib
from typing import NamedTuple

import numpy as np


class Place(NamedTuple):
    """Where to prefill a prompt.

    Attributes:
      row: the prompt's own row.
      source: the row whose first `start` columns it shares.
      start: number of shared columns.
    """

    row: int
    source: int
    start: int


class PromptStore:
    """`rows` prompts, looked up by their tokens; prefixes are shared in units of `chunk` tokens."""

    def __init__(self, rows: int, chunk: int):
        self.rows, self.chunk = rows, chunk
        self.clear()

    def clear(self) -> None:
        """Forgets every prompt, because the caches in the rows are those of another model."""
        self._row_of: dict[bytes, int] = {}  # digest of the first chunks, or of a whole prompt -> row
        self._digests: list[list[bytes]] = [[] for _ in range(self.rows)]
        self._used = [0] * self.rows
        self._clock = 0

    def find(self, prompt: np.ndarray) -> int | None:
        """The row that holds the whole of `prompt`, int32 [p]; None if there is none."""
        row = self._row_of.get(_digests(prompt, self.chunk)[-1])
        if row is not None:
            self._touch(row)
        return row

    def add(self, prompt: np.ndarray, kept: set[int]) -> Place:
        """A row for a prompt that `find` does not have: the least recently used one that is not in `kept`.

        At least the last token is left to compute, since its hidden state is needed for the first sample.

        Raises:
          LookupError: if every row is in `kept`.
        """
        free = [row for row in range(self.rows) if row not in kept]
        if not free:
            raise LookupError(f"all {self.rows} rows of the prompt store are in use")
        *chunks, whole = _digests(prompt, self.chunk)
        source, start = 0, 0
        for number, digest in enumerate(chunks[: (len(prompt) - 1) // self.chunk], start=1):
            if digest not in self._row_of:
                break
            source, start = self._row_of[digest], number * self.chunk
        if start:
            self._touch(source)
        row = min(free, key=self._used.__getitem__)
        for digest in self._digests[row]:
            if self._row_of.get(digest) == row:
                del self._row_of[digest]
        self._digests[row] = [*chunks, whole]
        for digest in chunks:
            self._row_of.setdefault(digest, row)
        self._row_of[whole] = row
        self._touch(row)
        return Place(row, source if start else row, start)

    def _touch(self, row: int) -> None:
        self._clock += 1
        self._used[row] = self._clock


def _digests(prompt: np.ndarray, chunk: int) -> list[bytes]:
    """The digests of the first 1, 2, ... whole chunks, and of the whole prompt, which is marked as different."""
    digest, result = hashlib.blake2b(digest_size=16), []
    tokens = np.ascontiguousarray(prompt, np.int32)
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        digest.update(part.tobytes())
        if len(part) == chunk:
            result.append(digest.digest())
    digest.update(b"all")
    return [*result, digest.digest()]
