"""Policy surrogates, one token at a time, in float64."""

import math

import numpy as np


def clipped_surrogate(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    """PPO (1707.06347) eq. 7 as a loss, -min(r A, clip(r, 1 - low, 1 + high) A), and its gradient.

    Returns (loss, dloss/dlog_probs, clipped_low, clipped_high), each [B, T] and 0 behind the mask.
    """
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for i in np.ndindex(*mask.shape):
        if not mask[i]:
            continue
        ratio, a = math.exp(float(log_probs[i]) - float(old_log_probs[i])), float(advantages[i])
        bounded = min(max(ratio, 1.0 - clip_low), 1.0 + clip_high)
        loss[i] = -min(ratio * a, bounded * a)
        high[i] = a > 0 and ratio > 1.0 + clip_high
        low[i] = a < 0 and ratio < 1.0 - clip_low
        gradient[i] = 0.0 if high[i] or low[i] else -a * ratio
    return loss, gradient, low, high
