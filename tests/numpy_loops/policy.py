"""Policy surrogates, one token or one completion at a time, in float64."""

import math

import numpy as np


def _log_ratio(log_probs, old_log_probs, i):
    return float(log_probs[i]) - float(old_log_probs[i])


def clipped_surrogate(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, max_log_ratio=math.inf):
    """PPO (1707.06347) eq. 7 as a loss, -min(r A, clip(r, 1 - low, 1 + high) A), and its gradient.

    Returns (loss, dloss/dlog_probs, clipped_low, clipped_high), each [B, T] and 0 behind the mask.
    """
    return dual_clip(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, math.inf, max_log_ratio)


def dual_clip(
    log_probs, old_log_probs, advantages, mask, clip_low, clip_high, dual_clip=math.inf, max_log_ratio=math.inf
):
    """Dual-clip PPO (1912.09729): max(min(r A, clip(r) A), c A) where A < 0; returns as `clipped_surrogate`."""
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for i in np.ndindex(*mask.shape):
        if not mask[i]:
            continue
        d, a = _log_ratio(log_probs, old_log_probs, i), float(advantages[i])
        ratio = math.exp(min(max(d, -max_log_ratio), max_log_ratio))
        bounded = min(max(ratio, 1.0 - clip_low), 1.0 + clip_high)
        objective = min(ratio * a, bounded * a)
        loss[i] = -max(objective, dual_clip * a) if a < 0 else -objective
        high[i] = (a > 0 and ratio > 1.0 + clip_high) or (a < 0 and ratio > dual_clip) or (a != 0 and d > max_log_ratio)
        low[i] = (a < 0 and ratio < 1.0 - clip_low) or (a != 0 and d < -max_log_ratio)
        gradient[i] = 0.0 if high[i] or low[i] else -a * ratio
    return loss, gradient, low, high


def two_sided_clip(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, delta):
    """INTELLECT-2 (2505.07291): -min(min(r, delta) A, clip(r, 1 - low, 1 + high) A); returns as `clipped_surrogate`."""
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for i in np.ndindex(*mask.shape):
        if not mask[i]:
            continue
        ratio, a = math.exp(_log_ratio(log_probs, old_log_probs, i)), float(advantages[i])
        first, second = min(ratio, delta) * a, min(max(ratio, 1.0 - clip_low), 1.0 + clip_high) * a
        loss[i] = -min(first, second)
        inside = 1.0 - clip_low < ratio < 1.0 + clip_high
        if inside or (first < second and ratio < delta):  # the branch that is taken still moves with r
            gradient[i] = -a * ratio
        elif a != 0:
            low[i], high[i] = ratio < 1.0 - clip_low, ratio > 1.0 + clip_high
    return loss, gradient, low, high


# Completions. Each returns (loss, gradient, ratio, clipped_low, clipped_high): loss and ratio [B], one number a row;
# the gradient [B, T] of each row's own loss; the clips [B, T]. A row without a token has loss 0 and ratio 1.


def _completions(log_probs, old_log_probs, advantages, mask, row):
    """row(d, A) -> (loss, dloss/dd, ratio, low, high) of one completion, from the lists of its tokens."""
    rows = len(mask)
    loss, ratio, gradient = np.zeros(rows), np.ones(rows), np.zeros(mask.shape)
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for b in range(rows):
        tokens = [(b, t) for t in range(mask.shape[1]) if mask[b, t]]
        if not tokens:
            continue
        d = [_log_ratio(log_probs, old_log_probs, i) for i in tokens]
        a = sum(float(advantages[i]) for i in tokens) / len(tokens)
        loss[b], slopes, ratio[b], lows, highs = row(d, a)
        for i, slope, is_low, is_high in zip(tokens, slopes, lows, highs, strict=True):
            gradient[i], low[i], high[i] = slope, is_low, is_high
    return loss, gradient, ratio, low, high


def _clipped_row(ratio, slope, a, n, clip_low, clip_high):
    """PPO's clip of one number. slope: d ratio / d logp of each of the n tokens."""
    bounded = min(max(ratio, 1.0 - clip_low), 1.0 + clip_high)
    low, high = a < 0 and ratio < 1.0 - clip_low, a > 0 and ratio > 1.0 + clip_high
    moved = 0.0 if low or high else -a * slope
    return -min(ratio * a, bounded * a), [moved] * n, ratio, [low] * n, [high] * n


def gspo(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    """GSPO (2507.18071): the n-th root of the product of the ratios, clipped once a row."""

    def row(d, a):
        ratio = math.prod(math.exp(x) for x in d) ** (1.0 / len(d))
        return _clipped_row(ratio, ratio / len(d), a, len(d), clip_low, clip_high)

    return _completions(log_probs, old_log_probs, advantages, mask, row)


def product_ratio_clip(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    """PPO's clip of pi(y) / pi_old(y), the product of the ratios."""

    def row(d, a):
        ratio = math.prod(math.exp(x) for x in d)
        return _clipped_row(ratio, ratio, a, len(d), clip_low, clip_high)

    return _completions(log_probs, old_log_probs, advantages, mask, row)


def gmpo(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    """GMPO (2507.20673): -A (prod_t min over sign(A) of the ratio and its clip in log space)^(1/n)."""

    def row(d, a):
        sign = 1.0 if a > 0 else -1.0
        q = [sign * min(sign * x, sign * min(max(x, -clip_low), clip_high)) for x in d]
        ratio = math.prod(math.exp(x) for x in q) ** (1.0 / len(d))
        kept = [x == y for x, y in zip(d, q, strict=True)]
        gone = [a != 0 and not k for k in kept]
        slopes = [-a * ratio / len(d) if k else 0.0 for k in kept]
        return -a * ratio, slopes, ratio, [g and a < 0 for g in gone], [g and a > 0 for g in gone]

    return _completions(log_probs, old_log_probs, advantages, mask, row)


def gspo_token(log_probs, old_log_probs, advantages, mask, clip_low, clip_high, max_log_ratio=10.0):
    """GSPO-token (2507.18071): the row's ratio, each token's own advantage, clip and gradient.

    Returns (loss, gradient, ratio, clipped_low, clipped_high), loss [B, T] and its sum's gradient [B, T], ratio [B].
    """
    loss, gradient, ratio = np.zeros(mask.shape), np.zeros(mask.shape), np.ones(len(mask))
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for b in range(len(mask)):
        tokens = [(b, t) for t in range(mask.shape[1]) if mask[b, t]]
        if not tokens:
            continue
        mean = sum(_log_ratio(log_probs, old_log_probs, i) for i in tokens) / len(tokens)
        ratio[b] = s = math.exp(min(mean, max_log_ratio))
        for i in tokens:
            a = float(advantages[i])
            loss[i] = -min(s * a, min(max(s, 1.0 - clip_low), 1.0 + clip_high) * a)
            low[i] = a < 0 and s < 1.0 - clip_low
            high[i] = (a > 0 and s > 1.0 + clip_high) or (a < 0 and mean > max_log_ratio)
            gradient[i] = 0.0 if low[i] or high[i] else -a * s
    return loss, gradient, ratio, low, high
