"""The world of iTool's stand-in: its levels, its grades over all answers, and what a grader reads."""

import itertools
import random

import pytest

from rl_jax.envs.text.graded import GradedTools
from rl_jax.envs.text.quests import TwoTools
from rl_jax.envs.text.recorded import segments

INFO = {"who": "eli", "plain": False, "number": 4, "times": 7, "calls": 2}


def begun(info=INFO, **settings):
    env = GradedTools(**settings)
    env.turn = 0
    env.begin(info, random.Random(0))
    return env


def test_the_known_answer_has_as_many_calls_as_its_level():
    env, rng, seen = GradedTools(), random.Random(0), set()
    for prompt, info in itertools.islice(env.problems(rng), 60):
        found = segments(env, prompt, info, rng, 1.0)
        assert len(found) == 1 and found[0].turns[::2] == env.known() and len(env.known()) == info["calls"] + 1
        assert found[0].rewards[-1] == 1
        seen.add(info["calls"])
    assert seen == {0, 1, 2}


def test_grades_of_all_short_answers():
    """Every way to say up to three of these turns, by the four criteria."""
    env, known = begun(), ["s eli", "c4*7", "=28"]
    assert env.known() == known
    for length in range(4):
        for said in itertools.product(["s eli", "c4*7", "=28", "=27", "x"], repeat=length):
            if list(said) == known:
                wanted = "A"
            elif said[-1:] == ("=28",):
                wanted = "B"
            elif said[-1:] == ("=27",) and {"s eli", "c4*7"} <= set(said):
                wanted = "C"
            else:
                wanted = "D"
            assert env.grade(said) == wanted
    plain = begun(INFO | {"plain": True, "calls": 1})
    assert plain.known() == ["c4*7", "=28"] and plain.grade(["c4*7", "=27"]) == "C" and plain.grade(["=28"]) == "B"


def test_an_answer_is_followed_by_its_grade_in_a_segment_of_its_own():
    env, alone = begun(grades=True), begun()
    assert env.rewrites and not alone.rewrites
    for said in ("s eli", "c4*7"):
        step, like = env.step(said), alone.step(said)
        assert step == like and not step.anew
    assert env.cut() == alone.cut() == -1  # no answer before a limit
    step, like = env.step("=27"), alone.step("=27")
    assert env.cut() == 0  # the answer has been paid, only its grade is missing
    assert like.done and (step.done, step.anew, step.reward) == (False, True, like.reward)
    assert step.messages[0]["content"] == "?s eli,c4*7,=28|s eli,c4*7,=27\n"
    assert step.numbers == like.numbers and step.numbers["guess"] == pytest.approx(-0.4)
    assert env.expert(random.Random(0)) == env.novice(random.Random(0)) == "C"
    last = env.step("C")
    assert last.done and last.reward == 0 and last.numbers["malformed"] == 0
    assert begun().grading(["|,?\nc4*7c4*7c4*7"] * 9) == f"?s eli,c4*7,=28|{','.join(['c4*7c4'] * 4)}\n"


def test_questions_are_those_of_two_tools():
    rng, other = random.Random(3), random.Random(3)
    for (prompt, info), (like, told) in zip(
        itertools.islice(GradedTools(none=0.0, plain=0.2).problems(rng), 5), TwoTools().problems(other), strict=False
    ):
        assert info == told | {"calls": 1 if told["plain"] else 2} and prompt == like
        other.random()  # the draw that decides whether it needs no tool
    with pytest.raises(ValueError, match="none=2 must be from 0 to 1"):
        GradedTools(none=2)
