"""Right answers made wrong, by a rule: negatives for a reward model that learns beside the policy (Cooper). No jax."""

import random
import re


def other_number(text: str, rng: random.Random) -> str | None:
    """The text with another last number: one digit is changed. "20=18=24" -> "20=18=54"; None without a number.

    What comes before it stays, so that the answer looks as right as it did. A first digit does not become 0, unless the
    number has one digit. In arXiv 2508.05613 an assistant model rewrites the answer.

    Args:
      text: an answer.
      rng: draws the digit and what it becomes.
    """
    found = list(re.finditer(r"\d+", text))
    if not found:
        return None
    start, end = found[-1].span()
    place = rng.randrange(start, end)
    leads = place == start and end - start > 1
    digit = rng.choice([x for x in ("123456789" if leads else "0123456789") if x != text[place]])
    return text[:place] + digit + text[place + 1 :]
