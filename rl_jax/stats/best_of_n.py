"""The law of best-of-n on a finite set of responses, beside the optimum of KL-regularized RL. numpy, float64, exact.

    best of n:  P_n(y) = (F(r_y)^n - F(r_y -)^n) p(y) / p(all responses with the reward r_y)
    KL-RL:      pi_b(y) = p(y) exp(b r_y) / Z,   the most reward at its KL to p

Both concentrate on high rewards; for long texts they become the same (arXiv 2404.01730).
"""

import numpy as np


def best_of_n_law(log_probs: np.ndarray, rewards: np.ndarray, log_n: float) -> np.ndarray:
    """The log-probabilities of the best of n samples, ties broken by order of sampling. float [A] x2 -> float64 [A].

    Args:
      log_probs: of the policy, normalized; -inf is allowed.
      rewards: of each response.
      log_n: log of n, which may be far above what a float holds.

    Raises:
      ValueError: if n is below 1, or the shapes differ.
    """
    log_probs, rewards = _checked(log_probs, rewards)
    if log_n < 0:
        raise ValueError(f"log_n={log_n} must be at least 0: n is at least 1")
    levels, place = np.unique(rewards, return_inverse=True)
    log_mass = _grouped_logsumexp(log_probs, place, len(levels))
    above = np.concatenate([_tail(log_mass), [-np.inf]])  # log P(R >= level), and log P(R > the last one)
    head = np.concatenate([[-np.inf], np.logaddexp.accumulate(log_mass)])  # log P(R < level), and log P(R <= the last)
    at_most, below = _log_power(head[1:], above[1:], log_n), _log_power(head[:-1], above[:-1], log_n)
    with np.errstate(divide="ignore", invalid="ignore"):
        # expm1: the best level may have hardly any mass, and then the two powers are nearly equal.
        law = at_most + np.log(-np.expm1(np.minimum(below - at_most, 0.0)))
        law = np.where(np.isneginf(at_most) | np.isneginf(log_mass), -np.inf, law)
        result = law[place] + log_probs - log_mass[place]
    return np.where(np.isneginf(log_probs) | np.isneginf(law[place]), -np.inf, result)


def tilted_law(log_probs: np.ndarray, rewards: np.ndarray, strength: float) -> np.ndarray:
    """The log-probabilities of p exp(strength r) / Z, the optimum of KL-regularized RL. float [A] x2 -> float64 [A]."""
    log_probs, rewards = _checked(log_probs, rewards)
    scores = log_probs + strength * (rewards - rewards.max())
    return scores - _logsumexp(scores)


def kl(log_p: np.ndarray, log_q: np.ndarray) -> float:
    """KL(p || q) in nats. float [A] each; responses that p does not have count 0."""
    log_p, log_q = _checked(log_p, log_q)
    own = ~np.isneginf(log_p)
    return float(np.sum(np.exp(log_p[own]) * (log_p[own] - log_q[own])))


def matched_strength(log_probs: np.ndarray, rewards: np.ndarray, divergence: float, *, largest: float = 1e6) -> float:
    """The strength at which `tilted_law` has this KL to the policy, by bisection; the KL rises with it.

    Args:
      log_probs: float [A].
      rewards: float [A].
      divergence: in nats, at least 0; beyond that of the best responses alone the result is `largest`.
      largest: bound of the strength.
    """
    low, high = 0.0, largest
    for _ in range(200):
        middle = 0.5 * (low + high)
        if kl(tilted_law(log_probs, rewards, middle), log_probs) < divergence:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def _log_power(log_below: np.ndarray, log_above: np.ndarray, log_n: float) -> np.ndarray:
    """log of P(R not above)^n, from whichever of both probabilities is the smaller one. float [L] x2 -> float [L]."""
    with np.errstate(divide="ignore", over="ignore"):
        rest = np.log1p(-np.exp(np.minimum(log_above, np.log(0.5))))
        # log(1 - x) is -x where x is too small beside 1.
        small = log_above < -30.0
        power = np.exp(min(log_n, 700.0)) * np.where(log_above > np.log(0.5), log_below, rest)
        return np.where(small, -np.exp(np.minimum(log_n + log_above, 700.0)), power)


def _tail(log_mass: np.ndarray) -> np.ndarray:
    """log of the sums from each level on. float [L] -> float [L]."""
    return np.logaddexp.accumulate(log_mass[::-1])[::-1]


def _grouped_logsumexp(values: np.ndarray, place: np.ndarray, count: int) -> np.ndarray:
    highest = np.full(count, -np.inf)
    np.maximum.at(highest, place, values)
    shift = np.where(np.isneginf(highest), 0.0, highest)
    total = np.zeros(count)
    np.add.at(total, place, np.exp(values - shift[place]))
    with np.errstate(divide="ignore"):
        return shift + np.log(total)


def _logsumexp(values: np.ndarray) -> float:
    return float(values.max() + np.log(np.sum(np.exp(values - values.max()))))


def _checked(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"expected two arrays of one length, found {first.shape} and {second.shape}")
    return first, second
