"""rewards/confidence.py: the Brier reward is proper, and what is not of the format earns nothing."""

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
    ],
)
def test_reading(completion, found):
    assert confidence.read(completion) == found
