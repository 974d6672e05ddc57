"""An actor that is not trained, and reflections for it that are: Retroformer.

    the actor:      "a3:" -> "aba" -> "bba>" (a reflection) -> "bba" -> ...            trials at a hidden word
    the reflector:  "raba1:" (the trial and its return) -> "bba" -> "bba2:" -> ...     what is trained

    r_i = G_{i+1} - G_i,   G_i the share of right letters of trial i

The actor is the partner (config.agent.partner="reference": the weights that training began with, which stay as they
are), in a dialogue of its own: only reflections are in the trained episode.
"""

import random
from collections.abc import Awaitable, Iterator, Mapping
from typing import Any

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

LONGEST = 8  # letters of a reflection that the actor reads


class Reflection(World):
    """One side of trial, reflection, trial. numbers: correct (the last trial was), gain (the reward of a reflection).

    The best return of an episode is 1 - G_0. Returns that stay the same earn nothing. The scripted actor says the
    reflection if it is a word, else any word. A stand-in for HotPotQA, ALFWorld and WebShop with a frozen language
    model (arXiv 2308.02151); the recorded episodes of the warm start have both sides.

    Args:
      length: of the hidden word of a and b.
      side: "r" (the reflector), "a" (the actor), or "" (drawn for each problem): whose turns are played.
      most: reflections.
    """

    ALPHABET = "abr0123456789:>?"
    NUMBERS = ("gain",)

    def __init__(self, *, length: int = 3, side: str = "", most: int = 4):
        super().__init__(price=0.0, most=most)
        if not 1 <= length <= 9 or side not in ("", "a", "r"):
            raise ValueError(f'length={length} must be from 1 to 9, and side={side!r} "r", "a" or "" (drawn)')
        self._length, self._side = length, side
        self.partner = None  # (text) -> awaitable text; None: the scripted actor

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A hidden word, and the first trial that a scripted actor makes."""
        while True:
            side, first = self._side or rng.choice("ar"), self._word(rng)
            hidden = self._failed(self._word(rng), first)
            info = {"side": side, "hidden": hidden, "first": first}
            yield (f"a{self._length}:" if side == "a" else f"r{first}{self._right(hidden, first)}:"), info

    def _word(self, rng: random.Random) -> str:
        return "".join(rng.choice("ab") for _ in range(self._length))

    def _is_word(self, said: str) -> bool:
        return len(said) == self._length and not set(said) - set("ab")

    def _failed(self, hidden: str, first: str) -> str:
        """The hidden word of a task whose first trial failed: only then is there something to reflect on."""
        return hidden if hidden != first else hidden[:-1] + ("a" if hidden[-1] == "b" else "b")

    def _right(self, hidden: str, said: str) -> int:
        """Letters of a trial that are right; none of what is no word."""
        return sum(a == b for a, b in zip(said, hidden, strict=True)) if self._is_word(said) else 0

    def begin(self, info: dict, dice: random.Random) -> None:
        """Before the first trial."""
        self.side, self.hidden, self._dice = self._side or info["side"], info["hidden"], dice
        self._first_trial, self._last, self._told = info["first"], 0.0, []

    def reset(self, record: Mapping[str, Any], seed: int) -> str | Awaitable[str]:
        """The actor's prompt, or the first trial; with a partner it makes that trial."""
        super().reset(record, seed)
        if self.side == "a":
            return f"a{self._length}:"
        return self._first(self._first_trial) if self.partner is None else self._asked_first()

    async def _asked_first(self) -> str:
        return self._first(await self.partner(f"a{self._length}:"))

    def _first(self, trial: str) -> str:
        self.hidden = self._failed(self.hidden, trial)
        return f"r{self._tried(trial)}"

    def _tried(self, trial: str) -> str:
        """What the reflector reads of a trial, whose return is kept."""
        right = self._right(self.hidden, trial)
        self._last = right / self._length
        shown = trial if self._is_word(trial) else "?"
        self._told.append((shown, right))
        return f"{shown}{right}:"

    def state_key(self) -> str:
        """The side and the trials so far, in any order."""
        return f"{self.side} {sorted(self._told)}"

    def step(self, said: str) -> Step | Awaitable[Step]:
        """What the reflection has gained; on the actor's side a reflection, or the end."""
        if self.side == "a":
            return self._as_actor(said)
        told = "".join(letter for letter in said if letter in "ab0123456789")[:LONGEST]
        return self._after(said, self._scripted(told)) if self.partner is None else self._with_actor(said, told)

    async def _with_actor(self, said: str, told: str) -> Step:
        return self._after(said, await self.partner(f"{told}>"))

    def _scripted(self, told: str) -> str:
        """The actor of a world without a model: does what it is told."""
        return told if self._is_word(told) else self._word(self._dice)

    def _after(self, said: str, trial: str) -> Step:
        """The reward of a reflection, by the trial that followed it."""
        before, text = self._last, self._tried(trial)
        gain, malformed = self._last - before, float(not said or bool(set(said) - set("ab0123456789")))
        if self._last == 1:
            return self.won(gain, gain=gain, malformed=malformed)
        return self.answer(text, reward=gain, gain=gain, malformed=malformed)

    def _as_actor(self, said: str) -> Step:
        """The next reflection, which a scripted reflector gives: a word that agrees with all trials."""
        self._tried(said)
        if self._last == 1:
            return self.won()
        return self.answer(f"{self._dice.choice(self.consistent())}>")

    def consistent(self) -> list[str]:
        """The words that agree with all trials."""
        words = [format(n, f"0{self._length}b").translate({48: "a", 49: "b"}) for n in range(2**self._length)]
        tried = [(word, right) for word, right in self._told if word != "?"]
        return [word for word in words if all(self._right(word, trial) == right for trial, right in tried)]

    def expert(self, rng: random.Random) -> str:
        """A word that agrees with all trials; as the actor the word that was told."""
        return rng.choice(self.consistent())

    def novice(self, rng: random.Random) -> str:
        """Any word."""
        return self._word(rng)
