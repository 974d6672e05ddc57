"""Losses of K ranked or graded responses, one prompt and one pair at a time, in float64.

Every function takes scores, rewards (float [N, K]) and present (bool [N, K]) and answers the losses [N]; what is not
present is dropped first, so that the formulas are those of the papers.
"""

import math

import numpy as np


def each_prompt(loss):
    """loss(s, r) of one prompt's present responses -> a function of the batch."""

    def losses(scores, rewards, present, **settings):
        found = []
        for s, r, there in zip(np.float64(scores), np.float64(rewards), present, strict=True):
            found.append(loss([float(x) for x in s[there]], [float(x) for x in r[there]], **settings))
        return np.array(found)

    return losses


def numeric_gradient(function, x, step=1e-6):
    """Central differences of sum(function(x)), x float [N, K], in float64."""
    x = np.array(x, np.float64)
    gradient = np.zeros(x.shape)
    for i in np.ndindex(*x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        gradient[i] = (np.sum(function(up)) - np.sum(function(down))) / (2 * step)
    return gradient


def _softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _log_sum(xs):
    largest = max(xs)
    return largest + math.log(sum(math.exp(x - largest) for x in xs))


def _ordered(r):
    return [(i, j) for i in range(len(r)) for j in range(len(r)) if r[i] > r[j]]


@each_prompt
def softmax(s, r):
    """S-DPO as published: -log sigma(-log sum_l exp(s_l - s_w)), l over what is worse than the first."""
    worse = [x - s[0] for x, y in zip(s, r, strict=True) if y < r[0]]
    return _softplus(_log_sum(worse)) if worse else 0.0


@each_prompt
def plackett_luce(s, r):
    """A product of choices: each response among itself and what is worse."""
    chances = []
    for own, reward in zip(s, r, strict=True):
        among = [own] + [x for x, other in zip(s, r, strict=True) if other < reward]
        chances.append(math.exp(own) / sum(math.exp(x) for x in among))
    return -math.log(math.prod(chances))


@each_prompt
def all_pairs(s, r, link=_softplus, reduce="sum"):
    """link takes s_j - s_i of a pair where i is the better one."""
    terms = [link(s[j] - s[i]) for i, j in _ordered(r)]
    return sum(terms) / (len(terms) if reduce == "mean" and terms else 1)


def hinge_pairs(scores, rewards, present):
    return all_pairs(scores, rewards, present, link=lambda x: max(0.0, 1.0 + x))


@each_prompt
def lambda_pairs(s, r):
    """Ranks by counting who is above."""
    rank = [1 + sum(y > x for y in s) for x in s]
    total = 0.0
    for i, j in _ordered(r):
        gain = abs(2 ** r[i] - 2 ** r[j])
        discount = abs(1 / math.log(1 + rank[i]) - 1 / math.log(1 + rank[j]))
        total += gain * discount * _softplus(s[j] - s[i])
    return total


@each_prompt
def label_softmax(s, r):
    return -sum(psi / sum(r) * (x - _log_sum(s)) for x, psi in zip(s, r, strict=True)) if sum(r) else 0.0


@each_prompt
def point_square(s, r):
    return sum((psi - x) ** 2 for x, psi in zip(s, r, strict=True))


@each_prompt
def point_logistic(s, r):
    return sum(psi * _softplus(-x) + (1 - psi) * _softplus(x) for x, psi in zip(s, r, strict=True))


@each_prompt
def pro(s, r):
    """The loop of the official process_manager.py, without its 1e-10."""
    total = 0.0
    for k in range(len(s) - 1):
        temperatures = [r[k] - r[j] for j in range(k + 1, len(s))]
        own = max(temperatures)
        below = sum(math.exp(t * x) for t, x in zip(temperatures, s[k + 1 :], strict=True))
        total += math.log(math.exp(s[k] * own) + below) - s[k] * own
    return total


def rrhf(scores, rewards, present):
    return all_pairs(scores, rewards, present, link=lambda x: max(0.0, x))


@each_prompt
def info_nca(s, r, temperature=1.0):
    weights = [math.exp(x / temperature) for x in r]
    return -sum(w / sum(weights) * (x - _log_sum(s)) for w, x in zip(weights, s, strict=True))


def brain(scores, rewards, present, prior_log_ratios, temperature=1.0):
    """The importance weights p0 p(G) / q one by one, and the cross entropy with pi / q normalised over the samples."""
    losses = []
    for s, r, p, there in zip(scores, rewards, prior_log_ratios, present, strict=True):
        s, r, p = (np.float64(x)[there] for x in (s, r, p))
        alpha = [math.exp(a) * math.exp(b / temperature) for a, b in zip(p, r, strict=True)]
        beta = [math.exp(x) for x in s]
        losses.append(-sum(a / sum(alpha) * math.log(b / sum(beta)) for a, b in zip(alpha, beta, strict=True)))
    return np.array(losses)
