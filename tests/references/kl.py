"""KL estimators, one token at a time, in float64 (Schulman, "Approximating KL divergence")."""

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


def per_token(estimator, log_probs, ref_log_probs, mask):
    """The estimator on every token of the mask, 0 behind it. float [B, T]."""
    out = np.zeros(mask.shape)
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            out[i] = estimator(float(log_probs[i]), float(ref_log_probs[i]))
    return out
