"""What reward functions print: to the program's stderr, tagged, escaped and bounded."""

import contextlib
import os
import sys

from rl_jax.core.visible import one_line

MAX_CALL = 8 * 1024  # bytes per call of a pool
MAX_POOL = 256 * 1024  # bytes per pool
MAX_LINE = 500  # characters
READ = 2**16


class Output:
    """The output of a pool's workers."""

    def __init__(self):
        self._shown_of_call = self._shown_of_pool = self._dropped = 0
        self._full = False

    def read(self, pipe: int, partial: bytes) -> tuple[bytes, bool]:
        """Reads once from a pipe that does not block, and shows whole lines.

        Args:
          pipe: of a worker.
          partial: the beginning of a line, from the last read.

        Returns:
          (the beginning of a line, whether something was read).
        """
        try:
            data = os.read(pipe, READ)
        except OSError:  # BlockingIOError: there is nothing
            return partial, False
        *lines, partial = (partial + data).split(b"\n")
        for line in lines:
            self._show(line)
        if len(partial) > 4 * MAX_LINE:
            self._show(partial)
            partial = b""
        return partial, bool(data)

    def drain(self, pipe: int, partial: bytes) -> None:
        """Shows what is left in a pipe, at most READ times 16."""
        more, rounds = True, 0
        while more and rounds < 16:
            partial, more = self.read(pipe, partial)
            rounds += 1
        if partial:
            self._show(partial)

    def end_call(self) -> None:
        """Says what was dropped since the last time."""
        if self._dropped and not self._full:
            self._full = self._shown_of_pool >= MAX_POOL
            end = "; no more output of rewards is shown in this run" if self._full else ""
            _print(f"{self._dropped} more bytes of this call dropped{end}")
        self._shown_of_call = self._dropped = 0

    def _show(self, line: bytes) -> None:
        if not line.strip():
            return
        if self._shown_of_call + len(line) > MAX_CALL or self._shown_of_pool >= MAX_POOL:
            self._dropped += len(line) + 1
            return
        self._shown_of_call += len(line)
        self._shown_of_pool += len(line)
        text = line[: 4 * MAX_LINE].decode("utf-8", "backslashreplace")
        _print(shown(text, MAX_LINE))


def shown(text: str, most: int) -> str:
    """A text on one line, at most `most` characters of it, what is not seen as escapes."""
    return one_line(text[:most]) + (f"... ({len(text)} characters)" if len(text) > most else "")


def _print(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr is closed
        sys.stderr.write(f"[reward] {text}\n")
        sys.stderr.flush()
