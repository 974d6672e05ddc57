"""Surrogates in score-function form and the smooth ones, one token at a time, in float64.

Each function returns a Result of arrays [B, T], 0 behind the mask (the ratio: 1). A bound must be some way from every
ratio that it is compared with: on a bound float32 and float64 may take different sides.
"""

import math
from typing import NamedTuple

import numpy as np


class Result(NamedTuple):
    """loss, gradient with respect to log_probs, ratio, clipped_low, clipped_high."""

    loss: np.ndarray
    gradient: np.ndarray
    ratio: np.ndarray
    low: np.ndarray
    high: np.ndarray


def _apart(value, *bounds):
    for bound in bounds:
        assert abs(value - bound) > 1e-5, f"{value} lies on the bound {bound}"
    return value


def _every_token(mask, token):
    """token((i, t)) -> (loss, gradient, ratio, low, high), on the tokens of the mask."""
    loss, gradient, ratio = np.zeros(mask.shape), np.zeros(mask.shape), np.ones(mask.shape)
    low, high = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    for i in np.ndindex(*mask.shape):
        if mask[i]:
            loss[i], gradient[i], ratio[i], low[i], high[i] = token(i)
    return Result(loss, gradient, ratio, low, high)


def _score_function(log_probs, advantages, mask, weigh):
    """weigh((i, t)) -> (weight, ratio, low, high); the loss is -W A logp and its gradient -W A."""

    def token(i):
        weight, ratio, low, high = weigh(i)
        push = weight * float(advantages[i])
        return -push * float(log_probs[i]), -push, ratio, low, high

    return _every_token(mask, token)


def _ratio(log_probs, old_log_probs, i):
    return math.exp(float(log_probs[i]) - float(old_log_probs[i]))


def _row_ratio(log_probs, old_log_probs, mask, i):
    """The product of the ratios of the row that (i, t) stands in."""
    product, row = 1.0, i[0]
    for t in range(mask.shape[1]):
        if mask[row, t]:
            product *= _ratio(log_probs, old_log_probs, (row, t))
    return product


def reinforce(log_probs, old_log_probs, advantages, mask):
    def weigh(i):
        return 1.0, _ratio(log_probs, old_log_probs, i), False, False

    return _score_function(log_probs, advantages, mask, weigh)


def importance_sampling(log_probs, old_log_probs, advantages, mask):
    def token(i):
        ratio = _ratio(log_probs, old_log_probs, i)
        return -float(advantages[i]) * ratio, -float(advantages[i]) * ratio, ratio, False, False

    return _every_token(mask, token)


def cispo(log_probs, old_log_probs, advantages, mask, ratio_min, ratio_max):
    def weigh(i):
        ratio = _apart(_ratio(log_probs, old_log_probs, i), ratio_min, ratio_max)
        if ratio < ratio_min:
            return ratio_min, ratio, True, False
        if ratio > ratio_max:
            return ratio_max, ratio, False, True
        return ratio, ratio, False, False

    return _score_function(log_probs, advantages, mask, weigh)


def truncated_is(log_probs, old_log_probs, advantages, mask, ratio_max):
    return cispo(log_probs, old_log_probs, advantages, mask, 0.0, ratio_max)


def aipo(log_probs, old_log_probs, advantages, mask, behavior_log_probs, ratio_max):
    return cispo(log_probs, behavior_log_probs, advantages, mask, 0.0, ratio_max)


def topr(log_probs, old_log_probs, advantages, mask, sequence_ratio):
    def weigh(i):
        ratio = _ratio(log_probs, old_log_probs, i)
        if sequence_ratio:
            ratio = _row_ratio(log_probs, old_log_probs, mask, i)
        _apart(ratio, 1.0)
        if advantages[i] < 0 and ratio <= 1.0:
            return ratio, ratio, False, False
        return 1.0, ratio, False, bool(advantages[i] < 0)

    return _score_function(log_probs, advantages, mask, weigh)


def rec_one_side(log_probs, old_log_probs, advantages, mask, clip_low, clip_high):
    def weigh(i):
        ratio = _apart(_ratio(log_probs, old_log_probs, i), 1.0 - clip_low, 1.0 + clip_high)
        low = bool(advantages[i] < 0 and ratio < 1.0 - clip_low)
        high = bool(advantages[i] > 0 and ratio > 1.0 + clip_high)
        return 0.0 if low or high else 1.0, ratio, low, high

    return _score_function(log_probs, advantages, mask, weigh)


def vespo(log_probs, old_log_probs, advantages, mask, k_positive, lambda_positive, k_negative, lambda_negative):
    def weigh(i):
        ratio = _row_ratio(log_probs, old_log_probs, mask, i)
        k, decay = (k_positive, lambda_positive) if advantages[i] >= 0 else (k_negative, lambda_negative)
        return math.exp(decay) * ratio**k * math.exp(-decay * ratio), ratio, False, False

    return _score_function(log_probs, advantages, mask, weigh)


def dppo_tv(log_probs, old_log_probs, advantages, mask, divergence_low, divergence_high, ratio_max):
    def weigh(i):
        ratio = _apart(_ratio(log_probs, old_log_probs, i), ratio_max)
        change = math.exp(float(log_probs[i])) - math.exp(float(old_log_probs[i]))
        _apart(change, -divergence_low, divergence_high)
        low = bool(advantages[i] < 0 and change < -divergence_low)
        high = bool(advantages[i] > 0 and change > divergence_high)
        return 0.0 if low or high else min(ratio, ratio_max), ratio, low, high

    return _score_function(log_probs, advantages, mask, weigh)


def dppo_kl(log_probs, old_log_probs, advantages, mask, divergence_low, divergence_high, ratio_max):
    def weigh(i):
        ratio = _apart(_ratio(log_probs, old_log_probs, i), ratio_max)
        p, old = math.exp(float(log_probs[i])), math.exp(float(old_log_probs[i]))
        divergence = old * math.log(old / p) + (1.0 - old) * math.log((1.0 - old) / (1.0 - p))
        _apart(divergence, divergence_low, divergence_high)
        low = bool(advantages[i] < 0 and p < old and divergence > divergence_low)
        high = bool(advantages[i] > 0 and p > old and divergence > divergence_high)
        return 0.0 if low or high else min(ratio, ratio_max), ratio, low, high

    return _score_function(log_probs, advantages, mask, weigh)


def sapo(log_probs, old_log_probs, advantages, mask, tau_positive, tau_negative):
    def token(i):
        a, ratio = float(advantages[i]), _ratio(log_probs, old_log_probs, i)
        tau = tau_positive if a > 0 else tau_negative
        s = 1.0 / (1.0 + math.exp(-tau * (ratio - 1.0)))
        return -a * (4.0 / tau) * s, -a * 4.0 * s * (1.0 - s) * ratio, ratio, False, False

    return _every_token(mask, token)


def dro(log_probs, old_log_probs, advantages, mask, tau):
    def token(i):
        a, x, old = float(advantages[i]), float(log_probs[i]), float(old_log_probs[i])
        return -(a * x - 0.5 * tau * (x - old) ** 2), -a + tau * (x - old), math.exp(x - old), False, False

    return _every_token(mask, token)


def kl_cov(log_probs, old_log_probs, advantages, mask, selected, coef):
    def token(i):
        a, ratio = float(advantages[i]), _ratio(log_probs, old_log_probs, i)
        difference = float(log_probs[i]) - float(old_log_probs[i])
        loss, gradient = -a * ratio, -a * ratio
        if selected[i]:
            loss += coef * abs(difference)
            gradient += coef * float(np.sign(difference))
        return loss, gradient, ratio, False, False

    return _every_token(mask, token)


def m2po(log_probs, behavior_log_probs, advantages, mask, threshold):
    """2510.01161, algorithm 1: of the tokens pushed off the sampler, the largest square goes until the mean fits."""
    moved = {i: float(log_probs[i]) - float(behavior_log_probs[i]) for i in np.ndindex(*mask.shape) if mask[i]}
    pushed = [i for i, u in moved.items() if (advantages[i] > 0 and u > 0) or (advantages[i] < 0 and u < 0)]
    left = sorted(pushed, key=lambda i: moved[i] ** 2)
    while left and _apart(sum(moved[i] ** 2 for i in left) / len(left), threshold) > threshold:
        left.pop()
    dropped = set(pushed) - set(left)

    def token(i):
        a, ratio = float(advantages[i]), math.exp(moved[i])
        if i in dropped:
            return 0.0, 0.0, ratio, a < 0, a > 0
        return -a * ratio, -a * ratio, ratio, False, False

    return _every_token(mask, token)


def opsm(log_probs, behavior_log_probs, advantages, mask, inner, delta):
    """2512.02556, eq. 9, on the Result `inner`: nothing of a row with A < 0 whose mean log(mu / pi) is above delta."""
    far = np.zeros(len(mask), bool)
    for row in range(len(mask)):
        gaps = [float(behavior_log_probs[row, t]) - float(log_probs[row, t]) for t in np.flatnonzero(mask[row])]
        far[row] = bool(gaps) and _apart(sum(gaps) / len(gaps), delta) > delta

    def token(i):
        if far[i[0]] and advantages[i] < 0:
            return 0.0, 0.0, inner.ratio[i], True, inner.high[i]
        return tuple(field[i] for field in inner)

    return _every_token(mask, token)
