"""The arithmetic verifier: only a well-formed integer after the last "=" that is the answer scores."""
import random

import pytest

from rl_jax.rewards.arithmetic import read, score


@pytest.mark.parametrize("completion, answer, correct, well_formed", [
    ("95", 95, 1, 1), ("95-12=83", 83, 1, 1), ("-60-48=-108", -108, 1, 1), ("0", 0, 1, 1), (" 95\n", 95, 1, 1),
    ("96-12=83", 83, 1, 1),  # only the answer is verified, not the steps
    ("84", 83, 0, 1), ("83=84", 83, 0, 1), ("", 0, 0, 0), ("=", 0, 0, 0), ("083", 83, 0, 0), ("+83", 83, 0, 0),
    ("-0", 0, 0, 0), ("8 3", 83, 0, 0), ("95-12", 83, 0, 0), ("83=", 83, 0, 0), ("٨٣", 83, 0, 0),
    ("8" * 5000, 8, 0, 0)])
def test_score(completion, answer, correct, well_formed):
    assert score("...=", completion, {"answer": answer}) == {
        "reward": correct, "correct": correct, "format": well_formed}


RIGHT = {
    7: ["7", "7.0", "7.", "7.00", "7 apples", "7 apples.", "$7", "$7$", "7 km"]
    + ["\\boxed{7}", "$\\boxed{7}$", "\\boxed{7 \\text{ cm}}"],
    -7: ["-7", "−7", "–7", "-7.0", "-$7", "\\boxed{-7}", "− 7 degrees"],
    1000: ["1000", "1,000", "1,000.0", "$1,000", "1,000 apples", "1{,}000"],
    1234567: ["1,234,567", "1234567 dollars"],
    0: ["0", "0.0", "0 apples"],
}
NOT_7 = """7.5 | 07 | +7 | 7 or 8 | 7 and 8 | not 7 | 7 million | 7 percent | 7% | 7/1 | 3+4 | 14/2 | 7 8 | 7, 8 | 7e0
7.0.0 | ٧ | ７ | 0_7 | 7x | 7^1 | \\boxed{7}\\boxed{7} | \\boxed{7 | 7,000 | 1,7 | 7 eight | seven | 7 times 1
7 squared | (7) | [7] | {7} | 7! | 7±0 | | . | - | --7 | -7 | 7- | 7 minus | ~ | 7 is wrong | 7\\\\7 | 0x7
7j | inf | nan | True | 7.0000001 | 00 | -0"""


def test_forms_of_the_same_integer_are_right():
    for answer, texts in RIGHT.items():
        for text in texts:
            for completion in (text, f"3 + 4 = {text}", f" {text}\n"):
                assert score("", completion, {"answer": answer})["correct"] == 1.0, completion
    assert score("", "7.0", {"answer": 7})["format"] == 0.0  # the bare integer is the form that is asked for


def test_other_answers_stay_wrong():
    for text in (part.strip() for part in NOT_7.replace("\n", " | ").split(" | ")):
        assert score("", text, {"answer": 7})["correct"] == 0.0, text
    for text in ["1,00", "10,00", "1,0000", "1.000", "1 000", ",000", "1,000,", "01,000", "1,000,0"]:
        assert score("", text, {"answer": 1000})["correct"] == 0.0, text
    assert read("7" * 5000) is None and read("$" * 200 + "7") is None


def test_what_is_not_the_answer_scores_0():
    """10,000 texts in which the answer never stands alone."""
    rng = random.Random(3)
    dresses = ["{}", "{} apples", "${}", "\\boxed{{{}}}", "{}.0", "{}.", "{} or 7", "{} 7", "7{}", "{}7", "7/{}"]
    dresses += ["7.{}", "7^{}", "{}%"]
    for _ in range(10_000):
        number = rng.choice([rng.randrange(8, 10**6), rng.randrange(-999, 0), rng.randrange(2, 7)])
        text = rng.choice(dresses).format(f"{number:,}" if rng.random() < 0.3 else number)
        if text == "7.0":
            continue
        assert score("", text, {"answer": 7})["correct"] == 0.0, text
