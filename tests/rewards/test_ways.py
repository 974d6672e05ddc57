"""rewards/ways.py: distances by all ways of walking, directions by numpy, numbers by hand."""

import math
import random

import numpy as np
import pytest

from rl_jax.rewards import ways


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("(1, 1) (9, 9) (3, 1)", 1), ("(0, 0) (0, 2)", 0), ("(2, 0) (0, 0)", -1), ("(0, 0) (1, 1)", 0.5**0.5),
     ("(1, 1)", -1), ("(1, 1) (1, 1)", -1), ("", -1)],
)  # fmt: skip
def test_heading(completion, reward):
    assert ways.heading("", completion, {"points": [[0, 0], [1, 0], [2, 0]]})["reward"] == pytest.approx(reward)
    with pytest.raises(ValueError, match="end elsewhere"):
        ways.heading("", completion, {"points": [[0, 0], [0, 0]]})


def walks(a, b, cost):
    """The shortest leash, by all ways of walking. a, b: indices that are left."""
    if len(a) == 1 and len(b) == 1:
        return cost(a[0], b[0])
    steps = [(a[1:], b)] * (len(a) > 1) + [(a, b[1:])] * (len(b) > 1) + [(a[1:], b[1:])] * (len(a) > 1 < len(b))
    return max(cost(a[0], b[0]), min(walks(*step, cost) for step in steps))


def course(way, i):
    """(unit direction at point i, step from there) with numpy, as robot_bbox_traj_norm.py says."""
    steps = np.diff(np.asarray(way, float), axis=0)
    units = steps / np.maximum(np.linalg.norm(steps, axis=1, keepdims=True), 1e-12)
    total = units[max(i - 1, 0) : i + 1].sum(axis=0)
    if np.linalg.norm(total) < 1e-9:
        total = units[i - 1]
    return total / np.linalg.norm(total), np.linalg.norm(steps[min(i, len(steps) - 1)])


def test_frechet_against_all_walks():
    rng = random.Random(0)
    for _ in range(50):
        a, b = ([(rng.random(), rng.random()) for _ in range(rng.randrange(2, 5))] for _ in range(2))

        def cost(i, j, a=a, b=b, angle=0.25, ratio=0.1):
            (way, step), (other, stride) = course(a, i), course(b, j)
            turned = math.acos(np.clip(way @ other, -1, 1))
            return math.dist(a[i], b[j]) + angle * turned + ratio * abs(math.log(step / stride))

        indices = range(len(a)), range(len(b))
        plain = walks(*indices, lambda i, j, a=a, b=b: math.dist(a[i], b[j]))
        assert ways.frechet(a, b) == ways.frechet(b, a) == pytest.approx(plain)
        found = ways.frechet(a, b, angle_coef=0.25, length_coef=0.1)
        assert found == pytest.approx(walks(*indices, cost)) and found >= plain
    back = [(0.0, 0.0), (1.0, 0.0), (0.0, 0.0)]  # where it turns, its direction is that of before
    assert ways.frechet(back, back, angle_coef=1.0, length_coef=1.0) == 0.0


@pytest.mark.parametrize(
    ("completion", "distance"),
    [
        ("(0, 0), (1, 0), (2, 0)", 0.0),
        ("(0, 1), (1, 1), (2, 1)", 0.5),  # beside it
        ("(2, 0), (1, 0), (0, 0)", 1.0 + 0.25 * math.pi),  # the way back
        ("(0, 0), (2, 0)", 0.5 + 0.1 * math.log(2)),  # in one step
        ("(0, 0)", 1.0 + 0.1 * math.log(0.5 / 1e-12)),  # a point has no direction
    ],
)
def test_a_way_is_worth_its_distance(completion, distance):
    """VLA-R1's 1 - min(1, d / (sqrt(2) + .25 pi + .1 log 10)), on coordinates from 0 to 2."""
    largest = math.sqrt(2) + 0.25 * math.pi + 0.1 * math.log(10)
    line = {"points": [[0, 0], [1, 0], [2, 0]]}
    found = ways.oriented("", completion, line, size=2.0)
    assert found == {"reward": pytest.approx(1 - min(1, distance / largest)), "format": 1.0}
    assert ways.oriented("", "nowhere", line) == {"reward": 0.0, "format": 0.0}


def test_a_point_is_worth_nothing_on_a_short_way_either():
    """Red before, .19: a step of no length counted as 1e-9, where VLA-R1's code has 1e-12."""
    line = {"points": [[place / 16, 0] for place in range(3)]}
    assert ways.oriented("", "(0, 0)", line) == {"reward": 0.0, "format": 1.0}


def test_near_is_the_plain_distance():
    line = {"points": [[0, 0], [1, 0], [2, 0]]}
    assert ways.near("", "(0, 0), (1, 0), (2, 0)", line)["reward"] == 1.0
    assert ways.near("", "(0, 1), (1, 1), (2, 1)", line)["reward"] == pytest.approx(math.exp(-1))
    assert ways.near("", "(2, 0), (1, 0), (0, 0)", line, scale=2.0)["reward"] == pytest.approx(math.exp(-1))
    assert ways.near("", "nowhere", line) == {"reward": 0.0, "format": 0.0}
