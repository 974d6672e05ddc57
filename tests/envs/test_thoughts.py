"""envs/thoughts.py: blocks, marks and rewards around a model that is listened to; envs/clerk.py: the scripted one."""

import numpy as np
import pytest

from rl_jax.envs import clerk, thoughts
from rl_jax.envs.host_worlds import load_host_env
from rl_jax.envs.thoughts import BLOCKS, REQUESTS, BlackBox, Thoughts

SAID = dict.fromkeys(REQUESTS, "no") | {
    "rate": "A1 score=3 reason=1st. A2=2 A3: 1 B1=[3] C2=0 C1=9",
    "reason": "r",
    "decompose": "### Subtask1: one ### Subtask2: two",
    "subtask": "s",
    "summarise": "sum",
    "plans": "### Plan1: up\n### Plan2: down",
    "compare": "The most promising plan is Plan2",
    "follow": "f",
    "refine": "better",
    "answer": "So. The answer is 7.",
}


def listened(said=SAID, rewards=0.5, **settings):
    """(Thoughts, all that its model was asked: (request's name, whole text))."""
    heard = []

    def ask(text):
        (name,) = [name for name, words in REQUESTS.items() if text.rpartition("\n\n")[2].startswith(words)]
        heard.append((name, text))
        return said[name]

    score = lambda problem, steps: rewards  # noqa: E731
    return Thoughts(BlackBox(ask, score, lambda seed: (f"PROBLEM {seed}", "7")), **settings), heard


def test_blocks_are_patterns_of_requests_and_their_texts_grow():
    env, heard = listened()
    env.reset(3)
    for block in ("reason", "decompose", "debate", "refine"):
        env.step(BLOCKS.index(block))
    after = ["finished", "rate"]
    asked = ["rate", "reason", *after, "decompose", "subtask", "subtask", "summarise", *after]
    assert [name for name, _ in heard] == [*asked, "plans", "compare", "follow", *after, "refine", *after]
    assert env.steps == ["r", "sum", "f", "better"] and env.blocks == ["reason", "decompose", "debate", "refine"]
    texts = [text for name, text in heard if name in ("subtask", "follow", "refine")]
    assert texts[0] == f"PROBLEM 3\nSTEP1: r\n\n{REQUESTS['subtask']}Subtask1: one"
    assert texts[1] == f"PROBLEM 3\nSTEP1: r\nSTEP2: s\n\n{REQUESTS['subtask']}Subtask2: two"
    assert texts[2].endswith("STEP2: sum\n\n" + REQUESTS["follow"] + "Plan2: down")
    assert texts[3].endswith("STEP3: f\n\n" + REQUESTS["refine"])


def test_the_state_is_the_models_marks_and_the_reward_the_steps_then_the_answers():
    env, _ = listened(rewards=0.25)
    np.testing.assert_allclose(env.reset(0), np.float32([3, 2, 1, 3, 0, 0, 0]) / 3)
    assert env.observation_space.shape == (7,) and env.action_space.n == 5
    assert [env.step(0)[1:] for _ in range(2)] == [(0.25, False, False)] * 2
    assert env.step(BLOCKS.index("terminate"))[1:] == (1.0, True, False) and env.reply == "7"
    wrong, _ = listened(SAID | {"answer": "8", "finished": "Yes."}, rewards=0.25)
    wrong.reset(0)
    assert wrong.step(0)[1:] == (0.0, True, False), "the model says that it is done: the answer's reward alone"


def test_at_most_five_blocks_and_a_first_refinement_reasons():
    env, heard = listened(most=2, rewards=7.0)
    env.reset(0)
    found = [env.step(BLOCKS.index("refine")) for _ in range(3)]
    assert env.blocks == ["reason", "refine"] and [step[2] for step in found] == [False, False, True]
    assert [step[1] for step in found] == [1.0, 1.0, 1.0], "a process reward is cut to [0, 1]"
    with pytest.raises(ValueError, match="most=0 must be 1 or more"):
        listened(most=0)


def by_marks(marks):
    """What the clerk is good at: mends what is wrong, then the block of the next operation."""
    a1, _, a3, b1, b2, *_ = np.round(3 * marks)
    return 3 if a1 and a3 == 1 else 1 if b1 == 3 else 2 if b2 == 3 else 0


def played(policy, count=300):
    """(share of right answers, mean undiscounted return) of a policy of the marks."""
    env, right, total = load_host_env("host/thoughts"), 0, 0.0
    for seed in range(count):
        marks, done = env.reset(seed), False
        while not done:
            marks, reward, done, _ = env.step(policy(marks))
            total += reward
        right += env.reply == env.right
    return right / count, total / count


def test_with_the_clerk_blocks_by_the_marks_are_better_than_any_one_block():
    fixed = [played(lambda marks, block=block: block) for block in range(4)]
    best = played(by_marks)
    assert best[0] > 2 * max(right for right, _ in fixed), (best, fixed)
    assert best[1] > 1.2 * max(total for _, total in fixed), (best, fixed)


def test_the_clerk_calculates_and_its_process_reward_knows():
    text, answer = clerk.problem(5)
    value, wanted = clerk.operations(text)
    for operation in wanted:
        value = clerk.applied(operation, value)
    assert str(value) == answer and 5 <= len(wanted) <= 7
    assert clerk.applied("~5", 13) == 15 and clerk.applied("*3", 4) == 12 and clerk.applied("+3", 4) == 7
    said = ("=> 5 (1)", "=> 10 (2)", "=> 11 (2)", "")
    scores = [clerk.process_reward("PROBLEM: 2 +3 *2 ~5", [step]) for step in said]
    assert scores == pytest.approx([0.4 * 0.4, 0.4, 0.0, 0.0]), "what is left, by reasoning; nothing after an error"
    asked = "PROBLEM: 2 +3 *2\nSTEP1: => 6 (1)\n\n" + REQUESTS["rate"]
    assert clerk.ask(asked) in (f"A1=3 A2=3 A3={mark} B1=3 B2=1 C1=3 C2=3" for mark in (1, 2))
    assert clerk.ask(asked) == clerk.ask(asked), "chance is of the text alone"
    rates = [clerk.chance(str(i)) < 0.3 for i in range(2000)]
    assert np.mean(rates) == pytest.approx(0.3, abs=0.03)


def test_names_and_a_model_of_ones_own():
    with pytest.raises(ValueError, match="no module 'my_models'"):
        thoughts.thoughts(around="my_models:make")
    env = load_host_env("host/thoughts", around="tests.envs.test_thoughts:made", most=1)
    env.reset(0)
    assert env.step(0)[1] == 0.75


def made():
    """A BlackBox of one's own."""
    return BlackBox(lambda text: "no", lambda problem, steps: 0.75, lambda seed: ("?", ""))


def test_replies_of_real_models_are_read():
    """Words before a list, comparisons before the choice, marks that are left out, a line's end after the answer."""
    assert thoughts.listed("Here are two plans:\n### Plan1: up ### Plan2: down") == ["Plan1: up", "Plan2: down"]
    assert thoughts.listed("Plan1: up") == ["Plan1: up"]
    np.testing.assert_allclose(thoughts.marks_of("A1=N/A, A2=3 A3=- B1=3 B2= C1=1"), [0, 1, 0, 1, 0, 1 / 3, 0])
    said = {
        "plans": "### Plan1: a ### Plan2: b ### Plan3: c",
        "compare": "Plan1 is slow and Plan2 errs. The most promising plan is Plan3",
        "answer": "The answer is 42.\n",
    }
    heard = []

    def ask(text):
        heard.append(text)
        return next((reply for name, reply in said.items() if thoughts.REQUESTS[name] in text), "no")

    box = thoughts.BlackBox(ask, lambda problem, steps: 0.5, lambda seed: ("x", "42"))
    world = thoughts.Thoughts(box)
    world.reset(0)
    world.step(thoughts.BLOCKS.index("debate"))
    assert any(text.endswith("Plan3: c") for text in heard)
    assert world.step(thoughts.BLOCKS.index("terminate"))[1:] == (1.0, True, False)
