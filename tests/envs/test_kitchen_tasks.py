"""envs/worlds/kitchen_tasks.py: macro actions reach what they name, in as few moves as a search finds."""

import itertools

import numpy as np
import pytest

from rl_jax.envs.worlds import kitchen, kitchen_tasks
from rl_jax.envs.worlds.kitchen import DISH, EAST, NOTHING, ONION, SOUP, STAY, Kitchen
from tests.envs.test_agents import COOK, LANE, ONIONS, turn

PARTS = dict(onions=ONIONS, cook_steps=COOK)


def states():
    """Every state of the small kitchen."""
    sizes = (*[range(LANE)] * 2, *[range(4)] * 2, *[range(4)] * LANE, range(ONIONS + COOK + 1))
    for x in itertools.product(*sizes):
        yield (x[:2], x[2:4], x[4 : 4 + LANE], x[-1])


def as_kitchen(state):
    return Kitchen(*(np.asarray(x) for x in state))


def reached(cook, task, before, after, soups):
    """Whether a step did what the macro action names."""
    if cook == kitchen_tasks.LEFT:
        wanted = kitchen_tasks.BRING.get(task)
        held = before[1][0]
        return held != NOTHING and after[1][0] == NOTHING and (wanted is None or held == wanted)
    if task == "cook an onion":
        return before[1][1] == ONION and after[1][1] == NOTHING and after[3] == before[3] + 1
    if task == "plate the soup":
        return after[1][1] == SOUP and before[1][1] == DISH
    return soups == 1 if task == "serve the soup" else before[2].count(NOTHING) > after[2].count(NOTHING)


def pair(cook, action):
    return (action, STAY) if cook == kitchen_tasks.LEFT else (STAY, action)


def fewest(cook, task, state, limit=9):
    """The fewest steps to `reached` while the other cook stands still; None if there are none up to the limit."""
    seen, edge = {state}, [state]
    for count in range(1, limit):
        following = []
        for before, action in itertools.product(edge, range(5)):
            if cook == kitchen_tasks.LEFT and action == EAST and before[1][0] == NOTHING:
                continue  # it would bring what lies on the counter already
            after, soups, _ = turn(before, pair(cook, action))
            if reached(cook, task, before, after, soups):
                return count
            if after not in seen:
                seen.add(after)
                following.append(after)
        edge = following
    return None


TRIED = [(cook, task) for cook in (0, 1) for task in kitchen_tasks.TASKS[cook] if task != "wait"]


@pytest.mark.parametrize(("cook", "task"), TRIED)
def test_the_executor_does_what_the_task_names(cook, task):
    """From a sample of states: what can begin ends in what it names, as fast as possible unless it puts away first."""
    rng, ended = np.random.default_rng(0), 0
    every = list(states())
    for place in rng.permutation(len(every))[:80]:
        state, count = every[place], 0
        hand = state[1][cook]
        if not kitchen_tasks.can_begin(as_kitchen(state), cook, task, **PARTS):
            continue
        shortest = fewest(cook, task, state)
        before = state
        while count < 12:
            move = kitchen_tasks.move(as_kitchen(before), cook, task, **PARTS)
            if move.stuck:
                break
            count += 1
            after, soups, _ = turn(before, pair(cook, move.action))
            assert move.finishes == reached(cook, task, before, after, soups) or move.action == STAY
            before = after
            if move.finishes:
                break
        if move.stuck:  # it held something else, and then there was no room, or nothing to take
            assert hand != NOTHING
            continue
        ended += 1
        assert move.finishes and shortest is not None
        if hand in (NOTHING, {**kitchen_tasks.BRING, **kitchen_tasks.USE}.get(task, hand)):
            assert count == shortest, (state, count, shortest)
    assert ended > 8


def test_what_a_cook_is_told_and_may_do():
    state = Kitchen(np.array([0, 1]), np.array([ONION, NOTHING]), np.array([NOTHING, DISH]), np.int32(2))
    left, right = (kitchen_tasks.told(state, cook, **PARTS) for cook in (0, 1))
    assert left == (
        "You are at place 0 of 2. You hold an onion. On the counter, from the first place on: nothing, a dish."
    )
    assert "The pot has 2 of 2 onions. It will be ready in 1 steps." in right
    able = [kitchen_tasks.available(state, cook, **PARTS) for cook in (0, 1)]
    assert able == [["bring an onion", "bring a dish", "put away", "wait"], ["plate the soup", "wait"]]
    with pytest.raises(ValueError, match="'serve the soup' is no macro action of the left cook"):
        kitchen_tasks.move(state, 0, "serve the soup", **PARTS)
    assert kitchen_tasks.see(kitchen.start(2)).cells.tolist() == [0, 0]
