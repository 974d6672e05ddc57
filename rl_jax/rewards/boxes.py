"""Verifiers of boxes and points in text: "[x1, y1, x2, y2]", {"bbox_2d": [...], "label": ...}, [{"point_2d": [x, y]}].

Coordinates are any finite numbers in one unit, that of the truth. A box must have x1 < x2 and y1 < y2.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

from rl_jax.rewards import parsing

Box = tuple[float, float, float, float]
Point = tuple[float, float]
THRESHOLDS = tuple(0.5 + 0.05 * step for step in range(10))  # of COCO's mean average precision
MAX_BOXES = 100  # COCO's maxDets

_NUMBER = r"[-+]?\d{1,9}(?:\.\d{1,9})?"
_BOX = re.compile(rf"\[\s{{0,9}}({_NUMBER})" + rf"\s{{0,9}},\s{{0,9}}({_NUMBER})" * 3 + r"\s{0,9}\]", re.ASCII)
_POINT = re.compile(rf"[\[(]\s{{0,9}}({_NUMBER})\s{{0,9}},\s{{0,9}}({_NUMBER})\s{{0,9}}[\])]", re.ASCII)


# --- Rewards ---------------------------------------------------------------------------------------------------------


def overlap(prompt: str, completion: str, info: dict, *, threshold: float = 0.0) -> dict[str, float]:
    """IoU of the one box that the answer names with info["box"].

    Two different boxes in an answer are no answer: else a list of guesses would be paid for its first.

    Source: the reward for referring expressions of arXiv 2504.07615 (VLM-R1), in real numbers instead of whole pixels.

    Args:
      prompt: not read.
      completion: its <answer>, or all of it, holds the box.
      info: "box", four numbers.
      threshold: an IoU below it counts 0 (.5: right or wrong).

    Returns:
      reward: the IoU from the threshold on; iou: as it is; correct: 1 from .5 on; format: 1 if there is one box.
    """
    box = _box_of(info["box"], 'info["box"]')
    found = list(dict.fromkeys(read_boxes(parsing.answer(completion))))
    value = iou(found[0], box) if len(found) == 1 else 0.0
    return {
        "reward": value if value >= threshold else 0.0,
        "iou": value,
        "correct": float(value >= 0.5),
        "format": float(len(found) == 1),
    }


def near(prompt: str, completion: str, info: dict, *, rescale: bool = False) -> dict[str, float]:
    """GIoU of the one box of the answer with info["box"], in (-1, 1]: a box that is off is worth more if it is near.

    -1 without a box, or with two different ones. Source: arXiv 1902.09630, a reward in arXiv 2510.01623 (VLA-R1).

    Args:
      prompt: not read.
      completion: its <answer>, or all of it, holds the box.
      info: "box", four numbers.
      rescale: (GIoU + 1) / 2, from 0 to 1, as the code of VLA-R1 has it.

    Returns:
      reward: the GIoU; correct: 1 for an IoU from .5 on; format: 1 if there is one box.
    """
    scores = overlap(prompt, completion, info)
    value = giou(read_boxes(parsing.answer(completion))[0], _box(info["box"])) if scores["format"] else -1.0
    reward = (value + 1.0) / 2.0 if rescale else value
    return {"reward": reward, "correct": scores["correct"], "format": scores["format"]}


def detection(prompt: str, completion: str, info: dict, *, over_answer: bool = True) -> dict[str, float]:
    """mAP min(1, N / M) of M boxes in the answer against the N of info["boxes"].

    Without the second factor a policy learns to repeat boxes, since more boxes can only raise the mAP of answers
    without a confidence. No box where none is due is worth 1. Source: odLength_reward of the code of arXiv 2504.07615.

    Args:
      prompt: not read.
      completion: its <answer> or all of it: boxes, or JSON [{"bbox_2d": box, "label": text}, ...] for labels.
      info: "boxes", a list of boxes or of {"bbox_2d", "label"}.
      over_answer: whether too many boxes cost.

    Returns:
      reward; map: mean average precision; count: M / max(N, 1), which shows a growing number; format: 1 if the answer
      holds a box, or says "None" or [] as it does where there is nothing.
    """
    truth = [_labelled(entry, f'info["boxes"][{place}]') for place, entry in enumerate(info["boxes"])]
    answer = parsing.answer(completion)
    found = read_labelled(answer)
    nothing = answer.strip(" .`\n") in ("None", "[]")
    quality = mean_average_precision(found, truth) if found or not nothing else float(not truth)
    factor = min(1.0, len(truth) / len(found)) if over_answer and found else 1.0
    return {
        "reward": quality * factor,
        "map": quality,
        "count": len(found) / max(len(truth), 1),
        "format": float(bool(found) or nothing),
    }


def click(prompt: str, completion: str, info: dict) -> dict[str, float]:
    """1 if the one point of the answer lies in info["box"], else 0; format: 1 if there is one point."""
    box = _box_of(info["box"], 'info["box"]')
    found = list(dict.fromkeys(read_points(parsing.answer(completion))))
    right = float(len(found) == 1 and inside(found[0], box))
    return {"reward": right, "correct": right, "format": float(len(found) == 1)}


def exploring_click(prompt: str, completion: str, info: dict, *, think: bool = False) -> dict[str, float]:
    """AEPO: an answer may name N points; the first right one has rank k.

        R = 1 + 1 / sqrt(N k)   if there is one,    1 - 1 / N   if not,
        R = 0 if the list is empty,   -1 if the answer is no list of points, or three are on a line

    The 1 is for the format. So guessing on pays where a single guess would be wrong, but few and early is better.
    Source: arXiv 2508.05731 and its code (InfiGUI-G1, reward_fn.py).

    Args:
      prompt: not read.
      completion: JSON [{"point_2d": [x, y]}, ...], after the thinking.
      info: "box".
      think: whether <think>...</think> must come first.

    Returns:
      reward; accuracy: 1 / sqrt(N k), -1 / N or -1; format: 0 or 1; correct: whether the first point is right; found:
      whether any is; points: N.
    """
    box = _box_of(info["box"], 'info["box"]')
    points = _exploring_points(completion, think)
    if points is None:
        return {"reward": -1.0, "accuracy": -1.0, "format": 0.0, "correct": 0.0, "found": 0.0, "points": 0.0}
    rank = next((place for place, point in enumerate(points, 1) if inside(point, box)), 0)
    accuracy = 1.0 / math.sqrt(len(points) * rank) if rank else -1.0 / max(len(points), 1)
    return {
        "reward": 1.0 + accuracy,
        "accuracy": accuracy,
        "format": 1.0,
        "correct": float(rank == 1),
        "found": float(rank > 0),
        "points": float(len(points)),
    }


# --- Geometry --------------------------------------------------------------------------------------------------------


def iou(first: Box, second: Box) -> float:
    """Area of the intersection over that of the union."""
    sides = [min(first[i + 2], second[i + 2]) - max(first[i], second[i]) for i in (0, 1)]
    common = sides[0] * sides[1] if min(sides) > 0 else 0.0
    return common / (area(first) + area(second) - common)


def giou(first: Box, second: Box) -> float:
    """IoU - (hull - union) / hull, in (-1, 1]: boxes that do not touch are worth more if they are near."""
    overlap_ratio = iou(first, second)
    union = (area(first) + area(second)) / (1.0 + overlap_ratio)
    corners = [(min, 0), (min, 1), (max, 2), (max, 3)]
    hull = area(tuple(pick(first[i], second[i]) for pick, i in corners))
    return overlap_ratio - (hull - union) / hull


def area(box: Box) -> float:
    """Width times height."""
    return (box[2] - box[0]) * (box[3] - box[1])


def inside(point: Point, box: Box) -> bool:
    """Whether a point is in a box or on its edge."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def mean_average_precision(found: Sequence[tuple[Box, str]], truth: Sequence[tuple[Box, str]]) -> float:
    """COCO's mAP of boxes without confidences: mean over the labels of the truth and over IoU of .5, .55, ..., .95.

    At each threshold a box takes the unused one of its label with the highest IoU; precision is interpolated at 101
    recalls, in the order of the answer. 0 without any box on either side.
    """
    labels = dict.fromkeys(label for _, label in truth)
    scores = []
    for label in labels:
        boxes = [box for box, name in found if name == label][:MAX_BOXES]
        wanted = [box for box, name in truth if name == label]
        table = [[iou(box, other) for other in wanted] for box in boxes]
        scores += [_average_precision(table, len(wanted), threshold) for threshold in THRESHOLDS]
    return sum(scores) / len(scores) if scores else 0.0


def _average_precision(table: Sequence[Sequence[float]], wanted: int, threshold: float) -> float:
    used, hits = set(), []
    for row in table:
        free = [(value, -place) for place, value in enumerate(row) if place not in used and value >= threshold - 1e-10]
        if free:
            used.add(-max(free)[1])
        hits.append(bool(free))
    precisions = [sum(hits[: n + 1]) / (n + 1) for n in range(len(hits))]
    recalls = [sum(hits[: n + 1]) / wanted for n in range(len(hits))]
    best = list(itertools.accumulate(reversed(precisions), max))[::-1]  # the most precision at this recall or more
    grid = [
        next((p for p, r in zip(best, recalls, strict=True) if r >= step / 100 - 1e-10), 0.0) for step in range(101)
    ]
    return sum(grid) / 101


def on_a_line(points: Sequence[Point]) -> bool:
    """Whether any three points are on one line; equal points are."""
    return any(
        math.isclose((b[1] - a[1]) * (c[0] - a[0]), (c[1] - a[1]) * (b[0] - a[0]))
        for a, b, c in itertools.combinations(points, 3)
    )


# --- Reading ---------------------------------------------------------------------------------------------------------


def read_boxes(text: str) -> list[Box]:
    """Every "[x1, y1, x2, y2]" with x1 < x2 and y1 < y2, in order."""
    boxes = [tuple(map(float, match.groups())) for match in _BOX.finditer(text[: parsing.MAX_CHARS])]
    return [box for box in boxes if box[0] < box[2] and box[1] < box[3]]


def read_labelled(text: str) -> list[tuple[Box, str]]:
    """(box, label) of JSON [{"bbox_2d": ..., "label": ...}]; else every box of the text, with the label ""."""
    value = parsing.find_json(text)
    entries = value if isinstance(value, list) else [value]
    if any(isinstance(entry, dict) for entry in entries):
        pairs = [(_box(entry.get("bbox_2d")), entry.get("label", "")) for entry in entries if isinstance(entry, dict)]
        # What is no box still counts as an answer too many, as in the code of VLM-R1: it is kept as an empty one.
        return [(box or (0.0, 0.0, 0.0, 0.0), label if isinstance(label, str) else "") for box, label in pairs]
    return [(box, "") for box in read_boxes(text)]


def read_points(text: str) -> list[Point]:
    """Every "(x, y)" or "[x, y]", in order."""
    return [(float(x), float(y)) for x, y in _POINT.findall(text[: parsing.MAX_CHARS])]


def _exploring_points(completion: str, think: bool) -> list[Point] | None:
    head, mark, rest = completion.partition("</think>")
    if think:
        thought = head.removeprefix("<think>").strip()
        if not (
            mark and head.startswith("<think>") and thought and "<think>" not in thought and "</think>" not in rest
        ):
            return None
    value = parsing.find_json(rest if mark else completion)
    if not isinstance(value, list) or len(value) > MAX_BOXES:
        return None
    points = [entry.get("point_2d") if isinstance(entry, dict) else None for entry in value]
    if not all(isinstance(p, list) and len(p) == 2 and all(map(_is_number, p)) for p in points):
        return None
    return None if on_a_line(points) else [tuple(map(float, point)) for point in points]


def _labelled(entry: Any, where: str) -> tuple[Box, str]:
    if isinstance(entry, dict):
        return _box_of(entry.get("bbox_2d"), where), entry.get("label", "")
    return _box_of(entry, where), ""


def _box_of(value: Any, where: str) -> Box:
    box = _box(value)
    if box is None:
        raise ValueError(f"{where} must be [x1, y1, x2, y2] with x1 < x2 and y1 < y2, got {value!r:.80}")
    return box


def _box(value: Any) -> Box | None:
    if not isinstance(value, list | tuple) or len(value) != 4 or not all(map(_is_number, value)):
        return None
    box = tuple(map(float, value))
    return box if box[0] < box[2] and box[1] < box[3] else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9
