"""Games of questions about something hidden: a number, an animal, a city. Each ends with the right guess.

`best_value` searches all ways to ask for the best mean return over all that may be hidden. It is that of the animals
and cities; of the numbers, where a wrong guess is also a question ("higher"), more can be earned.
"""

import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rl_jax.envs.text import lists
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World


def best_value(
    items: Sequence[Any], asks: Sequence[Any], answer: Callable[[Any, Any], Any], *, price: float, most: int
) -> float:
    """The highest mean return, exactly, by search over the sets of what may still be hidden.

    Args:
      items: what may be hidden, each as likely; also the guesses that end the game with 1 if right.
      asks: questions.
      answer: (item, question) -> answer.
      price: of a question, or of a wrong guess.
      most: turns; the last one ends the episode.
    """

    @functools.cache
    def total(left: frozenset, turns: int) -> float:
        """Of the best way to go on, summed over `left`."""
        if turns == 0 or not left:
            return 0.0
        best = -float("inf")
        for guess in left:  # a right guess earns 1, a wrong one costs
            best = max(best, 1.0 - price * (len(left) - 1) + total(left - {guess}, turns - 1))
        for ask in asks:
            parts: dict = {}
            for item in left:
                parts.setdefault(answer(item, ask), set()).add(item)
            if len(parts) > 1:
                value = sum(total(frozenset(part), turns - 1) for part in parts.values())
                best = max(best, value - price * len(left))
        return best

    return total(frozenset(items), most) / len(items)


class GuessNumber(World):
    """A number from 1 to `top`: "1-8:" -> "4" -> "<" (it is lower) or ">" -> ...; 1 for the right one.

    Args:
      top: the largest number.
      price: of a wrong guess.
      most: guesses.
    """

    ALPHABET = "0123456789-:<>?\n"

    def __init__(self, *, top: int = 8, price: float = 0.1, most: int = 6):
        super().__init__(price=price, most=most)
        if top < 2:
            raise ValueError(f"top={top} must be at least 2")
        self.top = top

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """All have one prompt: what is hidden does not show."""
        while True:
            yield f"1-{self.top}:", {"hidden": rng.randint(1, self.top)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Hides the number."""
        self.hidden, self.low, self.high = int(info["hidden"]), 1, self.top

    def state_key(self) -> str:
        """What is known of the number."""
        return f"{self.low}-{self.high}"

    def right_answer(self) -> str:
        """What wins."""
        return str(self.hidden)

    def step(self, said: str) -> Step:
        """Lower, higher, or the end."""
        if not (said.isascii() and said.isdigit()) or len(said) > 9:
            return self.bad()
        number = int(said)
        if number == self.hidden:
            return self.won()
        if number > self.hidden:
            self.high = min(self.high, number - 1)
            return self.answer("<\n")
        self.low = max(self.low, number + 1)
        return self.answer(">\n")

    def expert(self, rng: random.Random) -> str:
        """The middle."""
        return str((self.low + self.high) // 2)

    def novice(self, rng: random.Random) -> str:
        """Any number."""
        return str(rng.randint(1, self.top))


class _Hidden(World):
    """Yes-or-no questions about one of `items`, and guesses by name. `left`: what may still be hidden."""

    def __init__(self, items: Sequence[str], *, price: float, most: int, win: float):
        super().__init__(price=price, most=most, win=win)
        self.items = list(items)
        self.left: list[str] = []

    def asks(self) -> Sequence[str]:
        """All questions."""
        raise NotImplementedError

    def says(self, item: str, ask: str) -> bool | None:
        """Whether it is so of an item; None for what is no question."""
        raise NotImplementedError

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """All have one prompt."""
        while True:
            yield "who?\n", {"hidden": rng.choice(self.items)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Hides the item."""
        self.hidden, self.left = info["hidden"], list(self.items)

    def state_key(self) -> str:
        """What may still be hidden."""
        return "|".join(self.left)

    def right_answer(self) -> str:
        """What wins."""
        return self.hidden

    def step(self, said: str) -> Step:
        """Yes, no, or the end."""
        said = said.strip()
        if said == self.hidden:
            return self.won()
        if said in self.items:
            self.left = [item for item in self.left if item != said]
            return self.answer("no\n", guesses=1.0)
        truth = self.says(self.hidden, said)
        if truth is None:
            return self.bad()
        self.left = [item for item in self.left if self.says(item, said) == truth]
        return self.answer("yes\n" if truth else "no\n")

    def expert(self, rng: random.Random) -> str:
        """The question that parts what is left most evenly; a guess if it is one of two."""
        if len(self.left) <= 2:
            return self.left[0]
        return min(self.asks(), key=lambda ask: (abs(2 * sum(map(bool, self._truths(ask))) - len(self.left)), ask))

    def _truths(self, ask: str) -> list:
        return [self.says(item, ask) for item in self.left]

    def novice(self, rng: random.Random) -> str:
        """Any question, or any name."""
        return rng.choice([*self.asks(), rng.choice(self.items)])


class TwentyQuestions(_Hidden):
    """An animal of an own list: "who?" -> "f" (does it fly?) -> "no" -> ... -> its name. lists.ANIMALS has the letters.

    LMRL-Gym's returns are -1 a question and 0 for the right one: price 1, win 0.

    Args:
      price: of a question or a wrong name.
      most: turns.
      animals: how many of the list.
      win: reward of the right name.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz?\n"
    NUMBERS = ("guesses",)

    def __init__(self, *, price: float = 0.05, most: int = 20, animals: int = 16, win: float = 1.0):
        if not 2 <= animals <= len(lists.ANIMALS):
            raise ValueError(f"animals={animals} must be from 2 to {len(lists.ANIMALS)}")
        super().__init__(list(lists.ANIMALS)[:animals], price=price, most=most, win=win)

    def asks(self) -> Sequence[str]:
        """One letter each."""
        return tuple(lists.TRAITS)

    def says(self, item: str, ask: str) -> bool | None:
        """Of an animal."""
        return ask in lists.ANIMALS[item] if ask in self.asks() else None


class GuessCity(_Hidden):
    """A city: "in COUNTRY", "over PEOPLE", "begins LETTER" are the questions, its name the guess.

    Args:
      path: of the published list (lists.read_cities); "": the own small one.
      number: how many of its largest; 0: all.
      price: of a question or a wrong name.
      most: turns.
      win: reward of the right name; LMRL-Gym's returns are price 1, win 0.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .'()-?\n"
    NUMBERS = ("guesses",)

    def __init__(self, *, path: str = "", number: int = 0, price: float = 0.05, most: int = 20, win: float = 1.0):
        cities = list(lists.read_cities(path) if path else lists.CITIES)
        cities = cities[:number] if number else cities
        self._cities = {city.name: city for city in cities}
        super().__init__(list(self._cities), price=price, most=most, win=win)
        countries = sorted({city.country for city in cities})
        people = sorted({city.people for city in cities})[:-1]
        initials = sorted({city.name[0] for city in cities})
        self._asks = [f"in {c}" for c in countries] + [f"over {n}" for n in people] + [f"begins {x}" for x in initials]

    def asks(self) -> Sequence[str]:
        """Those that can tell cities apart."""
        return self._asks

    def says(self, item: str, ask: str) -> bool | None:
        """Of a city."""
        kind, _, what = ask.partition(" ")
        city = self._cities[item]
        if kind == "in" and what:
            return city.country == what
        if kind == "over" and what.isascii() and what.isdigit() and len(what) < 15:
            return city.people > int(what)
        if kind == "begins" and what:
            return city.name.startswith(what)
        return None
