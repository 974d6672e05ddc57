"""A curriculum that makes its own tasks from those that failed (WebRL): what is asked next, and what is kept of it.

A generator is (failed records, rng) -> a record {"prompt", "completion", "info" (JSON)}; a reader is (what a language
model has written) -> such a record, or None if it is no task. Source: arXiv 2411.02337 and THUDM/WebRL
scripts/gen_task.py, where GPT-4o is shown ten failed tasks of a site and asked for similar ones.
"""

import itertools
import json
import random
import re
from collections.abc import Sequence

import numpy as np

SUM = re.compile(r"-?\d+(?:[+-]\d+)+=")


def similar_sum(failed: Sequence[dict], rng: random.Random) -> dict:
    """A sum of as many terms as one of the failed ones has, whose terms are those of all of them.

    Only what the failed tasks name is named, and the difficulty is about theirs, as the released prompt asks.

    Raises:
      ValueError: if there is none, or one is no sum like "3+5-2=".
    """
    terms = []
    for record in failed:
        if not SUM.fullmatch(record["prompt"]):
            raise ValueError(f"{record['prompt']!r:.60} is no sum: name a generator of such tasks")
        terms.append(_terms(record["prompt"]))
    if not terms:
        raise ValueError("similar_sum needs a failed task")
    pool = [term for of_one in terms for term in of_one]
    drawn = [rng.choice(pool) for _ in range(len(rng.choice(terms)))]
    drawn[0] = abs(drawn[0])
    return _record(drawn)


def read_sum(text: str) -> dict | None:
    """The record of a sum that a model has written, "3+5-2="; None if the text is none, or has numbers like 007."""
    said = text.strip()
    record = _record(_terms(said)) if SUM.fullmatch(said) else None
    return record if record is not None and record["prompt"] == said else None


def _terms(prompt: str) -> list[int]:
    return [int(x) for x in re.findall(r"[+-]?\d+", prompt)]


def _record(terms: Sequence[int]) -> dict:
    """The record of a sum, with its answer and its running totals."""
    totals = list(itertools.accumulate(terms))[1:]
    info = {"answer": totals[-1], "num_operands": len(terms), "steps": [str(total) for total in totals]}
    prompt = str(terms[0]) + "".join(f"{term:+d}" for term in terms[1:]) + "="
    return {"prompt": prompt, "completion": "=".join(info["steps"]), "info": json.dumps(info)}


def learnable(success: np.ndarray, *, low: float = 0.05, high: float = 0.75) -> np.ndarray:
    """Tasks that are neither hopeless nor done: low <= success <= high. float [N] -> bool [N].

    The bounds are the released code's on its critic's value of a task's first state.

    Raises:
      ValueError: if the bounds are not shares in this order.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"low={low} and high={high} must be shares in this order")
    return (np.asarray(success) >= low) & (np.asarray(success) <= high)


def familiar(log_probs: np.ndarray, mask: np.ndarray, *, low: float = 0.5, high: float = 0.95) -> np.ndarray:
    """Past successes that the policy neither has by heart nor finds strange: low <= exp(mean logp) <= high.

    The geometric mean of a row's probabilities is 1 / its perplexity: 1 / .95 to 1 / .5 in arXiv 2411.02337.

    Args:
      log_probs: float [B, C], of the policy of the moment.
      mask: bool [B, C]; a row without a token is left out.

    Returns:
      bool [B].
    """
    count = mask.sum(axis=1)
    mean = np.where(mask, log_probs, 0.0).sum(axis=1) / np.maximum(count, 1)
    return (count > 0) & learnable(np.exp(np.minimum(mean, 0.0)), low=low, high=high)


def similar_words(texts: Sequence[str], rng: random.Random) -> str:
    """An instruction of as many words as one of the failed ones has, whose words are theirs, each at most once.

    `similar_sum` for tasks that are asked for in words: "cat dog?", "fig?" -> "dog fig?". A mark at the end is no part
    of a word; the new text has none.

    Raises:
      ValueError: if there is no word.
    """
    words = [re.findall(r"\w+", text) for text in texts]
    known = sorted({word for of_one in words for word in of_one})
    if not known:
        raise ValueError("similar_words needs an instruction that failed")
    return " ".join(rng.sample(known, min(len(known), max(1, len(rng.choice(words))))))


def instructions_in(answer: str) -> list[str]:
    """The tasks of an author's answer: what is between back-quotes; without any, the answer itself if it is not empty.

    Source: THUDM/WebRL scripts/gen_task.py asks for back-quotes.
    """
    quoted = re.findall(r"`([^`]+)`", answer)
    return [text.strip() for text in (quoted or [answer]) if text.strip()]
