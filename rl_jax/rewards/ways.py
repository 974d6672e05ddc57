"""Verifiers of ways, points in order: "(x, y), (x, y), ...". Coordinates are numbers in the unit of the truth."""

import itertools
import math
from collections.abc import Sequence

from rl_jax.rewards import parsing
from rl_jax.rewards.boxes import Point, read_points

_TINY = 1e-12  # a step of this length has no direction; EPS of VLA-R1's code


def near(prompt: str, completion: str, info: dict, *, scale: float = 1.0) -> dict[str, float]:
    """exp(-d / scale), d the discrete Frechet distance of the answer's points to info["points"], in order.

    `oriented` is a measure that also weighs angles and lengths.

    Args:
      prompt: not read.
      completion: its <answer> or all of it: "(x, y), (x, y), ...".
      info: "points", a list of [x, y].
      scale: distance at which the reward is 1/e. In the unit of the coordinates.

    Returns:
      reward; format: 1 if there is a point.
    """
    found = read_points(parsing.answer(completion))[:1_000]
    distance = frechet(found, [tuple(map(float, point)) for point in info["points"]]) if found else math.inf
    return {"reward": math.exp(-distance / scale), "format": float(bool(found))}


def oriented(
    prompt: str,
    completion: str,
    info: dict,
    *,
    size: float = 1.0,
    angle_coef: float = 0.25,
    length_coef: float = 0.1,
) -> dict[str, float]:
    """How near the answer's points are to info["points"], in order: in place, in direction and in the length of steps.

        R = 1 - min(1, d / (sqrt(2) + angle_coef pi + length_coef log 10))

    Source: arXiv 2510.01623 (VLA-R1), robot_bbox_traj_norm.py of its code; d is `frechet` on coordinates from 0 to 1.

    Args:
      prompt: not read.
      completion: its <answer> or all of it: "(x, y), (x, y), ...".
      info: "points", a list of [x, y].
      size: largest coordinate; all are divided by it and cut to 0 and 1.
      angle_coef: of the angle between the ways, in radians.
      length_coef: of the log ratio of the steps.

    Returns:
      reward: 0 without a point; format: 1 if there is one.
    """
    found = read_points(parsing.answer(completion))[:1_000]
    if not found:
        return {"reward": 0.0, "format": 0.0}
    ways = [[tuple(min(1.0, max(0.0, x / size)) for x in point) for point in way] for way in (found, info["points"])]
    largest = math.sqrt(2.0) + angle_coef * math.pi + length_coef * math.log(10.0)
    distance = frechet(*ways, angle_coef=angle_coef, length_coef=length_coef)
    return {"reward": 1.0 - min(1.0, distance / largest), "format": 1.0}


def heading(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """Cosine between the ways from the first to the last point, of the answer and of info["points"], in [-1, 1].

    Returns:
      reward: -1 for an answer without two different points; length: the answer's way over the right one, in length.

    Raises:
      ValueError: if the right points end where they start.
    """
    (x, y), found = _way(info["points"]), read_points(parsing.answer(completion))
    if not math.hypot(x, y):
        raise ValueError(f'info["points"] must end elsewhere than they start, got {info["points"]!r:.80}')
    u, v = _way(found) if found else (0.0, 0.0)
    size = math.hypot(u, v)
    cosine = (x * u + y * v) / (math.hypot(x, y) * size) if size else -1.0
    return {"reward": max(-1.0, min(1.0, cosine)), "length": size / math.hypot(x, y)}


def frechet(
    first: Sequence[Point], second: Sequence[Point], *, angle_coef: float = 0.0, length_coef: float = 0.0
) -> float:
    """Discrete Frechet distance: the shortest leash with which two can walk along their points, never back.

        cost(p, q) = |p - q| + angle_coef angle + length_coef |log(step of p / step of q)|

    The angle is between the directions of the two ways there, the mean of the steps before and after; the step is the
    one that follows, at the end the last one. Source: arXiv 2510.01623 (VLA-R1).
    """
    ways = [[(point, *_course(way, place)) for place, point in enumerate(way)] for way in (first, second)]
    row: list[float] = []
    for place, (point, way, step) in enumerate(ways[0]):
        before, row = row, []
        for other, (target, course, stride) in enumerate(ways[1]):
            cost = math.dist(point, target)
            if angle_coef or length_coef:
                cost += angle_coef * _angle(way, course) + length_coef * abs(math.log(step / stride))
            cheapest = [before[other]] if place else []
            cheapest += [row[other - 1]] if other else []
            cheapest += [before[other - 1]] if place and other else []
            row.append(max(cost, min(cheapest, default=0.0)))
    return row[-1]


def _course(way: Sequence[Point], place: int) -> tuple[Point, float]:
    """(direction of a way at a point, as a vector of length 1 or 0; length of its step from there, above 0)."""
    if len(way) == 1:
        return (0.0, 0.0), _TINY
    steps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(way[max(place - 1, 0) : place + 2])]
    x, y = (sum(part) for part in zip(*map(_unit, steps), strict=True))
    mean = _unit((x, y)) if math.hypot(x, y) > _TINY else _unit(steps[0])  # back the way it came
    return mean, max(math.hypot(*(steps[-1])), _TINY)


def _unit(step: Point) -> Point:
    length = math.hypot(*step)
    return (step[0] / length, step[1] / length) if length > _TINY else (0.0, 0.0)


def _angle(first: Point, second: Point) -> float:
    """Between two directions, in radians; 0 where one of them has none."""
    if not (any(first) and any(second)):
        return 0.0
    return math.acos(max(-1.0, min(1.0, first[0] * second[0] + first[1] * second[1])))


def _way(points: Sequence) -> Point:
    """From the first point to the last."""
    return float(points[-1][0]) - float(points[0][0]), float(points[-1][1]) - float(points[0][1])
