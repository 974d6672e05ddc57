"""control/search.py: candidates and votes."""

import numpy as np

from rl_jax.control import search

HAND = {"height": 10.0, "speed": 1.0, "new": 0.0}


def test_candidates_at_large_and_around():
    rng = np.random.default_rng(0)
    found = search.at_large(rng, HAND, 200, spread=10.0)
    sizes = {name: np.array([x[name] for x in found]) for name in HAND}
    for name, hand in HAND.items():
        ratio = np.abs(sizes[name]) / (hand or 1.0)
        assert 0.1 <= ratio.min() < 0.2 and 5.0 < ratio.max() <= 10.0 and 0.1 < (sizes[name] < 0).mean() < 0.4
    near = search.around(np.random.default_rng(1), HAND, 100, spread=0.1)
    assert near[0] == HAND and len(near) == 100
    np.testing.assert_allclose(np.mean([x["height"] for x in near]), 10.0, rtol=0.05)
    worst = {"height": 20.0, "speed": 1.0, "new": 0.0}
    away = search.around(np.random.default_rng(1), HAND, 100, worst=worst, spread=0.1)
    assert np.mean([x["height"] for x in away]) < 9.5  # from 20, through 10, on to less
    assert search.at_large(np.random.default_rng(3), HAND, 2) == search.at_large(np.random.default_rng(3), HAND, 2)


def test_votes():
    rng = np.random.default_rng(0)
    assert search.voted(rng, [1.0, 5.0, -2.0, 3.0]) == (1, 2)
    assert search.voted(rng, [1.0, float("nan"), 2.0]) == (2, 1)
    picks = [search.voted(rng, [0.0, 1.0, 2.0, 3.0], beta=1.0)[0] for _ in range(400)]
    share = np.bincount(picks, minlength=4) / 400
    assert 0.35 < share[3] < 0.9 and share[3] > share[2] > share[0]
