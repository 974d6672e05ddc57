"""rewards/json_answers.py and parsing.py: which answers are read, which are equal, what a partly right one is worth."""

import json
import random
import time

import pytest

from rl_jax.rewards import json_answers, parsing

TRUTH = {"answer": {"name": "Ann", "ages": [3, 5], "ok": True, "more": {}}}
RIGHT = json.dumps(TRUTH["answer"])


@pytest.mark.parametrize(
    ("completion", "right"),
    [
        (RIGHT, 1),
        (f"<think>hm {{}}</think><answer>{RIGHT}</answer>", 1),
        (f"It is\n```json\n{RIGHT}\n```\nas asked.", 1),
        (f"```{RIGHT}```", 1),
        (f"first {{}} and then {RIGHT}.", 1),
        ('{"more": {}, "ok": true, "ages": [3.0, 5], "name": "Ann"}', 1),
        (f"{RIGHT} or {{}}", 0),  # the last one counts
        (f"<answer>{{}}</answer>{RIGHT}", 0),
        ('{"name": "Ann", "ages": [5, 3], "ok": true, "more": {}}', 0),
        ('{"name": "ann", "ages": [3, 5], "ok": true, "more": {}}', 0),
        ('{"name": "Ann", "ages": [3, 5], "ok": 1, "more": {}}', 0),
        ('{"name": "Ann", "ages": [3, 5], "ok": true, "more": {}, "more": {}}', 0),  # a key twice
        ('{"name": "Ann", "ages": [3, 5], "ok": true, "more": {}, "x": null}', 0),
        ("{'name': 'Ann'}", 0),
        ("", 0),
        ("null", 0),
    ],
)
def test_accepts_and_rejects(completion, right):
    scores = json_answers.exact("", completion, TRUTH)
    assert scores["reward"] == scores["exact"] == right
    assert (json_answers.match("", completion, TRUTH)["reward"] == 1) == bool(right)


@pytest.mark.parametrize(
    ("answer", "found", "values", "keys"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, 1, 1),
        ({"a": 1, "b": 2}, {"a": 1}, 1 / 2, 1 / 2),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, 1 / 3, 1),  # pairs a=1 | b=2, b=3
        ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}, 2 / 3, 2 / 3),
        ({"a": 1}, {"b": 1}, 0, 0),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, 1 / 2, 1 / 2),
        ([], {}, 0, 1),
        (3, 3, 1, 1),
        (None, None, 1, 1),
        ("yes", "no", 0, 1),
    ],
)
def test_partial_credit(answer, found, values, keys):
    scores = json_answers.match("", json.dumps(found), {"answer": answer})
    assert (scores["reward"], scores["keys"]) == pytest.approx((values, keys)) and scores["format"] == 1.0


def test_dumping_many_keys_does_not_pay():
    dump = dict.fromkeys("abcdefghij", 1) | {"a": 1, "b": 2}
    assert json_answers.match("", json.dumps(dump), {"answer": {"a": 1, "b": 2}})["reward"] == 0.2


def test_noise_is_worth_nothing():
    rng = random.Random(0)
    for _ in range(3_000):
        completion = "".join(rng.choices('{}[]",:0123aé \\"\n<>/nulltrue', k=rng.randrange(60)))
        assert json_answers.match("", completion, TRUTH)["reward"] == 0.0


@pytest.mark.parametrize(
    "text",
    ["[" * 90_000, '{"a":' * 20_000, "```" + "a" * 90_000, "<answer>" * 10_000, "9" * 99_999, "NaN", "1e999",
     '{"a": Infinity}', "[1," * 30_000],
)  # fmt: skip
def test_texts_made_to_hurt_are_read_at_once(text):
    start = time.monotonic()
    assert json_answers.match("", text, TRUTH)["reward"] == 0.0
    assert json_answers.match("", text, {"answer": 1})["values"] == 0.0
    assert time.monotonic() - start < 5.0


@pytest.mark.parametrize(
    ("text", "tag", "inner"),
    [
        ("<a>1</a><a> 2 </a>", "a", "2"),
        ("<a>1", "a", None),
        ("1</a>", "a", None),
        ("<a></a>", "a", ""),
        ("", "a", None),
    ],
)
def test_tags(text, tag, inner):
    assert parsing.tagged(text, tag) == inner


def test_the_answer_comes_after_the_thinking():
    assert parsing.answer("<think>1</think> 2 ") == "2" and parsing.answer(" 3 ") == "3"
    assert parsing.fenced("```sql\nSELECT 1\n```") == "SELECT 1" == parsing.fenced("a ``` b ``` ```SELECT 1```")
    assert parsing.fenced("``` SELECT a\nFROM t```") == "SELECT a\nFROM t"
