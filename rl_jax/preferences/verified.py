"""A verifier of worked sums that reads the steps, and the contrastive pairs that it makes of rollouts (2505.19000).

    12+8-2= -> 20=18    right, and each total follows from the one before it
               21=18    right, but its steps do not lead to it: inconsistent
               20=17    wrong

VerIPO's verifier is a small language model that reads long chains of thought; here arithmetic does what it is asked:
whether the answer is right, and whether the reasoning leads to it.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

TERM = re.compile(r"[+-]?\d+")
TOTAL = re.compile(r"-?\d{1,18}")


class Verdict(NamedTuple):
    """What the verifier says of an answer.

    Attributes:
      right: whether the last total is the result.
      consistent: the share of the sum's steps that are there and right, each after the total before it.
    """

    right: bool
    consistent: float

    @property
    def kind(self) -> str:
        """good, inconsistent (right, but not by its steps) or wrong."""
        return "wrong" if not self.right else "good" if self.consistent == 1.0 else "inconsistent"

    @property
    def quality(self) -> float:
        """What pairs are ordered by: a right answer counts more than any number of right steps."""
        return 2.0 * self.right + self.consistent


def verify(prompt: str, completion: str) -> Verdict:
    """The verdict on a worked sum.

    Args:
      prompt: "12+8-2=".
      completion: its totals, "20=18".
    """
    terms = [int(x) for x in TERM.findall(prompt)]
    said = [int(x) if TOTAL.fullmatch(x) else None for x in completion.strip().split("=")]
    before, valid = terms[0] if terms else 0, 0
    for term, total in zip(terms[1:], said, strict=False):
        valid += total is not None and before is not None and before + term == total
        before = total
    steps = max(len(terms) - 1, 1)
    return Verdict(bool(terms) and said[-1] == sum(terms), valid / steps if len(said) <= steps else 0.0)


def contrast(prompt: str, completions: Sequence[str]) -> list[dict]:
    """Pairs {"prompt", "chosen", "rejected", "rejected_is"} of one prompt's rollouts.

    The chosen one is the best, the first if several are; one rejected answer of each kind that is worse, the first.

    Args:
      prompt: of all of them.
      completions: the rollouts.
    """
    verdicts = {text: verify(prompt, text) for text in completions if text.strip()}
    if not verdicts:
        return []
    best = max(verdicts, key=lambda text: verdicts[text].quality)  # dicts keep the order, max takes the first
    rejected: dict[str, str] = {}
    for text, verdict in verdicts.items():
        if verdict.quality < verdicts[best].quality:
            rejected.setdefault(verdict.kind, text)
    return [
        {"prompt": prompt, "chosen": best, "rejected": text, "rejected_is": kind} for kind, text in rejected.items()
    ]
