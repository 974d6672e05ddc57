"""Losses of offline reinforcement learning in float64 loops, from the papers' equations."""

import numpy as np


def expectile(v, q, expectile=0.7):
    return np.array([abs(expectile - (a - b < 0)) * (a - b) ** 2 for a, b in zip(q, v, strict=True)])


def gumbel_top(v, q, beta=2.0, max_clip=7.0):
    return max(-1.0, max(min((a - b) / beta, max_clip) for a, b in zip(q, v, strict=True)))


def gumbel(v, q, beta=2.0, max_clip=7.0, top=None):
    top = gumbel_top(v, q, beta, max_clip) if top is None else top
    z = [min((a - b) / beta, max_clip) for a, b in zip(q, v, strict=True)]
    return np.array([(np.exp(x) - x - 1.0) * np.exp(-top) for x in z])


def gumbel_plain(v, q, beta=2.0):
    return np.array([np.exp((a - b) / beta) - (a - b) / beta - 1.0 for a, b in zip(q, v, strict=True)])


def chi2(v, q, lam=0.7):
    """The conjugate of (t - 1)^2 over t >= 0, where it is positive."""
    found = []
    for a, b in zip(q, v, strict=True):
        ratio = max(1.0 + (a - b) / 2.0, 0.0)  # argmax_t t d - (t - 1)^2
        conjugate = ratio * (a - b) - (ratio - 1.0) ** 2
        found.append(lam * max(conjugate, 0.0) - (1.0 - lam) * (a - b))
    return np.array(found)


def tv(v, q, lam=0.7):
    return np.array([lam * max(a - b, 0.0) - (1.0 - lam) * (a - b) for a, b in zip(q, v, strict=True)])


def huber(q, y, delta):
    error = np.abs(q - y)
    small = np.minimum(error, delta)
    return (2.0 * (0.5 * small**2 + delta * (error - small))).sum(0)


def td3_bc(q, actions, targets, alpha):
    scale = alpha / np.abs(q).mean()
    return np.array([-scale * a + np.square(b - c).mean() for a, b, c in zip(q, actions, targets, strict=True)])


def vae(decoded, actions, mean, log_std, weights):
    found = []
    for i, weight in enumerate(weights):
        kl = -0.5 * np.mean(1 + 2 * log_std[i] - mean[i] ** 2 - np.exp(log_std[i]) ** 2)
        found.append(weight * np.mean((decoded[i] - actions[i]) ** 2) + 0.5 * kl)
    return np.array(found)


def conservative(q, candidates, log_weights):
    found = np.zeros(q.shape[1])
    for k in range(q.shape[0]):
        for i in range(q.shape[1]):
            found[i] += np.log(sum(np.exp(candidates[k, i, j] - log_weights[i, j]) for j in range(3))) - q[k, i]
    return found
