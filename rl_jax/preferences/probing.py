"""Linear probes of a reward model's hidden states: MRMBench. No jax.

    p(c | h) = softmax(W h)_c,   W by the cross-entropy on the hidden states of the last token, the model frozen
    inference-time probing: the distances of h to the centroid of each class

A dimension of preference that a reward model represents can be read by a linear layer; the nearer a response's state is
to the centroid of one class than to those of the others, the surer the model is of it in that dimension. The layer has
no bias, as in the paper's code (wangclnlp/MRMBench).
"""

from typing import NamedTuple

import numpy as np


class Probe(NamedTuple):
    """A fitted probe.

    Attributes:
      weights: float64 [classes, D], of standardised states.
      mean: float64 [D], of the training states.
      scale: float64 [D], their standard deviations; 1 where a state is constant.
      centroids: float64 [classes, D], of the standardised training states.
    """

    weights: np.ndarray
    mean: np.ndarray
    scale: np.ndarray
    centroids: np.ndarray

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """float [N, D] -> float64 [N, classes]."""
        return self._standard(hidden) @ self.weights.T

    def predict(self, hidden: np.ndarray) -> np.ndarray:
        """The likeliest class of each state. float [N, D] -> int [N]."""
        return np.argmax(self.logits(hidden), axis=1)

    def distances(self, hidden: np.ndarray) -> np.ndarray:
        """Euclidean distance of each standardised state to each centroid. float [N, D] -> float64 [N, classes]."""
        return np.linalg.norm(self._standard(hidden)[:, None] - self.centroids[None], axis=2)

    def confidence(self, hidden: np.ndarray) -> np.ndarray:
        """By how much the nearest centroid is nearer than the next, in [0, 1]: 1 - d_1 / d_2. float64 [N]."""
        nearest = np.sort(self.distances(hidden), axis=1)
        return 1.0 - nearest[:, 0] / np.maximum(nearest[:, 1], np.finfo(float).tiny)

    def _standard(self, hidden: np.ndarray) -> np.ndarray:
        return (np.asarray(hidden, np.float64) - self.mean) / self.scale


def fit(hidden: np.ndarray, labels: np.ndarray, *, classes: int, decay: float = 1e-3, steps: int = 300) -> Probe:
    """Fits a probe: softmax regression by accelerated gradient descent on standardised states.

    Args:
      hidden: float [N, D].
      labels: int [N] in 0 .. classes - 1; each class has a state.
      classes: 2 in MRMBench-Easy, 3 in MRMBench-Hard.
      decay: of the squared weights.
      steps: of gradient descent.

    Returns:
      Probe.

    Raises:
      ValueError: if the shapes do not fit, or a class has no state.
    """
    hidden, labels = np.asarray(hidden, np.float64), np.asarray(labels)
    if hidden.ndim != 2 or labels.shape != hidden.shape[:1]:
        raise ValueError(f"{labels.shape} labels for states of {hidden.shape}")
    absent = sorted(set(range(classes)) - set(labels.tolist()))
    if classes < 2 or absent or set(labels.tolist()) - set(range(classes)):
        raise ValueError(f"{classes} classes, and no state of {absent}: labels are 0..{classes - 1}, each is needed")
    mean, scale = hidden.mean(axis=0), hidden.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    states, targets = (hidden - mean) / scale, np.eye(classes)[labels]
    # The Hessian of the cross-entropy is at most half the covariance's.
    rate = 1.0 / (0.5 * np.linalg.norm(states, 2) ** 2 / len(states) + decay)
    weights = ahead = np.zeros((classes, states.shape[1]))
    for step in range(steps):
        logits = states @ ahead.T
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        probs /= probs.sum(axis=1, keepdims=True)
        moved = ahead - rate * ((probs - targets).T @ states / len(states) + decay * ahead)
        weights, ahead = moved, moved + step / (step + 3) * (moved - weights)
    centroids = np.stack([states[labels == c].mean(axis=0) for c in range(classes)])
    return Probe(weights, mean, scale, centroids)


def classes_of(values: np.ndarray, classes: int) -> np.ndarray:
    """The class of each value by the quantiles of all: as even a split as ties allow. float [N] -> int [N].

    Raises:
      ValueError: if there are fewer different values than classes.
    """
    values = np.asarray(values, np.float64)
    if len(set(values.tolist())) < classes:
        raise ValueError(f"{len(set(values.tolist()))} different values cannot make {classes} classes")
    bounds = np.quantile(values, np.arange(1, classes) / classes, method="lower")
    found = (values[:, None] > bounds[None]).sum(axis=1)
    present = np.unique(found)
    if len(present) < classes:  # ties: cut between the different values instead
        different = np.unique(values)
        parts = np.array_split(different, classes)
        found = np.searchsorted(np.array([part[-1] for part in parts[:-1]]), values, side="left")
    return found.astype(np.int64)
