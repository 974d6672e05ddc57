"""The prompts that a model finds hard: the largest perplexities of their known answers. numpy."""

from collections.abc import Hashable, Sequence

import numpy as np


def perplexity(log_probs: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """exp(-mean over the answer's tokens of log pi), 1 or more.

    Args:
      log_probs: float [B, C].
      mask: bool [B, C], the answer's tokens.

    Returns:
      float64 [B]; nan for rows without a token.
    """
    total = np.where(mask, log_probs, 0.0).sum(axis=1, dtype=np.float64)
    count = mask.sum(axis=1)
    return np.where(count > 0, np.exp(-total / np.maximum(count, 1)), np.nan)


def hardest(perplexities: np.ndarray, kinds: Sequence[Hashable], *, ratio: float = 0.3) -> np.ndarray:
    """The prompts of the largest perplexities, the same share of each kind.

        floor(ratio n_k) of the n_k prompts of kind k;   of equal ones the first

    Source: arXiv 2501.09766 (iTool), its code (zeng-yirong/iTool, mcts/utils.py: active_select): ratio .3, two kinds,
    answers with a call of a tool and answers without one.

    Args:
      perplexities: float [N] of the known answers; nan is never chosen.
      kinds: N of them.
      ratio: share that is chosen, above 0 and up to 1.

    Returns:
      int64 [M], places, kind after kind in the order in which they appear, the hardest first.

    Raises:
      ValueError: if the ratio is out of its range, or there are not as many kinds as perplexities.
    """
    if not 0 < ratio <= 1 or len(kinds) != len(perplexities):
        raise ValueError(
            f"ratio={ratio} must be above 0 and up to 1, and {len(kinds)} kinds those of {len(perplexities)} prompts"
        )
    chosen = []
    for kind in dict.fromkeys(kinds):
        places = np.array([i for i, x in enumerate(kinds) if x == kind and not np.isnan(perplexities[i])], np.int64)
        order = np.argsort(-np.asarray(perplexities)[places], kind="stable")
        chosen.append(places[order[: int(ratio * len(places))]])
    return np.concatenate([np.zeros(0, np.int64), *chosen])
