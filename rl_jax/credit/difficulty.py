"""How much a prompt counts by how hard it is; algorithm.token_weight rows:by_difficulty scales advantages with it."""

import numpy as np


def sentence_similarity(one: np.ndarray, other: np.ndarray) -> float:
    """W = mean_k max_l cos(one_k, other_l): each sentence of one text beside the likest of the other.

    Source: arXiv 2503.18991 (DR-IRL), the similarity of a response and its demonstration.

    Args:
      one: float [K, D], a vector for each sentence.
      other: float [L, D].

    Raises:
      ValueError: if a text has no sentence, or the vectors differ in length.
    """
    one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if one.ndim != 2 or other.ndim != 2 or one.shape[1] != other.shape[1] or not len(one) or not len(other):
        raise ValueError(f"sentence_similarity: shapes {one.shape} and {other.shape} must be [K, D] and [L, D]")
    one, other = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-8) for x in (one, other))
    return float((one @ other.T).max(axis=1).mean())


def difficulty_scale(
    differences: np.ndarray,
    gaps: np.ndarray,
    categories: np.ndarray,
    *,
    tau: float = np.inf,
    data: bool = True,
    model: bool = True,
) -> np.ndarray:
    """alpha_ji = sigma(d_ji) / sigma(mean_i d_ji) * sigma(mean_i' g_ji') / sigma(mean_i g_ji): prompt i of category j.

    d = 1 - W is how unlike the demonstration the samples are, g how much higher the reward of the demonstration is than
    theirs. The first factor is of the prompt, the second of its category: i' are the prompts whose gap is no outlier,
    (g - mean g)^2 <= tau. Source: arXiv 2503.18991 (ICLR 2026), whose equations two readers' notes quote alike; the
    means are over the step's own prompts here, and where all gaps are outliers the second factor is 1. Which of the two
    rewards is subtracted is not said there without doubt; tau is ours.

    Args:
      differences: float [N], d.
      gaps: float [N], g.
      categories: int [N], j.
      tau: most that a gap may be off the category's mean, squared; inf: the second factor is 1.
      data: whether the first factor counts.
      model: whether the second does. Neither: GRPO.

    Returns:
      float32 [N].
    """
    differences, gaps = np.asarray(differences, np.float64), np.asarray(gaps, np.float64)
    categories = np.asarray(categories)
    if not differences.shape == gaps.shape == categories.shape or gaps.ndim != 1:
        raise ValueError(
            f"difficulty_scale: shapes {differences.shape}, {gaps.shape} and {categories.shape} must be one [N]"
        )
    scale = np.ones_like(gaps)
    for category in np.unique(categories):
        mine = categories == category
        own, center = gaps[mine], gaps[mine].mean()
        kept = own[np.square(own - center) <= tau]
        if data:
            scale[mine] *= _sigmoid(differences[mine]) / _sigmoid(differences[mine].mean())
        if model and len(kept):
            scale[mine] *= _sigmoid(kept.mean()) / _sigmoid(center)
    return scale.astype(np.float32)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
