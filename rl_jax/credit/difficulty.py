"""How much a prompt counts by how hard it is; algorithm.token_weight rows:by_difficulty scales advantages with it."""

import numpy as np


def difficulty_scale(
    similarities: np.ndarray, gaps: np.ndarray, *, data_coef: float = 1.0, model_coef: float = 1.0
) -> np.ndarray:
    """alpha = sigma(a c) / mean sigma(a c) * sigma(-b g) / mean sigma(-b g), c and g of the prompts of a step.

    c is how like the demonstration the samples are to a text encoder (hardness of the data: what is alike is hard to
    tell apart), g how much higher the reward of the demonstration is than theirs (what the model has not yet told
    apart has a small gap). Source: arXiv 2503.18991 (GRPO-S), whose two signals these are. Its equation could not be
    read: the form is ours, after the factors sigma(x) / mean sigma(x) that arXiv 2502.01943 (DAMA) is said to have, and
    so is the direction, more weight for what is hard.

    Args:
      similarities: float [N], c, cosines.
      gaps: float [N], g.
      data_coef: a; 0 leaves the similarities out.
      model_coef: b; 0 leaves the gaps out. Both 0 give 1: GRPO.

    Returns:
      float32 [N], each factor of mean 1.
    """
    similarities, gaps = np.asarray(similarities, np.float64), np.asarray(gaps, np.float64)
    if similarities.shape != gaps.shape or similarities.ndim != 1:
        raise ValueError(f"difficulty_scale: shapes {similarities.shape} and {gaps.shape} must be one [N]")
    scale = np.ones_like(gaps)
    for x in (data_coef * similarities, -model_coef * gaps):
        factor = 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
        scale *= factor / factor.mean()
    return scale.astype(np.float32)
