"""Exact verifiers: strings, numbers, letters, sets, intervals, labels; and what must not fool them."""

from fractions import Fraction

import pytest

from rl_jax.rewards import exact

OPTIONS = {"answer": "B", "options": ["red", "green", "blue"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18", 18), ("-3.50", Fraction(-7, 2)), ("1,080", 1080), ("$3.50", Fraction(7, 2)), ("50%", Fraction(1, 2)),
        ("-$5", -5), ("$-5$", -5), (r"\$3.5", Fraction(7, 2)), ("**42.**", 42), ("- 5", None),
        (r"50\%", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)), ("2e3", 2000), (".5", Fraction(1, 2)), ("−4", -4), ("18.", 18),
        ("nan", None), ("inf", None), ("1e999", None), ("1e9999999", None), ("1/0", None), ("1 or 2", None), ("", None),
        ("٣", None), ("１", None), ("1_000", None), ("0x10", None), ("9" * 100, None), ("1,2", None), ("3+3", None),
    ],
)  # fmt: skip
def test_numbers(text, value):
    assert exact.read_number(text) == value


def test_a_number_within_its_tolerance():
    def reward(completion, **keywords):
        return exact.number("", completion, {"answer": 10}, extract="whole", **keywords)["reward"]

    assert reward("10.0") == 1.0 and reward("10.1") == 0.0
    assert reward("10.1", absolute=0.125) == 1.0 and reward("10.2", absolute=0.125) == 0.0
    assert reward("10.1", relative=0.0125) == 1.0 and reward("10.2", relative=0.0125) == 0.0
    assert reward("inf", absolute=1e300) == 0.0
    thought = r"<think>The number goes in \boxed{}: \boxed{9}?</think>\boxed{10}"
    assert exact.number("", thought, {"answer": 10})["reward"] == 1.0
    with pytest.raises(ValueError, match=r"info\['answer'\] is 'ten', which is no number"):
        exact.number("", "10", {"answer": "ten"})


def test_a_percent_sign_on_one_side():
    """As in rewards.mathematics: of the two, one may lack it."""
    for gold, given, reward in (
        ("42", "42%", 1), ("42%", "42", 1), ("42%", "42%", 1), (".42", "42%", 1), ("42%", ".42", 1),
        ("42%", "4200%", 0), ("42", ".42", 0), ("42", "4200%", 1),
    ):  # fmt: skip
        assert exact.number("", given, {"answer": gold}, extract="whole")["reward"] == reward, (gold, given)


def test_graded_numbers_are_those_of_the_paper():
    """The atlas' table of RandomCalculation (arXiv 2507.10532)."""
    for a, b, reward in ((10, 10, 1), (10.5, 10, 0.725), (12, 10, 0.4), (0, 10, 0), (0.1, 0, 0.45)):
        found = exact.graded_number("", rf"\boxed{{{a}}}", {"answer": str(b)})
        assert found["reward"] == pytest.approx(reward, abs=1e-6) and found["correct"] == (a == b)


def test_an_answer_that_is_no_number_is_graded_zero():
    for text in ("", "10", r"\boxed{ten}", r"\boxed{10}\boxed{11}", r"\boxed{nan}"):
        assert exact.graded_number("", text, {"answer": 10})["reward"] == 0.0


def test_strings():
    assert exact.match("", " yes \n", {"answer": "yes"})["reward"] == 1.0
    assert exact.match("", "Yes", {"answer": "yes"})["reward"] == 0.0
    assert exact.match("", "Yes", {"answer": "yes"}, ignore_case=True)["reward"] == 1.0
    assert exact.match("", "", {"answer": "yes"})["reward"] == 0.0
    with pytest.raises(ValueError, match=r"info\['label'\]"):
        exact.match("", "yes", {}, answer_field="label")


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("B", 1), ("(B)", 1), ("B.", 1), ("B) green", 1), ("**B**", 1), ("The answer is B.", 1), ("answer: (B)", 1),
        (r"so \boxed{B}", 1), (r"\boxed{\text{(B)}}", 1), (r"\boxed{b}", 1), ("<answer>B</answer>", 1), ("green", 1),
        ("The final answer is green.", 1), ("I choose option B", 1), ("A is wrong. The answer is B", 1),
        ("A", 0), ("", 0), ("A B C D", 0), ("ABCD", 0), ("A, B", 0), (r"\boxed{A, B}", 0), (r"\boxed{ABCD}", 0),
        ("The answer is A. The answer is B.", 0), ("The answer is A or B", 0), ("red, green, blue", 0), ("BA", 0),
        ("the answer is a number", 0), ("Because it is so", 0), ("<answer>A</answer> <answer>B</answer>", 0),
        ("I do not know", 0), ("The answer is Blue", 0),
        ("Option A is too small. Option B fits. The answer is B.", 1), ("**Answer:** B", 1), ("**Answer**: (B)", 1),
        ("Let's look at option A: no. Option C: no.\n\nAnswer: B", 1), ("The correct option is **B**", 1),
        ("Choice C is out. So (B).", 0), ("Option B", 1), ("Answer (B)", 1), (r"The answer is $\boxed{\text{B}}$", 1),
        ("The answer is option B", 1), ("The answer is: option (B)", 1), ("The best answer is choice B", 1),
        (r"\boxed{\textbf{(B)}}", 1), (r"Answer: $\boxed{\mathrm{B}}$", 1), ("### Answer\nB", 1), ("## Answer\n\nA", 0),
        ("### Answer\nBecause of this, A", 0), ("<think>The answer is A?</think>The answer is B", 1),
        ("The answer is option A or B", 0), ("<think>The answer is B</think>", 0),
        ("I choose option A. The answer is B", 1), ("I pick choice A or B", 0), ("Answer: A, so I choose option B", 0),
        ("The answer is option B", 1), ("The answer is: option (B)", 1), ("The best answer is choice B", 1),
        (r"\boxed{\textbf{(B)}}", 1), (r"\boxed{\mathrm{B}}", 1), (r"Answer: $\boxed{\mathrm{B}}$", 1),
        ("### Answer\nB", 1), ("## Final answer:\n**B**", 1), ("### Answer\n(B) green", 1), ("### Answer\nB. green", 1),
        ("The answer is option A", 0), ("The answer is option A or option B", 0), ("The answer is optional B", 0),
        (r"\boxed{\textbf{A}} \boxed{\textbf{B}}", 0), ("### Answer\nA number", 0), ("### Answer\nB is wrong", 0),
        ("### Answer\nA\n### Answer\nB", 0), ("### Answer\nA or B", 0),
        ("<think>The answer is A? The answer is B?</think> The answer is B", 1),
        ("<think>The answer is B</think> The answer is A", 0), ("<think>The answer is B</think> I do not know", 0),
        (r"Put the letter in \boxed{}. \boxed{B}", 1),
    ],
)  # fmt: skip
def test_multiple_choice(completion, reward):
    assert exact.choice("", completion, OPTIONS)["reward"] == reward


def test_two_letters_are_no_choice_whichever_is_right():
    for text in ("The answer is A or B", "answer: (A)(B)", "<answer>A B</answer>", r"\boxed{A, B}"):
        assert [exact.choice("", text, {"answer": gold})["reward"] for gold in "AB"] == [0.0, 0.0], text
    assert exact.choice("", "The answer is A. I am sure", {"answer": "A"})["reward"] == 1.0


def test_an_option_that_is_only_discussed_is_no_choice():
    assert exact.choice("", "Choice C is out. So (B).", {"answer": "C"})["reward"] == 0.0
    assert exact.choice("", "Option A is wrong.", {"answer": "A"})["reward"] == 0.0


def test_a_choice_needs_a_letter():
    with pytest.raises(ValueError, match=r"info\['answer'\] must be a letter of the options, found 'D'"):
        exact.choice("", "D", {**OPTIONS, "answer": "D"})
    with pytest.raises(ValueError, match="must be a letter"):
        exact.choice("", "D", {"answer": "green"})


def test_sets():
    info = {"answer": ["red", "blue"]}
    assert exact.items("", "Blue, red", info)["reward"] == 1.0
    for text in ("red", "red, blue, green", "red, red, blue", ""):
        assert exact.items("", text, info)["reward"] == 0.0, text
    assert exact.items("", "red", info, partial=True)["reward"] == pytest.approx(2 / 3)
    assert exact.items("", "red, green", info, partial=True)["reward"] == 0.5
    assert exact.items("", "red, red, red, red", info, partial=True)["reward"] == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match=r"info\['answer'\] must be a list of texts"):
        exact.items("", "red", {"answer": "red"})


def test_intervals():
    info = {"interval": [2, 2.5]}
    for text in ("2", "2.25", "9/4"):
        assert exact.within("", rf"\boxed{{{text}}}", info)["reward"] == 1.0, text
    for text in ("3", "nan", "[2, 2.5]", "2, 2.1", ""):
        assert exact.within("", rf"\boxed{{{text}}}", info)["reward"] == 0.0, text
    assert exact.within("", r"\boxed{2}", info, closed=False)["reward"] == 0
    with pytest.raises(ValueError, match=r"info\['interval'\] must be \[low, high\]"):
        exact.within("", "2", {"interval": [3, 2]})


def test_labels_with_and_without_thinking():
    """CLS-RL (arXiv 2503.16188): accuracy + format, or the bare label."""
    info = {"answer": "positive"}
    thinking = [("<think>a</think><answer>Positive</answer>", 2, 1), ("<think>a</think><answer>no</answer>", 1, 1)]
    thinking += [("<answer>positive</answer>", 1, 0), ("positive", 0, 0), ("<think></think><answer>x</answer>", 0, 0)]
    thinking += [("<think>a</think><answer>positive</answer><answer>negative</answer>", 0, 0)]
    for text, reward, formed in thinking:
        assert exact.label("", text, info)["reward"] == reward and exact.label("", text, info)["format"] == formed, text
    for text, reward in (("positive", 1), (" Positive\n", 1), ("positive negative", 0), ("negative", 0), ("", 0)):
        assert exact.label("", text, info, think=False)["reward"] == reward, text
