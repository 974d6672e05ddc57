"""Errands whose finished subgoals are replaced by what the model itself writes about them: HiAgent with its summaries.

    "bd:" -> "gb" -> "bd: gb" -> "3" -> "d" -> "2" -> "b" -> "+" -> "ok" -> "gd" (the next subgoal) ->
    "gb3d2b+ok=" (what was done, to be summed up) -> "3d" (the summary) -> "bd: gb=3d gd" -> "3" -> ...

The summary is a turn of the model that reads the finished subgoal alone, and is trained like any other: what it leaves
out is gone, unless the chunk is recalled.
"""

import random

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.workspaces import PAIRS, Chunk, Errands

LETTERS = 8  # of a summary


def to_sum_up(chunk: Chunk) -> str:
    """What a summary is written from, s_i = S(g_i, a_1, o_1, ..., a_n, o_n): the subgoal and its last PAIRS pairs."""
    return f"{chunk.subgoal}{''.join(f'{action}{seen}' for action, seen in chunk.pairs[-PAIRS:])}="


class Summaries(Errands):
    """Errands (the same world) in which the model writes the summary of a subgoal before the next one begins.

    A summary of more than 8 letters, or of other signs than letters and digits, is malformed and leaves nothing. It
    takes a turn, but no `price`. "rN" still writes a chunk out once more. numbers: as Errands', and summaries.
    Source: arXiv 2408.09559 section 3.3 (observation summarisation), by the model that acts, as there.

    Args:
      rooms: as in Errands.
      things: as in Errands.
      price: of a turn that is no summary.
      most: turns, summaries among them.
    """

    NUMBERS = (*Errands.NUMBERS, "summaries")

    def __init__(self, *, rooms: int = 4, things: int = 2, price: float = 0.02, most: int = 14):
        super().__init__(rooms=rooms, things=things, price=price, most=most)
        self._next = ""

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing fetched, no subgoal, nothing to sum up."""
        super().begin(info, dice)
        self._next = ""

    def state_key(self) -> str:
        """What the memory holds, where one is, and what is to be summed up."""
        return f"{super().state_key()}{self._next}"

    def step(self, said: str) -> Step:
        """The memory after a summary; else what Errands answers, or the finished subgoal."""
        chunk = self._chunks[-1]
        if self._next:
            good = len(said) <= LETTERS and said.isascii() and said.isalnum()
            self._chunks[-1] = chunk._replace(summary=said if good else "")
            said, self._next = self._next, ""
            step = super().step(said)
            counts = dict(step.numbers) | {"summaries": 1.0, "malformed": float(not good)}
            return step._replace(reward=step.reward + self.price, numbers=counts)
        begins = len(said) == 2 and said[0] == "g" and said[1] in self._task[:-1]
        if begins and said != chunk.subgoal and chunk.subgoal and chunk.pairs:
            self._next, text, read = said, to_sum_up(chunk), float(self._size)
            self._size = len(text)
            return self.workspace(text, read=read)
        return super().step(said)

    def known(self) -> dict[str, str]:
        """Thing -> room, as far as the memory says so: its summaries, and the present subgoal."""
        texts = [chunk.summary or "" for chunk in self._chunks[:-1]]
        texts += [action + seen for action, seen in self._chunks[-1].pairs]
        return {thing: room for text in texts for room, thing in zip(text, text[1:], strict=False) if room.isdigit()}

    def expert(self, rng: random.Random) -> str:
        """Sums up where things are that are still to be fetched, and goes there first."""
        if self._next:
            seen = self._chunks[-1].pairs[-PAIRS:]
            left = "".join(f"{room}{thing}" for room, thing in dict(seen).items() if thing in self._left)
            return left[:LETTERS] or "ok"
        wanted, room = self._left[0], self.known().get(self._left[0])
        here = bool(self._room) and self._placed[self._room - 1] == wanted
        if self._chunks[-1].subgoal == f"g{wanted}" and room and not here:
            return room
        return super().expert(rng)

    def novice(self, rng: random.Random) -> str:
        """Any summary, or any word of an errand."""
        return f"{rng.randint(1, 4)}{rng.choice('abc')}" if self._next else super().novice(rng)
