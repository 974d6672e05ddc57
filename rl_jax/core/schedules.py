"""Numbers that change from step to step: (step, *, ...) -> float. A config names one of these. No jax.

Steps are those of a program's loop, from 1. A schedule has its `start` in step 1 and its `end` from step 1 + steps on.
It depends on the step alone, so a run that is resumed continues it exactly.
"""

import math
from collections.abc import Sequence


def _share(step: int, steps: int) -> float:
    """How much of the way is done before this step, from 0 to 1."""
    if steps < 1:
        raise ValueError(f"steps={steps} must be 1 or more")
    return min(max(step - 1, 0) / steps, 1.0)


def constant(step: int, *, value: float) -> float:
    """value."""
    return value


def linear(step: int, *, start: float, end: float, steps: int) -> float:
    """start + (end - start) s, s = min((step - 1) / steps, 1)."""
    share = _share(step, steps)
    return (1.0 - share) * start + share * end


def cosine(step: int, *, start: float, end: float, steps: int) -> float:
    """end + (start - end) (1 + cos(pi s)) / 2, s as in `linear`."""
    share = _share(step, steps)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * share))


def exponential(step: int, *, start: float, end: float, steps: int) -> float:
    """start (end / start)^s, s as in `linear`. Raises ValueError if start and end are not both above 0."""
    if not (start > 0 and end > 0):
        raise ValueError(f"start={start} and end={end} must be above 0")
    return start * (end / start) ** _share(step, steps)


def piecewise(step: int, *, values: Sequence[tuple[int, float]]) -> float:
    """The value of the last pair (first step, value) that has begun.

    Raises:
      ValueError: if the first steps do not rise from 1.
    """
    begins = [begin for begin, _ in values]
    if not begins or begins[0] != 1 or any(a >= b for a, b in zip(begins, begins[1:], strict=False)):
        raise ValueError(f"values={values!r} must be pairs (first step, value) whose steps rise from 1")
    return next(value for begin, value in reversed(values) if begin <= max(step, 1))


def warmup(step: int, *, end: float, steps: int, start: float = 0.0) -> float:
    """`linear` from start, 0 unless it is given, to end, where it stays."""
    return linear(step, start=start, end=end, steps=steps)


def explore_then_exploit(step: int, *, low: float, high: float, steps: int, share: float = 0.3) -> float:
    """GRPO-D's weight of the KL: it falls from the middle to low over the exploration, then rises to high at the end.

        mid - (mid - low) s / w             if s <= w,     mid = (low + high) / 2,   w = share * steps
        low + (high - low) (s - w) / (t - w)  after it,    s: the step, at most t = steps

    Source: arXiv 2503.16081 eq. 3. Unlike the others it is counted from step 0, as there: step 1 is one step in.

    Args:
      step: s, from 1.
      low: beta_min.
      high: beta_max.
      steps: t, of the whole run.
      share: w / t; .3 there.

    Raises:
      ValueError: if steps is below 1, or share is not between 0 and 1.
    """
    if steps < 1 or not 0 < share < 1:
        raise ValueError(f"steps={steps} must be 1 or more, and share={share} above 0 and below 1")
    now, turn = min(max(step, 1), steps), share * steps
    if now <= turn:
        middle = (low + high) / 2
        return middle - (middle - low) * now / turn
    return low + (high - low) * (now - turn) / (steps - turn)
