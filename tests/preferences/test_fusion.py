"""preferences/fusion.py: contrasts by cosine, corners of a convex hull against scipy, rewards of neighbours."""

import random

import numpy as np
import pytest
from scipy.spatial import ConvexHull

from rl_jax.preferences import fusion


def test_contrasts_lie_between_the_bounds():
    angles = np.deg2rad([0.0, 10.0, 35.0, 90.0])  # cosines: .985, .82, .906, ..
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = fusion.contrasts(points, list("abcd"), list("wxyz"))
    assert [c.prompts for c in found] == [("a", "c")], "10 degrees are too near, and b to c is .906"
    near = fusion.contrasts(points, list("abcd"), list("wxyz"), at_most=1.0)
    assert [c.prompts for c in near] == [("a", "b"), ("b", "c")]
    assert fusion.contrasts(points, list("abcd"), list("wxwz")) == [], "the same response"
    same = fusion.contrasts(points, list("abab"), list("wxyz"), at_least=0.0, at_most=1.0)
    assert [c.responses for c in same] == [("w", "x"), ("x", "y"), ("y", "z")], "never of equal prompts"
    with pytest.raises(ValueError, match="4 embeddings, 2 prompts, 4 responses"):
        fusion.contrasts(points, list("ab"), list("wxyz"))


def test_corners_are_those_of_scipy_in_the_principal_plane():
    rng = np.random.default_rng(0)
    for count in (3, 5, 20):
        points = rng.normal(size=(count, 2)) @ rng.normal(size=(2, 7))  # in a plane of seven dimensions
        plane = points @ np.linalg.svd(points - points.mean(0), full_matrices=False)[2][:2].T
        assert fusion.corners(points) == sorted(ConvexHull(plane).vertices.tolist())
    line = np.outer([3.0, 1.0, 2.0, 1.0], np.ones(4))
    assert fusion.corners(line) == [0, 1], "a line has two ends; of equal points the first"
    assert fusion.corners(np.ones((3, 2))) == [0] == fusion.corners([[5.0]])
    with pytest.raises(ValueError, match="embeddings of .texts, size., found .0,"):
        fusion.corners(np.zeros((0, 2)))


def test_a_misspelt_text_has_the_same_letters():
    text = "name a big red car and " + "some other words " * 14
    other = fusion.misspelt(text, random.Random(0))
    changed = [(a, b) for a, b in zip(text.split(" "), other.split(" "), strict=True) if a != b]
    assert len(changed) == int(0.05 * len(text.split(" "))) and all(sorted(a) == sorted(b) for a, b in changed)
    assert fusion.misspelt("aa b", random.Random(0)) == "aa b", "nothing to swap"


def test_a_fused_reward_is_the_weighted_mean_of_the_paper():
    own, known = np.array([1.0, -2.0]), np.array([5.0, 0.0, 3.0])
    similar = np.array([[0.95, 0.91, 0.2], [0.1, 0.2, 0.3]])
    found = fusion.fused(own, similar, known)
    np.testing.assert_allclose(found, [(1.0 + 0.95 * 5.0) / (1 + 0.95 + 0.91), -2.0])
    np.testing.assert_allclose(fusion.fused(own, similar, known, neighbours=1)[0], (1 + 0.95 * 5) / 1.95)
    np.testing.assert_allclose(fusion.fused(own, similar, known, neighbours=0), own)
    # The model is inconsistent about a text; its neighbours, which say the same, outvote it.
    assert fusion.fused([-1.0], np.ones((1, 4)), np.full(4, 2.0))[0] > 0
    with pytest.raises(ValueError, match="similarities of .2, 3. for 2 rewards and 2 neighbours"):
        fusion.fused(own, similar, known[:2])
