"""Mood reward: how many of a text's sentences say something good, by two lists of words. Plain Python.

    sentence(x) = (1 + (good(x) - bad(x)) / (good(x) + bad(x))) / 2,   0.5 without a word of either list
    reward(text) = mean over its sentences;  0 for a text without words

It is the reward of the generated stories (rl_jax.tasks.moods), as rl_jax.rewards.sentiment is that of the real ones.
"""

from rl_jax.rewards import sentiment

GOOD = ("happy", "glad", "kind", "good", "nice", "warm", "proud", "lovely")
BAD = ("sad", "mad", "mean", "bad", "cold", "sick", "lost", "broken")


def sentence_score(sentence: str) -> float:
    """The mood of one sentence in [0, 1]: 1 good, 0 bad, 0.5 neither or both alike."""
    words = sentiment.split_words(sentence)
    good, bad = (sum(word in known for word in words) for known in (GOOD, BAD))
    return 0.5 + 0.5 * (good - bad) / (good + bad) if good + bad else 0.5


def text_score(text: str) -> float:
    """Mean over sentences of their moods, in [0, 1]; 0 where there is no word."""
    scores = [sentence_score(sentence) for sentence in sentiment.split_sentences(text)]
    return sum(scores) / len(scores) if scores else 0.0


def score(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """reward: the mood of the completion in [0, 1] (the prompt is not scored).

    reward_repetition: share of distinct word trigrams, not part of the reward: it shows degenerate text.
    """
    return {"reward": text_score(completion), "reward_repetition": sentiment.distinct_trigrams(completion)}
