"""Rewards for restoring a text: an order of its parts, masked spans, the next segment. Item terms.

The self-supervised tasks of MR-RLVR (arXiv 2511.17473), Visual Jigsaw (arXiv 2509.25190) on text and RLPT (arXiv
2509.19249).
"""

import re

from rl_jax.rewards import extract as extraction
from rl_jax.rewards.mathematics import equivalent

_INTEGERS = re.compile(r"\s*[\[(]?\s*(\d{1,4}(?:[\s,>-]+\d{1,4})*)\s*[\])]?\s*", re.ASCII)


def permutation(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "whole",
    answer_field: str = "answer",
    discount: float = 0.2,
    least: int = 0,
) -> dict[str, float]:
    """1 for the right permutation, discount * the share of right positions for another one, 0 for what is none.

    Source: arXiv 2509.25190 (penghao-wu/visual_jigsaw: discount .2, least 5); discount 1 is the order agreement of
    arXiv 2511.17473.

    Args:
      prompt: unused.
      completion: the text; its answer is the numbers with commas or blanks between them.
      info: has the right permutation, a list of distinct integers.
      extract: see rl_jax.rewards.extract.
      answer_field: the field of info.
      discount: what a valid but partly wrong permutation is worth.
      least: numbers that a permutation must have to be worth anything if it is partly wrong.

    Returns:
      reward; correct; valid: a permutation at all; positions: the share of right positions.

    Raises:
      ValueError: if info has no list of distinct integers.
    """
    gold = info.get(answer_field)
    if not isinstance(gold, list) or not gold or not all(type(n) is int for n in gold) or len(set(gold)) != len(gold):
        raise ValueError(f"info[{answer_field!r}] must be a list of distinct integers, found {gold!r:.80}")
    found = extraction.answers(completion, extract)
    match = _INTEGERS.fullmatch(found[0]) if len(found) == 1 and len(found[0]) <= 10 * len(gold) + 10 else None
    given = [int(number) for number in re.findall(r"\d+", match[1])] if match else []
    if sorted(given) != sorted(gold):
        return {"reward": 0.0, "correct": 0.0, "valid": 0.0, "positions": 0.0}
    share = sum(a == b for a, b in zip(given, gold, strict=True)) / len(gold)
    correct = float(given == gold)
    partly = discount * share if len(gold) >= least else 0.0
    return {"reward": correct or partly, "correct": correct, "valid": 1.0, "positions": share}


def masked_spans(
    prompt: str,
    completion: str,
    info: dict,
    *,
    extract: str | list[str] = "whole",
    answer_field: str = "answer",
    separator: str = ";",
) -> dict[str, float]:
    """The share of masked spans that are filled in rightly, in order; 0 if their number is another.

    A span is right if it is the same text, or the same value (rl_jax.rewards.mathematics). Our reading of MR-RLVR's
    masked fill, arXiv 2511.17473, whose weights we do not know.

    Raises:
      ValueError: if info has no list of texts.
    """
    gold = info.get(answer_field)
    if not isinstance(gold, list) or not gold or not all(isinstance(span, str) and span.strip() for span in gold):
        raise ValueError(f"info[{answer_field!r}] must be a list of texts, found {gold!r:.80}")
    found = extraction.answers(completion, extract)
    given = [span.strip() for span in found[0].split(separator)] if len(found) == 1 else []
    right = [0.0]
    if len(given) == len(gold):
        right = [a == b.strip() or equivalent(b, a) for a, b in zip(given, gold, strict=True)]
    share = sum(right) / len(gold)
    return {"reward": share, "correct": float(share == 1.0), "filled": float(len(given) == len(gold))}


def next_segment(
    prompt: str,
    completion: str,
    info: dict,
    *,
    answer_field: str = "answer",
    mode: str = "prefix",
    least_words: int = 1,
) -> dict[str, float]:
    """1 if the completion is the true segment, or with mode "prefix" its beginning in whole words.

    Case, punctuation and blanks do not count. Our reading of RLPT's reward, arXiv 2509.19249: there a model judges
    whether the prediction means the same as the segment or its beginning; here the match is exact.

    Args:
      prompt: unused.
      completion: the prediction.
      info: has the true segment.
      answer_field: the field of info.
      mode: "prefix" or "exact".
      least_words: fewest words of a prefix that is paid, unless it is all of the segment.

    Returns:
      reward; correct: the same; shared: the share of the segment's words that are right before the first wrong one.

    Raises:
      ValueError: if info has no segment or the mode is unknown.
    """
    if mode not in ("prefix", "exact"):
        raise ValueError(f"mode={mode!r} is neither prefix nor exact")
    gold = info.get(answer_field)
    words = re.findall(r"\w+", gold.casefold()) if isinstance(gold, str) else []
    if not words:
        raise ValueError(f"info[{answer_field!r}] must be a text with words, found {gold!r:.80}")
    given = re.findall(r"\w+", completion[:100_000].casefold())
    shared = next((place for place, (a, b) in enumerate(zip(given, words, strict=False)) if a != b),
                  min(len(given), len(words)))  # fmt: skip
    prefix = least_words <= len(given) == shared
    correct = float(given == words or mode == "prefix" and prefix and bool(given))
    return {"reward": correct, "correct": correct, "shared": shared / len(words)}


def restored(
    prompt: str, completion: str, info: dict, *, extract: str | list[str] = "whole", discount: float = 1.0
) -> dict[str, float]:
    """The reward of whatever was to be restored: an order, masked spans or a segment, told apart by info["answer"].

    A list of integers is an order (permutation with `discount`), a list of texts are masked spans, a text is a segment.
    Components are those that all three have: correct.

    Raises:
      ValueError: if info has none of them.
    """
    gold = info.get("answer")
    if isinstance(gold, str):
        found = extraction.answers(completion, extract)
        result = next_segment(prompt, found[0] if len(found) == 1 else "", info)
    elif isinstance(gold, list) and gold and isinstance(gold[0], str):
        result = masked_spans(prompt, completion, info, extract=extract)
    else:
        result = permutation(prompt, completion, info, extract=extract, discount=discount)
    return {"reward": result["reward"], "correct": result["correct"]}
