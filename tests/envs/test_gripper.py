"""envs/text/gripper.py: what holds, what is put down, what is sensed, and how many actions a task needs."""

import itertools
import json
import random
from collections import deque

import pytest

from rl_jax.envs.text.gripper import Gripper

INFO = {"hand": [0, 0], "thing": [1, 1], "goal": [0, 2], "distance": 4}


def played(*said, info=INFO, **settings):
    env = Gripper(**settings)
    env.reset({"prompt": "x", "info": json.dumps(info)}, 0)
    return [env.step(one) for one in said], env


def told(step):
    return "".join(message["content"] for message in step.messages)


def test_a_thing_is_held_carried_and_put_down():
    steps, _ = played("++o", "00c", "-+c", "00o")
    assert [told(step) for step in steps] == ["11o11\n", "11c11\n", "02c02\n", ""]
    assert [step.reward for step in steps] == [0, 0, 0, 1] and steps[-1].done and steps[-1].numbers["correct"] == 1
    assert [step.numbers["gripper"] for step in steps] == [0, 1, 1, 0]
    assert [step.numbers["speed"] for step in steps] == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (("++c",), "11c11\n"),  # it closes while the hand moves: nothing is held
        (("++c", "00c"), "11c11\n"),  # a closed gripper does not close
        (("++o", "00c", "0+o"), "12o11\n"),  # it opens before the hand moves on
        (("--o",), "00o11\n"),  # over the edge
        (("++o", "00c", "xyz"), "?\n"),
    ],
)
def test_what_does_not_hold(said, seen):
    steps, env = played(*said)
    assert told(steps[-1]) == seen and not steps[-1].done
    assert env.holds == (said[-1] == "xyz")


def test_an_edge_is_no_speed_and_nonsense_moves_nothing():
    steps, env = played("--o", "xyz", "", "0 0")
    assert [step.numbers["speed"] for step in steps] == [0, 0, 0, 0] and env.hand == (0, 0)
    assert [step.numbers["malformed"] for step in steps] == [0, 1, 1, 1]


def test_no_player_is_faster_than_the_distance_and_the_expert_is_as_fast():
    """Breadth-first over all actions, from states as the world keeps them."""
    words = ["".join(letters) for letters in itertools.product("-0+", "-0+", "oc")]
    env, rng = Gripper(size=3), random.Random(0)
    for prompt, info in itertools.islice(env.problems(rng), 6):
        _, expert = played(info=info)
        count, done = 0, False
        while not done:
            count, done = count + 1, expert.step(expert.expert(rng)).done
        assert count == info["distance"]
        queue, seen = deque([(0, tuple(info["hand"]), tuple(info["thing"]), "o", False)]), set()
        while queue:
            depth, *state = queue.popleft()
            found = []
            for word in words:
                env.reset({"prompt": prompt, "info": json.dumps(info)}, 0)
                env.hand, env.thing, env.gripper, env.holds = state
                step = env.step(word)
                found.append(step.numbers["correct"])
                after = (env.hand, env.thing, env.gripper, env.holds)
                if after not in seen:
                    seen.add(after)
                    queue.append((depth + 1, *after))
            if any(found):
                assert depth + 1 == info["distance"]
                break


def test_a_table_has_a_size():
    with pytest.raises(ValueError, match="size=1 must be from 2 to 10"):
        Gripper(size=1)
