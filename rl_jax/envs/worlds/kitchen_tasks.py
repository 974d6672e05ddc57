"""Macro actions in the kitchen, and the executor that makes moves of them: no jax, for agents that speak.

    left    bring an onion, bring a dish, put away, wait
    right   cook an onion, plate the soup, serve the soup, put away, wait

A macro action names what is to be true in the end; `move` looks at the state and gives the next move towards it, so it
goes on whatever the other cook does. Source: arXiv 2312.15224 (HLA) and its code (agent/executor), whose kitchen is a
map with paths and three vegetables; here a path is a walk along a lane.
"""

from typing import NamedTuple

import numpy as np

from rl_jax.envs.worlds.kitchen import DISH, DOWN, EAST, NOTHING, ONION, SOUP, STAY, UP, WEST, Kitchen

LEFT, RIGHT = 0, 1
NAMES = ("nothing", "an onion", "a dish", "a soup")
BRING = {"bring an onion": ONION, "bring a dish": DISH}
USE = {"cook an onion": ONION, "plate the soup": DISH, "serve the soup": SOUP}
TASKS = ((*BRING, "put away", "wait"), (*USE, "put away", "wait"))


class Move(NamedTuple):
    """A move of the executor.

    Attributes:
      action: one of kitchen's five.
      finishes: whether the macro action is done with it.
      stuck: whether there is nothing to do for it now; the action is STAY.
    """

    action: int
    finishes: bool = False
    stuck: bool = False


def see(state: Kitchen) -> Kitchen:
    """The state as numbers of Python and numpy, int32."""
    return Kitchen(*(np.asarray(x) for x in state))


def can_begin(state: Kitchen, cook: int, task: str, *, onions: int, cook_steps: int) -> bool:
    """Whether there is something to do for a macro action. Arguments as for `move`."""
    return not move(state, cook, task, onions=onions, cook_steps=cook_steps).stuck


def available(state: Kitchen, cook: int, *, onions: int, cook_steps: int) -> list[str]:
    """The macro actions of a cook that can begin, `wait` among them."""
    return [task for task in TASKS[cook] if can_begin(state, cook, task, onions=onions, cook_steps=cook_steps)]


def move(state: Kitchen, cook: int, task: str, *, onions: int, cook_steps: int) -> Move:
    """The next move of a macro action.

    Args:
      state: of the kitchen, numpy (`see`).
      cook: LEFT or RIGHT.
      task: one of TASKS[cook].
      onions: that a soup needs.
      cook_steps: until it is ready.

    Raises:
      ValueError: if the cook has no such macro action.
    """
    if task not in TASKS[cook]:
        raise ValueError(f"{task!r} is no macro action of the {('left', 'right')[cook]} cook: {', '.join(TASKS[cook])}")
    hand, cell, counters, pot = int(state.hands[cook]), int(state.cells[cook]), state.counters, int(state.pot)
    lane, to_counter = len(counters), EAST if cook == LEFT else WEST
    if task == "wait":
        return Move(STAY, finishes=True)

    def onto(what: int, action: int, finishes: bool) -> Move:
        """Towards the nearest place of the counter where `what` lies, and the action there."""
        places = np.flatnonzero(counters == what)
        if not len(places):
            return Move(STAY, stuck=True)
        return _at(cell, int(places[np.argmin(np.abs(places - cell))]), action, finishes)

    if task == "put away":
        return onto(NOTHING, to_counter, True) if hand != NOTHING else Move(STAY, stuck=True)
    wanted = BRING[task] if cook == LEFT else USE[task]
    if cook == RIGHT and hand != wanted and wanted not in counters:
        return Move(STAY, stuck=True)
    if cook == RIGHT and (pot >= onions if wanted == ONION else wanted == DISH and pot < onions):
        return Move(STAY, stuck=True)
    if hand not in (NOTHING, wanted):
        return onto(NOTHING, to_counter, False)
    if cook == LEFT:
        if hand == wanted:
            return onto(NOTHING, to_counter, True)
        source = 0 if wanted == ONION else lane - 1
        return _at(cell, source, WEST, False) if (counters == NOTHING).any() else Move(STAY, stuck=True)
    if hand == NOTHING:
        return onto(wanted, to_counter, False)
    if wanted == DISH and cell == 0 and pot + 1 < onions + cook_steps:
        return Move(STAY)  # it cooks, and goes on to cook before a cook acts
    return _at(cell, lane - 1 if wanted == SOUP else 0, EAST, True)


def _at(cell: int, place: int, action: int, finishes: bool) -> Move:
    """A step along the lane, or the action if the cook is there."""
    if cell == place:
        return Move(action, finishes)
    return Move(DOWN if place > cell else UP)


def told(state: Kitchen, cook: int, *, onions: int, cook_steps: int) -> str:
    """What a cook sees, in words: its place, its hand, the counter, and for the right one the pot."""
    lying = ", ".join(NAMES[int(x)] for x in state.counters)
    words = [
        f"You are at place {int(state.cells[cook])} of {len(state.counters)}.",
        f"You hold {NAMES[int(state.hands[cook])]}.",
        f"On the counter, from the first place on: {lying}.",
    ]
    if cook == RIGHT:
        pot = int(state.pot)
        cooking = (
            f"It will be ready in {onions + cook_steps - pot} steps." if pot < onions + cook_steps else "It is ready."
        )
        words.append(f"The pot has {min(pot, onions)} of {onions} onions." + (f" {cooking}" if pot >= onions else ""))
    return " ".join(words)
