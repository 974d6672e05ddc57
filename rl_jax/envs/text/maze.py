"""A maze in text: "3.1>5.5:" names start and goal; each turn is one letter, u d l r; the answer is where one is then.

A step against a wall stays. Reaching the goal earns 1; each step before costs `price`. All episodes of a task are in
one maze, made from its seed, so a policy can learn it; the state key is the place. LMRL-Gym's returns (-1 a step, -4
for what is no step, 0 at the goal; arXiv 2311.18232) are price 1, invalid 3, win 0; its maze is another one.
"""

import random
from collections import deque
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import BAD, World

MOVES = {"u": (0, -1), "d": (0, 1), "l": (-1, 0), "r": (1, 0)}


def make_maze(size: int, seed: int, extra: float = 0.1) -> dict[tuple[int, int], set[str]]:
    """Open directions of each place: a random spanning tree of size x size places, and some more openings."""
    rng, start = random.Random(seed), (0, 0)
    opened: dict = {(x, y): set() for x in range(size) for y in range(size)}
    seen, stack = {start}, [start]

    def connect(place, letter):
        other = _next(place, letter)
        opened[place].add(letter)
        opened[other].add({"u": "d", "d": "u", "l": "r", "r": "l"}[letter])
        return other

    while stack:
        fresh = [letter for letter in MOVES if _next(stack[-1], letter) in opened.keys() - seen]
        if not fresh:
            stack.pop()
            continue
        stack.append(connect(stack[-1], rng.choice(fresh)))
        seen.add(stack[-1])
    for place in list(opened):
        for letter in "dr":
            if _next(place, letter) in opened and rng.random() < extra:
                connect(place, letter)
    return opened


def _next(place: tuple[int, int], letter: str) -> tuple[int, int]:
    return place[0] + MOVES[letter][0], place[1] + MOVES[letter][1]


def distances(opened: dict, goal: tuple[int, int]) -> dict[tuple[int, int], int]:
    """Steps from every place to the goal: breadth-first."""
    found, queue = {goal: 0}, deque([goal])
    while queue:
        place = queue.popleft()
        for letter in sorted(opened[place]):
            if (other := _next(place, letter)) not in found:
                found[other] = found[place] + 1
                queue.append(other)
    return found


class Maze(World):
    """One episode at a time. numbers: steps, walls, correct. The best return from distance d is 1 - price (d - 1).

    Args:
      size: places in each direction.
      seed: of the maze.
      price: of a step that does not reach the goal.
      most: steps.
      distance: of start and goal, at most; 0: any.
      win: at the goal.
      invalid: of what is no step, beside the price.
    """

    ALPHABET = "udlr0123456789.>:?\n"
    NUMBERS = ("steps", "walls")

    def __init__(
        self,
        *,
        size: int = 4,
        seed: int = 0,
        price: float = 0.02,
        most: int = 12,
        distance: int = 0,
        win: float = 1.0,
        invalid: float = 0.0,
    ):
        super().__init__(price=price, most=most, win=win)
        if not 2 <= size <= 10:
            raise ValueError(f"size={size} must be from 2 to 10")
        self.opened, self._distance, self._invalid = make_maze(size, seed), distance, invalid

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Pairs of places that are not the same."""
        places = sorted(self.opened)
        while True:
            goal = rng.choice(places)
            near = distances(self.opened, goal)
            limit = self._distance or len(places)
            start = rng.choice([place for place in places if 0 < near[place] <= min(limit, self.most)])
            yield f"{_name(start)}>{_name(goal)}:", {"start": start, "goal": goal}

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the start."""
        self.place, self.goal = tuple(info["start"]), tuple(info["goal"])

    def state_key(self) -> str:
        """The place; the goal is that of the whole group."""
        return _name(self.place)

    def step(self, said: str) -> Step:
        """Where one is then."""
        if said not in MOVES:
            return self.answer(BAD, reward=-self._invalid, malformed=1.0)
        wall = said not in self.opened[self.place]
        if not wall:
            self.place = _next(self.place, said)
        if self.place == self.goal:
            return self.won(steps=1.0)
        return self.answer(f"{_name(self.place)}\n", steps=1.0, walls=float(wall))

    def expert(self, rng: random.Random) -> str:
        """A step that comes nearer."""
        near = distances(self.opened, self.goal)
        best = [m for m in sorted(self.opened[self.place]) if near[_next(self.place, m)] < near[self.place]]
        return rng.choice(best)

    def novice(self, rng: random.Random) -> str:
        """Any direction."""
        return rng.choice("udlr")


class Guided(Maze):
    """The maze with an expert at one's side: where the model's step is none of the expert's, he takes his own.

        "0.0>0.2:" -> "r" -> "d!0.1" (patched: he went down) -> "d" -> ...;   each matched step earns 1 / distance

    The history stays the model's own words, the place is on the expert's way; after `patches` replaced steps the next
    mismatch ends the episode. The world of UI-S1's semi-online training (arXiv 2509.11543) in small: `turn_patched`
    says which turns were replaced (advantages.turn_states.semi_online). The best return is 1.

    Args:
      patches: steps that may be replaced.
      size: as in Maze.
      seed: as in Maze.
      most: as in Maze.
    """

    ALPHABET = Maze.ALPHABET + "!"
    NUMBERS = ("patched",)

    def __init__(self, *, patches: int = 2, size: int = 3, seed: int = 0, most: int = 8):
        super().__init__(size=size, seed=seed, price=0.0, most=most)
        self._budget = patches

    def begin(self, info: dict, dice: random.Random) -> None:
        """At the start, nothing replaced yet."""
        super().begin(info, dice)
        self._near = distances(self.opened, self.goal)
        self._way, self._patched = self._near[self.place], 0

    def state_key(self) -> str:
        """The place, and what may still be replaced."""
        return f"{_name(self.place)} {self._patched}"

    def step(self, said: str) -> Step:
        """Where one is then, and whether the expert went there."""
        moves = [
            m for m in sorted(self.opened[self.place]) if self._near[_next(self.place, m)] < self._near[self.place]
        ]
        matched = said in moves
        malformed = float(said not in MOVES)
        if not matched:
            self._patched += 1
            if self._patched > self._budget:
                return self.lost(patched=1.0, malformed=malformed)
        taken = said if matched else moves[0]
        self.place = _next(self.place, taken)
        reward, patched = float(matched) / self._way, float(not matched)
        if self.place == self.goal:
            return self.won(reward, patched=patched) if not self._patched else self.lost(reward, patched=patched)
        told = f"{'' if matched else taken + '!'}{_name(self.place)}\n"
        return self.answer(told, reward=reward, patched=patched, malformed=malformed)


def _name(place: tuple[int, int]) -> str:
    return f"{place[0]}.{place[1]}"
