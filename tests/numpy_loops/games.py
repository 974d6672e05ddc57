"""Games and policy gradients of sampled responses, one response at a time, in float64, and tabular games.

The losses take float arrays [N, K] or [N, K, C] and present (bool [N, K]) and answer (losses [N], gradient in
log_probs [N, K, C]), derived by hand. A tabular policy is a vector of logits; P[i, j] is how likely i beats j.
"""

import math

import numpy as np


def _loop(log_ratios, present, term):
    """term(n, k) -> (loss, its slope in the response's summed log-prob): summed over what is present."""
    losses, gradient = np.zeros(len(present)), np.zeros(log_ratios.shape)
    for n, k in np.ndindex(*present.shape):
        if present[n, k]:
            loss, slope = term(n, k)
            losses[n] += loss
            gradient[n, k] += slope
    return losses, gradient


def win_rates(log_ratios, present, rates, beta):
    """SPPO, arXiv 2405.00675: half the squared distance of a from (P - 1/2) / beta."""

    def term(n, k):
        error = float(np.float64(log_ratios[n, k]).sum()) - (float(rates[n, k]) - 0.5) / beta
        return 0.5 * error**2, error

    return _loop(log_ratios, present, term)


def contrastive_policy_gradient(log_ratios, present, rewards, beta):
    """CoPG, arXiv 2406.19185, each ordered pair once: the slope in y_i is minus the regularised advantage over y_j."""
    a = np.float64(log_ratios).sum(axis=2)
    losses, gradient = np.zeros(len(a)), np.zeros(log_ratios.shape)
    for n in range(len(a)):
        there = np.flatnonzero(present[n])
        pairs = [(i, j) for i in there for j in there if i < j]
        for i, j in pairs:
            half = [rewards[n, k] - beta / 2 * a[n, k] for k in (i, j)]
            full = [rewards[n, k] - beta * a[n, k] for k in (i, j)]
            losses[n] -= (half[0] - half[1]) * (a[n, i] - a[n, j]) / len(pairs)
            gradient[n, i] -= (full[0] - full[1]) / len(pairs)
            gradient[n, j] -= (full[1] - full[0]) / len(pairs)
    return losses, gradient


def nash_md(log_probs, log_ratios, present, rates, beta):
    """The sequence-level policy gradient of arXiv 2312.00886, the mean over what is present."""
    count = np.maximum(present.sum(axis=1), 1)

    def term(n, k):
        push = float(rates[n, k]) - 0.5 - beta * float(np.float64(log_ratios[n, k]).sum())
        return -push * float(np.float64(log_probs[n, k]).sum()) / count[n], -push / count[n]

    return _loop(log_ratios, present, term)


def advantage_leftover(log_probs, log_ratios, present, rewards, values, clip):
    """A-LoL, arXiv 2305.14718."""
    count = np.maximum(present.sum(axis=1), 1)

    def term(n, k):
        ratio = math.exp(float(np.float64(log_ratios[n, k]).sum()))
        push = max(0.0, float(rewards[n, k]) - float(values[n])) * min(max(ratio, 1 - clip), 1 + clip)
        return -push * float(np.float64(log_probs[n, k]).sum()) / count[n], -push / count[n]

    return _loop(log_ratios, present, term)


def policy(logits):
    weights = np.exp(np.float64(logits) - np.max(logits))
    return weights / weights.sum()


def best_response(preferences, opponent, ref, beta):
    """The policy that maximises P(. > opponent) - beta KL(. || ref)."""
    return policy(np.log(ref) + preferences @ opponent / beta)


def duality_gap(preferences, logits, ref, beta):
    """2 (max_x J(x, pi) - 1/2), J(x, y) = P(x > y) - beta KL(x || ref) + beta KL(y || ref): 0 at the Nash policy."""
    pi = policy(logits)

    def kl(x):
        return np.sum(x * np.log(x / ref))

    best = best_response(preferences, pi, ref, beta)
    return 2 * (best @ preferences @ pi - beta * kl(best) + beta * kl(pi) - 0.5)
