"""Rewards from the embeddings of texts, in numpy on the host: no gradient goes through them."""

from typing import NamedTuple

import numpy as np


class Contrast(NamedTuple):
    """The parts of GRACE's reward, each float32 [N, G] and not yet weighted.

    positive: of a row with its query. negative: minus the query with the negative, the same for a whole group.
    clustering: with the other rows of the group. cross: minus the query (or the row) with the other groups.
    """

    positive: np.ndarray
    negative: np.ndarray
    clustering: np.ndarray
    cross: np.ndarray


def contrasts(main: np.ndarray, queries: np.ndarray, negatives: np.ndarray | None = None) -> Contrast:
    """GRACE's four similarities of rationales, by the cosine c of their mean hidden states.

        positive_i    c(q_i, m_i)
        negative_i    -c(q_1, n_1)
        clustering_i  mean_{j != i} c(m_i, m_j)
        cross_i       -mean over other groups g of max_j c(q_i, m_gj)

    Without negatives (an unsupervised run, whose query is a second rationale of the text itself) negative is 0 and
    cross_i = -mean_g c(m_i, q_g1). Source: arXiv 2510.04506, by GasolSun36/GRACE,
    verl/workers/reward_manager/grace.py.

    Args:
      main: float [N, G, D], G rationales of each of N positive texts: the rows that are trained.
      queries: float [N, G, D], of the query that belongs to each text.
      negatives: float [N, G, D], of its hard negative.
    """
    m, q = _unit(main), _unit(queries)
    if m.ndim != 3 or m.shape != q.shape or (negatives is not None and np.shape(negatives) != m.shape):
        raise ValueError(f"contrasts: shapes {m.shape}, {q.shape} and of the negatives must be one [N, G, D]")
    groups, size, _ = m.shape
    positive = np.einsum("ngd,ngd->ng", q, m)
    within = np.einsum("nid,njd->nij", m, m)
    clustering = (within.sum(axis=2) - np.einsum("nii->ni", within)) / max(size - 1, 1) * (size > 1)
    if negatives is None:
        negative, across = np.zeros_like(positive), np.einsum("nid,hd->nih", m, q[:, 0])
    else:
        negative = np.repeat(-np.einsum("nd,nd->n", q[:, 0], _unit(negatives)[:, 0])[:, None], size, axis=1)
        across = np.einsum("nid,hjd->nihj", q, m).max(axis=3)
    own = np.eye(groups, dtype=bool)[:, None, :]
    cross = -np.where(own, 0.0, across).sum(axis=2) / max(groups - 1, 1)
    return Contrast(*(np.asarray(x, np.float32) for x in (positive, negative, clustering, cross)))


def contrastive(
    parts: Contrast, *, temperature: float = 0.1, clustering_weight: float = 0.2, cross_weight: float = 0.2
) -> np.ndarray:
    """(positive + negative + w_c clustering + w_x cross) / temperature, float32 [N, G].

    Args:
      parts: of `contrasts`.
      temperature: the released script's is .1.
      clustering_weight: w_c, .2 there; 0 leaves it out.
      cross_weight: w_x, .2 there.
    """
    weighted = clustering_weight * parts.clustering + cross_weight * parts.cross
    return ((parts.positive + parts.negative + weighted) / temperature).astype(np.float32)


def _unit(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-8)
