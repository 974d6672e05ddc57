"""The verifier of mathematics: tables, extraction, adversarial completions, published answers, labelled solutions."""

import gzip
import importlib
import importlib.util
import json
import os
import pathlib
import random
import sys
import time
from fractions import Fraction

import pytest

from rl_jax.rewards import extract, math_backend
from rl_jax.rewards.algebra import Algebra, AlgebraError, as_fraction, number, symbol
from rl_jax.rewards.expressions import ExpressionError, parse
from rl_jax.rewards.mathematics import equivalent, score
from tests.paths import shared_data
from tests.rewards.mathematics_table import ACCEPT, REJECT

GOLD = {"answer": "18"}


def test_what_must_be_accepted():
    assert len(ACCEPT) >= 40
    assert [pair for pair in ACCEPT if not equivalent(*pair)] == []


def test_what_must_be_rejected():
    assert len(REJECT) >= 40
    assert [pair for pair in REJECT if equivalent(*pair)] == []


@pytest.mark.slow
def test_every_accepted_answer_is_rejected_for_another_question():
    """No answer of the table is right for many right answers of it."""
    golds = sorted({gold for gold, _ in ACCEPT})
    for _, given in ACCEPT:
        assert sum(equivalent(gold, given) for gold in golds) <= 6, given  # a half is written in six ways


@pytest.mark.parametrize(
    ("completion", "extraction", "reward"),
    [
        (r"so \boxed{18}", "boxed", 1.0),
        (r"\boxed 18", "boxed", 0.0),  # LaTeX puts the 1 alone into the box
        (r"\boxed{\frac{36}{2}}", "boxed", 1.0),
        (r"first \boxed{18.0}, again \boxed{18}", "boxed", 1.0),
        (r"\boxed{17} no, \boxed{18}", "boxed", 0.0),
        (r"\boxed{18} or \boxed{19}", "boxed", 0.0),
        (" ".join(rf"\boxed{{{n}}}" for n in range(1000)), "boxed", 0.0),
        (r"fill in $2\boxed{\phantom{0}}$: \boxed{18}", "boxed", 1.0),
        (r"\boxed{\phantom{18}}", "boxed", 0.0),
        (r"\boxed{18", "boxed", 0.0),
        (r"\boxed{}", "boxed", 0.0),
        (r"\boxed{18} \boxed{", "boxed", 0.0),
        (r"\boxed" * 1000, "boxed", 0.0),
        ("18", "boxed", 0.0),
        ("", "boxed", 0.0),
        ("6 * 3 = 18\n#### 18", "hash", 1.0),
        ("#### 17\n#### 18", "hash", 0.0),
        ("#### 18 or 19", "hash", 0.0),
        ("So the answer is 18.", "answer_is", 1.0),
        ("The final answer is: $18$. I hope it is correct.", "answer_is", 1.0),
        ("The answer is 17. No, the answer is 18.", "answer_is", 0.0),
        ("The answer is 0 or 18.", "answer_is", 0.0),
        ("<answer> 18 </answer>", "tag", 1.0),
        ("<answer>17</answer><answer>18</answer>", "tag", 0.0),
        ("1, 2, 3 and 18", "last_number", 1.0),
        ("it costs 1,018", "last_number", 0.0),
        ("18", "whole", 1.0),
        ("the answer is 18", ["boxed", "answer_is"], 1.0),
        (r"the answer is 18 \boxed{17}", ["boxed", "answer_is"], 0.0),
        # As instructed models write it: Markdown's emphasis, a box in dollar signs.
        ("**Answer:** 18", "answer_is", 1.0),
        ("**Final Answer: 18**", "answer_is", 1.0),
        ("**Answer**: 18", "answer_is", 1.0),
        ("The answer is **18.** It follows.", "answer_is", 1.0),
        ("Answer: `18`", "answer_is", 1.0),
        ("The answer is **18**. No, the answer is **17**.", "answer_is", 0.0),
        ("The answer is **18** or **17**", "answer_is", 0.0),
        (r"The final answer is: $\boxed{18}$", "answer_is", 1.0),
        (r"The final answer is \(\boxed{18}\).", "answer_is", 1.0),
        (r"The answer is \boxed{18} or \boxed{17}", "answer_is", 0.0),
        ("#### **18**", "hash", 1.0),
        (r"#### $\boxed{18}$", "hash", 1.0),
        ("<answer>**18**</answer>", "tag", 1.0),
        ("<answer>2**18</answer>", "tag", 0.0),
        # Instructions, placeholders and thoughts hold no answer.
        (r"I must put the answer within \boxed{}. So \boxed{18}", "boxed", 1.0),
        (r"\boxed{...} \boxed{\ldots} \boxed{…} \boxed{ } \boxed{18}", "boxed", 1.0),
        (r"\boxed{} \boxed{17}", "boxed", 0.0),
        (r"<think>Is it \boxed{4}? No.</think>\boxed{18}", "boxed", 1.0),
        (r"<think>It is \boxed{18}.</think>\boxed{17}", "boxed", 0.0),
        (r"<think>It is \boxed{18}.</think>", "boxed", 0.0),
        (r"<think>It is \boxed{17}. No, \boxed{18}", "boxed", 0.0),  # a thought without an end is read
        ("<think>The answer is 17</think>The answer is 18", "answer_is", 1.0),
        ("The answer is:\n\n\\[ \\boxed{18} \\]", ["answer_is", "boxed"], 1.0),
        ("####\n\\boxed{18}", ["hash", "boxed"], 1.0),
        (r"\boxed{17", ["boxed", "last_number"], 0.0),  # never closed: no other rule is asked
        (r"\boxed{18", ["boxed", "last_number"], 0.0),
        ("**18", "whole", 0.0),
        # What repeats the instruction, and what is only thought of.
        (r"I must put the answer within \boxed{}. So \boxed{18}", "boxed", 1.0),
        (r"\boxed{...}, \boxed{\ldots}, \boxed{18}", "boxed", 1.0),
        (r"<think>Is it \boxed{17}? No.</think>\boxed{18}", "boxed", 1.0),
        (r"<think>\boxed{18}</think>I do not know", "boxed", 0.0),
        (r"<think>\boxed{18}", "boxed", 1.0),
        ("The answer is:\n\n\\[ \\boxed{18} \\]", ["answer_is", "boxed"], 1.0),
        ("<think>the answer is 17</think>The answer is 18.", "answer_is", 1.0),
    ],
)
def test_extraction(completion, extraction, reward):
    assert score("", completion, GOLD, extract=extraction)["reward"] == reward


def test_a_list_of_all_candidates_is_never_right():
    everything = ", ".join(map(str, range(1, 40)))
    for text in (everything, rf"\{{{everything}\}}", f"[{everything}]", everything.replace(",", " or")):
        assert score("", rf"\boxed{{{text}}}", GOLD)["reward"] == 0.0


def test_an_unknown_rule_and_a_missing_answer_are_named():
    with pytest.raises(ValueError, match="'boxes' is no rule; the rules are boxed, hash"):
        score("", "", GOLD, extract="boxes")
    with pytest.raises(ValueError, match=r"info\['answer'\] must be the right answer.*None"):
        score("", "", {})
    with pytest.raises(ValueError, match=r"info\['solution'\] is '': no answer"):
        score("", "", {"solution": " "}, answer_field="solution")
    with pytest.raises(ValueError, match="no answer can be compared"):
        score("", "", {"answer": r"\frac{1}{2"})
    with pytest.raises(ValueError, match="backend='sympy'"):
        score("", "", GOLD, backend="sympy")


# --- The numbers behind it --------------------------------------------------------------------------------------------


def test_radicals_are_decided_exactly():
    algebra = Algebra()
    two, three = number(2), number(3)
    product = algebra.multiply(algebra.root(two, 2), algebra.root(three, 2))
    assert algebra.equal(product, algebra.root(number(6), 2))
    assert as_fraction(algebra.power(algebra.root(two, 2), two)) == 2
    assert not algebra.equal(algebra.add(algebra.root(two, 2), algebra.root(three, 2)), algebra.root(number(5), 2))
    assert as_fraction(algebra.power(symbol("i"), two)) == -1
    # 17/12 is the root of two to 2e-3, 665857/470832 to 1e-12: neither is it
    assert not algebra.equal(algebra.root(two, 2), algebra.divide(number(665857), number(470832)))


def test_random_sums_agree_with_fractions():
    """The parser against Python's own arithmetic on Fractions."""
    rng = random.Random(0)
    for _ in range(300):
        a, b, c, d = (rng.randint(1, 40) for _ in range(4))
        for text, value in (
            (rf"\frac{{{a}}}{{{b}}} - {c}/{d}", Fraction(a, b) - Fraction(c, d)),
            (f"({a}+{b})*{c}/{d}", Fraction((a + b) * c, d)),
            (f"{a}*{b}^2-{c}", a * b**2 - c),
            (f"-{a}^2 + {b}.5 * {c}", -(a**2) + (b + Fraction(1, 2)) * c),
            (f"{a}^{{-{d}}}", Fraction(1, a**d)),
        ):
            assert as_fraction(parse(text).value) == value, text


BOMBS = ["9^9^9", "9^{9^9}", "9^{9999}", "(1+x)^{9999}", "(1+x)^{16}" * 20, "10^{9999}" * 5, "9999!", r"\sqrt{" * 100]
BOMBS += ["(x+y+z+w)^{16}", "+".join("abcdefghjklm"), "(" + "+".join("abcdefghjklm") + ")^{9}", "9" * 900, "-" * 900]
BOMBS += ["1" + "a" * 900 + "1", "1" + "ab " * 300 + "!", "1" + " " * 900 + "or", r"\text{" * 150]
BOMBS += ["(1+i)^{9999}", r"(1+\sqrt{2})^{9999}", r"(\frac{1}{3}+\sqrt{5}+\sqrt{7})^{9999}", "(x+1)^{-9999}"]
BOMBS += ["1/" * 400 + "1", "|" * 300, r"\sqrt{" + "9" * 300 + "7}", "((x+1)^{16}+1)^{16}", "x^" * 200, r"\pm 1" * 100]
BOMBS += ["(" + "+".join(f"\\sqrt{{{n}}}" for n in range(2, 60)) + ")^{8}", r"\frac" * 300, "_" * 500, "{" * 1000]


@pytest.mark.parametrize("text", BOMBS, ids=lambda text: text[:20])
def test_time_bombs_are_refused_at_once(text):
    start = time.process_time()
    assert score("", rf"\boxed{{{text}}}", GOLD)["reward"] == 0.0
    assert time.process_time() - start < 2.0
    try:
        parse(text)
    except (ExpressionError, AlgebraError):
        pass  # refused with a message, or read


@pytest.mark.parametrize("rule", extract.RULES)
@pytest.mark.parametrize(
    "piece", [" ", "<answer>", "answer is ", r"\boxed{", r"\boxed{{}", r"\boxed{}", "####", "1,", "\\", "{"]
)
def test_long_completions_are_read_at_once(rule, piece):
    start = time.process_time()
    assert score("", piece * (190_000 // len(piece)), GOLD, extract=rule)["reward"] == 0.0
    assert score("", piece * 10_000_000, GOLD, extract=rule)["reward"] == 0.0
    assert time.process_time() - start < 2.0


# --- Fuzz -------------------------------------------------------------------------------------------------------------


PIECES = ["0", "7", "18", "nan", "inf", r"\frac{", "}", "{", r"\boxed{", "or", ",", "^", "9^9^9", "(", ")", "["]
PIECES += [r"\sqrt", "x=", "=", "%", "####", "answer is", "<answer>", "-", "+", "*", "/", "!", "|", "\\", "_", "٣"]
PIECES += ["１", "\n", "$", r"\infty", r"\pm", r"\text{", "e", "i", r"\{", r"\}", ".", ":"]
ANOTHER = [r"\boxed{N}", r"\boxed{N.0}", r"\boxed{x=N}", r"\boxed{N dollars}", r"\boxed{$N$}", "#### N", "answer is N"]
SEPARATORS = [", ", " or ", " and ", "; ", " = ", r" \cup "]
SPOILT = [r"\boxed{N}\boxed{1}", r"\boxed{N", r"\boxed{N+0}", r"\boxed{N*1}", r"\boxed{\sqrt{N^2}}", r"\boxed{[N,N]}"]
SPOILT += [r"\boxed{not N}", r"\boxed{N million}", r"\boxed{\ge N}", r"\boxed{N!}", r"\boxed{-N}", r"\boxed{\approx N}"]


def wrong_completions(rng: random.Random, count: int):
    """(right answer, completion): random texts, right ones whose value is changed, and lists of candidates."""
    for _ in range(count):
        gold, kind = rng.randint(100, 99_999), rng.randrange(5)
        if kind == 0:
            text = "".join(rng.choice(PIECES) for _ in range(rng.randint(0, 30)))
        elif kind == 1:
            wrong = gold + rng.choice([-100, -10, -1, 1, 10, 100, gold, -2 * gold])
            text = rng.choice(ANOTHER).replace("N", str(wrong))
        elif kind == 2:
            others = [gold, *(rng.randint(100_000, 199_999) for _ in range(rng.randint(1, 5)))]
            rng.shuffle(others)
            text = rf"\boxed{{{rng.choice(SEPARATORS).join(map(str, others))}}}"
        elif kind == 3:  # a digit changed, dropped or doubled
            digits = list(str(gold))
            place = rng.randrange(len(digits))
            digits[place] = rng.choice(["", digits[place] * 2, rng.choice("0123456789".replace(digits[place], ""))])
            text = rf"\boxed{{{''.join(digits)}}}"
        else:
            text = rng.choice(SPOILT).replace("N", str(gold))
        yield str(gold), text


@pytest.mark.slow
def test_ten_thousand_wrong_completions_score_nothing():
    everything = ["boxed", "hash", "answer_is", "tag", "last_number"]
    for rules in ("boxed", everything):
        paid = [
            (gold, text)
            for gold, text in wrong_completions(random.Random(0), 10_000)
            if score("", text, {"answer": gold}, extract=rules)["reward"]
        ]
        assert paid == []


def test_five_hundred_wrong_completions_score_nothing():
    for gold, text in wrong_completions(random.Random(1), 500):
        assert not score("", text, {"answer": gold})["reward"], (gold, text)


# --- Published answers ------------------------------------------------------------------------------------------------


def read(relative: str) -> list[dict]:
    text = gzip.decompress(shared_data(relative).read_bytes()).decode()
    return json.loads(text) if relative.endswith(".json.gz") else [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_published_solutions_are_right():
    """The worked solutions of GSM8K and MATH-500 give their own answers."""
    for record in read("math/gsm8k_train.jsonl.gz"):
        answer = record["answer"].rpartition("####")[2].strip()
        assert score("", record["answer"], {"answer": answer}, extract="hash")["reward"] == 1.0, record
    for record in read("math/math500_test.jsonl.gz"):
        assert score("", record["solution"], {"answer": record["answer"]})["reward"] == 1.0, record
    answers = [record["answer"] for record in read("math/math_train_7474.json.gz") if record["answer"]]
    assert len(answers) == 7470 and all(equivalent(answer, answer) for answer in answers)


@pytest.mark.slow
def test_verdicts_agree_with_published_labels():
    """5,276 labelled solutions of GSM8K; 800 of MATH, where 10{,}000 is not 10000 in one label."""
    disagreed = []
    for record in read("math/gsm8k_test_model_solutions.jsonl.gz"):
        gold = record["ground_truth"].rpartition("A: ")[2]
        for size in ("6b", "175b"):
            for kind in ("finetuning", "verification"):
                found = record[f"{size}_{kind}"]
                if equivalent(gold, found["solution"].rpartition("A: ")[2]) != found["is_correct"]:
                    disagreed.append((gold, found["solution"]))
    assert disagreed == []
    for record in read("math/math_cot_100_maj8.jsonl.gz"):
        for given, label in zip(record["pred"], record["score"], strict=True):
            if equivalent(record["gt"], given) != label:
                disagreed.append((record["gt"], given))
        for completion, given, label in zip(record["response"], record["pred"], record["score"], strict=True):
            if score("", completion, {"answer": record["gt"]})["reward"] != label:
                disagreed.append((record["gt"], given))
    assert disagreed == [("10{,}000", "10000")] * 2  # the answer, and the whole completion


# --- Math-Verify ------------------------------------------------------------------------------------------------------


@pytest.fixture
def library(monkeypatch):
    """Math-Verify from the folder of requirements-oracles.txt; missing, it skips the test, and fails it in CI."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(pathlib.Path(sys.prefix, "oracles"))])
    if importlib.util.find_spec("math_verify") is None and not os.environ.get("CI"):
        pytest.skip("Math-Verify is not here: see requirements-oracles.txt")
    return importlib.import_module("math_verify")


@pytest.mark.slow
def test_math_verify_adds_what_60_digits_confirm(library):
    added = [(r"\sqrt{2}+\sqrt{3}", r"\sqrt{5+2\sqrt{6}}"), (r"\ln 4", r"2\ln 2"), (r"\cos(\frac{\pi}{3}) + 1", "3/2")]
    for gold, given in added:
        assert not equivalent(gold, given) and equivalent(gold, given, backend="math_verify")
    wrong = [pair for pair in REJECT if equivalent(*pair, backend="math_verify")]
    assert wrong == []
    # It takes these for equal, and they are not.
    for gold, given in [(r"\frac{1}{2004!}", r"\frac{1}{2006!}"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}")]:
        assert library.verify(library.parse(f"${gold}$"), library.parse(f"${given}$"))


def test_without_math_verify_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(ImportError, match=r"pip install -e .\.\[math\]"):
        math_backend.confirmed("1", "1")
    assert not math_backend.confirmed("9^9^9", "1")  # not asked at all


def test_rules_are_listed():
    assert extract.answers("a <answer>1</answer> \\boxed{2}", ["tag", "boxed"]) == ["1"]
    assert extract.boxed(r"\boxed{\{1\}} \fbox{a{b}c}") == [r"\{1\}", "a{b}c"]
