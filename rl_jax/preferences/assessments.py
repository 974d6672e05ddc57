"""A reasoned assessment of several answers, and the reward of one: RewardAnything's, as far as it is known.

    <think>2>1>3</think>{"scores": [3, 5, 1], "best": [2, 1, 3]}

    r = .15 r_f + .85 r_a
    r_f = mean of: reasons are given; the JSON is an object; it has both keys; it covers each answer; its ranking
          nowhere contradicts its scores
    r_a = mean of, with s the scores and g the label's, both from 1 to 5:
          1 - sum_{g_i > g_j} (g_i - g_j) ([s_i < s_j] + [s_i = s_j] / 2) / sum_{g_i > g_j} (g_i - g_j)
          1 - mean |sort s - sort g| / 4
          mean max(0, 1 - |s - g| / 2)
          (1 + tau(ranking, g)) / 4 + |the ranking's first k that are among the k best| / (2 k),   k = half, rounded up

Source: arXiv 2506.03637 by two readers' notes, which have the weights .15 and .85, the five conditions of r_f by name
and the four parts of r_a by name: weighted inversions, the scores' distribution, partial credit for near scores,
agreement of ranks by Kendall's tau and the top k. What each part is exactly, and the weights within r_f and r_a, was
not in them: the forms above and the equal weights are ours.
"""

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

LOW, HIGH = 1.0, 5.0
SAID = re.compile(r"<think>(.*?)</think>\s*(.*)", re.DOTALL)


class Assessment(NamedTuple):
    """What was said.

    Attributes:
      reasons: the text in <think></think>; "" if there is none.
      is_object: whether the rest is a JSON object.
      has_keys: whether it has "scores" and "best".
      scores: of each answer; None unless they are numbers for every one.
      ranking: the answers from the best, from 0; None unless it names each once.
    """

    reasons: str
    is_object: bool
    has_keys: bool
    scores: list[float] | None
    ranking: list[int] | None


def read(text: str, count: int) -> Assessment:
    """The assessment of `count` answers in a text."""
    said = SAID.search(text)
    reasons, rest = (said[1].strip(), said[2]) if said else ("", text)
    try:
        found = json.loads(rest)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return Assessment(reasons, False, False, None, None)
    scores, best = found.get("scores"), found.get("best")
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) <= 1e6  # noqa: E731
    graded = isinstance(scores, list) and len(scores) == count and all(map(number, scores))
    whole = isinstance(best, list) and all(type(x) is int for x in best) and sorted(best) == list(range(1, count + 1))
    return Assessment(
        reasons,
        True,
        {"scores", "best"} <= set(found),
        [float(x) for x in scores] if graded else None,
        [x - 1 for x in best] if whole else None,
    )


def write(grades: Sequence[float]) -> str:
    """The assessment that says the grades, from 1 to 5 after rounding; its reasons are the order."""
    order = sorted(range(len(grades)), key=lambda place: -grades[place])
    best = [place + 1 for place in order]
    says = json.dumps({"scores": [round(x) for x in scaled(grades)], "best": best}, separators=(",", ":"))
    return f"<think>{'>'.join(map(str, best))}</think>{says}"


def scaled(grades: Sequence[float]) -> list[float]:
    """Grades on a line from 1, the worst, to 5, the best; 3 if all are equal."""
    low, high = min(grades), max(grades)
    return [LOW + (HIGH - LOW) * ((x - low) / (high - low) if high > low else 0.5) for x in grades]


def reward(text: str, grades: Sequence[float], *, form: float = 0.15, accuracy: float = 0.85) -> dict[str, float]:
    """r of a text as an assessment of answers with these grades, in [0, form + accuracy].

    Args:
      text: what the judge says.
      grades: the label's, 2 or more, in any unit.
      form: weight of r_f.
      accuracy: weight of r_a, which is 0 where scores or ranking are missing.

    Returns:
      reward; r_f as `format`, r_a as `accuracy`; right, whether the ranking is the label's; parsed, whether there are
      scores.
    """
    said = read(text, len(grades))
    complete = said.scores is not None and said.ranking is not None
    consistent = complete and all(
        said.scores[one] >= said.scores[other] for one, other in zip(said.ranking, said.ranking[1:], strict=False)
    )
    formed = sum([bool(said.reasons), said.is_object, said.has_keys, complete, consistent]) / 5
    target, exact, right = scaled(grades), 0.0, False
    if complete:
        place = {answer: place for place, answer in enumerate(said.ranking)}
        tau = agreement([-place[answer] for answer in range(len(target))], target)
        right = tau == 1.0
        gaps = [min(max(s, LOW), HIGH) - g for s, g in zip(sorted(said.scores), sorted(target), strict=True)]
        near = [max(0.0, 1 - abs(s - g) / 2) for s, g in zip(said.scores, target, strict=True)]
        parts = (
            1 - inversions(said.scores, target),
            1 - sum(map(abs, gaps)) / len(gaps) / (HIGH - LOW),
            sum(near) / len(near),
            (1 + tau) / 4 + top_share(said.ranking, target) / 2,
        )
        exact = sum(parts) / len(parts)
    total = form * formed + accuracy * exact
    return {
        "reward": total,
        "right": float(right),
        "parsed": float(said.scores is not None),
        "format": formed,
        "accuracy": exact,
    }


def inversions(scores: Sequence[float], grades: Sequence[float]) -> float:
    """Share of the gaps between grades that the scores turn round, in [0, 1]; equal scores half. 0 without gaps."""
    wrong = whole = 0.0
    for i, grade in enumerate(grades):
        for j, other in enumerate(grades):
            if grade > other:
                whole += grade - other
                wrong += (grade - other) * ((scores[i] < scores[j]) + 0.5 * (scores[i] == scores[j]))
    return wrong / whole if whole else 0.0


def top_share(ranking: Sequence[int], grades: Sequence[float]) -> float:
    """Share of a ranking's first half, rounded up, whose grades are those of the best half."""
    first = (len(grades) + 1) // 2
    least = sorted(grades)[-first]
    return sum(grades[answer] >= least for answer in ranking[:first]) / first


def agreement(scores: Sequence[float], grades: Sequence[float]) -> float:
    """Kendall's tau of scores with grades, in [-1, 1]: over the pairs with different grades; equal scores count 0."""
    signs = []
    for i in range(len(grades)):
        for j in range(i):
            if grades[i] != grades[j]:
                gap = (scores[i] - scores[j]) * (1 if grades[i] > grades[j] else -1)
                signs.append(int(gap > 0) - int(gap < 0))
    return sum(signs) / len(signs) if signs else 0.0
