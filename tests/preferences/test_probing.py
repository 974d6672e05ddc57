"""preferences/probing.py (MRMBench): planted dimensions are found, absent ones are not; the tool's table."""

import numpy as np
import pytest

from experiments.tools import reward_probe
from rl_jax.preferences import probing


def planted(count=200, size=6, seed=0):
    """States whose first coordinate says the class, of very different scales, and labels of 3 classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    states = rng.normal(size=(count, size)) * np.array([1.0, 100.0, 1.0, 1.0, 0.01, 1.0])
    states[:, 0] += 8.0 * (labels - 1)
    states[:, 2] += 8.0 * (labels == 1)
    return states, labels


def test_a_planted_dimension_is_read_and_an_absent_one_is_not():
    (states, labels), (test, test_labels) = planted(), planted(seed=1)
    probe = probing.fit(states, labels, classes=3)
    assert np.mean(probe.predict(test) == test_labels) > 0.97
    blind = probing.fit(states[:, 3:], labels, classes=3)
    assert np.mean(blind.predict(test[:, 3:]) == test_labels) < 0.5
    moved = probing.fit(1e3 * states + 5.0, labels, classes=3)
    np.testing.assert_array_equal(moved.predict(1e3 * test + 5.0), probe.predict(test))
    for bad, said in ((dict(classes=4), "no state of .3."), (dict(classes=2), "labels are 0..1")):
        with pytest.raises(ValueError, match=said):
            probing.fit(states, labels, **bad)
    with pytest.raises(ValueError, match=r"\(5,\) labels for states of \(200, 6\)"):
        probing.fit(states, labels[:5], classes=3)


def test_the_gradient_vanishes_at_the_fit():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(60, 4))
    labels = (states[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
    probe = probing.fit(states, labels, classes=2, decay=0.1, steps=2_000)
    logits = probe.logits(states)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    standard = (states - probe.mean) / probe.scale
    gradient = (probs - np.eye(2)[labels]).T @ standard / 60 + 0.1 * probe.weights
    np.testing.assert_allclose(gradient, 0.0, atol=1e-8)


def test_the_confidence_is_the_ratio_of_distances():
    states, labels = planted()
    probe = probing.fit(states, labels, classes=3)
    one = states[:1]
    centroids = [((states[labels == c] - probe.mean) / probe.scale).mean(axis=0) for c in range(3)]
    distances = sorted(np.linalg.norm((one[0] - probe.mean) / probe.scale - c) for c in centroids)
    np.testing.assert_allclose(np.sort(probe.distances(one)[0]), distances)
    np.testing.assert_allclose(probe.confidence(one), 1 - distances[0] / distances[1])
    at_centroid = probe.centroids * probe.scale + probe.mean
    np.testing.assert_allclose(probe.confidence(at_centroid), 1.0, atol=1e-9)


def test_classes_are_quantiles():
    assert probing.classes_of(np.array([5.0, 1.0, 3.0, 9.0]), 2).tolist() == [1, 0, 0, 1]
    assert probing.classes_of(np.arange(9), 3).tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert probing.classes_of(np.array([1.0, 1.0, 1.0, 0.0]), 2).tolist() == [1, 1, 1, 0]
    with pytest.raises(ValueError, match="2 different values cannot make 3 classes"):
        probing.classes_of([0, 1, 1], 3)


def test_the_tool_reads_values_and_measures():
    records = [{"responses": ["a", "bb"], "info": {"grades": [1, 0.5]}}, {"responses": ["c", "d"], "info": {}}]
    assert reward_probe.values_of(records, "length").tolist() == [1, 2, 1, 1]
    assert reward_probe.values_of(records[:1], "grades").tolist() == [1, 0.5]
    with pytest.raises(ValueError, match="record 1 has no number per response in 'grades'; --labels: length$"):
        reward_probe.values_of(records, "grades")
    (states, labels), (test, test_labels) = planted(), planted(seed=1)
    row = reward_probe.measure([states, test], [labels.astype(float), test_labels.astype(float)], 3)
    assert row.accuracy > 0.97 and row.sure > 0.9 and row.commonest == pytest.approx(67 / 200)
