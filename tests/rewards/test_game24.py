"""The parser against Python's own arithmetic, against random text, and the four components on known answers."""
import ast
import random
import time
from fractions import Fraction

import pytest

from rl_jax.rewards import game24

INFO = {"numbers": [1, 1, 4, 6]}


def reference_value(node) -> Fraction:
    """Value of a Python syntax tree of + - * / over integers, by fractions; the parser under test has no part in it."""
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    left, right = reference_value(node.left), reference_value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return left * right if isinstance(node.op, ast.Mult) else left / right


def random_expression(rng, depth) -> str:
    if depth == 0 or rng.random() < 0.2:
        return str(rng.randint(0, 13))
    text = rng.choice(["", " "]).join([random_expression(rng, depth - 1), rng.choice("+-*/"),
                                       random_expression(rng, depth - 1)])
    return f"({text})" if rng.random() < 0.5 else text


def test_generated_expressions_equal_python():
    rng = random.Random(0)
    num_valued = 0
    for _ in range(3000):
        text = random_expression(rng, 3)
        tree = ast.parse(text, mode="eval").body
        try:
            value = reference_value(tree)
        except ZeroDivisionError:
            with pytest.raises(game24.ExpressionError, match="zero"):
                game24.parse(text)
            continue
        num_valued += 1
        parsed = game24.parse(text)
        assert parsed.value == value, text
        assert sorted(parsed.numbers) == sorted(n.value for n in ast.walk(tree) if isinstance(n, ast.Constant))
    assert num_valued > 2000


@pytest.mark.parametrize("alphabet", ["0123456789+-*/() ", "()", "1+", "24()*/ \n\x00é٣²_.e", "-1"])
def test_random_text_never_raises_and_never_hangs(alphabet):
    rng, start = random.Random(1), time.process_time()  # a busy machine changes the other clock
    for _ in range(2000):
        text = "".join(rng.choice(alphabet) for _ in range(rng.choice([0, 1, 3, 8, 20, 99, 101, 2000])))
        values = game24.score("1 1 4 6:", text, INFO)
        assert set(values) == {"reward", "correct", "valid_expression", "uses_numbers"}
    assert time.process_time() - start < 10


@pytest.mark.parametrize("text, components", [  # correct, valid_expression, uses_numbers
    ("(1+4-1)*6", (1, 1, 1)), (" ( 1 + 4 - 1 ) * 6 ", (1, 1, 1)), ("6/(1/(1*4))", (1, 1, 1)),
    ("1*4*6", (0, 1, 0)), ("1*1*1*4*6", (0, 1, 0)), ("4*6*11", (0, 1, 0)), ("24", (0, 1, 0)), ("1+1+4+6", (0, 1, 1)),
    ("1-1+4*6=24", (1, 1, 1)), ("-1+1+4*6", (0, 0, 0)), ("1/(1-1)*46", (0, 0, 0)), ("4*6+1-1)", (0, 0, 0)),
    ("(4*6+1-1", (0, 0, 0)), ("", (0, 0, 0)), ("()", (0, 0, 0)), ("1 1 4 6", (0, 0, 0)), ("2**3", (0, 0, 0)),
    ("4//1", (0, 0, 0)), ("1.0*1*4*6", (0, 0, 0)), ("١*1*4*6", (0, 0, 0)), ("__import__('os')", (0, 0, 0)),
    ("4*(6)(1)", (0, 0, 0)), ("99999", (0, 0, 0))])
def test_components(text, components):
    values = game24.score("1 1 4 6:", text, INFO)
    assert (values["correct"], values["valid_expression"], values["uses_numbers"]) == components
    assert values["reward"] == values["correct"]


def test_rounded_is_not_solved_and_exact_thirds_are():
    assert game24.is_solution("8/(3-8/3)", [3, 3, 8, 8])  # through 1/3, which no decimal is
    assert not game24.is_solution("8/(3-8/3)", [3, 8, 8, 8])
    near = "9999*9999/9998+3"
    assert not game24.is_solution(near, list(game24.parse(near).numbers))


def test_bounds():
    deep = "(" * game24.MAX_DEPTH + "1" + ")" * game24.MAX_DEPTH
    assert game24.parse(deep).value == 1
    with pytest.raises(game24.ExpressionError, match="nested"):
        game24.parse(f"({deep})")
    with pytest.raises(game24.ExpressionError, match="characters"):
        game24.parse("1" + "+1" * 50)


SOLVED = "1+4=5:1 5 6,5-1=4:4 6,4*6=24"


@pytest.mark.parametrize(
    ("text", "valid", "uses", "correct"),
    [
        (SOLVED, 1, 1, 1),
        ("6/1=6:1 4 6,6*4=24:1 24,24/1=24", 1, 1, 1),
        ("1+4=6:1 5 6,5-1=4:4 6,4*6=24", 0, 0, 0),  # wrong arithmetic
        ("1+4=5:1 5 6,5-1=4:4 6,4+6=10", 1, 1, 0),  # right, but not 24
        ("2+4=6:1 1 6,6*1=6:1 6,6*1=6", 1, 0, 0),  # a number that is not there
        ("6*4=24:1 1 24", 1, 0, 0),  # two numbers are left
        ("6*4=24", 1, 0, 0),
        ("1+4=5:1 6,5-1=4:4 6,4*6=24", 1, 0, 0),  # what is left is not
        ("1+4=5:6 5 1,5-1=4:4 6,4*6=24", 1, 0, 0),  # nor in order
        ("1+4=5:1 5 6,5-1=4:4 6,4*6=24:24", 1, 0, 0),
        ("1+4=5,5-1=4,4*6=24", 1, 0, 0),
        ("1/4=0:0 1 6,0+1=1:1 6,1*6=6", 0, 0, 0),  # no rounding
        ("1-1=0:0 4 6,4/0=0:0 6,0*6=24", 0, 0, 0),  # no division by zero
        ("1 + 4 = 5:1 5 6,5-1=4:4 6,4*6=24", 1, 1, 1),
        (SOLVED + "\n", 1, 1, 1),
        ("Answer: 1 + 4 = 5 : 1 5 6 , 5 − 1 = 4 : 4 6 , 4 × 6 = 24\n", 1, 1, 1),
        ("1+4=5:1 5 6;5-1=4:4 6;4*6=24", 0, 0, 0),  # written otherwise
        ("=", 0, 0, 0),
        (",".join([SOLVED] * 5), 0, 0, 0),  # too long
        (f"{SOLVED},24+0=24", 1, 0, 0),
    ],
)
def test_steps(text, valid, uses, correct):
    values = game24.score("1 1 4 6:", text, INFO)
    expected = {"reward": correct, "correct": correct, "valid_expression": valid, "uses_numbers": uses}
    assert values == expected


def test_random_steps_agree_with_play():
    """Random play, written down, is always read as valid; with one digit changed hardly ever."""
    rng, num_changed = random.Random(2), 0
    for _ in range(500):
        numbers = [rng.randint(1, 13) for _ in range(4)]
        there, lines = list(numbers), []
        while len(there) > 1:
            a, b = (there.pop(rng.randrange(len(there))) for _ in range(2))
            sign, value = rng.choice([("+", a + b), ("*", a * b)] + [("-", a - b)] * (a >= b))
            there = sorted([*there, value])
            lines.append(f"{a}{sign}{b}={value}" + (f":{' '.join(map(str, there))}" if len(there) > 1 else ""))
        text = ",".join(lines)
        if there[0] > 9999 or len(text) > game24.MAX_LENGTH:
            continue
        assert game24.parse_steps(text, numbers) == (True, True, there[0]), text
        place = rng.choice([i for i, c in enumerate(text) if c.isdigit()])
        changed = text[:place] + str((int(text[place]) + rng.randint(1, 9)) % 10) + text[place + 1 :]
        steps = game24.parse_steps(changed, numbers)
        num_changed += not (steps.valid and steps.uses)
    assert num_changed > 450


RIGHT = """4*6*1*1=24 | Answer: 4*6*1*1 | answer: (1+4-1)*6 = 24 | The answer is 4*6*1*1 | 4×6×1×1 | 4 × 6 ÷ 1 ÷ 1
4 x 6 x 1 x 1 | 4·6·1·1 | 1−1+4*6 | 1 – 1 + 4*6 | \\boxed{4*6*1*1} | $4*6*1*1$ | $4 \\times 6 \\cdot 1 \\div 1 = 24$
4*6*1*1\t | 4 * 6 * 1 * 1 =  24 | \\boxed{4*6*1*1=24}. | 4*6*1*1. | Solution: 4*6/1/1=24"""
WRONG = """4*6*1*1=25 | 24=4*6*1*1 | 4*6*1=24 | 4*6=24 | 4*6*1*1=24=24 | 4*6*1*1 or 5 | 4*6*1*1, 6*4*1*1 | 24
Answer: 24 | Answer: | 4*6*1*1#1 | 4*6*1*1=24+0 | not 4*6*1*1 | 4*6*11 | 4**6*1*1 | 4 6 1 1 | 4*6*1*1*1 | 4*6*1 1
+4*6*1*1 | 4*6*1*1! | \\boxed{4*6*1*1}\\boxed{4*6*1*1} | \\boxed{4*6} | $24$ | 0x18 | (4)(6)*1*1
1+1+4+6=24 | Answer: Answer: 4*6*1*1 | 1-1+46
４*６*１*１ | 4*6*1*1\x00 | 4*6*1*1;import os | 4.0*6*1*1 | 4*6*1*1=24:24 | 4e0*6*1*1 | 4*6*1*1=0x18 | -1+1+4*6"""


@pytest.mark.parametrize("table, correct", [(RIGHT, 1.0), (WRONG, 0.0)], ids=["right", "wrong"])
def test_a_table_of_answers(table, correct):
    for text in (part.strip(" ") for part in table.replace("\n", " | ").split(" | ")):
        assert game24.score("1 1 4 6:", text, INFO)["correct"] == correct, text


def test_what_is_no_solution_scores_0():
    """10,000 texts of numbers that are not the four, in every dress that is read: no one is paid."""
    rng, scored = random.Random(5), 0
    dresses = ["{}", "{}=24", "Answer: {}", "\\boxed{{{}}}", "$ {} $", "{} = 24\n", "{} apples", "{} or 24", "24={}"]
    dresses.append("{},{}")
    signs = ["+", "-", "*", "/", "×", "÷", "−", " x ", "=", ":", ",", "(", ")", ".", "^", " "]
    for _ in range(10_000):
        numbers = [str(rng.choice([1, 1, 2, 3, 4, 5, 6, 8, 12, 24])) for _ in range(rng.randrange(1, 6))]
        if sorted(numbers) == ["1", "1", "4", "6"]:
            continue
        text = "".join(number + rng.choice(signs) for number in numbers[:-1]) + numbers[-1]
        text = rng.choice(dresses).format(text, text)
        scored += 1
        assert game24.score("1 1 4 6:", text, INFO)["correct"] == 0.0 or _plays(text), text
    assert scored > 9_000


def _plays(text):
    """Whether all numbers of a text happen to be 1 1 4 6 and, at its end, 24: digits may have run together."""
    found = [int(number) for number in "".join(c if c.isdigit() else " " for c in text).split()]
    return sorted(found) in ([1, 1, 4, 6], [1, 1, 4, 6, 24])
