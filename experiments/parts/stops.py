"""How a program that was stopped by a signal ends: with a status of its own, so that whoever started it goes on."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: saved, not complete; the same command resumes
SAME_S = 1.0  # as checkpoint.SAME_S
_stopped = False
_shared: Any = None


def note() -> None:
    """A signal has ended a run of this process before its last step."""
    global _stopped
    _stopped = True


def status() -> int:
    """The exit status of this process: STOPPED after `note`, else 0."""
    return STOPPED if _stopped else 0


def wait(command: Sequence[str]) -> int:
    """Runs a command to its end. Returns its exit status.

    SIGTERM is passed on to it: alone it would go on, and nobody would know of it. Ctrl-C comes to both from a terminal,
    so this process leaves it to the command, which saves.
    """
    process = subprocess.Popen(command)
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGTERM: lambda *_: process.terminate()}
    kept = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        return process.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def sharing(stop: Any) -> Iterator[Any]:
    """Inside, every Run of this process is ended by `stop`: a signal between two of them is not lost.

    stop: a StopSignal of the caller, who asks it before each further run.
    """
    global _shared
    before, _shared = _shared, stop
    try:
        yield stop
    finally:
        _shared = before


def shared() -> Any:
    """The StopSignal of the caller of several runs; None outside `sharing`."""
    return _shared
