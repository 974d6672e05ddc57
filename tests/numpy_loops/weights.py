"""Weights of the policy term, one token and one row at a time, in float64; sorted lists instead of thresholds."""

import math

import numpy as np


def tokens(mask):
    """The indices (i, t) of the mask, row by row."""
    return [i for i in np.ndindex(*np.shape(mask)) if mask[i]]


def gaps(mask, log_probs, behavior_log_probs):
    """{(i, t): log pi - log behavior}."""
    return {i: float(log_probs[i]) - float(behavior_log_probs[i]) for i in tokens(mask)}


def _row(values, row):
    return [value for (i, _), value in values.items() if i == row]


def _filled(mask, values):
    out = np.zeros(np.shape(mask))
    for i, value in values.items():
        out[i] = value
    return out


def behavior(kind, mask, log_probs, behavior_log_probs, level="token", low=0.0, high=math.inf, normalize=False):
    """exact, truncated or band (0 outside [low, high]) weights [B, T], and their division by the mean."""
    u = gaps(mask, log_probs, behavior_log_probs)
    weight = {}
    for i in u:
        row = _row(u, i[0])
        log_weight = {"token": u[i], "sequence": sum(row), "geometric": sum(row) / len(row)}[level]
        w = math.exp(min(max(log_weight, -20.0), 20.0))
        weight[i] = {"exact": w, "truncated": min(w, high), "band": w if low <= w <= high else 0.0}[kind]
    if normalize:
        rows = sorted({i[0] for i in weight})
        values = list(weight.values()) if level == "token" else [_row(weight, row)[0] for row in rows]
        mean = sum(values) / len(values)
        weight = {i: w / mean for i, w in weight.items()}
    return _filled(mask, weight)


def geometric_mask(mask, log_probs, behavior_log_probs, low, high):
    """Token weights on the rows whose geometric mean lies in [low, high]."""
    u = gaps(mask, log_probs, behavior_log_probs)
    keep = {row: low <= math.exp(sum(_row(u, row)) / len(_row(u, row))) <= high for row in {i[0] for i in u}}
    return _filled(mask, {i: math.exp(x) if keep[i[0]] else 0.0 for i, x in u.items()})


def reject_ratio(mask, log_probs, behavior_log_probs, level, low, high):
    """1 where behavior / policy, pooled at the level, lies in [low, high]."""
    u = gaps(mask, log_probs, behavior_log_probs)
    out = {}
    for i in u:
        row = _row(u, i[0])
        pooled = {"token": u[i], "sequence": sum(row), "geometric": sum(row) / len(row)}[level]
        out[i] = float(low <= math.exp(-pooled) <= high)
    return _filled(mask, out)


def reject_divergence(mask, log_probs, behavior_log_probs, estimator, pool, high):
    """1 where the divergence, pooled over the row or not, is at most `high`."""
    u = gaps(mask, log_probs, behavior_log_probs)
    divergence = {i: x * x / 2 if estimator == "k2" else math.exp(x) - 1 - x for i, x in u.items()}
    out = {}
    for i in u:
        row = _row(divergence, i[0])
        pooled = {"token": divergence[i], "sum": sum(row), "mean": sum(row) / len(row), "max": max(row)}[pool]
        out[i] = float(pooled <= high)
    return _filled(mask, out)


def opsm(mask, log_probs, behavior_log_probs, advantages, delta):
    """DeepSeek-V3.2 (2512.02556): 0 where A < 0 and the row's mean of log(behavior / pi) > delta."""
    u = gaps(mask, log_probs, behavior_log_probs)
    far = {row: -sum(_row(u, row)) / len(_row(u, row)) > delta for row in {i[0] for i in u}}
    return _filled(mask, {i: 0.0 if far[i[0]] and advantages[i] < 0 else 1.0 for i in u})


def m2po(mask, log_probs, behavior_log_probs, threshold):
    """2510.01161: take away the largest square until the mean of the rest is below the threshold, or one is left."""
    squares = {i: u * u for i, u in gaps(mask, log_probs, behavior_log_probs).items()}
    left = sorted(squares, key=squares.get)
    while len(left) > 1 and sum(squares[i] for i in left) / len(left) >= threshold:
        left.pop()
    return _filled(mask, {i: 1.0 for i in left})


def high_entropy(mask, entropy, share):
    """2506.01939: the tokens at or above the (1 - share) quantile, interpolated linearly (numpy's own quantile)."""
    quantile = np.quantile([float(entropy[i]) for i in tokens(mask)], 1 - share)
    return _filled(mask, {i: float(entropy[i] >= quantile) for i in tokens(mask)})


def covariances(mask, log_probs, advantages):
    """2505.22617: {(i, t): (A - mean A)(log pi - mean log pi)}, means over the tokens of the batch."""
    mean_a, mean_l = (sum(float(x[i]) for i in tokens(mask)) / len(tokens(mask)) for x in (advantages, log_probs))
    return {i: (float(advantages[i]) - mean_a) * (float(log_probs[i]) - mean_l) for i in tokens(mask)}


def top_covariance(mask, log_probs, advantages, share):
    """The max(1, floor(share * N)) tokens with the largest covariance, as bool [B, T]."""
    covariance = covariances(mask, log_probs, advantages)
    ranked = sorted(covariance, key=covariance.get, reverse=True)
    return _filled(mask, {i: 1.0 for i in ranked[: max(1, int(share * len(ranked)))]}) > 0
