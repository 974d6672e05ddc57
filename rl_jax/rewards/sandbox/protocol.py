"""What every sandbox takes and gives. Stdlib only."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class SandboxError(RuntimeError):
    """The sandbox itself failed, or cannot be had: no fault of the program that was to run."""


class Limits(NamedTuple):
    """Bounds of one program.

    Attributes:
      cpu_s: seconds of CPU; what decides about a program that computes, since the load of the machine does not count.
      wall_s: seconds of the clock, a guard for a program that sleeps.
      memory_mb: MiB of address space on top of the interpreter's own, per process.
      output_kb: KiB of stdout, and of stderr; a program that writes more is ended.
      processes: 1: it may start none (threads are no processes). More: bubblewrap only.
      threads: of all its processes together.
      disk_mb: MiB that it may write into its working directory; 0: it can write nowhere. More: bubblewrap only.
    """

    cpu_s: float = 2.0
    wall_s: float = 20.0
    memory_mb: int = 512
    output_kb: int = 256
    processes: int = 1
    threads: int = 64
    disk_mb: int = 0


DEFAULT_LIMITS = Limits()


class RunResult(NamedTuple):
    """What came out of one program.

    Attributes:
      stdout: bytes, at most limits.output_kb KiB.
      stderr: bytes, the same.
      exit: exit code; minus the signal's number if a signal ended it.
      status: "ok" (exit code 0), "error" (another one), "killed" (by a signal of its own, or of the kernel), "cpu",
        "wall" or "output" (the limit that ended it).
      cpu_s: seconds of CPU.
      wall_s: seconds of the clock.
    """

    stdout: bytes
    stderr: bytes
    exit: int
    status: str
    cpu_s: float
    wall_s: float


class Sandbox(Protocol):
    """Something that runs programs; use it in a `with`, or close() it."""

    name: str

    def run(
        self,
        files: Mapping[str, str | bytes],
        *,
        stdin: bytes = b"",
        limits: Limits = DEFAULT_LIMITS,
        argv: Sequence[str] = (),
    ) -> RunResult:
        """Runs a program in a fresh directory that has these files only.

        Args:
          files: relative path -> content; "main.py" is the program if argv is empty.
          stdin: what it reads.
          limits: bounds.
          argv: a command instead of main.py.

        Raises:
          ValueError: if a path leaves the directory, or this backend cannot hold a limit.
          SandboxError: if the sandbox failed.
        """

    def close(self) -> None:
        """Ends it."""
