"""RewardAnything's reward of an assessment of several answers, beside a form in numpy."""

import json

import numpy as np
import pytest
from scipy.stats import kendalltau, wasserstein_distance

from rl_jax import preferences
from rl_jax.preferences import assessments, judge_task


def expected(reasons, scores, best, grades):
    """r of an assessment that has its form."""
    scores, grades = np.array(scores, float), np.array(grades, float)
    g = 1 + 4 * (grades - grades.min()) / np.ptp(grades)
    gaps = np.maximum(g[:, None] - g[None], 0)
    turned = np.where(scores[:, None] == scores[None], 0.5, scores[:, None] < scores[None])
    places = np.argsort(np.array(best) - 1)
    first = -(-len(g) // 2)
    parts = [
        1 - (gaps * turned).sum() / gaps.sum(),
        1 - wasserstein_distance(np.clip(scores, 1, 5), g) / 4,
        np.clip(1 - np.abs(scores - g) / 2, 0, None).mean(),
        (1 + kendalltau(-places, g).statistic) / 4 + np.mean(g[np.array(best)[:first] - 1] >= np.sort(g)[-first]) / 2,
    ]
    ranked = scores[np.array(best) - 1]
    return 0.15 * np.mean([reasons != "", 1, 1, 1, (np.diff(ranked) <= 0).all()]) + 0.85 * np.mean(parts)


def said(reasons, scores, best):
    return (f"<think>{reasons}</think>" if reasons else "") + json.dumps({"scores": scores, "best": best})


def test_the_reward_is_that_of_its_parts():
    rng = np.random.default_rng(0)
    for count in (2, 3, 4, 7):
        for trial in range(20):
            grades, best = rng.permutation(count) + rng.random(), (rng.permutation(count) + 1).tolist()
            scores = rng.integers(0, 7, count).tolist()
            if trial % 2:
                best = (np.argsort(-np.array(scores), kind="stable") + 1).tolist()
            reasons = ("", "because")[trial % 3 > 0]
            found = assessments.reward(said(reasons, scores, best), grades.tolist())
            assert found["reward"] == pytest.approx(expected(reasons, scores, best, grades))
    assert assessments.reward(said("x", [5, 3, 1], [1, 2, 3]), [0.9, 0.5, 0.1]) == dict(
        reward=pytest.approx(1.0), right=1.0, parsed=1.0, format=1.0, accuracy=1.0
    )


@pytest.mark.parametrize(
    ("text", "formed", "scored"),
    [
        ("", 0.0, False),
        ("<think>x</think>", 0.2, False),
        ("5 3 1", 0.0, False),
        ("[5, 3, 1]", 0.0, False),
        ("<think>x</think>{}", 0.4, False),
        ('<think>x</think>{"scores": [5, 3], "best": [1, 2]}', 0.6, False),
        ('<think>x</think>{"scores": [5, 3, 1], "best": [1, 2, 2]}', 0.6, True),
        ('<think>x</think>{"scores": [5, 3, true], "best": [1, 2, 3]}', 0.6, False),
        ('<think>x</think>{"scores": [5, 3, NaN], "best": [1, 2, 3]}', 0.6, False),
        ('{"scores": [5, 3, 1]}', 0.2, True),
    ],
)
def test_what_lacks_its_form_is_not_accurate(text, formed, scored):
    found = assessments.reward(text, [0.9, 0.5, 0.1])
    assert found["format"] == pytest.approx(formed) and found["parsed"] == scored
    assert found["accuracy"] == 0.0 and found["reward"] == pytest.approx(0.15 * formed)


def test_a_ranking_against_the_scores_is_told_apart_by_either():
    grades = [0.9, 0.5, 0.1]
    best = assessments.reward(said("x", [5, 3, 1], [1, 2, 3]), grades)
    ranked = assessments.reward(said("x", [1, 3, 5], [1, 2, 3]), grades)
    scored = assessments.reward(said("x", [5, 3, 1], [3, 2, 1]), grades)
    assert ranked["format"] == scored["format"] == 0.8
    assert best["accuracy"] > max(ranked["accuracy"], scored["accuracy"])
    assert ranked["right"] == 1.0 and scored["right"] == 0.0


def test_the_demonstrations_earn_nearly_all(tmp_path):
    data = dict(name="principles", kind="rankings", num_prompts=20, data_dir=str(tmp_path))
    task = judge_task.load(data=data, form="assessed")
    source = task.data_source("sft_train")
    assert len(source) == len(preferences.load(**data).data_source("train"))
    for i in range(len(source)):
        record = source[i]
        info = json.loads(record["info"])
        found = task.reward_fn(record["prompt"], record["completion"], info)
        assert found["reward"] > 0.9 and found["format"] == found["right"] == 1.0, "all but the rounding"
        assert judge_task.read_scores(record["completion"], 4) == assessments.read(record["completion"], 4).scores
    assert assessments.scaled([2.0, 2.0]) == [3.0, 3.0]
    for cut in ('<think>2>1>3</think>{"sco', "<think>2>1>3", '<think>x</think>{"scores":[5],"best":[1,2]}'):
        assert judge_task.read_scores(cut, 3) is None, "numbers of the reasons, best first, are no grades"
    assert judge_task.read_scores("3 1 2", 3) == [3.0, 1.0, 2.0]
