"""DR-IRL's weight of a prompt (arXiv 2503.18991), against loops and by hand."""

import numpy as np
import pytest

from rl_jax.credit.difficulty import difficulty_scale, sentence_similarity


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_scale_of_difficulty():
    """alpha^D alpha^M of arXiv 2503.18991 by loops: the outlier of the first category leaves its mean."""
    unlike, gaps = np.array([0.9, 0.1, 0.5, 0.2, 0.7]), np.array([2.0, -1.0, 0.5, 9.0, 0.3])
    kinds, tau = np.array([0, 1, 0, 0, 1]), 16.0
    by_hand = []
    for i in range(5):
        mine = [n for n in range(5) if kinds[n] == kinds[i]]
        data = sigmoid(unlike[i]) / sigmoid(np.mean([unlike[n] for n in mine]))
        mean = np.mean([gaps[n] for n in mine])
        kept = [gaps[n] for n in mine if (gaps[n] - mean) ** 2 <= tau]
        by_hand.append((data, sigmoid(np.mean(kept)) / sigmoid(mean)))
    by_hand = np.array(by_hand)
    assert by_hand[0, 1] < 0.9 and by_hand[1, 1] == 1.0
    np.testing.assert_allclose(difficulty_scale(unlike, gaps, kinds, tau=tau), by_hand.prod(axis=1), rtol=1e-6)
    np.testing.assert_allclose(difficulty_scale(unlike, gaps, kinds), by_hand[:, 0], rtol=1e-6)  # no outliers
    found = difficulty_scale(unlike, gaps, kinds, tau=tau, data=False)
    np.testing.assert_allclose(found, by_hand[:, 1], rtol=1e-6)
    np.testing.assert_array_equal(difficulty_scale(unlike, gaps, kinds, data=False, model=False), 1.0)  # GRPO
    nobody = difficulty_scale(unlike[:2], np.array([9.0, -9.0]), np.zeros(2, int), tau=1.0, data=False)
    np.testing.assert_array_equal(nobody, 1.0)
    assert np.isfinite(difficulty_scale(unlike, 1e6 * gaps, kinds, tau=tau)).all()
    with pytest.raises(ValueError, match=r"shapes \(5,\), \(2,\) and \(5,\) must be one"):
        difficulty_scale(unlike, gaps[:2], kinds)


def test_each_sentence_has_the_likest_of_the_other_text():
    one, other = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 2.0], [3.0, 0.0], [-1.0, 0.0]])
    assert sentence_similarity(one, other) == pytest.approx((1.0 + np.sqrt(0.5)) / 2)
    assert sentence_similarity(other, one) == pytest.approx((np.sqrt(0.5) + 1.0 - np.sqrt(0.5)) / 3)  # not symmetric
    with pytest.raises(ValueError, match="must be"):
        sentence_similarity(one, other[:, :1])
