"""Preference losses of one prompt in plain Python, as the papers write them; gradients by central differences.

A Prompt holds lists of floats. `frozen` is the same prompt where the derivative is taken: what a method stops the
gradient of reads it.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Prompt:
    """One prompt: per response the tokens' log-probs of policy, reference and second reference; and its extras."""

    logp: list
    ref: list
    prev: list
    rewards: list
    extras: dict
    frozen: "Prompt | None" = None

    def __post_init__(self):
        self.frozen = self.frozen or self
        self.sums = [sum(tokens) for tokens in self.logp]
        self.lengths = [len(tokens) for tokens in self.logp]
        self.means = [s / n for s, n in zip(self.sums, self.lengths, strict=True)]
        self.a = [s - sum(r) for s, r in zip(self.sums, self.ref, strict=True)]
        self.h = self.a[0] - self.a[1] if len(self.a) > 1 else None


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def logistic(x, right=1.0):
    return -right * log_sigmoid(x) - (1 - right) * log_sigmoid(-x)


def rdpo(x, eps):
    return (-(1 - eps) * log_sigmoid(x) + eps * log_sigmoid(-x)) / (1 - 2 * eps)


def exo(x, eps):
    q = sigmoid(x)
    return q * math.log(q / (1 - eps)) + (1 - q) * math.log((1 - q) / eps)


def discopop(x, tau):
    m = sigmoid(x / tau)
    return (1 - m) * logistic(x) + m * math.exp(-x)


def kto(p, beta, desirable, undesirable):
    """An unpaired response; the anchor is not multiplied with beta where it is computed."""
    z = p.extras["anchor"]
    if p.rewards[0] == 1:
        return desirable * (1 - sigmoid(beta * (p.a[0] - z)))
    return undesirable * (1 - sigmoid(beta * (z - p.a[0])))


def kto_pair(p, beta, desirable, undesirable):
    z = p.extras["anchor"]
    chosen, rejected = sigmoid(beta * (p.a[0] - z)), sigmoid(beta * (z - p.a[1]))
    return desirable * (1 - chosen) + undesirable * (1 - rejected)


def bco(p, beta):
    delta = beta * p.extras["anchor"]
    return -log_sigmoid(beta * p.a[0] - delta) - log_sigmoid(-(beta * p.a[1] - delta))


def bco_unpaired(p, beta):
    x = beta * p.a[0] - beta * p.extras["anchor"]
    return p.extras["prompt_weights"] * -log_sigmoid(x if p.rewards[0] == 1 else -x)


def nca(p, beta):
    chosen, rejected = beta * p.a[0], beta * p.a[1]
    return -log_sigmoid(chosen) - 0.5 * log_sigmoid(-chosen) - 0.5 * log_sigmoid(-rejected)


def apo_zero(p, beta):
    return 1 - sigmoid(beta * p.a[0]) + sigmoid(beta * p.a[1])


def apo_down(p, beta):
    return sigmoid(beta * p.a[0]) + 1 - sigmoid(beta * p.a[0] - beta * p.a[1])


def sppo_hard(p, beta):
    return (p.a[0] - 1 / (2 * beta)) ** 2 + (p.a[1] + 1 / (2 * beta)) ** 2


def orpo(p, lam):
    odds = [math.log(math.exp(s) / (1 - math.exp(s))) for s in p.means]
    return -p.means[0] + lam * logistic(odds[0] - odds[1])


def alphapo(p, alpha, beta, gamma):
    r = [(1 - math.exp(-alpha * s)) / alpha for s in p.means]
    return logistic(beta * (r[0] - r[1]) - gamma)


def ld_dpo(p, beta, alpha):
    common = min(p.lengths)

    def score(k):
        ratios = [x - r for x, r in zip(p.logp[k], p.ref[k], strict=True)]
        return sum(ratios[:common]) + alpha * sum(ratios[common:])

    return logistic(beta * (score(0) - score(1)))


def dpop(p, beta, lam):
    return logistic(beta * (p.h - lam * max(0.0, -p.a[0])))


def tdpo(p, beta, coef, stop):
    """The policy's gradient of the sequence KL is tested where it enters; here it is a number."""
    kl = p.extras["sequence_kl"]
    return logistic(beta * (p.h - coef * (kl[1] - kl[0])))


def modpo(p, beta, weight):
    gap = p.extras["other_rewards"][0] - p.extras["other_rewards"][1]
    return logistic((beta * p.h - gap) / weight)


def f_dpo(p, beta, derivative):
    return logistic(beta * (derivative(math.exp(p.a[0])) - derivative(math.exp(p.a[1]))))


def t_reg(p, beta, alpha):
    weight = sigmoid(beta * (p.frozen.a[1] - p.frozen.a[0]))
    reg = sum(
        -beta * sum(r * x for r, x in zip(rewards, tokens, strict=False))
        for rewards, tokens in zip(p.extras["token_rewards"], p.logp, strict=True)
    )
    return logistic(beta * p.h) + alpha * weight * reg


def hypo(p, beta, lam):
    terms = [p.frozen.a[k] * p.sums[k] for k in range(len(p.sums)) if p.extras["sampled"][k]]
    return logistic(beta * p.h) + lam * sum(terms) / len(terms)


def xpo(p, beta, alpha):
    return logistic(beta * p.h) + alpha * sum(
        s for s, ref in zip(p.sums, p.extras["from_reference"], strict=True) if ref
    )


def inpo(p, tau, eta):
    mix = [tau / eta * sum(r) + (1 - tau / eta) * sum(v) for r, v in zip(p.ref, p.prev, strict=True)]
    h = (p.sums[0] - p.sums[1]) - (mix[0] - mix[1])
    return (h - 1 / (2 * eta)) ** 2


def cpl(p, alpha, bias, bc):
    cloning = -(p.means[0] + p.means[1]) / 2
    return logistic(alpha * (p.sums[0] - bias * p.sums[1])) + bc * cloning


def mm_dpo(p, beta, weight, rate):
    delta = p.rewards[0] - p.rewards[1]
    return logistic(beta * (1 + weight * (1 - math.exp(-rate * delta))) * p.h)


def d3po(p, beta, eps):
    clip = [math.log(min(max(math.exp(a), 1 - eps), 1 + eps)) for a in p.a]
    return logistic(beta * clip[0] - beta * clip[1])


def wpo(p, beta):
    weights = p.extras["response_weights"]
    return weights[0] * weights[1] * logistic(beta * p.h)


def prompt(n, log_probs, batch, more, frozen=None):
    """Row n of a PreferenceBatch as a Prompt; what is behind the mask is not read."""

    def tokens(x):
        return [[float(v) for v in row[m]] for row, m in zip(x[n], batch.completion_mask[n], strict=True)]

    extras = {name: np.asarray(x)[n] for name, x in (batch.extras | more).items()}
    arrays = tokens(log_probs), tokens(batch.ref_log_probs), tokens(batch.prev_log_probs)
    return Prompt(*arrays, list(batch.rewards[n]), extras, frozen[n] if frozen else None)


def prompts(log_probs, batch, more):
    """All rows of a PreferenceBatch."""
    return [prompt(n, log_probs, batch, more) for n in range(len(batch.completion_mask))]


def value_and_gradient(fn, log_probs, batch, more, step=1e-5):
    """The mean of fn over prompts, and its central differences in each masked log-prob."""
    frozen = prompts(log_probs, batch, more)
    gradient = np.zeros(log_probs.shape)
    for i in zip(*np.nonzero(batch.completion_mask), strict=True):
        sides = []
        for sign in (1, -1):
            moved = log_probs.copy()
            moved[i] += sign * step
            sides.append(fn(prompt(i[0], moved, batch, more, frozen)))
        gradient[i] = (sides[0] - sides[1]) / (2 * step)
    return sum(map(fn, frozen)) / len(frozen), gradient / len(frozen)
