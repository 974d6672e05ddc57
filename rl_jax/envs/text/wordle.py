"""Wordle: "wordle" -> "crane" -> "gybbb" -> ... A hidden word, and after each guess which letters are right.

g: the right letter in its place; y: in the word, elsewhere; b: not in it (or not so often). Six guesses.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence

from rl_jax.envs.text import lists
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World


def colours(guess: str, hidden: str) -> str:
    """g, y or b per letter. A letter is y as often as the hidden word has it beside the places that are g."""
    left = Counter(h for g, h in zip(guess, hidden, strict=True) if g != h)
    result = []
    for g, h in zip(guess, hidden, strict=True):
        if g == h:
            result.append("g")
        elif left[g] > 0:
            left[g] -= 1
            result.append("y")
        else:
            result.append("b")
    return "".join(result)


class Wordle(World):
    """One episode at a time. LMRL-Gym's rewards are price 1 and `win` 0: -1 a guess, 0 for the right one.

    Args:
      path: of a word list, hidden words and guesses (lists.read_words); "": the own small one.
      guesses: path of further words that may be guessed; "": none.
      number: how many hidden words, of the list's beginning; 0: all.
      price: of a wrong guess, or of what is no word of the list.
      win: reward of the right one.
      most: guesses.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz?\n"

    def __init__(
        self, *, path: str = "", guesses: str = "", number: int = 0, price: float = 0.1, win: float = 1.0, most: int = 6
    ):
        super().__init__(price=price, most=most, win=win)
        words = lists.read_words(path) if path else list(lists.WORDS)
        self.words = words[:number] if number else words
        self._legal = set(self.words) | (set(lists.read_words(guesses)) if guesses else set())
        self.left: Sequence[str] = self.words

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """All have one prompt."""
        while True:
            yield "wordle\n", {"hidden": rng.choice(self.words)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Hides the word."""
        self.hidden, self.left, self._told = info["hidden"], self.words, []

    def state_key(self) -> str:
        """What has been learnt, in any order."""
        return f"told {'|'.join(sorted(self._told))}"

    def right_answer(self) -> str:
        """What wins."""
        return self.hidden

    def step(self, said: str) -> Step:
        """The colours, or the end."""
        if said not in self._legal:
            return self.bad()
        if said == self.hidden:
            return self.won()
        told = colours(said, self.hidden)
        self._told.append(f"{said}{told}")
        self.left = [word for word in self.left if colours(said, word) == told]
        return self.answer(f"{told}\n")

    def expert(self, rng: random.Random) -> str:
        """The word that leaves the fewest others on average, of those that may be it."""
        sample = self.left if len(self.left) <= 60 else rng.sample(list(self.left), 60)

        def rest(guess: str) -> tuple[int, str]:
            return sum(n * n for n in Counter(colours(guess, word) for word in sample).values()), guess

        return min(sample, key=rest)

    def novice(self, rng: random.Random) -> str:
        """Any word."""
        return rng.choice(self.words)
