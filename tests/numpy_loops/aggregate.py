"""The coefficient c[i, t] that each aggregation gives to a token's loss: loss = sum c * per_token."""

import numpy as np


def coefficients(mode, mask, max_length=None, group_size=None):
    """c as float64 [B, T] for mask bool [B, T]. max_length: L of seq_mean_token_sum_norm. group_size: rows a prompt."""
    mask = np.asarray(mask)
    lengths = [int(row.sum()) for row in mask]
    rows = sum(n > 0 for n in lengths)
    groups = [sum(lengths[i : i + group_size]) for i in range(0, len(lengths), group_size)] if group_size else []
    prompts = sum(n > 0 for n in groups)
    c = np.zeros(mask.shape)
    for i, t in np.ndindex(*mask.shape):
        if mask[i, t]:
            c[i, t] = {
                "token_mean": lambda i: 1 / sum(lengths),
                "seq_mean_token_mean": lambda i: 1 / lengths[i] / rows,
                "seq_mean_token_sum": lambda i: 1 / rows,
                "seq_mean_token_sum_norm": lambda i: 1 / max_length / rows,
                "group_token_mean": lambda i: 1 / groups[i // group_size] / prompts,
                "token_sum": lambda i: 1.0,
                "only_token_mean": lambda i: 1 / lengths[i],
            }[mode](i)
    return c


def aggregate(mode, per_token, mask, max_length=None, group_size=None):
    """sum c * per_token, never looking behind the mask."""
    c = coefficients(mode, mask, max_length, group_size)
    return sum(c[i] * float(per_token[i]) for i in np.ndindex(*c.shape) if mask[i])
