"""Worlds whose history is replaced: by a report that the model writes, or by summaries of finished subgoals.

Step.anew begins a segment with the text that stands for all that was before, so a turn is trained on what the model has
read, and nothing else.
"""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rl_jax.envs.text.lookups import PEOPLE
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

REPORT = 8  # letters of a report
THINGS = "abcdefhil"  # g, r and ok are words
PAIRS = 6  # of a chunk that are written out


class Research(World):
    """A chain of facts, one search at a time, and a report in place of the history.

        s_t = (question, report M_t, last action and its result),   the model says d_t = "M_t+1;action"

    "eli3:|>" ("who is three friends from eli?") -> "eli0;s eli" -> "eli3:eli0|s eli>bob" -> "bob1;s bob" -> ... ->
    "a cid": 1 if it is right, and 0. `s NAME` finds whom NAME likes. A workspace has the same size after any number of
    rounds; what the report does not hold is gone. With `markov=False` the model keeps its history instead, and reads
    results only: the paper's mono-contextual arm. numbers: correct, calls, and read, the letters that stood before each
    turn. A stand-in for IterResearch's web search (arXiv 2511.07327 section 3.1); the thought before the report is left
    out. The reward of a round, gamma^(T - t) R_T, is the credit's: advantages.turn_rounds.eapo.

    Args:
      hops: most friends from the first person, 1 to 9.
      markov: whether the history is replaced.
      most: rounds.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789:|>; ?\n"
    NUMBERS = ("calls", "read")
    rewrites = True

    def __init__(self, *, hops: int = 3, markov: bool = True, most: int = 6):
        super().__init__(price=0.0, most=most)
        if not 1 <= hops <= 9:
            raise ValueError(f"hops={hops} must be from 1 to 9")
        self._hops, self.rewrites = hops, markov

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A person, a distance, and facts of their own."""
        while True:
            who, far = rng.choice(PEOPLE), rng.randint(1, self._hops)
            yield f"{who}{far}:|>\n", {"who": who, "far": far, "facts": rng.randrange(2**31)}

    def begin(self, info: dict, dice: random.Random) -> None:
        """The friends, each person's another one."""
        rng = random.Random(info["facts"])
        self.likes = {who: rng.choice([other for other in PEOPLE if other != who]) for who in PEOPLE}
        self._question, self._report, self._last = f"{info['who']}{info['far']}", "", ""
        self._path = [info["who"]]
        for _ in range(int(info["far"])):
            self._path.append(self.likes[self._path[-1]])
        self._size = len(self._now())

    def _now(self) -> str:
        return f"{self._question}:{self._report}|{self._last}\n" if self._last else f"{self._question}:|>\n"

    def state_key(self) -> str:
        """The workspace."""
        return self._now()

    def right_answer(self) -> str:
        """What wins, with the report that a good player has."""
        return f"{self._path[-1]}{len(self._path) - 1};a {self._path[-1]}"

    def step(self, said: str) -> Step:
        """A fact and a new workspace, or the end."""
        read = float(self._size)
        report, found, action = said.partition(";")
        kind, _, name = action.partition(" ")
        if kind == "a" and name:
            return self.won(read=read) if name == self._path[-1] else self.lost(read=read)
        searched = found and len(report) <= REPORT and set(report) <= set(self.ALPHABET[:36]) and kind == "s"
        result = self.likes.get(name, "none") if searched else "?"
        if searched:
            self._report = report
        self._last = f"{action if searched and name in self.likes else ''}>{result}"
        text = self._now() if self.rewrites else f"{result}\n"
        self._size = len(text) + (0 if self.rewrites else self._size + len(said))
        counts = dict(calls=float(bool(searched)), malformed=float(not searched), read=read)
        return self.workspace(text, **counts) if self.rewrites else self.answer(text, **counts)

    def expert(self, rng: random.Random) -> str:
        """Follows the chain by what the workspace says."""
        result = self._last.partition(">")[2]
        known = self._report[:-1] if self._report[-1:].isdigit() else ""
        if not known or result not in PEOPLE:  # nothing that can be used: from the beginning
            return f"{self._path[0]}0;s {self._path[0]}"
        count = int(self._report[-1]) + 1
        return f"{result}{count};{'a' if count >= len(self._path) - 1 else 's'} {result}"

    def novice(self, rng: random.Random) -> str:
        """A search for somebody with some report, or a guess."""
        who = rng.choice(PEOPLE)
        return f"{who}{rng.randrange(3)};{'a' if rng.random() < 0.3 else 's'} {who}"


class Chunk(NamedTuple):
    """One subgoal, and what was done for it: pairs of an action and what was seen. summary: if somebody wrote one."""

    subgoal: str
    pairs: tuple[tuple[str, str], ...] = ()
    summary: str | None = None


def compressed(task: str, chunks: Sequence[Chunk], recalled: Sequence[int] = ()) -> str:
    """HiAgent's working memory: summaries of finished subgoals, and all that was done for the newest one.

        task  (subgoal_i = summary_i) for i < n  subgoal_n (action, observation)*

    The summary is what was written (rl_jax.envs.text.summaries), else the chunk's last observation, its outcome.

    Args:
      task: what is asked for.
      chunks: in order; the last one is the present subgoal.
      recalled: numbers of finished chunks that are written out (trajectory retrieval), their last PAIRS pairs.
    """
    parts = [task]
    for number, chunk in enumerate(chunks):
        seen = "".join(f"{action}{observation}" for action, observation in chunk.pairs[-PAIRS:])
        whole = number == len(chunks) - 1 or number in recalled
        outcome = chunk.pairs[-1][1] if chunk.pairs else ""
        left = outcome if chunk.summary is None else chunk.summary
        parts.append(f"{chunk.subgoal}{seen}" if whole else f"{chunk.subgoal}={left}")
    return " ".join(parts) + "\n"


class Errands(World):
    """Things to fetch from rooms, one subgoal after the other, with a memory in chunks.

    "bd:" (fetch b, then d) -> "gb" (the subgoal) -> "1" (look into room 1) -> "c" -> "2" -> "b" -> "+" (take it) ->
    "ok" -> "gd" -> ... ; a new subgoal replaces what was done for the old one by its outcome: "bd: gb=ok gd". "r0"
    writes chunk 0 out once more. All fetched is 1; each turn costs `price`. With `compress=False` the model keeps its
    history. numbers: correct, fetched, read (the letters that stood before each turn).
    HiAgent (arXiv 2408.09559) prompts a frozen model for subgoals and summaries and trains nothing; here they are words
    of a trained one. The summary is the last observation (`compressed`); in summaries.Summaries the model writes it.

    Args:
      rooms: 2 to 9, with a thing each.
      things: to fetch.
      compress: whether finished subgoals are replaced.
      price: of a turn.
      most: turns.
    """

    ALPHABET = "abcdefghiklor0123456789+=: ?\n"
    NUMBERS = ("fetched", "read")

    def __init__(self, *, rooms: int = 4, things: int = 2, compress: bool = True, price: float = 0.02, most: int = 12):
        super().__init__(price=price, most=most)
        if not 2 <= rooms <= 9 or not 1 <= things <= rooms:
            raise ValueError(f"rooms={rooms} must be from 2 to 9, and things={things} from 1 to that")
        self._rooms, self._things, self.rewrites = rooms, things, compress

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Which things, and where they are."""
        while True:
            placed = "".join(rng.sample(THINGS[: self._rooms], self._rooms))
            task = f"{''.join(rng.sample(placed, self._things))}:"
            yield f"{task}\n", {"task": task, "placed": placed}

    def begin(self, info: dict, dice: random.Random) -> None:
        """Nothing fetched, no subgoal."""
        self._task, self._placed = str(info["task"]), str(info["placed"])
        self._left = list(self._task.rstrip(":"))
        self._room, self._chunks = 0, [Chunk("")]
        self._size = len(self._task) + 1

    def state_key(self) -> str:
        """What the memory holds, and where one is."""
        return f"{self._room} {compressed(self._task, self._chunks)}"

    def _seen(self, action: str, observation: str, **numbers: float) -> Step:
        """An answer that is added to the present chunk."""
        last = self._chunks[-1]
        self._chunks[-1] = last._replace(pairs=(*last.pairs, (action, observation)))
        numbers["read"] = float(self._size)
        self._size += len(action) + len(observation) + 1
        return self.answer(f"{observation}\n", **numbers)

    def _memory(self, recalled: Sequence[int] = ()) -> Step:
        """The memory in place of the history, if it is compressed."""
        text, read = compressed(self._task, self._chunks, recalled), float(self._size)
        if not self.rewrites:
            self._size += 5
            return self.answer("ok\n", read=read)
        self._size = len(text)
        return self.workspace(text, read=read)

    def step(self, said: str) -> Step:
        """A room's thing, "ok", or the memory."""
        if len(said) == 2 and said[0] == "g" and said[1] in self._task[:-1]:
            kept = [chunk for chunk in self._chunks if chunk.subgoal not in ("", said)]
            self._chunks = [*kept, Chunk(said)]  # a subgoal that is taken up again begins a new chunk
            return self._memory()
        if len(said) == 2 and said[0] == "r" and said[1].isascii() and said[1].isdigit():
            return self._memory((int(said[1]),))
        if len(said) == 1 and said.isascii() and said.isdigit() and 1 <= int(said) <= self._rooms:
            self._room = int(said)
            return self._seen(said, self._placed[self._room - 1])
        if said == "+" and self._room and (thing := self._placed[self._room - 1]) in self._left:
            self._left.remove(thing)
            if not self._left:
                return self.won(fetched=1.0, read=float(self._size))
            return self._seen(said, "ok", fetched=1.0)
        step = self._seen("", "?", malformed=1.0)
        self._size += len(said)  # the history holds it, the memory does not
        return step

    def expert(self, rng: random.Random) -> str:
        """Names the first thing that is missing, looks through the rooms, and takes it."""
        wanted, chunk = self._left[0], self._chunks[-1]
        if chunk.subgoal != f"g{wanted}":
            return f"g{wanted}"
        if self._room and self._placed[self._room - 1] == wanted and chunk.pairs:
            return "+"
        seen = {action for action, _ in chunk.pairs}
        rooms = (str(room) for room in range(1, self._rooms + 1) if str(room) not in seen)
        return next(rooms, str(self._placed.index(wanted) + 1))

    def novice(self, rng: random.Random) -> str:
        """Any room, or takes what is there."""
        return rng.choice([*(str(room + 1) for room in range(self._rooms)), "+", f"g{self._task[0]}", "r0"])
