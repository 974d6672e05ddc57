"""What the generated worlds of text share: they make their own problems, and know how to play.

A world is an environment of rl_jax.envs.text.protocol with, beside `reset` and `step`,

    ALPHABET                 the characters of its prompts and of both sides
    problems(rng)            prompts with their info, one after the other
    expert(rng)              what a good player says now
    novice(rng)              what a beginner says now; often a legal but poor move

so that rl_jax.envs.text.recorded can make a task of it, with recorded episodes for the warm start. All chance of an
episode comes from its record and seed. What is malformed is answered with BAD and costs like any turn.
"""

import json
import random
from collections.abc import Iterator, Mapping
from typing import Any

from rl_jax.envs.text.protocol import Step

BAD = "?\n"  # the answer to what is malformed


class World:
    """Base of the generated worlds: the turn counter, the price of a turn, and the end after the last one.

    Args:
      price: of each turn that does not end the episode well.
      most: turns; the episode ends with the last one.
      win: reward of the turn that ends it well.
    """

    ALPHABET = ""
    NUMBERS: tuple[str, ...] = ()
    """What the world counts beside `correct` and `malformed`; every step has all of them."""

    def __init__(self, *, price: float, most: int, win: float = 1.0):
        if most < 1 or price < 0:
            raise ValueError(f"most={most} must be at least 1, and price={price} not below 0")
        self.price, self.most, self.win = price, most, win
        self.turn = 0

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """(prompt, info) pairs, as many as are taken; an episode's secret is in its info."""
        raise NotImplementedError

    def begin(self, info: dict, dice: random.Random) -> None:
        """Sets the state of a new episode."""
        raise NotImplementedError

    def reset(self, record: Mapping[str, Any], seed: int) -> str:
        """The record's prompt."""
        self.turn = 0
        self.begin(json.loads(record["info"]), random.Random(seed))
        return record["prompt"]

    def counts(self, **numbers: float) -> dict[str, float]:
        """The numbers of a step, 0 for those that are not given."""
        return dict.fromkeys(("correct", "malformed", *self.NUMBERS), 0.0) | numbers

    def won(self, reward: float | None = None, **numbers: float) -> Step:
        """The end, with a reward; `win` if none is given."""
        return Step(
            reward=self.win if reward is None else reward, done=True, numbers=self.counts(correct=1.0, **numbers)
        )

    def lost(self, reward: float = 0.0, **numbers: float) -> Step:
        """The end, with a lesser one."""
        return Step(reward=reward, done=True, numbers=self.counts(**numbers))

    def answer(self, text: str, *, reward: float = 0.0, **numbers: float) -> Step:
        """An answer at the price of a turn; the end if it was the last turn."""
        self.turn += 1
        if self.turn >= self.most:
            return self.lost(reward - self.price, **numbers)
        return Step([{"role": "tool", "content": text}], reward - self.price, numbers=self.counts(**numbers))

    def workspace(self, text: str, *, reward: float = 0.0, **numbers: float) -> Step:
        """As `answer`, but `text` is all that the model reads from here on. The world says `rewrites = True`."""
        step = self.answer(text, reward=reward, **numbers)
        return step if step.done else step._replace(messages=[{"role": "user", "content": text}], anew=True)

    def bad(self) -> Step:
        """The answer to what is malformed."""
        return self.answer(BAD, malformed=1.0)


def normalized_score(score: float, *, low: float, mean: float, high: float) -> float:
    """LMRL-Gym's score of 0 to 100: 0 for the lowest return, 50 for the data's mean, 100 for the highest.

        50 (s - low) / (mean - low) below the mean, 50 + 50 (s - mean) / (high - mean) above

    Source: arXiv 2311.18232.

    Raises:
      ValueError: if low < mean < high does not hold.
    """
    if not low < mean < high:
        raise ValueError(f"low={low}, mean={mean} and high={high} must rise")
    below = score < mean
    return 50 * (score - low) / (mean - low) if below else 50 + 50 * (score - mean) / (high - mean)
