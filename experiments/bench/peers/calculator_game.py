"""The calculator's rules for the peers, whose Python has no rl_jax: plain Python, and their counts per step.

A test compares `step` with rl_jax.envs.text.calculator.
"""

import re
import time

CALL = "c"  # the first character of a call
_EXPRESSION = re.compile(r"(\d{1,9})([+*-])(\d{1,9})")


def step(said: str, answer: str, price: float) -> tuple[str | None, float, float]:
    """(what the calculator answers or None at the end, reward, 1 if the problem is solved)."""
    if not said.startswith(CALL):
        right = float(said == answer)
        return None, right, right
    match = _EXPRESSION.fullmatch(said.removeprefix(CALL))
    if match is None:
        return "?!=", -price, 0.0
    left, right = int(match[1]), int(match[3])
    result = {"+": left + right, "-": left - right, "*": left * right}[match[2]]
    return f"?{result}=", -price, 0.0


class Counts:
    """What a side prints: ends of the updates, processor seconds, and sums over each step's episodes."""

    def __init__(self, steps: int, episodes: int):
        self.episodes, self.ends, self.cpu_s = episodes, [], []
        self.sums = {name: [0.0] * steps for name in ("solved", "calls", "tokens")}

    def add(self, step: int, **more: float) -> None:
        """Adds to the sums of a step, counted from 0."""
        for name, value in more.items():
            self.sums[name][step] += float(value)

    def updated(self) -> None:
        """Says that a step's update has ended."""
        self.ends.append(time.perf_counter())
        self.cpu_s.append(time.process_time())

    def result(self, name: str) -> dict:
        """What is printed: differences from update to update, and means over episodes, one per step."""
        between = {"step_s": self.ends, "cpu_s": self.cpu_s}
        found = {key: [b - a for a, b in zip(ends, ends[1:], strict=False)] for key, ends in between.items()}
        means = {key: [value / self.episodes for value in sums] for key, sums in self.sums.items()}
        return {"name": name, **found, **means}
