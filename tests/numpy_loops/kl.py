"""KL estimators and their derivatives, a token or row at a time, in float64 (Schulman, "Approximating KL divergence").

Those that look at more than (log_prob, ref_log_prob) return (value, derivative) with respect to log_prob.
"""

import math

import numpy as np


def k1(log_prob, ref_log_prob):
    """-log r with r = ref / pi."""
    return log_prob - ref_log_prob


def k2(log_prob, ref_log_prob):
    """(log r)^2 / 2."""
    return (log_prob - ref_log_prob) ** 2 / 2


def k3(log_prob, ref_log_prob):
    """(r - 1) - log r."""
    log_r = ref_log_prob - log_prob
    return (math.exp(log_r) - 1) - log_r


def derivative(estimator, log_prob, ref_log_prob):
    """d value / d log_prob of k1, k2 or k3."""
    d = log_prob - ref_log_prob
    return {"k1": 1.0, "k2": d, "k3": 1 - math.exp(-d)}[estimator]


def absolute(log_prob, ref_log_prob):
    """|d|, whose derivative at 0 is taken to be 0."""
    d = log_prob - ref_log_prob
    return abs(d), float(d > 0) - float(d < 0)


def k3_clamped(log_prob, ref_log_prob, max_difference=20.0, max_value=10.0):
    """k3 of the clamped difference, at most max_value; no derivative where a clamp is active."""
    d = min(max(log_prob - ref_log_prob, -max_difference), max_difference)
    value = k3(d, 0.0)
    free = d == log_prob - ref_log_prob and value <= max_value
    return min(value, max_value), derivative("k3", d, 0.0) if free else 0.0


def k1_plus(log_prob, ref_log_prob):
    """The value of k1, the derivative of k2."""
    return k1(log_prob, ref_log_prob), derivative("k2", log_prob, ref_log_prob)


def k3_plus(log_prob, ref_log_prob, max_difference=20.0, max_value=10.0):
    """The value of k3_clamped, the derivative of k2."""
    value, _ = k3_clamped(log_prob, ref_log_prob, max_difference, max_value)
    return value, derivative("k2", log_prob, ref_log_prob)


def on_policy_k3_clamped(log_prob, ref_log_prob, max_difference=20.0, max_value=10.0):
    """min(r k3, max_value) with r = 1 whose derivative is 1: k3 + k3' where nothing is clamped."""
    value, slope = k3_clamped(log_prob, ref_log_prob, max_difference, max_value)
    free = abs(log_prob - ref_log_prob) <= max_difference and k3(log_prob, ref_log_prob) <= max_value
    return value, slope + value if free else 0.0


def ratio_k1(log_prob, ref_log_prob, old_log_prob):
    """r k1, r (k1 + 1)."""
    r = math.exp(log_prob - old_log_prob)
    return r * k1(log_prob, ref_log_prob), r * (k1(log_prob, ref_log_prob) + 1)


def ratio_k3(log_prob, ref_log_prob, old_log_prob):
    """r k3, r (k3 + k3')."""
    r, value = math.exp(log_prob - old_log_prob), k3(log_prob, ref_log_prob)
    return r * value, r * (value + derivative("k3", log_prob, ref_log_prob))


def sequence_ratio_k3(log_probs, ref_log_probs, old_log_probs, mask):
    """s k3 with s = exp(mean_t(log_prob - old)) of the row, and the gradient of the sum of all. float [B, T] x2."""
    values, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    for i in range(len(mask)):
        on = [t for t in range(mask.shape[1]) if mask[i, t]]
        if not on:
            continue
        s = math.exp(sum(float(log_probs[i, t]) - float(old_log_probs[i, t]) for t in on) / len(on))
        terms = {t: k3(float(log_probs[i, t]), float(ref_log_probs[i, t])) for t in on}
        for t in on:
            values[i, t] = s * terms[t]
            slope = derivative("k3", float(log_probs[i, t]), float(ref_log_probs[i, t]))
            gradient[i, t] = s * (slope + sum(terms.values()) / len(on))
    return values, gradient


def per_token(estimator, log_probs, ref_log_probs, mask):
    """The estimator on every token of the mask, 0 behind it. float [B, T]."""
    out = np.zeros(mask.shape)
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            out[i] = estimator(float(log_probs[i]), float(ref_log_probs[i]))
    return out


def value_and_gradient(estimator, mask, *arrays):
    """An estimator that returns (value, derivative), on every token of the mask. float [B, T] x2."""
    values, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            values[i], gradient[i] = estimator(*(float(x[i]) for x in arrays))
    return values, gradient
