"""rewards/lexicon.py: the mood of sentences, and of texts."""

import pytest

from rl_jax.rewards import lexicon


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (" She was glad. The bird was mean.", 0.5),
        (" She was glad. The bird was kind", 1.0),
        ("It was a cold day.", 0.0),
        ("It was a day. He was HAPPY!", 0.75),
        ("Glad and happy, but sad.", 2 / 3),
        ("Gladness.", 0.5),
        ("", 0.0),
        (" .. !", 0.5),  # an exclamation mark is a word, as in rewards/sentiment.py
    ],
)
def test_texts(text, reward):
    found = lexicon.score("She was sad.", text, {})
    assert found["reward"] == pytest.approx(reward) and 0 <= found["reward_repetition"] <= 1


def test_saying_more_of_the_same_is_not_worth_more():
    once, often = (lexicon.score("", " He was glad." * times, {}) for times in (1, 6))
    assert once["reward"] == often["reward"] == 1.0 and often["reward_repetition"] < once["reward_repetition"]


def test_no_word_is_in_both_lists():
    assert not set(lexicon.GOOD) & set(lexicon.BAD)
