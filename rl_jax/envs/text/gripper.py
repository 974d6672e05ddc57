"""An arm that picks a thing up and puts it elsewhere, by actions of several tokens: a robot's task in text (VLA-RL).

    ">02|00o11\n" (goal, hand, gripper open, thing) -> "++o" -> "11o11\n" -> "00c" -> "11c11\n" -> "-+c" -> "02c02\n"
    -> "00o": 1

Each turn is one action, a token per dimension: the hand's step in x and in y (-, 0, +), then the gripper (o, c). What
is sensed of the arm is counted, so that key states can be found in a recorded episode (rl_jax.preferences.milestones).
"""

import random
from collections.abc import Iterator

from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.world import BAD, World

STEPS = {"-": -1, "0": 0, "+": 1}
OPEN, CLOSED = "o", "c"


class Gripper(World):
    """One episode at a time. numbers: correct, malformed, gripper (1: closed), speed (places that the hand has moved).

    A gripper that closes while the hand stands still over the thing holds it, and it moves with the hand until the
    gripper opens, which it does before the hand moves on. The reward is 1 once it has been put down on the goal, as
    LIBERO's binary reward (arXiv 2505.18719). A step over the edge of the table stays. The best return is 1, in as many
    turns as the record's `distance`.

    Args:
      size: places in each direction.
      most: actions.
    """

    ALPHABET = "-+0123456789oc>|?\n"
    NUMBERS = ("gripper", "speed")

    def __init__(self, *, size: int = 3, most: int = 8):
        super().__init__(price=0.0, most=most)
        if not 2 <= size <= 10:
            raise ValueError(f"size={size} must be from 2 to 10")
        self.size = size

    def problems(self, rng: random.Random) -> Iterator[tuple[str, dict]]:
        """Places of hand, thing and goal; the thing is not on its goal. distance: actions of the expert."""
        while True:
            hand, thing, goal = ((rng.randrange(self.size), rng.randrange(self.size)) for _ in range(3))
            far = max(_apart(hand, thing)) + max(_apart(thing, goal)) + 2
            if thing != goal and far <= self.most:
                info = {"hand": hand, "thing": thing, "goal": goal, "distance": far}
                yield f">{_name(goal)}|{_name(hand)}{OPEN}{_name(thing)}\n", info

    def begin(self, info: dict, dice: random.Random) -> None:
        """The hand is open."""
        self.hand, self.thing, self.goal = (tuple(info[name]) for name in ("hand", "thing", "goal"))
        self.gripper, self.holds = OPEN, False

    def state_key(self) -> str:
        """The goal, the arm and the thing."""
        return f"{_name(self.goal)} {self._seen()}{int(self.holds)}"

    def _seen(self) -> str:
        return f"{_name(self.hand)}{self.gripper}{_name(self.thing)}"

    def step(self, said: str) -> Step:
        """What is seen after an action."""
        if len(said) != 3 or said[0] not in STEPS or said[1] not in STEPS or said[2] not in (OPEN, CLOSED):
            return self.answer(BAD, malformed=1.0, gripper=float(self.gripper == CLOSED))
        before, closed = self.hand, self.gripper == CLOSED
        moved = (place + STEPS[letter] for place, letter in zip(before, said, strict=False))
        self.hand = tuple(min(max(place, 0), self.size - 1) for place in moved)
        self.gripper = said[2]
        speed = max(_apart(before, self.hand))
        if self.holds and said[2] == CLOSED:
            self.thing = self.hand
        put_down, self.holds = self.holds and said[2] == OPEN, self.holds and said[2] == CLOSED
        if not closed and said[2] == CLOSED and speed == 0 and self.hand == self.thing:
            self.holds = True
        sensed = {"gripper": float(said[2] == CLOSED), "speed": float(speed)}
        if put_down and self.thing == self.goal:
            return self.won(**sensed)
        return self.answer(f"{self._seen()}\n", **sensed)

    def expert(self, rng: random.Random) -> str:
        """The shortest way: to the thing, close, to the goal, open."""
        target = self.goal if self.holds else self.thing
        dx, dy = (goal - place for goal, place in zip(target, self.hand, strict=True))
        there = dx == dy == 0
        closes = self.holds != there  # on the way with it, or over it with an open hand
        if there and not self.holds and self.gripper == CLOSED:
            closes = False  # it has closed on nothing
        return f"{_sign(dx)}{_sign(dy)}{CLOSED if closes else OPEN}"

    def novice(self, rng: random.Random) -> str:
        """Any action."""
        return rng.choice("-0+") + rng.choice("-0+") + rng.choice(OPEN + CLOSED)


def _apart(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return abs(one[0] - other[0]), abs(one[1] - other[1])


def _sign(x: int) -> str:
    return "0" if x == 0 else "+" if x > 0 else "-"


def _name(place: tuple[int, int]) -> str:
    return f"{place[0]}{place[1]}"
