"""GUI-G1's reward by hand, beside the code's formula; and the difficulty that weighs a row."""

from types import SimpleNamespace

import numpy as np
import pytest

from experiments.parts import policy
from experiments.parts.judging import Judged
from experiments.parts.sample_groups import Collected
from rl_jax.rewards import exploration, grounding
from rl_jax.rewards.pool import RewardResult
from rl_jax.token_weights import rows

SIZE = (20.0, 10.0)
INFO = {"box": [2, 2, 6, 4]}


def reference(found, truth):
    """hit_reward + box_reward of grpo_rec.py, and .25 of the IoU, in plain Python."""
    x, y = (found[0] + found[2]) / 2, (found[1] + found[3]) / 2
    hit = truth[0] <= x <= truth[2] and truth[1] <= y <= truth[3]
    x1, y1 = 1 - abs(truth[0] - found[0]) / SIZE[0], 1 - abs(truth[1] - found[1]) / SIZE[1]
    x2, y2 = 1 - abs(truth[2] - found[2]) / SIZE[0], 1 - abs(truth[3] - found[3]) / SIZE[1]
    wide = max(0, min(found[2], truth[2]) - max(found[0], truth[0]))
    high = max(0, min(found[3], truth[3]) - max(found[1], truth[1]))
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (found, truth)]
    return hit + 0.25 * wide * high / (sum(areas) - wide * high) + 0.125 * 4 / (1 / x1 + 1 / x2 + 1 / y1 + 1 / y2)


@pytest.mark.parametrize("found", [(2, 2, 6, 4), (3, 2, 9, 5), (8, 5, 12, 9), (1, 1, 3, 3)])
def test_the_reward_is_the_code_s(found):
    text = "[" + ",".join(map(str, found)) + "]"
    scores = grounding.gui_g1("", text, INFO, size=SIZE)
    np.testing.assert_allclose(scores["reward"], reference(found, INFO["box"]), rtol=1e-9)
    assert scores["format"] == 1 and scores["correct"] == scores["hit"]


@pytest.mark.parametrize("text", ["", "no box", "[2,2,6,4] or [3,3,6,4]", "[6,4,2,2]"])
def test_no_box_or_two_earn_nothing(text):
    scores = grounding.gui_g1("", text, INFO, size=SIZE)
    assert scores["reward"] == scores["format"] == 0 and scores["difficulty"] > 1


def test_the_size_is_held_from_both_sides():
    """A hit with too small a box, and an overlap with too large a one, earn less than the box itself."""
    best, small, large = (
        grounding.gui_g1("", text, INFO, size=SIZE)["reward"]
        for text in ("[2,2,6,4]", "[3.9,2.9,4.1,3.1]", "[0,0,9,6]")
    )
    assert best == 1.375 and best > small and best > large


def test_an_edge_a_whole_side_away_agrees_with_nothing():
    assert grounding.edge_agreement((0, 0, 1, 1), (20, 0, 21, 1), SIZE) == 0.0


def test_small_targets_are_harder_and_a_rate_is_taken_as_it_is():
    assert grounding.difficulty((0, 0, 20, 10), SIZE) == 1.0
    assert grounding.difficulty((0, 0, 10, 10), SIZE, hardest=3.0) == 2.0
    assert grounding.gui_g1("", "", INFO | {"rate": 0.5}, size=SIZE)["difficulty"] == 0.5


@pytest.mark.parametrize("name", ["difficulty", "box/difficulty"])
def test_the_part_difficulty_of_a_reward_is_an_array_of_the_rows(name):
    """Of the task's own reward, and of a term; parts with other names are not."""
    column = np.array([2.0, 0.5], np.float32)
    result = RewardResult(np.zeros(2, np.float32), {name: column, "box/iou": column + 1}, 0, 0, None)
    named = policy.arrays_of(Collected(Judged(SimpleNamespace(turns=None), [], [], result), None, {}))
    np.testing.assert_array_equal(named["difficulty"], column)
    assert set(named) <= {"difficulty", "components"}


def test_a_row_s_tokens_weigh_its_difficulty():
    mask = np.array([[True, True, False], [True, False, False]])
    found = rows.by_difficulty(mask, difficulty=np.array([2.0, 0.5], np.float32))
    np.testing.assert_array_equal(found, [[2, 2, 0], [0.5, 0, 0]])


@pytest.mark.parametrize(
    ("text", "count", "reward"), [("", 0, 0.0), ("1=2", 2, 0.5), ("1==2= =", 2, 0.5), ("=".join("123456"), 6, 1.0)]
)
def test_steps_are_paid_up_to_a_point(text, count, reward):
    assert exploration.steps("", text, {}, separator="=", enough=4) == {"reward": reward, "steps": count}


def test_steps_need_a_separator():
    with pytest.raises(ValueError, match="separator='' must be a text"):
        exploration.steps("", "a", {}, separator="")
