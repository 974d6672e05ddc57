"""rl_jax.preferences.corrupted: what is changed of a right answer, and what never is."""

import random
import re

from rl_jax.preferences.corrupted import other_number


def test_one_digit_of_the_last_number_is_another():
    for text in ("20=18=24", "7", "the answer is 10.", "x=0", "-5", "1 and 1000"):
        seen = set()
        for seed in range(200):
            found = other_number(text, random.Random(seed))
            changed = [place for place, (a, b) in enumerate(zip(text, found, strict=True)) if a != b]
            start, end = list(re.finditer(r"\d+", text))[-1].span()
            assert len(found) == len(text) and len(changed) == 1 and start <= changed[0] < end
            number = found[start:end]
            assert number.isdigit() and (len(number) == 1 or number[0] != "0")
            seen.add(found)
        digits = len(list(re.finditer(r"\d+", text))[-1][0])
        assert len(seen) == 9 * digits - (digits > 1)  # the first digit of several is never 0


def test_without_a_number_nothing_is_made_wrong():
    assert other_number("no idea", random.Random(0)) is None and other_number("", random.Random(0)) is None
