"""What a program costs in each sandbox: the median and the slowest of a number of starts, and of the proof.

python -m experiments.bench.sandbox
"""

import statistics
import time
from collections.abc import Callable

from rl_jax.rewards.sandbox import client, prove
from rl_jax.rewards.sandbox.protocol import SandboxError

STARTS = 50


def timed(fn: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of each of `count` calls."""
    result = []
    for _ in range(count):
        start = time.perf_counter()
        fn()
        result.append(1e3 * (time.perf_counter() - start))
    return result


def main() -> None:
    """Prints a line per backend."""
    for mode in client.MODES:
        try:
            start = time.perf_counter()
            with client.ProcessSandbox(mode) as box:
                started = 1e3 * (time.perf_counter() - start)
                runs = timed(lambda: box.run({"main.py": "print(1)"}), STARTS)  # noqa: B023 - called at once
                proof = timed(lambda: prove.prove(box), 1)[0] if mode != "none" else 0.0  # noqa: B023
        except SandboxError as error:
            print(f"{mode}: {error}")
            continue
        times = f"median {statistics.median(runs):.1f} ms, slowest {max(runs):.1f} ms of {STARTS}"
        print(f"{mode}: per program {times}; its process {started:.0f} ms, the proof {proof:.0f} ms")


if __name__ == "__main__":
    main()
