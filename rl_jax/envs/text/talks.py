"""Talks with scripted people: a user with feelings, a patient, a seller. Deterministic given the record."""

import math
import random
from collections.abc import Iterator, Mapping

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

KINDS = {"v": "validates", "a": "asks", "s": "suggests", "j": "jokes"}
# What each kind of reply does to the score of a persona, the first time and when it is said again at once.
PERSONAS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "sad": {"v": (20, 5), "a": (10, 0), "s": (-5, -10), "j": (-20, -20)},
    "cross": {"v": (10, -5), "a": (-10, -10), "s": (20, 10), "j": (5, -10)},
    "bored": {"v": (0, -10), "a": (5, -5), "s": (10, 0), "j": (25, 0)},
}


class User(World):
    """A user whose score of 0 to 100 follows the kind of reply he gets: "sad" -> "v" -> "+" ...; reward score / 100.

    A stand-in for RLVER's simulated user, which is a language model with a persona and a goal: the reward is the final
    score / 100 and nothing before, 0 if the format is violated (here: a malformed reply ends the episode with 0).
    Source: arXiv 2507.03112; our start at 50 and end at 0 (he leaves; the authors' simulator: 40 and 10), at 100, or
    after the last turn.

    Args:
      most: replies.
      shows: whether the answer tells the score; else only "+" or "-".
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789+-?\n"

    def __init__(self, *, most: int = 4, shows: bool = False):
        super().__init__(price=0.0, most=most)
        self._shows = shows

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A persona each."""
        while True:
            persona = rng.choice(sorted(PERSONAS))
            yield f"{persona}\n", {"persona": persona}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Half content."""
        self.persona, self.score, self._before = info["persona"], 50, ""

    def state_key(self) -> str:
        """The score, and what was said last."""
        return f"{self.turn} {self.score}{self._before}"

    def cut(self) -> float:
        """The score as it is."""
        return self.score / 100

    def step(self, said: str) -> Step:
        """How he feels then."""
        if said not in KINDS:
            return self.lost(malformed=1.0)
        first, again = PERSONAS[self.persona][said]
        change = again if said == self._before else first
        self.score, self._before = min(max(self.score + change, 0), 100), said
        if self.score in (0, 100) or self.turn + 1 >= self.most:
            return Step(reward=self.score / 100, done=True, numbers=self.counts(correct=float(self.score == 100)))
        return self.answer(f"{self.score}\n" if self._shows else ("+\n" if change > 0 else "-\n"))

    def best(self) -> float:
        """The highest reward from here, by trying all that can be said."""
        kept = self.score, self._before, self.turn
        values = []
        for said in KINDS:
            step = self.step(said)
            values.append(step.reward if step.done else self.best())
            self.score, self._before, self.turn = kept
        return max(values)

    def expert(self, rng: random.Random) -> str:
        """The best reply."""
        kept, values = (self.score, self._before, self.turn), {}
        for said in KINDS:
            step = self.step(said)
            values[said] = step.reward if step.done else self.best()
            self.score, self._before, self.turn = kept
        return max(sorted(values), key=values.get)

    def novice(self, rng: random.Random) -> str:
        """Anything."""
        return rng.choice("vasj")


# Diseases and their symptoms, of the letters of SYMPTOMS.
DISEASES = {"flu": "fcat", "cold": "cs", "hay": "se", "pox": "fr", "measles": "fcre", "migraine": "a", "strep": "ft"}
SYMPTOMS = "fcatsre"  # fever, cough, ache, throat, sneeze, rash, eyes


class Doctor(World):
    """A patient with one of DISEASES: "ill" -> "f" (fever?) -> "yes" ...; a name ends it, 1 if it is right.

    Each question also earns gain times what it told: the fall of the entropy of the disease, over that at the start;
    and `malformed` costs. A stand-in for DoctorAgent-RL's patient, a language model with a record: diagnosis score +
    information gain per turn + format, with a turn budget. Source: arXiv 2505.19630; its code pays +1 for a new answer,
    -1 for an unknown one, -2 for a repeated or invalid question, -5 without a turn left, and 0 to 5 each for diagnosis
    and advice, which a language model grades: the scales here are our own, as arguments. A question that tells nothing
    earns nothing, so asking again does not pay.

    Args:
      gain: weight of the information.
      price: of a question.
      malformed: price of a malformed turn, beside that of a turn.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz?\n"
    NUMBERS = ("information",)

    def __init__(self, *, gain: float = 0.3, price: float = 0.05, malformed: float = 0.1, most: int = 6):
        super().__init__(price=price, most=most)
        self._gain, self._malformed = gain, malformed

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """All have one prompt."""
        while True:
            yield "ill\n", {"hidden": rng.choice(sorted(DISEASES))}

    def begin(self, info: dict, dice: random.Random) -> None:
        """A patient."""
        self.hidden, self.left = info["hidden"], sorted(DISEASES)

    def state_key(self) -> str:
        """What it may be."""
        return "|".join(self.left)

    def step(self, said: str) -> Step:
        """Yes, no, or the end."""
        if said in DISEASES:
            return self.won() if said == self.hidden else self.lost()
        if len(said) != 1 or said not in SYMPTOMS:
            return self.answer("?\n", reward=-self._malformed, malformed=1.0)
        has = said in DISEASES[self.hidden]
        before = len(self.left)
        self.left = [name for name in self.left if (said in DISEASES[name]) == has]
        told = math.log(before / len(self.left)) / math.log(len(DISEASES))
        return self.answer("yes\n" if has else "no\n", reward=self._gain * told, information=told)

    def expert(self, rng: random.Random) -> str:
        """The most telling question; the name if only one is left."""
        if len(self.left) == 1:
            return self.left[0]
        return min(SYMPTOMS, key=lambda s: (abs(2 * sum(s in DISEASES[n] for n in self.left) - len(self.left)), s))

    def novice(self, rng: random.Random) -> str:
        """Any question, or any name."""
        return rng.choice([*SYMPTOMS, rng.choice(sorted(DISEASES))])


class Negotiation(World):
    """Buying from a scripted seller: "20>" (he asks 20) -> "8" (an offer) -> "18>" -> ... -> "ok" or his acceptance.

    He takes an offer that is at least what he would ask next, comes down by `concession` a turn but never below
    `floor`, and leaves after the last turn. A deal at p earns (value - p) / value; a turn costs `price`. The best
    return is known (`best`): to wait is worth it while concession / value is more than price.

    Args:
      value: of the thing to the buyer.
      concession: per turn.
      price: of a turn without a deal.
      most: turns.
    """

    ALPHABET = "0123456789>ok?\n"
    NUMBERS = ("paid",)

    def __init__(self, *, value: int = 20, concession: int = 3, price: float = 0.05, most: int = 6):
        super().__init__(price=price, most=most)
        if value < 1 or concession < 0:
            raise ValueError(f"value={value} must be at least 1 and concession={concession} not below 0")
        self._value, self._concession = value, concession

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """First prices at or above the value, floors below it."""
        while True:
            start, floor = self._value + rng.randrange(5), rng.randrange(self._value // 2, self._value)
            yield f"{start}>", {"start": start, "floor": floor}

    def begin(self, info: dict, dice: random.Random) -> None:
        """The first price."""
        self.ask, self.floor = int(info["start"]), int(info["floor"])

    def state_key(self) -> str:
        """The price he asks, and the turn."""
        return f"{self.turn} {self.ask}"

    def _next(self) -> int:
        return max(self.ask - self._concession, self.floor)

    def _deal(self, price: int) -> Step:
        return self.won((self._value - price) / self._value, paid=float(price))

    def step(self, said: str) -> Step:
        """A deal, or the next price."""
        if said == "ok":
            return self._deal(self.ask)
        if not (said.isascii() and said.isdigit()) or len(said) > 6:
            return self.bad()
        if int(said) >= self._next():
            return self._deal(min(int(said), self.ask))
        self.ask = self._next()
        return self.answer(f"{self.ask}>")

    def best(self) -> float:
        """The highest return from here for a buyer who knows him."""
        best = (self._value - self._next()) / self._value
        if self.turn + 1 < self.most:
            kept = self.ask, self.turn
            self.ask, self.turn = self._next(), self.turn + 1
            best = max(best, self.best() - self.price)
            self.ask, self.turn = kept
        return best

    def expert(self, rng: random.Random) -> str:
        """Waits with an offer of 0, or offers what he takes."""
        now = (self._value - self._next()) / self._value
        return str(self._next()) if now >= self.best() - 1e-9 else "0"

    def novice(self, rng: random.Random) -> str:
        """Takes the price, or names any."""
        return rng.choice(["ok", str(rng.randrange(self._value + 1))])
