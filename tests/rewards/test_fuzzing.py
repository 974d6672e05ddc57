"""rewards/fuzzing.py: the graph of statements, and runs of a program on inputs."""

import random
import sys

import pytest

from configs.tasks import r1_fuzz
from rl_jax.rewards import fuzzing
from rl_jax.rewards.sandbox import landlock
from rl_jax.tasks import toy_kinds

PROGRAM = """import sys
def parse(text):
    if text.startswith("A"):
        if len(text) > 3:
            raise KeyError(text)
        return 1
    return 0

x = input()
try:
    y = parse(x)
except KeyError:
    print("bug")
while y:
    y -= 1
    if x == "AB":
        break
else:
    print("never")
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("target", "line", "steps"),
    [
        (5, 5, 0),
        (5, 4, 1),
        (5, 3, 2),
        (5, 11, 3),  # a call leads into the function
        (13, 11, 1),
        (13, 10, 1),
        (17, 14, 3),
        (17, 15, 2),
        (19, 14, 1),
        (20, 17, 1),  # break
        (14, 16, 1),  # the end of a loop's body
        (14, 20, None),
        (9, 10, None),
    ],
)
def test_distances(target, line, steps):
    assert fuzzing.distances(PROGRAM, target).get(line) == steps


def test_bad_targets():
    with pytest.raises(ValueError, match="target.*=999 is no line on which"):
        fuzzing.distances(PROGRAM, 999)
    with pytest.raises(ValueError, match="does not parse"):
        fuzzing.distances("def", 1)


@pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")
@pytest.mark.parametrize(
    ("text", "target", "hit", "steps"),
    [
        ("ABCD", 5, 1, 0),
        ("```\nABCD\n```", 5, 1, 0),
        ("ABC", 5, 0, 1),
        ("BCD", 5, 0, 2),
        ("ABCD", 13, 1, 0),
        ("AB", 17, 1, 0),
        ("A", 17, 0, 1),
        ("A", 20, 1, 0),  # sys.exit: what was run is told all the same
        ("", 5, 0, 3),  # no line of input is an error of the program; the statements before it were run
        ("x" * 200_000, 5, 0, -1),
    ],
)
def test_runs(text, target, hit, steps):
    found = fuzzing.distance("", text, {"program": PROGRAM, "target": target})
    expected = steps if text or steps != 3 else found["distance"]
    assert (found["hit"], found["distance"]) == (hit, expected)
    assert found["reward"] == (0 if steps < 0 else pytest.approx(1 / (1 + found["distance"])))


@pytest.mark.skipif(sys.platform != "linux" or not landlock.abi(), reason="this kernel has no Landlock")
def test_the_generated_programs():
    config, rng = r1_fuzz.get_config(), random.Random(0)
    for _ in range(4):
        toy = toy_kinds.KINDS["fuzz_inputs"](rng)
        assert len(toy.prompt) < config.rollout.prompt_buckets[-1] and len(toy.right) < 8
        right, *wrong = (fuzzing.distance("", text, toy.info)["reward"] for text in (toy.right, *toy.wrong))
        assert right == 1 and max(wrong) < 1 and len(set(wrong)) > 1
