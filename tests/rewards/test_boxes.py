"""rewards/boxes.py: boxes, detections, clicks and paths in text, with the numbers of the papers' codes."""

import json
import math
import random
import time

import pytest

from rl_jax.rewards import boxes

BOX = {"box": [10, 10, 20, 20]}


def points(*given):
    return json.dumps([{"point_2d": list(point)} for point in given])


@pytest.mark.parametrize(
    ("completion", "iou"),
    [
        ("[10, 10, 20, 20]", 1.0),
        ("<think>[0, 0, 1, 1]?</think><answer>It is [10.0,10.0,20.0,20.0].</answer>", 1.0),
        ("[10, 10, 20, 20], again [10, 10, 20, 20]", 1.0),
        ("[15, 10, 25, 20]", 1 / 3),
        ("[10, 10, 20, 15]", 0.5),
        ("[20, 20, 30, 30]", 0.0),
        ("[10, 10, 20, 20] or [15, 10, 25, 20]", 0.0),  # guesses
        ("[20, 20, 10, 10]", 0.0),
        ("(10, 10, 20, 20)", 0.0),
        ("[10, 10, 20]", 0.0),
        ("[10, 10, 20, inf]", 0.0),
        ("[٠, 10, 20, 20]", 0.0),
        ("", 0.0),
    ],
)
def test_one_box(completion, iou):
    scores = boxes.overlap("", completion, BOX)
    assert scores["reward"] == scores["iou"] == pytest.approx(iou)
    strict = boxes.overlap("", completion, BOX, threshold=0.5)["reward"]
    assert strict == pytest.approx(iou if iou >= 0.5 else 0.0)


def test_iou_and_giou_against_counted_squares():
    rng = random.Random(0)
    for _ in range(200):
        a, b = (_random_box(rng) for _ in range(2))
        cells = [{(x, y) for x in range(c[0], c[2]) for y in range(c[1], c[3])} for c in (a, b)]
        hull = (max(a[2], b[2]) - min(a[0], b[0])) * (max(a[3], b[3]) - min(a[1], b[1]))
        union = len(cells[0] | cells[1])
        expected = len(cells[0] & cells[1]) / union
        assert boxes.iou(a, b) == boxes.iou(b, a) == pytest.approx(expected)
        assert boxes.giou(a, b) == pytest.approx(expected - (hull - union) / hull)
    assert boxes.giou((0, 0, 1, 1), (0, 0, 1, 1)) == 1.0


def _random_box(rng):
    x, y = rng.randrange(8), rng.randrange(8)
    return (x, y, x + rng.randrange(1, 6), y + rng.randrange(1, 6))


@pytest.mark.parametrize(
    ("answer", "over_answer", "reward"),
    [
        ("[0, 0, 10, 10] [20, 20, 30, 30]", True, 1.0),
        ("[20, 20, 30, 30] [0, 0, 10, 10]", True, 1.0),
        ("[0, 0, 10, 10]", True, 51 / 101),  # recall 1/2: full precision at 0, .01, ..., .5
        ("[0, 0, 10, 10] [0, 0, 10, 10] [20, 20, 30, 30]", False, (51 + 50 * 2 / 3) / 101),
        ("[0, 0, 10, 10] [0, 0, 10, 10] [20, 20, 30, 30]", True, 2 / 3 * (51 + 50 * 2 / 3) / 101),
        ("[0, 0, 10, 10] [20, 20, 30, 30] [1, 1, 2, 2]", False, 1.0),  # a wrong one at the end is free ...
        ("[0, 0, 10, 10] [20, 20, 30, 30] [1, 1, 2, 2]", True, 2 / 3),  # ... but for the second factor
        ("[0, 0, 10, 7] [20, 20, 30, 27]", True, 0.5),  # IoU .7: right at .5, .55, .6, .65 and .7
        ("None", True, 0.0),
        ("", True, 0.0),
    ],
)
def test_detection_and_the_price_of_too_many(answer, over_answer, reward):
    info = {"boxes": [[0, 0, 10, 10], [20, 20, 30, 30]]}
    assert boxes.detection("", answer, info, over_answer=over_answer)["reward"] == pytest.approx(reward)


def test_redundant_boxes_pay_only_without_the_factor():
    """The hack that the second factor stops: first a good box, then a grid of guesses."""
    info = {"boxes": [[0, 0, 10, 10], [20, 20, 30, 30]]}
    guesses = "[0, 0, 10, 10]" + "".join(f"[{x}, {x}, {x + 10}, {x + 10}]" for x in range(15, 25))
    sure = "[0, 0, 10, 10]"
    reward = {over: [boxes.detection("", a, info, over_answer=over)["reward"] for a in (sure, guesses)]
              for over in (True, False)}  # fmt: skip
    assert reward[False][1] > reward[False][0] and reward[True][1] < reward[True][0]


def test_labels_and_nothing():
    info = {"boxes": [{"bbox_2d": [0, 0, 10, 10], "label": "cat"}, {"bbox_2d": [0, 0, 10, 10], "label": "dog"}]}
    entries = [{"bbox_2d": [0, 0, 10, 10], "label": label} for label in ("cat", "dog")]
    fence = f"<answer>```json\n{json.dumps(entries)}\n```</answer>"
    assert boxes.detection("", fence, info)["reward"] == 1.0
    assert boxes.detection("", json.dumps([entries[0], entries[0]]), info)["reward"] == pytest.approx(0.5)
    assert boxes.detection("", json.dumps([{"label": "cat"}]), info)["reward"] == 0.0
    empty = {"boxes": []}
    assert [boxes.detection("", text, empty)["reward"] for text in ("None", "[]", "[0, 0, 1, 1]", "")] == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("completion", "reward"),
    [("[10, 10, 20, 20]", 1), ("[20, 10, 30, 20]", 0), ("[30, 10, 40, 20]", -1 / 3), ("[10, 10, 20, 15]", 1 / 2),
     ("none", -1), ("[10, 10, 20, 20] [0, 0, 1, 1]", -1)],
)  # fmt: skip
def test_near_is_signed(completion, reward):
    assert boxes.near("", completion, BOX)["reward"] == pytest.approx(reward)
    assert boxes.near("", completion, BOX, rescale=True)["reward"] == pytest.approx((reward + 1) / 2)


@pytest.mark.parametrize(
    ("completion", "right"),
    [("click(15, 15)", 1), ("[10, 20]", 1), ("(15, 15) (15, 15)", 1), ("(9, 15)", 0), ("(15, 15) (1, 1)", 0), ("", 0)],
)
def test_clicks(completion, right):
    assert boxes.click("", completion, BOX)["reward"] == right


@pytest.mark.parametrize(
    ("completion", "accuracy"),
    [
        (points((15, 15)), 1.0),
        (points((0, 0), (15, 15), (1, 5)), 1 / math.sqrt(6)),
        (points((15, 15), (0, 0), (1, 5)), 1 / math.sqrt(3)),
        (points((0, 0), (1, 5), (15, 15)), 1 / 3),
        (points((0, 0), (1, 5), (2, 7)), -1 / 3),
        (points((0, 0)), -1.0),
        (points((0, 0), (1, 1), (15, 15)), None),  # on a line
        (points((15, 15), (15, 15), (15, 15)), None),
        ("[]", -1.0),  # a list as asked for, of no point: 1 - 1
        ('[{"point": [15, 15]}]', None),
        ('[{"point_2d": [15]}]', None),
        ('[{"point_2d": [15, true]}]', None),
        ('{"point_2d": [15, 15]}', None),
        ("(15, 15)", None),
    ],
)
def test_numbers_of_aepo(completion, accuracy):
    """1, .577, .333, -.333 of the atlas."""
    scores = boxes.exploring_click("", completion, BOX)
    assert scores["accuracy"] == pytest.approx(-1.0 if accuracy is None else accuracy)
    assert scores["reward"] == pytest.approx(-1.0 if accuracy is None else 1.0 + accuracy)
    thought = boxes.exploring_click("", f"<think>hm</think>\n{completion}", BOX, think=True)
    assert thought == scores
    assert boxes.exploring_click("", completion, BOX, think=True)["reward"] == -1.0
    assert boxes.exploring_click("", f"<think> </think>{completion}", BOX, think=True)["reward"] == -1.0


@pytest.mark.parametrize("box", [None, [1, 2, 3], [1, 1, 1, 2], ["0", 0, 1, 1], [0, 0, 1, math.inf]])
def test_a_bad_truth_is_named(box):
    with pytest.raises(ValueError, match=r'info\["box"\] must be \[x1, y1, x2, y2\]'):
        boxes.click("", "", {"box": box})


def test_noise_is_worth_nothing_and_read_at_once():
    rng, start = random.Random(0), time.monotonic()
    for _ in range(2_000):
        text = "".join(rng.choices('[](){},. 019-e"point_2dbox:\n', k=rng.randrange(60)))
        assert boxes.overlap("", text, BOX)["reward"] == boxes.click("", text, BOX)["reward"] == 0.0
        assert boxes.exploring_click("", text, BOX)["reward"] in (-1.0, 0.0)  # 0: an empty list
    for text in ("[1, " * 30_000, "[" + " " * 90_000, "1" * 90_000, "[1, 2, 3, 4]" * 8_000, "[" * 90_000):
        boxes.detection("", text, {"boxes": [[0, 0, 1, 1]]})
        assert boxes.exploring_click("", text, BOX)["reward"] == -1.0
    assert time.monotonic() - start < 20
