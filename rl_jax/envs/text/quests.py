"""A text adventure whose size and whose density of rewards are settings, and a question that needs two tools."""

import random
from collections.abc import Iterator

from rl_jax.envs.text.lookups import PEOPLE
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import World

ROOMS, OBJECTS = "ABCDEFGH", "abcdefhijklm"  # g and t are words


class Quest(World):
    """Rooms, objects, and things to take in order: "ab:A[c]BD" -> "gB" -> "B[a]A" -> "ta" -> ...

    Observations show the room, what lies there, and where one can go: "A[c]BD". "gB" goes, "ta" takes; what is not
    possible changes nothing. The quest is a walk of `quest` commands that alternates between going and taking, told in
    the prompt as the objects to take ("ab:A[c]BD": a first); each command of it is a subgoal, reached when it is done
    for the first time and in order. A share `density` of the subgoals before the last pays 1 / quest, evenly spread;
    the last one pays the rest of 1. So a finished quest always earns 1 less the price of turns, whatever the density,
    and density 0 is the sparse reward of the end. After TextWorld's w, o and q of arXiv 2510.01132 (w2-o3-q4 to
    w8-o12-q4), whose commands are English sentences. numbers: correct, subgoals, paid.

    Args:
      rooms: w, 2 to 8; a tree.
      objects: o, at least quest / 2.
      quest: q, even.
      density: share of the subgoals that pay when they are reached, 0 to 1.
      price: of a turn.
      most: turns; 0: twice the quest (more hardly helped in the paper).
    """

    ALPHABET = "ABCDEFGHabcdefghijklmt[]:?\n"
    NUMBERS = ("subgoals", "paid")

    def __init__(
        self,
        *,
        rooms: int = 2,
        objects: int = 3,
        quest: int = 4,
        density: float = 0.0,
        price: float = 0.0,
        most: int = 0,
    ):
        super().__init__(price=price, most=most or 2 * quest)
        if not 2 <= rooms <= len(ROOMS) or quest < 2 or quest % 2 or not quest // 2 <= objects <= len(OBJECTS):
            raise ValueError(
                f"rooms={rooms} must be from 2 to {len(ROOMS)}, quest={quest} even and at least 2, and "
                f"objects={objects} from quest / 2 to {len(OBJECTS)}"
            )
        if not 0 <= density <= 1:
            raise ValueError(f"density={density} must be from 0 to 1")
        self._rooms, self._objects, self._quest, self._density = rooms, objects, quest, density

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """A tree of rooms, and a walk through it with a thing to take in each room."""
        while True:
            exits: dict[str, str] = {ROOMS[0]: ""}
            for room in ROOMS[1 : self._rooms]:
                near = rng.choice(sorted(exits))
                exits[near], exits[room] = exits[near] + room, near
            names = rng.sample(OBJECTS[: max(self._objects, self._quest // 2)], self._objects)
            wanted, place, walk, inside = names[: self._quest // 2], ROOMS[0], [], {}
            for name in wanted:
                place = rng.choice(exits[place])
                walk += [f"g{place}", f"t{name}"]
                inside[name] = place
            inside |= {name: rng.choice(ROOMS[: self._rooms]) for name in names[len(wanted) :]}
            info = {"exits": exits, "inside": inside, "walk": walk}
            self.begin(info, rng)
            yield f"{''.join(wanted)}:{self._look()}", info

    def begin(self, info: dict, dice: random.Random) -> None:
        """In the first room, with nothing."""
        self._exits, self._inside, self._walk = info["exits"], dict(info["inside"]), list(info["walk"])
        self._room, self._done = ROOMS[0], 0

    def _look(self) -> str:
        here = "".join(sorted(name for name, room in self._inside.items() if room == self._room))
        return f"{self._room}[{here}]{''.join(sorted(self._exits[self._room]))}\n"

    def state_key(self) -> str:
        """Where one is, what is left where, and how far the quest is."""
        left = "".join(f"{name}{room}" for name, room in sorted(self._inside.items()))
        return f"{self._room} {left} {self._done}"

    def pays(self, subgoal: int) -> float:
        """What the subgoal earns, counted from 1: 1 / quest if it is one of those that pay, the rest at the last."""
        before = self._quest - 1
        count = round(self._density * before)
        chosen = {-(-before * (n + 1) // count) for n in range(count)} if count else set()
        if subgoal == self._quest:
            return 1 - count / self._quest
        return 1 / self._quest if subgoal in chosen else 0.0

    def step(self, said: str) -> Step:
        """What one sees then."""
        kind, name = said[:1], said[1:]
        possible = (kind == "g" and len(name) == 1 and name in self._exits[self._room]) or (
            kind == "t" and self._inside.get(name) == self._room
        )
        if not possible:
            return self.bad()
        if kind == "g":
            self._room = name
        else:
            del self._inside[name]
        if said != self._walk[self._done]:
            return self.answer(self._look())
        self._done += 1
        reward = self.pays(self._done)
        if self._done == self._quest:
            return self.won(reward, subgoals=1.0)
        return self.answer(self._look(), reward=reward, subgoals=1.0, paid=float(reward > 0))

    def expert(self, rng: random.Random) -> str:
        """The next command of the quest, or the way to where it can be done."""
        kind, name = self._walk[self._done]
        if kind == "t" and name not in self._inside:  # taken too early: it is lost
            return f"g{rng.choice(self._exits[self._room])}"
        target = name if kind == "g" else self._inside[name]
        if kind == "t" and target == self._room:
            return f"t{name}"
        return f"g{self._toward(target)}"

    def _toward(self, target: str) -> str:
        """The next room on the way to another one; any beside it if one is there already."""
        if target == self._room:
            return self._exits[self._room][0]
        onward, frontier = {target: ""}, [target]
        while self._room not in onward:
            found = {room: near for near in frontier for room in self._exits[near] if room not in onward}
            onward, frontier = onward | found, list(found)
        return onward[self._room]

    def novice(self, rng: random.Random) -> str:
        """Anything that is possible."""
        here = [f"t{name}" for name, room in self._inside.items() if room == self._room]
        return rng.choice([*(f"g{room}" for room in self._exits[self._room]), *here])


class TwoTools(World):
    """A question that needs a search and a calculator: "eli*7=" -> "s eli" -> "4" -> "c4*7" -> "28" -> "=28".

        R = -1 if the answer is malformed (or missing);  0 if it is wrong;  1 if it is right
        R += bonus if it is right and both tools were called

    numbers: correct, searches, calculations, malformed. Some questions ("9*7=") need no search, so the bonus can also
    be earned by a needless call; `price` makes calls cost. Source: Tool-Star, arXiv 2505.16410 and its reward
    (Tool_Star_RL/.../reward_score/re_search.py, read in the fork threegold116/Tool-Star-OCT: -1, 0, F1, and .1 for
    </search> and </python> in a right answer); its search is the web, its calculator Python.

    Args:
      bonus: r_M.
      plain: share of the questions that need no search.
      price: of a call.
      most: turns.
    """

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789*=? \n"
    NUMBERS = ("searches", "calculations")

    def __init__(self, *, bonus: float = 0.1, plain: float = 0.2, price: float = 0.0, most: int = 4):
        super().__init__(price=0.0, most=most)
        if bonus < 0 or not 0 <= plain <= 1 or price < 0:
            raise ValueError(f"bonus={bonus} and price={price} must not be below 0, and plain={plain} from 0 to 1")
        self._bonus, self._plain, self._call_price = bonus, plain, price

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Somebody's number, or a number, times a number."""
        while True:
            who, number, times = rng.choice(PEOPLE), rng.randint(2, 9), rng.randint(2, 9)
            plain = rng.random() < self._plain
            info = {"who": who, "plain": plain, "number": number, "times": times}
            yield f"{number if plain else who}*{times}=\n", info

    def begin(self, info: dict, dice: random.Random) -> None:
        """No tool used."""
        self._who, self._number, self._times = str(info["who"]), int(info["number"]), int(info["times"])
        self._is_plain, self._used = bool(info["plain"]), set()

    def state_key(self) -> str:
        """The tools used, and the turn."""
        return f"{self.turn} {''.join(sorted(self._used))}"

    def right_answer(self) -> str:
        """What wins."""
        return f"={self._number * self._times}"

    def cut(self) -> float:
        """A limit ends the episode: an answer is missing."""
        return -1.0

    def _called(self, tool: str, text: str, **numbers: float) -> Step:
        self._used.add(tool)
        if self.turn + 1 >= self.most:  # no answer
            return self.lost(-1.0, **numbers)
        return self.answer(f"{text}\n", reward=-self._call_price, **numbers)

    def step(self, said: str) -> Step:
        """A tool's answer, or the end."""
        if said.startswith("s "):
            return self._called("s", str(self._number) if said[2:] == self._who else "none", searches=1.0)
        if said.startswith("c"):
            left, _, right = said[1:].partition("*")
            fits = all(part.isascii() and part.isdigit() and len(part) < 5 for part in (left, right))
            result = str(int(left) * int(right)) if fits else "?"
            return self._called("c", result, calculations=1.0, malformed=float(not fits))
        number = said[1:]
        if not (said.startswith("=") and number.isascii() and number.isdigit() and len(number) < 9):
            return self.lost(-1.0, malformed=1.0)
        if int(number) != self._number * self._times:
            return self.lost()
        return self.won(1 + self._bonus * (self._used == {"s", "c"}))

    def expert(self, rng: random.Random) -> str:
        """The tools that are needed, and the answer."""
        if "s" not in self._used and not self._is_plain:
            return f"s {self._who}"
        return self.right_answer() if "c" in self._used else f"c{self._number}*{self._times}"

    def novice(self, rng: random.Random) -> str:
        """Some call, or some answer."""
        return rng.choice([f"s {rng.choice(PEOPLE)}", f"c{rng.randint(2, 9)}*{self._times}", f"={rng.randint(4, 81)}"])
