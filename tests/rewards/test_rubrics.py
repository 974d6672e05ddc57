"""rewards/rubrics.py: weights, vetoes, saturation, interactions, and criteria of every kind."""

import math
import random

import pytest

from rl_jax.rewards import rubrics

CRITERIA = (
    dict(name="greets", regex=r"(?i)\bhello\b"),
    dict(name="no_digits", absent=r"\d", weight=3.0),
)


def long(prompt, completion, info, *, per=1.0):
    return len(completion) / per


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("Hello there", 1.0), ("Good day", 0.75), ("hello 1", 0.25), ("Day 1", 0.0), ("", 0.75)],
)
def test_without_extras_it_is_the_weighted_mean(completion, reward):
    scores = rubrics.score("", completion, {}, criteria=CRITERIA)
    assert scores["reward"] == pytest.approx(reward) and scores["vetoed"] == 0.0
    assert scores["reward"] == pytest.approx((scores["greets"] + 3 * scores["no_digits"]) / 4)


def test_the_veto_prevents_hacking():
    """Criterion 2 can be driven up without end; with the veto that is worth nothing unless criterion 1 holds."""
    fn = f"{__name__}:long"
    criteria = [dict(name="safe", absent="bad", veto=True), dict(name="long", fn=fn, per=10.0)]
    honest, hacked = "good text", "bad " * 100
    with_veto = [rubrics.score("", text, {}, criteria=criteria)["reward"] for text in (honest, hacked)]
    no_veto = [dict(row, veto=False) for row in criteria]
    without = [rubrics.score("", text, {}, criteria=no_veto)["reward"] for text in (honest, hacked)]
    assert with_veto[0] > with_veto[1] == 0.0 and without[0] < without[1]
    assert rubrics.score("", hacked, {}, criteria=criteria, veto_value=-1.0)["reward"] == -1.0
    bounded = [dict(no_veto[0]), dict(no_veto[1], scale=0.5)]
    assert rubrics.score("", "x" * 10_000, {}, criteria=bounded)["reward"] == pytest.approx((1 + 0.5) / 2)


def test_words_are_counted():
    assert rubrics.count("", "Thanks, thanks! thankless", {}, word="thanks") == 2.0
    criteria = [dict(fn="rl_jax.rewards.rubrics:count", word="a.b", scale=1.0)]
    assert rubrics.score("", "a.b axb", {}, criteria=criteria)["reward"] == pytest.approx(1 - math.exp(-1))


def test_saturation_and_interactions():
    assert rubrics.saturate(1.0, None) == 1.0 and rubrics.saturate(-2.0, 0.5) == -2.0
    assert rubrics.saturate(1e-6, 0.5) == pytest.approx(1e-6, rel=1e-5)
    assert rubrics.saturate(1.0, 0.5) == pytest.approx(0.5 * (1 - math.exp(-2)))
    pairs = [("greets", "no_digits", 0.5), ("greets", "missing", 9.0)]
    assert rubrics.score("", "Hello", {}, criteria=CRITERIA, interactions=pairs)["reward"] == pytest.approx(1.5)
    assert rubrics.score("", "Day", {}, criteria=CRITERIA, interactions=pairs)["reward"] == pytest.approx(0.75)


def test_criteria_of_the_record_and_of_other_terms():
    info = {"answer": {"a": 1}, "rubric": [dict(name="json", fn="json.exact", veto=True), dict(regex="a")]}
    scores = rubrics.score("", '{"a": 1}', info, criteria=CRITERIA[:1])
    assert scores == {"reward": pytest.approx(2 / 3), "vetoed": 0.0, "greets": 0.0, "json": 1.0, "criterion_2": 1.0}
    assert rubrics.score("", '{"a": 2}', info)["vetoed"] == 1.0
    assert rubrics.score("", "<think>Hello</think>Day", {}, criteria=CRITERIA[:1])["reward"] == 0.0


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ([], "no criterion"),
        ([dict(weight=1.0)], "one of regex, absent, fn"),
        ([dict(regex="a", fn="json.exact")], "one of regex, absent, fn"),
        ([dict(regex="(")], "is no pattern"),
        ([dict(regex="a", wieght=2.0)], "no field wieght; fields: absent"),
        ([dict(fn="nothing")], "no short name"),
        ([dict(regex="a", scale=0.0)], "must be above 0"),
        ([dict(regex="a", weight=0.0)], "add up to 0"),
    ],
)
def test_a_bad_criterion_is_named(criteria, message):
    with pytest.raises(ValueError, match=message):
        rubrics.score("", "text", {}, criteria=criteria)


def test_a_record_names_no_function_of_its_own():
    info = {"rubric": [dict(fn="os:system")]}
    with pytest.raises(ValueError, match="a record's criterion has no other functions"):
        rubrics.score("true", "", info, criteria=CRITERIA)


def test_noise_is_worth_nothing():
    rng = random.Random(0)
    rubric = [dict(regex=r"^Dear \w+,\n"), dict(regex=r"\nYours,\n\w+$", veto=True), dict(regex=r"(?i)\bthank you\b")]
    for _ in range(1_000):
        text = "".join(rng.choices("Der,\nYous thank1 .", k=rng.randrange(60)))
        assert rubrics.score("", text, {}, criteria=rubric)["reward"] == 0.0
    letter = "Dear Ann,\nthank you.\nYours,\nBob"
    assert rubrics.score("", letter, {}, criteria=rubric)["reward"] == 1.0
