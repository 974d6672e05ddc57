"""The same question again: what the environment says is only that the answer was wrong. "7+8=" -> "14" -> "no" -> "15".

`Retry` scores an episode as UFO or RISE do; `Improvement` gives each try what it has gained (Retroformer).
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World


class Retry(World):
    """A question with one right answer, asked until it is right, at most `most` times.

        R = decay^k for the right answer at try k = 0, 1, ...;  0 without
        R -= repetition (1 - E / N) at the end: E different answers of N;  R -= invalid for each empty one

    UFO: arXiv 2507.14295 and lichengliu03/unary-feedback (decay .5, repetition .5, format -.1, 5 tries). RISE
    (arXiv 2407.18219): decay 1, repetition 0. Answers are compared without case and spaces. With `answers` the question
    cannot be known ("0-9?"): a player who never repeats solves `most` / `answers` of it, one who always does 1 / it.
    The state key is the set of answers tried.

    Args:
      decay: for each try before the right one.
      repetition: the penalty of an episode that says one thing only; lambda.
      invalid: the penalty of an empty answer.
      most: tries.
      answers: 0: sums of two digits; n: a hidden number below n.
    """

    ALPHABET = "0123456789+=-?no\n"
    NUMBERS = ("repeated",)

    def __init__(
        self, *, decay: float = 0.5, repetition: float = 0.5, invalid: float = 0.1, most: int = 5, answers: int = 0
    ):
        super().__init__(price=0.0, most=most)
        if not 0 < decay <= 1 or repetition < 0 or invalid < 0 or answers < 0:
            raise ValueError(
                f"decay={decay} must be in (0, 1], and repetition={repetition}, invalid={invalid} and "
                f"answers={answers} not below 0"
            )
        self._decay, self._repetition, self._invalid, self._answers = decay, repetition, invalid, answers

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Sums, or a hidden number."""
        while True:
            if self._answers:
                yield f"0-{self._answers - 1}?", {"answer": str(rng.randrange(self._answers))}
            else:
                left, right = rng.randrange(10), rng.randrange(10)
                yield f"{left}+{right}=", {"answer": str(left + right)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """No answer yet."""
        self._right, self._said = _normal(str(info["answer"])), []

    def state_key(self) -> str:
        """What has been tried, in any order."""
        return f"tried {'|'.join(sorted(set(self._said)))}"

    def _end(self) -> float:
        return -self._repetition * (1 - len(set(self._said)) / len(self._said)) if self._said else 0.0

    def cut(self) -> float:
        """A limit ends the episode: what has been repeated counts."""
        return self._end()

    def step(self, said: str) -> Step:
        """Right, or try again."""
        said = _normal(said)
        if not said:
            last = self.turn + 1 >= self.most
            return self.answer("no\n", reward=-self._invalid + (self._end() if last else 0.0), malformed=1.0)
        repeated = float(said in self._said)
        self._said.append(said)
        if said == self._right:
            return self.won(self._decay**self.turn + self._end(), repeated=repeated)
        last = self.turn + 1 >= self.most
        return self.answer("no\n", reward=self._end() if last else 0.0, repeated=repeated)

    def expert(self, rng: random.Random) -> str:
        """The answer, or one that has not been tried."""
        if not self._answers:
            return self._right
        return rng.choice([str(n) for n in range(self._answers) if str(n) not in self._said])

    def novice(self, rng: random.Random) -> str:
        """Any number."""
        return str(rng.randrange(self._answers or 19))


class Improvement(World):
    """Reflections between trials: the reward of each is what the next trial gains over this one.

        "4:" -> "abab" -> "2" -> ...     a hidden word of a and b; G_j is trial j's share of right letters
        r_j = G_j - G_{j-1},  G_{-1} = 0

    So an episode's reward is the return of its last trial, and a trial that learns nothing gets nothing. In the paper
    the actor is a frozen model and the trained one writes reflections for it; here a turn is both.
    Source: arXiv 2308.02151 (Retroformer).

    Args:
      length: of the hidden word.
      most: trials.
    """

    ALPHABET = "ab0123456789:?\n"

    def __init__(self, *, length: int = 4, most: int = 5):
        super().__init__(price=0.0, most=most)
        if not 1 <= length <= 9:
            raise ValueError(f"length={length} must be from 1 to 9")
        self.length = length

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """All have one prompt."""
        while True:
            yield f"{self.length}:", {"hidden": "".join(rng.choice("ab") for _ in range(self.length))}

    def begin(self, info: dict, dice: random.Random) -> None:
        """No trial yet."""
        self.hidden, self._last, self._told = info["hidden"], 0.0, []

    def state_key(self) -> str:
        """The trials so far, in any order, and the last return."""
        return f"{self._last} {'|'.join(sorted(self._told))}"

    def step(self, said: str) -> Step:
        """The number of right letters; the reward is the gain."""
        if len(said) != self.length or set(said) - set("ab"):
            return self.bad()
        right = sum(a == b for a, b in zip(said, self.hidden, strict=True))
        gain, self._last = right / self.length - self._last, right / self.length
        self._told.append(f"{said}{right}")
        return self.won(gain) if right == self.length else self.answer(f"{right}\n", reward=gain)

    def consistent(self) -> list[str]:
        """The words that agree with all trials."""
        words = [format(n, f"0{self.length}b").translate({48: "a", 49: "b"}) for n in range(2**self.length)]
        told = [(one[: self.length], int(one[self.length :])) for one in self._told]
        return [w for w in words if all(sum(a == b for a, b in zip(w, t, strict=True)) == n for t, n in told)]

    def expert(self, rng: random.Random) -> str:
        """A word that agrees with all trials."""
        return rng.choice(self.consistent())

    def novice(self, rng: random.Random) -> str:
        """Any word."""
        return "".join(rng.choice("ab") for _ in range(self.length))


def _normal(text: str) -> str:
    return "".join(text.lower().split())
