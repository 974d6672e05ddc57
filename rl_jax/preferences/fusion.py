"""What makes a reward model consistent by its embeddings: arXiv 2309.16155, sections 4.1 and 4.2. No jax.

    ConvexDA      of M texts that say the same, those at the corners of the convex hull of their embeddings in a plane
    RewardFusion  r(x) = sum_k s_k r(x_k) / sum_k s_k,   x_0 = x, s_0 = 1, the others x's neighbours in training data

`contrasts` finds contrast instructions as the paper does, by the cosine of the prompts' embeddings. Numbers: those of
the paper's code (shadowkiller33/Contrast-Instruction).
"""

import random
from collections.abc import Sequence

import numpy as np

from rl_jax.preferences.contrast import Contrast

FLAT = 1e-12  # a turn of less is none


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Cosine similarities. float [N, D], float [M, D] -> float64 [N, M]; 0 for a vector of zeros."""
    units = []
    for rows in (left, right):
        rows = np.asarray(rows, np.float64)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        units.append(rows / np.where(norms > 0, norms, 1.0))
    return units[0] @ units[1].T


def contrasts(
    embeddings: np.ndarray,
    prompts: Sequence[str],
    responses: Sequence[str],
    *,
    at_least: float = 0.75,
    at_most: float = 0.9,
) -> list[Contrast]:
    """For each prompt the most similar other one whose cosine is between two bounds; each pair of prompts once.

    Prompts that are equal, or that have the same response, are no contrast.

    Args:
      embeddings: float [N, D], of the prompts.
      prompts: N texts.
      responses: the good response to each.
      at_least: smallest cosine; 0.75 in the paper's data.
      at_most: largest one; 0.9.

    Raises:
      ValueError: if the lengths differ.
    """
    if not len(embeddings) == len(prompts) == len(responses):
        raise ValueError(f"{len(embeddings)} embeddings, {len(prompts)} prompts, {len(responses)} responses")
    similar, found = cosines(embeddings, embeddings), {}
    for place in range(len(prompts)):
        best, nearest = -np.inf, -1
        for other in range(len(prompts)):
            same = prompts[other] == prompts[place] or responses[other] == responses[place]
            if not same and at_least <= similar[place, other] <= at_most and similar[place, other] > best:
                best, nearest = similar[place, other], other
        if nearest >= 0:
            key = (min(place, nearest), max(place, nearest))
            found[key] = Contrast(tuple(prompts[i] for i in key), tuple(responses[i] for i in key))
    return [found[key] for key in sorted(found)]


def corners(embeddings: np.ndarray) -> list[int]:
    """The places of the corners of the convex hull of M embeddings, projected on their two principal components.

    Ascending. With fewer than three distinct points, or points on a line, its ends.

    Args:
      embeddings: float [M, D], D >= 1.

    Raises:
      ValueError: if there is none.
    """
    rows = np.asarray(embeddings, np.float64)
    if rows.ndim != 2 or not rows.size:
        raise ValueError(f"expected embeddings of [texts, size], found {rows.shape}")
    centered = rows - rows.mean(axis=0)
    plane = centered @ np.linalg.svd(centered, full_matrices=False)[2][:2].T
    plane = np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))
    scale = max(float(np.abs(plane).max()), FLAT)
    points = {tuple(np.round(point / scale, 9)): place for place, point in reversed(list(enumerate(plane)))}
    order = sorted(points)
    hull = [*_chain(order), *_chain(order[::-1])]
    return sorted({points[point] for point in hull} | {points[order[0]]})


def _chain(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """One side of the convex hull of sorted points, without its last one (Andrew's monotone chain)."""
    chain: list[tuple[float, float]] = []
    for x, y in points:
        while len(chain) > 1:
            (ax, ay), (bx, by) = chain[-2:]
            if (bx - ax) * (y - ay) - (by - ay) * (x - ax) > FLAT:
                break
            chain.pop()
        chain.append((x, y))
    return chain[:-1]


def misspelt(text: str, rng: random.Random, *, share: float = 0.05) -> str:
    """The text with two neighbouring letters swapped in some of its words: it says the same.

    Args:
      text: words with spaces between them.
      rng: chooses words and letters.
      share: of the words, at least one; 0.05 in the paper's code, which takes misspellings from a dictionary.
    """
    words = text.split(" ")
    places = [place for place, word in enumerate(words) if len(word) > 1 and len(set(word)) > 1]
    for place in rng.sample(places, min(len(places), max(1, int(share * len(words))))):
        word = words[place]
        at = rng.choice([i for i in range(len(word) - 1) if word[i] != word[i + 1]])
        words[place] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    return " ".join(words)


def fused(
    own: np.ndarray, similar: np.ndarray, known: np.ndarray, *, neighbours: int = 5, at_least: float = 0.9
) -> np.ndarray:
    """Rewards interpolated with those of the nearest training examples (RewardFusion). float64 [N].

    Args:
      own: float [N], rewards of what is judged; of weight 1.
      similar: float [N, M], cosines to the training examples, the weights.
      known: float [M], their rewards.
      neighbours: most of them; 5.
      at_least: smallest cosine of a neighbour; 0.9. None that near: the reward as it is.

    Raises:
      ValueError: if the shapes do not fit.
    """
    own, similar, known = (np.asarray(x, np.float64) for x in (own, similar, known))
    if similar.shape != (len(own), len(known)):
        raise ValueError(f"similarities of {similar.shape} for {len(own)} rewards and {len(known)} neighbours")
    nearest = np.argsort(-similar, axis=1, kind="stable")[:, : max(neighbours, 0)]
    weights = np.take_along_axis(similar, nearest, axis=1)
    weights = np.where(weights >= at_least, weights, 0.0)
    return (own + (weights * known[nearest]).sum(axis=1)) / (1.0 + weights.sum(axis=1))
