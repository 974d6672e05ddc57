"""rewards/confidence.py: the Brier reward is proper, and what is not of the format earns nothing."""

import json
import random
import re

import numpy as np
import pytest

from rl_jax.rewards import confidence


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_saying_the_truth_earns_most(probability):
    """Of someone who is right with that probability: p - p (1 - p) at c = p, and less elsewhere."""
    said = np.linspace(0, 1, 101)
    for reward, best in (
        (confidence.brier, probability - probability * (1 - probability)),
        (confidence.weighted, None),
    ):
        expected = [probability * reward(True, c) + (1 - probability) * reward(False, c) for c in said]
        assert said[int(np.argmax(expected))] == pytest.approx(probability)
        if best is not None:
            assert max(expected) == pytest.approx(best)


def test_corners():
    assert confidence.brier(True, 1.0) == 1.0 and confidence.brier(False, 0.0) == 0.0
    assert confidence.brier(False, 1.0) == -1.0
    assert confidence.weighted(True, 1.0) == 1.5 and confidence.weighted(False, 0.0) == 1.0
    assert confidence.weighted(True, None) == 0.0


@pytest.mark.parametrize(
    ("completion", "found"),
    [
        ("x </think> <answer>42</answer> <confidence>0.7</confidence>\n", ("42", 0.7)),
        ("x </think><answer>a\nb</answer><confidence> 1 </confidence>", ("a\nb", 1.0)),
        ("<answer>42</answer> <confidence>0.7</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>70%</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>1.5</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>nan</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>0.7</confidence> and more", None),
        ("x </think> <answer>42</answer>", None),
        ("x </think> <answer>42</answer> <confidence>0_1</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>٠.٧</confidence>", None),
        ("x </think> <answer>42</answer> <confidence>+1e-1</confidence>", ("42", 0.1)),
        ("</think> x </think> <answer>a</answer>b</answer><confidence>.5</confidence>", ("a</answer>b", 0.5)),
        ("</think><answer>a</answer><confidence>1</confidence><confidence>1</confidence>", None),
        ("</think><answer></answer><confidence>", None),
        ("", None),
    ],
)
def test_reading(completion, found):
    assert confidence.read(completion) == found


def test_the_format_is_read_as_its_pattern_is():
    rng = random.Random(0)
    parts = ["</think>", "<answer>", "</answer>", "<confidence>", "</confidence>", " ", "\n", "0.5", "a"]
    whole = ["a", "</think>", " ", "<answer>", "a", "</answer>", "\n", "<confidence>", "0.5", "</confidence>", " "]
    several = 0
    for _ in range(3000):
        text = list(whole) if rng.random() < 0.7 else []
        for _ in range(rng.randrange(4)):
            text.insert(rng.randrange(len(text) + 1), rng.choice(parts))
        text = "".join(text)
        match = re.match(confidence.FORMAT, text, re.DOTALL)
        expected = match.groups() if match else None
        assert confidence._read(text) == expected, text
        several += match is not None
    assert several > 500


def test_the_term_on_its_tags_and_on_digits():
    """arXiv 2507.16806 equation 4, as an item term: (correct, c) of (1, 1), (0, 1), (0, 0), (1, .5)."""
    for answer, c, expected in (("7", "1.0", 1.0), ("8", "1.0", -1.0), ("8", "0", 0.0), ("7", "0.5", 0.75)):
        text = f"Well. </think> <answer>{answer}</answer> <confidence>{c}</confidence>"
        found = confidence.calibrated("3+4", text, {"answer": 7})
        assert found["reward"] == pytest.approx(expected) and found["correct"] == float(answer == "7")
        assert found["brier"] == pytest.approx((float(c) - found["correct"]) ** 2) and found["format"] == 1.0
    assert confidence.calibrated("3+4", "7", {"answer": 7}) == dict(
        reward=-1.0, correct=0.0, format=0.0, confidence=1.0, brier=1.0
    )
    digits = dict(verifier="rl_jax.rewards.arithmetic:score", pattern=r"(.*)=([0-9])\Z", scale=9.0)
    assert confidence.calibrated("3+4-2=", "7=5=9", {"answer": 5}, **digits)["reward"] == 1.0
    assert confidence.calibrated("3+4-2=", "7=5", {"answer": 7}, **digits)["confidence"] == pytest.approx(5 / 9)
    plain = confidence.calibrated("3+4-2=", "7=5=3", {"answer": 5}, calibration_weight=0.0, **digits)
    assert plain["reward"] == 1.0 and plain["brier"] == pytest.approx((1 - 3 / 9) ** 2)
    with pytest.raises(ValueError, match="info has no 'answer'; it has: sum"):
        confidence.calibrated("3+4", "7", {"sum": 7})


def test_the_task_whose_answers_end_with_a_confidence(tmp_path):
    from rl_jax import tasks

    fields = dict(num_operands=(3, 3), digits=1, num_train=50, num_test=10, data_dir=str(tmp_path))
    task = tasks.load("rl_jax.tasks.verbalised:load", **fields)
    plain, own = tasks.load("arithmetic", **fields).data_source("train"), task.data_source("train")
    assert len(own) == len(plain) == 50 and own[3]["prompt"] == plain[3]["prompt"]
    digits = {own[i]["completion"].removeprefix(plain[i]["completion"]) for i in range(50)}
    assert len(digits) > 5 and all(len(found) == 2 and found[0] == "=" and found[1].isdigit() for found in digits)
    scored = task.reward_fn(own[0]["prompt"], own[0]["completion"], json.loads(own[0]["info"]), **task.reward_kwargs)
    assert scored["correct"] == 1.0 and scored["reward"] == pytest.approx(1 - scored["brier"])
