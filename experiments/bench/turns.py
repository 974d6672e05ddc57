"""Sides of a benchmark that take turns: each is a process that compiles once, and then works once per line it is sent.

Only the standard library is imported, so that a peer's own Python can run `serve`.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable


def serve(seconds: float, train: Callable, steps: int) -> None:
    """A side's process: reports that it has compiled, then trains once per line on standard input.

    Args:
      seconds: what compiling took.
      train: () -> the final returns of all seeds, an array [seeds].
      steps: environment steps of one `train`, of all its seeds together.
    """
    print(json.dumps({"compile_s": seconds}), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        returns = train()
        elapsed = time.perf_counter() - start
        print(json.dumps({"steps_per_s": steps / elapsed, "return": float(returns.mean())}), flush=True)


class Side:
    """A worker in a process of its own. command: runs `serve`."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.compile_s = self._read()["compile_s"]
        self.rounds: list[dict] = []

    def _read(self) -> dict:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a side ended with status {self._process.wait()}; its output is above")
        return json.loads(line)

    def turn(self) -> None:
        """Trains once."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.rounds.append(self._read())

    def result(self) -> dict:
        """The medians over its rounds; ends the process."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        medians = {name: statistics.median(row[name] for row in self.rounds) for name in self.rounds[0]}
        return {name: round(x, 1) for name, x in (medians | {"compile_s": self.compile_s}).items()}


def take_turns(sides: dict, rounds: int) -> dict:
    """key -> the result of its side, after so many rounds in which every side has a turn. sides: key -> Side."""
    for _ in range(rounds):
        for side in sides.values():
            side.turn()
    return {key: side.result() for key, side in sides.items()}
