"""How a program that was stopped by a signal ends: with a status of its own, so that whoever started it goes on."""

import signal
import subprocess
from collections.abc import Sequence

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: saved, not complete; the same command resumes
_stopped = False


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
