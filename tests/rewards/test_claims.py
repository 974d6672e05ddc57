"""rewards/claims.py: sets of triples and of facts; too many and too few cost."""

import random

import pytest

from rl_jax.rewards import claims

SCENE = {"triples": [["cube", "color", "red"], ["ball", "size", "large"]]}
PLANET = {"facts": ["third planet", ["one moon", "a single moon"]], "true": ["blue"]}


@pytest.mark.parametrize(
    ("completion", "reward", "correct"),
    [
        ("(cube, color, red), (ball, size, large)", 1.0, 1),
        ("<think>(ball, size, small)</think>(Ball, size, large) and (cube, color, 'red').", 1.0, 1),
        ('[["cube", "color", "red"], ["ball", "size", "large"]]', 1.0, 1),
        ("(cube, color, red), (ball, size, small)", 6.5 / 10, 0),
        ("(cube, color, red), (ball, color, red)", 5.5 / 10, 0),
        ("(cube, color, red), (cone, size, large)", 5 / 10, 0),
        ("(cube, color, red)", 4 / 10, 0),  # one too few
        ("(cube, color, red), (ball, size, large), (cone, size, large)", 9 / 10, 0),  # one too many
        ("(cube, color, red), (cube, color, red)", 5 / 10, 0),
        ("(cube, color, red), (cube, color, red), (ball, size, large)", 9 / 10, 0),
        ("", -2 / 10, 0),
        ("red cube, large ball", -2 / 10, 0),
        ("(cube, color)", -2 / 10, 0),
    ],
)
def test_graded_triples(completion, reward, correct):
    scores = claims.triples("", completion, SCENE)
    assert (scores["reward"], scores["correct"]) == pytest.approx((reward, correct))


def test_neither_everything_nor_nothing_pays():
    """What the two prices are for: enumeration and silence are worth less than an honest guess."""
    things = [(o, a, v) for o in ("cube", "ball", "cone") for a, v in
              [("color", c) for c in ("red", "blue", "green")] + [("size", s) for s in ("small", "large")]]  # fmt: skip
    everything = ", ".join(f"({', '.join(thing)})" for thing in things)
    guess = "(cube, color, blue), (ball, size, large)"
    free = dict(extra=0.0, missing=0.0)
    assert claims.triples("", everything, SCENE, **free)["reward"] == 1.0
    paid = [claims.triples("", text, SCENE)["reward"] for text in (everything, "", guess)]
    assert paid[0] < paid[2] > paid[1]
    assert claims.triples("", "", {"triples": []})["reward"] == 0.0
    assert claims.triples("", "(a, b, c)", {"triples": []})["reward"] < 0.0


@pytest.mark.parametrize(
    ("completion", "recall", "precision"),
    [
        ("It is the third planet. It has one moon.", 1, 1),
        ("The THIRD planet, with a single moon and blue", 1, 1),
        ("It is the third planet.", 1 / 2, 1),
        ("It is blue.", 0, 1),
        ("It is the third planet and made of cheese.", 1 / 2, 1 / 2),
        ("It is the third planet. It is the third planet.", 1 / 2, 1),
        ("planet third moon one", 0, 0),
        ("Earth", 0, 0),
        ("", 0, 0),
    ],
)
def test_recall_and_precision_of_facts(completion, recall, precision):
    scores = claims.facts("", completion, PLANET)
    assert (scores["recall"], scores["precision"]) == pytest.approx((recall, precision))
    harmonic = 2 * recall * precision / (recall + precision) if recall + precision else 0.0
    assert scores["reward"] == pytest.approx(harmonic)


def test_f_score_and_its_ends():
    assert claims.f_score(1.0, 0.5) == pytest.approx(2 / 3) and claims.f_score(0.0, 0.0) == 0.0
    assert claims.f_score(1.0, 0.5, beta=0.0) == 1.0
    assert claims.f_score(1.0, 0.5, beta=2.0) < claims.f_score(1.0, 0.5) < claims.f_score(1.0, 0.5, beta=0.5)


def test_one_s_own_extractor_and_judge():
    scores = claims.facts("", "one|two", {"facts": ["ONE"]}, extract=f"{__name__}:bars", matches=f"{__name__}:equal")
    assert (scores["claims"], scores["recall"], scores["precision"]) == (2, 1, 0.5)


def bars(text):
    return text.split("|")


def equal(claim, fact):
    return claim == fact.lower()


@pytest.mark.parametrize(
    ("fn", "info", "message"),
    [
        (claims.facts, {"facts": []}, "not empty"),
        (claims.facts, {}, "not empty"),
        (claims.facts, {"facts": ["!"]}, "a fact must be a text"),
        (claims.facts, {"facts": [[]]}, "a fact must be a text"),
        (claims.triples, {"triples": [["a", "b"]]}, "list of .object, attribute, value"),
        (claims.triples, {"triples": "a"}, "list of .object, attribute, value"),
    ],
)
def test_a_bad_record_is_named(fn, info, message):
    with pytest.raises(ValueError, match=message):
        fn("", "x", info)


def test_noise_is_worth_nothing():
    rng = random.Random(0)
    for _ in range(1_000):
        text = "".join(rng.choices("()[],.;\n redcuband\"'é", k=rng.randrange(60)))
        assert claims.triples("", text, SCENE)["reward"] <= 0.2
        assert claims.facts("", text, PLANET)["reward"] == 0.0
    for text in ("(" * 50_000, "(a,b,c)" * 10_000, "and " * 20_000):
        assert claims.triples("", text, SCENE)["reward"] < 0 == claims.facts("", text, PLANET)["reward"]
