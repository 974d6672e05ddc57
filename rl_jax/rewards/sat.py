"""Verifier of SAT: an assignment like "10110" of the variables a, b, c, ... against info["clauses"]. Exact."""

import re
from collections.abc import Sequence

_ASSIGNMENT = re.compile(r"[01]{1,26}")


def satisfied(clauses: Sequence[Sequence[int]], assignment: Sequence[bool]) -> list[bool]:
    """Whether each clause has a true literal. A literal v is variable v, -v its negation; the first variable is 1."""
    return [any(assignment[abs(literal) - 1] == (literal > 0) for literal in clause) for clause in clauses]


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Scores one completion.

    Source: SATURN, arXiv 2505.16368: 1 for a satisfying assignment, 0 for a wrong one, -1 for none.

    Returns:
      reward: 1, 0, or -1 if the completion is not one digit 0 or 1 per variable. correct: whether all clauses hold.
      format: whether it is an assignment. satisfied: the share of clauses that hold.
    """
    text = completion.strip()
    if _ASSIGNMENT.fullmatch(text) is None or len(text) != info["variables"]:
        return {"reward": -1.0, "correct": 0.0, "format": 0.0, "satisfied": 0.0}
    held = satisfied(info["clauses"], [digit == "1" for digit in text])
    correct = float(all(held))
    return {"reward": correct, "correct": correct, "format": 1.0, "satisfied": sum(held) / len(held)}
