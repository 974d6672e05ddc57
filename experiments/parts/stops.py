"""How a program that was stopped by a signal ends: with a status of its own, so that whoever started it goes on."""

STOPPED = 75  # EX_TEMPFAIL of sysexits.h: saved, not complete; the same command resumes
_stopped = False


def note() -> None:
    """A signal has ended a run of this process before its last step."""
    global _stopped
    _stopped = True


def status() -> int:
    """The exit status of this process: STOPPED after `note`, else 0."""
    return STOPPED if _stopped else 0
