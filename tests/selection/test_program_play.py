"""Absolute Zero's programs: what can be asked, and what a proposal and a solution earn. Programs run in the sandbox."""

import json

import numpy as np
import pytest

from rl_jax.rewards import code
from rl_jax.selection import program_play
from rl_jax.selection.program_play import Question, question, solver_reward
from rl_jax.tasks import program_play as task

DOUBLE = "def f(x):return x*2"


def test_three_kinds_of_questions_and_of_answers():
    deduction = question(f"{DOUBLE}#3", "deduction", code.outputs)
    assert deduction == Question("deduction", f"{DOUBLE}#3=", DOUBLE, [3], [6])
    parity = "def f(x):return x%2"
    abduction = question(f"{parity}#3", "abduction", code.outputs)
    assert abduction == Question("abduction", f"{parity}#?=1:", parity, [3], [1])
    induction = question("1;2;5;7#twice", "induction", code.outputs, program=DOUBLE)
    assert induction == Question("induction", "1=2;2=4#twice:", DOUBLE, [5, 7], [10, 14])
    earned = {
        0: {"6": 1, "7": -0.5, "x": -1, "3+3": -1},
        1: {"3": 1, "5": 1, "4": -0.5, "'a": -1},  # another input with the output is right
        # Right on what is shown only; no program; an error.
        2: {"def f(y):return y+y": 1, "def f(x):return min(x*2,4)": -0.5, "6": -1, "def f(x):return y": -0.5},
    }
    for number, answers in earned.items():
        asked = (deduction, abduction, induction)[number]
        assert {text: solver_reward(text, asked, code.outputs) for text in answers} == answers


def test_what_cannot_be_asked():
    def never(program, inputs):
        raise AssertionError("it is not run")

    others = ("def g(x):return x#1", f"import os\n{DOUBLE}#1")
    for text in ("", "3", DOUBLE, f"{DOUBLE}#", f"{DOUBLE}#y", *others):
        assert question(text, "deduction", never) is None
    for text in ("1;2;3", "1;2;3;y", ""):
        assert question(text, "induction", never, program=DOUBLE) is None
    assert question("def f(x):return 1/x#0", "deduction", code.outputs) is None
    assert question("def f(x):return f#0", "deduction", code.outputs) is None
    drawn = iter(([1], [2]))
    assert question(f"{DOUBLE}#1", "deduction", lambda *_: next(drawn)) is None, "two runs differ"
    assert question(f"{DOUBLE}#1", "deduction", lambda *_: [2], longest=10) is None
    with pytest.raises(ValueError, match="kind='none' must be of deduction"):
        question("", "none", never)


def identity(program, inputs):
    return list(inputs)


def test_the_ends_of_what_is_asked():
    """Of texts: 10 000 characters at most; of prompts and proposals: 48, by default, and all ASCII."""
    assert program_play.literal(" 3 ") == (True, 3) and program_play.literal("f") == (False, None)
    assert program_play.literal(" " * 9_999 + "1") == (True, 1)
    assert program_play.literal(" " * 10_000 + "1") == (False, None)
    padding = 10_000 - len(DOUBLE)
    assert program_play.is_program(DOUBLE + " " * padding) and not program_play.is_program(DOUBLE + " " * (padding + 1))
    assert program_play.is_program(f"y=2\n{DOUBLE}") and not program_play.is_program("class f:\n def f(x):return x")
    assert not program_play.is_program(f"from os import path\n{DOUBLE}") and not program_play.is_program("def f(")
    assert question(program_play.SEED, "deduction", identity) == program_play.SPARE

    word = "a" * (47 - len("def f(x):return x#''"))
    longest = f"def f(x):return x#'{word}'"
    assert question(longest, "deduction", identity).prompt == f"{longest}=" and len(longest) == 47
    assert question(longest.replace("a'", "aa'"), "deduction", identity) is None
    assert question(longest, "deduction", identity, longest=47) is None
    proposal = f"def f(x):return x%2#{'1' * 28}"  # its prompt ends in #?=1:, but the proposal has all of the digits
    assert len(proposal) == 48 and question(proposal, "abduction", lambda *_: [1]).prompt == "def f(x):return x%2#?=1:"
    assert question(f"{proposal}1", "abduction", lambda *_: [1]) is None
    assert question("def f(x):return x#'é'", "deduction", identity) is None

    assert question("1;2", "induction", identity, program=DOUBLE, num_inputs=2) == Question(
        "induction", "1=1:", DOUBLE, [2], [2]
    )
    assert question("1;2;3;4", "induction", identity, program=DOUBLE).prompt == "1=1;2=2:"
    assert question("1;2;3;4", "induction", lambda *_: None, program=DOUBLE) is None
    assert question("1;2;3;4", "induction", identity, program="def g(x):return x") is None
    with pytest.raises(ValueError, match="num_inputs=1 at least 2"):
        question("1", "induction", identity, program=DOUBLE, num_inputs=1)


def test_a_proposal_is_worth_what_can_be_learned_from_it():
    asked = [program_play.SPARE] * 4 + [None]
    accuracy = np.array([0.0, 0.125, 0.75, 1.0, 9.0])
    found = program_play.proposer_rewards(asked, accuracy, unlearnable=-0.5)
    np.testing.assert_allclose(found, [-0.5, 0.875, 0.25, -0.5, -1.0])
    found = program_play.proposer_rewards(asked, accuracy, unlearnable=0.0)
    np.testing.assert_allclose(found, [0.0, 0.875, 0.25, 0.0, -1.0])
    with pytest.raises(ValueError, match="shorter"):
        program_play.proposer_rewards(asked, accuracy[:4], unlearnable=0.0)


def test_the_demonstrations_are_right():
    records = task.make(num_train=6, num_test=3, seed=0)
    assert len(records["sft_train"]) == 12 and len(records["test"]) == 3
    for record in records["train"] + records["test"]:
        assert task.score(record["prompt"], record["completion"], json.loads(record["info"]))["reward"] == 1
