"""envs/subtasks.py: what a subtask pays, what the model reads, and which orders are best."""

import itertools

import numpy as np
import pytest

from rl_jax.envs import subtasks
from rl_jax.envs.host_worlds import load_host_env
from rl_jax.envs.subtasks import SLOTS, Reader, Subtasks

TEXT = "who by where : Bob Rome , Ann Oslo . where is Oslo . when is May . what by who : race Bob , fair Ann ."
REFERENCE = {"who": "Ann", "what": "fair", "when": "May", "where": "Oslo"}


def test_a_subtask_pays_the_share_of_the_reference_and_its_value_is_read_from_then_on():
    heard = []

    def ask(text):
        heard.append(text)
        return {"who": " Ann, Eve ", "what": "x", "when": "May", "where": "y"}[text.rpartition(" ")[2]]

    env = Subtasks(Reader(ask, lambda seed: ("text .", REFERENCE | {"who": "Ann,Bob,Joe,Kim"})), most=6)
    first = env.reset(0)
    steps = [env.step(SLOTS.index(slot)) for slot in ("who", "who", "when", "what", "where")]
    assert [step[1] for step in steps] == [0.25, 0.0, 1.0, 0.0, 0.0], "one of four values; the second is done"
    assert [step[2:] for step in steps] == [(False, False)] * 4 + [(True, False)]
    first_value = env.filled["who"]
    assert first_value in ("Ann", "Eve") and heard[1] == f"got who = {first_value} . text .\n\nExtract: when"
    assert len(heard) == 4
    assert (steps[0][0] != first).any() and (steps[0][0] == steps[1][0]).all()
    env.reset(0)
    cut = [env.step(0)[2:] for _ in range(6)]
    assert cut == [(False, False)] * 5 + [(False, True)]
    kept = []
    for seed in range(40):
        env.reset(seed)
        env.step(0)
        kept.append(env.filled["who"])
    assert 10 < kept.count("Ann") < 30, "one of the values, each as likely"
    with pytest.raises(ValueError, match="most=3 4 or more"):
        Subtasks(Reader(ask, None), most=3)


def test_the_scripted_model_needs_the_slot_before():
    ask = lambda got, slot: subtasks.read(f"{got}{TEXT}\n\nExtract: {slot}")  # noqa: E731
    assert ask("", "where") == "Oslo" and ask("", "who") == "Bob" and ask("got where = Oslo . ", "who") == "Ann"
    assert ask("got where = Rome . ", "who") == "Bob" and ask("got who = Ann . ", "what") == "fair"
    assert ask("got when = July . ", "when") == "May", "not from what it has said before"
    scores = {order: subtasks.expected_score(TEXT, REFERENCE, order) for order in itertools.permutations(SLOTS)}
    assert scores["where", "who", "what", "when"] == 4 and scores["what", "who", "where", "when"] == 2
    assert scores[subtasks.best_order(TEXT)] == max(scores.values()) == 4


def test_every_text_has_an_order_that_gets_all_and_no_order_is_the_best_of_all_texts():
    texts = [subtasks.event(seed) for seed in range(200)]
    assert all(subtasks.expected_score(*text, subtasks.best_order(text[0])) == 4 for text in texts)
    fixed = [np.mean([subtasks.expected_score(*t, o) for t in texts[:60]]) for o in itertools.permutations(SLOTS)]
    assert max(fixed) < 3.5


def test_a_bag_says_which_runs_of_words_there_are():
    found = subtasks.bag("a b c", 997)
    assert found.sum() == 3 and found.dtype == np.float32  # a b, b c, a b c
    np.testing.assert_array_equal(found, np.maximum(subtasks.bag("a b c", 997, (2,)), subtasks.bag("a b c", 997, (3,))))
    assert subtasks.bag("a", 997).sum() == 0 and (subtasks.bag("c b a", 997) != found).any()
    env = load_host_env("host/subtasks", size=64)
    assert env.observation_space.shape == (64,) == env.reset(0).shape and env.action_space.n == 4
    np.testing.assert_array_equal(subtasks.action_vectors(), np.eye(4))
