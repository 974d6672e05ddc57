"""Group terms: the reward of a completion beside the others of its prompt. Each takes lists of one group's G values.

They run in the program, once per group (rl_jax.rewards.terms.GROUP lists what a group term may ask for). For brevity
beside the right answers of a group see rl_jax.rewards.brevity.
"""

import re
from collections import Counter
from collections.abc import Sequence

from rl_jax.rewards import extract

# --- Lengths ---------------------------------------------------------------------------------------------------------


def relative_length(completions: list[str], *, lengths: list[int], low: float = -0.5, high: float = 0.5) -> list[float]:
    """high - (high - low) (n_i - min n) / (max n - min n): the shortest of the group has `high`, the longest `low`.

    All have (low + high) / 2 if all are equally long. Source: the length reward of arXiv 2501.12599 (Kimi k1.5) with
    its bounds, without its condition that the answer is right (a gate by that term gives it).

    Args:
      completions: G texts.
      lengths: tokens of each.
      low: of the longest.
      high: of the shortest.
    """
    shortest, spread = min(lengths), max(lengths) - min(lengths)
    return [high - (high - low) * ((n - shortest) / spread if spread else 0.5) for n in lengths]


# --- Votes -----------------------------------------------------------------------------------------------------------


def majority(completions: list[str], *, rule: str = "whole", normalize: bool = True) -> list[float]:
    """1 if the answer is the most frequent one of the group, else 0: TTRL, which learns without labels.

    Completions without an answer, or with several, have no vote and 0. Of several most frequent answers the first one
    given counts. If no two answers agree there is no majority, and all have 0. Source: arXiv 2504.16084.

    Args:
      completions: G texts.
      rule: how the answer is found, a name of rl_jax.rewards.extract.RULES.
      normalize: whether case, spaces and a final full stop do not matter.
    """
    answers = [_answer(text, rule, normalize) for text in completions]
    label = _most_frequent(answers)
    return [float(label is not None and answer == label) for answer in answers]


def vote_share(completions: list[str], *, rule: str = "whole", normalize: bool = True) -> list[float]:
    """The share of the group's completions that give the same answer; 0 without an answer.

    A soft vote: an answer of 3 in 8 counts 3/8, so a group that is not sure teaches less. Arguments as in `majority`.
    """
    answers = [_answer(text, rule, normalize) for text in completions]
    counts = Counter(answer for answer in answers if answer is not None)
    return [counts[answer] / len(answers) if answer is not None else 0.0 for answer in answers]


# --- Diversity -------------------------------------------------------------------------------------------------------


def uniqueness(completions: list[str]) -> list[float]:
    """1 / (number of completions of the group that are equal to this one, itself included).

    The sum over a group is the number of different texts.

    Args:
      completions: G texts; spaces at the ends do not matter.
    """
    counts = Counter(text.strip() for text in completions)
    return [1.0 / counts[text.strip()] for text in completions]


def distinct_ngrams(completions: list[str], *, n: int = 2) -> list[float]:
    """The share of a completion's word n-grams that no other completion of the group has.

    0 for identical completions and for one with fewer than n words. Our reading of the diversity bonus of arXiv
    2507.20187 (MultiRole-R1), to be gated by the accuracy.

    Args:
      completions: G texts.
      n: words of an n-gram.
    """
    grams = [_ngrams(text, n) for text in completions]
    owners = Counter(gram for found in grams for gram in found)
    return [sum(owners[gram] == 1 for gram in found) / len(found) if found else 0.0 for found in grams]


def dissimilarity(completions: list[str], *, n: int = 2) -> list[float]:
    """1 - mean over the others of |A and B| / |A or B| of their word n-grams; 0 in a group of one.

    Args:
      completions: G texts.
      n: words of an n-gram; a text with fewer words has none and equals no other but another such one.
    """
    grams, others = [_ngrams(text, n) for text in completions], len(completions) - 1
    if not others:
        return [0.0]
    return [1.0 - sum(_jaccard(a, b) for j, b in enumerate(grams) if j != i) / others for i, a in enumerate(grams)]


def roles(completions: list[str], *, pattern: str = r"(?i)\bas an? (\w+)", most: int = 4) -> list[float]:
    """min(number of different roles that a completion speaks in, most) / most.

    Our reading of the perspectives of arXiv 2507.20187 (MultiRole-R1): each is counted once, and no more than `most`
    pay. It looks at each completion by itself.

    Args:
      completions: G texts.
      pattern: finds a role; its first group is the role's name.
      most: number of roles that is worth 1.
    """
    found = [{role.lower() for role in re.findall(pattern, text)} for text in completions]
    return [min(len(names), most) / most for names in found]


def novelty(
    completions: list[str], *, rule: str = "whole", normalize: bool = True, n: int = 2, characters: bool = False
) -> list[float]:
    """EVOL-RL: the majority decides the sign, and among equals what is new is worth more.

        R = .5 + .5 u in the majority,   -1 + .5 u outside of it,   -1 without an answer

    u = 1 - (mean similarity within the class + greatest similarity to any other) / 2, made 0 to 1 within each class
    (1/2 in a class without a spread: .75 or -.75; a class of one outside of the majority: -.5). Source: arXiv
    2509.15194; its sentence embeddings are word n-grams here (Jaccard).

    Args:
      completions: G texts.
      rule: as in `majority`.
      normalize: as in `majority`.
      n: words of an n-gram.
      characters: n-grams of characters instead, for answers without words.
    """
    answers = [_answer(text, rule, normalize) for text in completions]
    parts = [" ".join(text) if characters else text for text in completions]
    label, grams = _most_frequent(answers, alone=True), [_ngrams(text, n) for text in parts]
    rewards = [-1.0] * len(completions)
    for is_major in (True, False):
        rows = [i for i, a in enumerate(answers) if a is not None and (a == label) == is_major]
        raw = [_novelty_of(i, rows, grams) for i in rows]
        low, spread = min(raw, default=0.0), max(raw, default=0.0) - min(raw, default=0.0)
        alone = 1.0 if len(rows) == 1 and not is_major else 0.5
        for i, value in zip(rows, raw, strict=True):
            unit = (value - low) / spread if spread > 1e-12 else alone
            rewards[i] = (0.5 if is_major else -1.0) + 0.5 * unit
    return rewards


def _novelty_of(i: int, rows: Sequence[int], grams: Sequence[frozenset]) -> float:
    within = [_jaccard(grams[i], grams[j]) for j in rows if j != i]
    nearest = max((_jaccard(grams[i], other) for j, other in enumerate(grams) if j != i), default=0.0)
    return 1.0 - 0.5 * (sum(within) / max(len(within), 1) + nearest)


# --- Parts -----------------------------------------------------------------------------------------------------------


def _answer(text: str, rule: str, normalize: bool) -> str | None:
    found = extract.answers(text, rule)
    if normalize:
        found = list(dict.fromkeys(" ".join(answer.lower().split()).removesuffix(".") for answer in found))
    return found[0] or None if len(found) == 1 else None  # several answers are no vote


def _most_frequent(answers: Sequence[str | None], *, alone: bool = False) -> str | None:
    """The most frequent answer; None if there is none, or (unless `alone`) if it was given once among several."""
    counts = Counter(answer for answer in answers if answer is not None)
    if not counts:
        return None
    label, count = counts.most_common(1)[0]
    return label if count > 1 or alone or counts.total() == 1 else None


def _ngrams(text: str, n: int) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return frozenset(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def _jaccard(first: frozenset, second: frozenset) -> float:
    return len(first & second) / len(first | second) if first or second else 1.0
