"""Value losses, one token at a time, in float64. Each returns (loss [B, T], gradient) and is 0 behind the mask."""

import math

import numpy as np


def _scalar(values, returns, mask, token):
    """token(i, v, R) -> (loss, dloss/dv), at every place i of the mask."""
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            loss[i], gradient[i] = token(i, float(values[i]), float(returns[i]))
    return loss, gradient


def mse(values, returns, mask):
    """(v - R)^2 / 2."""
    return _scalar(values, returns, mask, lambda i, v, target: ((v - target) ** 2 / 2, v - target))


def clipped(values, returns, mask, old_values, value_clip):
    """PPO's clipped value loss, and as a third result where the clip took the gradient away."""
    gone = np.zeros(mask.shape, bool)

    def token(i, v, target):
        old = float(old_values[i])
        bounded = min(max(v, old - value_clip), old + value_clip)
        gone[i] = abs(bounded - target) > abs(v - target)
        if gone[i]:
            return (bounded - target) ** 2 / 2, 0.0
        return (v - target) ** 2 / 2, v - target

    return *_scalar(values, returns, mask, token), gone


def huber(values, returns, mask, delta):
    """Quadratic up to delta, linear beyond."""

    def token(i, v, target):
        e = v - target
        if abs(e) <= delta:
            return e * e / 2, e
        return delta * (abs(e) - delta / 2), math.copysign(delta, e)

    return _scalar(values, returns, mask, token)


def bins(low, high, num_bins, padding):
    """(edges, centres) as lists: num_bins - 2 padding bins over [low, high], padding more beyond each end."""
    width = (high - low) / (num_bins - 2 * padding)
    edges = [low + (k - padding) * width for k in range(num_bins + 1)]
    return edges, [(a + b) / 2 for a, b in zip(edges, edges[1:], strict=False)]


def hl_gauss_target(target, edges, sigma):
    """The share of a normal distribution around `target` that lies in each bin, of what lies in any (2403.03950)."""
    target = min(max(target, edges[0]), edges[-1])
    cdf = [0.5 * (1 + math.erf((e - target) / sigma / math.sqrt(2))) for e in edges]
    return [(b - a) / (cdf[-1] - cdf[0]) for a, b in zip(cdf, cdf[1:], strict=False)]


def two_hot_target(target, centres):
    """The two neighbouring centres, weighed so that their mean is `target`."""
    target = min(max(target, centres[0]), centres[-1])
    p = [0.0] * len(centres)
    for k in range(len(centres) - 1):
        left, right = centres[k], centres[k + 1]
        if left <= target <= right:
            share = (target - left) / (right - left)
            p[k], p[k + 1] = 1 - share, share
            break
    return p


def cross_entropy(logits, returns, mask, target_of):
    """-sum_i p_i log softmax_i with p = target_of(return), and softmax - p [B, T, K]."""
    loss, gradient = np.zeros(mask.shape), np.zeros(np.shape(logits))
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            row = np.asarray(logits[i], np.float64)
            log_softmax = row - row.max() - math.log(sum(math.exp(x) for x in row - row.max()))
            p = target_of(float(returns[i]))
            loss[i] = -sum(a * b for a, b in zip(p, log_softmax, strict=True))
            gradient[i] = [math.exp(b) - a for a, b in zip(p, log_softmax, strict=True)]
    return loss, gradient
