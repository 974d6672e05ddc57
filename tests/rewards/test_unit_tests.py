"""rewards/unit_tests.py: what a unit test needs, what makes it smell, and texts that are no test."""

import random

import pytest

from rl_jax.rewards import unit_tests

INFO = {"focal": "add"}
GOOD = "def test_add():\n    assert add(1, 2) == 3"


def properties(body, start="def test_add():\n    "):
    scores = unit_tests.quality("", start + body, INFO)
    return {name for name, value in scores.items() if value == 1.0} - {"reward"}, scores["reward"]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("assert add(1, 2) == 3", "assertion focal"),
        ("total = add(1, 2)\n    assert total == 3", "assertion focal"),
        ("self.assertEqual(math.add(1, 2), 3)", "assertion focal"),
        ("add(1, 2)", ""),
        ("assert True", ""),
        ("assert 1 == 1", ""),
        ("assert sub(1, 2) == 3", "assertion"),
        ("assert add(1, 2) == 3\n    assert add(1, 2) == 3", "assertion focal duplicate"),
        ("assert add(1, 2) == 3\n    assert add(1, 3) == 4", "assertion focal"),
        ("if x:\n        assert add(1, 2) == 3", "assertion focal condition"),
        ("for i in y: assert add(i, 0) == i", "assertion focal condition"),
        ("assert add(1, 2) == (3 if x else 4)", "assertion focal condition"),
        ("try:\n        assert add(1, 2) == 3\n    except ValueError: pass", "assertion focal handler"),
        ("print(add(1, 2))\n    assert add(1, 2) == 3", "assertion focal printing"),
    ],
)
def test_properties(body, found):
    got, reward = properties(body)
    wanted = {"syntax", *found.split()}
    assert got == wanted
    assert reward == pytest.approx(sum(unit_tests.WEIGHTS[name] for name in wanted) / 3)


@pytest.mark.parametrize(
    "completion",
    ["", "assert add(1, 2) == 3", "def add(): pass", "def test_add(:", GOOD + "\n  x", "text " + GOOD, "\0",
     "(" * 9_000, "-" * 15_000 + "1", GOOD + "\n" + "#" * 30_000],
)  # fmt: skip
def test_what_is_no_test_is_worth_nothing(completion):
    assert unit_tests.quality("", completion, INFO)["reward"] == 0.0


def test_the_test_may_stand_in_a_block_and_nothing_is_run():
    for text in (GOOD, f"```python\n{GOOD}\n```", f"<think>hm</think><answer>{GOOD}</answer>"):
        assert unit_tests.quality("", text, INFO)["reward"] == 1.0
    assert unit_tests.quality("", "raise SystemExit\n" + GOOD, INFO)["reward"] == 1.0


def test_one_metric_alone():
    alone = {"assertion": 1.0}
    assert unit_tests.quality("", GOOD.replace("add(1", "sub(1"), INFO, weights=alone)["reward"] == 1.0
    for weights, info, message in [
        ({"asertion": 1.0}, INFO, "weights names asertion"),
        ({"printing": -1.0}, INFO, "no weight is above 0"),
        (None, {}, 'info."focal".'),
    ]:
        with pytest.raises(ValueError, match=message):
            unit_tests.quality("", GOOD, info, weights=weights)


def test_noise_has_the_syntax_at_most():
    rng = random.Random(0)
    words = ["def", "test_add", "()", ":", "\n", "    ", "assert", "add", "(1)", "==", "'", "if", "lambda", "@", "é"]
    for _ in range(2_000):
        assert unit_tests.quality("", "".join(rng.choices(words, k=rng.randrange(12))), INFO)["reward"] <= 1 / 3
