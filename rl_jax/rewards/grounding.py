"""GUI-G1's reward of a box in text, and how hard a target is.

Named in a config by its import path, "rl_jax.rewards.grounding:gui_g1".
"""

from rl_jax.rewards import boxes, parsing
from rl_jax.rewards.boxes import Box


def gui_g1(
    prompt: str,
    completion: str,
    info: dict,
    *,
    size: tuple[float, float],
    iou_weight: float = 0.25,
    box_weight: float = 0.125,
    hardest: float = 2.0,
) -> dict[str, float]:
    """Hit, overlap and size of the one box of the answer against info["box"].

        R = hit + iou_weight IoU + box_weight 4 / (1/a + 1/b + 1/c + 1/d),   a = 1 - |difference of x1| / width, ...

    hit: the middle of the answer's box lies in the true one. Hits alone teach boxes that are too small, overlap alone
    boxes that are too large; the third term holds the edges. Two different boxes in an answer are no answer.
    Source: arXiv 2505.15810; grpo_rec.py of Yuqi-Zhou/GUI-G1 (its IoU counts whole pixels).

    Args:
      prompt: not read.
      completion: its <answer>, or all of it, holds the box.
      info: "box", four numbers; "rate" may give the difficulty.
      size: width and height of the screen, in the unit of the boxes.
      iou_weight: .25 in the code.
      box_weight: .125 in the code.
      hardest: as in `difficulty`, if info has no rate.

    Returns:
      reward; hit; iou; edges; format: 1 if there is one box; correct: the hit; difficulty.
    """
    scores = boxes.overlap(prompt, completion, info)
    truth = tuple(float(x) for x in info["box"])
    hard = float(info["rate"]) if "rate" in info else difficulty(truth, size, hardest=hardest)
    if not scores["format"]:
        return dict(reward=0.0, hit=0.0, iou=0.0, edges=0.0, format=0.0, correct=0.0, difficulty=hard)
    found = boxes.read_boxes(parsing.answer(completion))[0]
    middle = ((found[0] + found[2]) / 2, (found[1] + found[3]) / 2)
    hit, edges = float(boxes.inside(middle, truth)), edge_agreement(found, truth, size)
    reward = hit + iou_weight * scores["iou"] + box_weight * edges
    return dict(reward=reward, hit=hit, iou=scores["iou"], edges=edges, format=1.0, correct=hit, difficulty=hard)


def edge_agreement(found: Box, truth: Box, size: tuple[float, float]) -> float:
    """The harmonic mean of 1 - |difference| / side over the four edges; 0 if an edge is a whole side away, or more."""
    shares = [1 - abs(a - b) / size[i % 2] for i, (a, b) in enumerate(zip(found, truth, strict=True))]
    return 4 / sum(1 / share for share in shares) if min(shares) > 0 else 0.0


def difficulty(truth: Box, size: tuple[float, float], *, hardest: float = 2.0) -> float:
    """A weight from 1 for a target as large as the screen to `hardest` for a point: hardest - (hardest - 1) area share.

    The paper weighs small targets more; its own numbers are a field `rate` of its data, whose rule is not in the code.
    """
    return hardest - (hardest - 1.0) * min(1.0, boxes.area(truth) / (size[0] * size[1]))
