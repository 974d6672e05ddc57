"""STARC: how different two rewards of a finite MDP are, blind to what no policy cares about. numpy, float64.

    canonical   c(R)(s, a) = E_{s'}[R(s, a, s') - V(s) + gamma V(s')]: the same for R with potential shaping, and for R
                with s'-rewards exchanged for their mean
    standard    c / ||c||: the same for a R + ..., a > 0
    distance    ||c_1 / ||c_1|| - c_2 / ||c_2|| ||, from 0 (the same order of all policies) to 2 (the opposite one)

Source: arXiv 2309.15257. Rewards are float [S, A, S], transitions float [S, A, S] with rows that add up to 1.
"""

from collections.abc import Callable

import numpy as np

Canonical = Callable[..., np.ndarray]


def value_canonical(rewards: np.ndarray, transition_probs: np.ndarray, *, discount: float) -> np.ndarray:
    """VAL: V is the value of the uniformly random policy under R. -> float [S, A].

    Args:
      rewards: float [S, A, S].
      transition_probs: float [S, A, S].
      discount: gamma, below 1.
    """
    mean = _expected(rewards, transition_probs, discount)
    values = policy_values(mean, transition_probs, np.full(mean.shape, 1.0 / mean.shape[1]), discount=discount)
    return mean - values[:, None] + discount * transition_probs @ values


def minimal_canonical(rewards: np.ndarray, transition_probs: np.ndarray, *, discount: float) -> np.ndarray:
    """The reward of the smallest L2 norm among all R + potential shaping. Arguments as in `value_canonical`.

    -> float [S, A], orthogonal to every shaping gamma E[Phi(s')] - Phi(s).
    """
    mean = _expected(rewards, transition_probs, discount)
    states, actions = mean.shape
    shaping = discount * transition_probs - np.eye(states)[:, None, :]  # [S, A, S]: of each state's potential
    basis = shaping.reshape(states * actions, states)
    potential = np.linalg.lstsq(basis, -mean.reshape(-1), rcond=None)[0]
    return mean + shaping @ potential


def no_canonical(rewards: np.ndarray, transition_probs: np.ndarray, *, discount: float) -> np.ndarray:
    """The expected reward itself: what is compared without STARC. Arguments as in `value_canonical`."""
    return _expected(rewards, transition_probs, discount)


def distance(
    first: np.ndarray,
    second: np.ndarray,
    transition_probs: np.ndarray,
    *,
    discount: float,
    canonical: Canonical = value_canonical,
    tolerance: float = 1e-10,
) -> float:
    """The STARC distance of two rewards, in [0, 2]; a trivial reward (no policy is better) is at 1 from all others.

    Args:
      first: float [S, A, S].
      second: float [S, A, S].
      transition_probs: float [S, A, S].
      discount: gamma.
      canonical: value_canonical or minimal_canonical.
      tolerance: a canonical reward below this share of the reward's norm is trivial.
    """
    standard = []
    for rewards in (first, second):
        found = canonical(rewards, transition_probs, discount=discount)
        size = np.linalg.norm(found)
        trivial = size <= tolerance * np.linalg.norm(rewards)
        standard.append(np.zeros_like(found) if trivial else found / size)
    return float(np.linalg.norm(standard[0] - standard[1]))


def policy_values(
    rewards: np.ndarray, transition_probs: np.ndarray, policy: np.ndarray, *, discount: float
) -> np.ndarray:
    """V of a policy: (I - gamma P_pi)^-1 r_pi. float [S, A], [S, A, S], [S, A] -> float [S]."""
    moves = np.einsum("sa,sat->st", policy, transition_probs)
    return np.linalg.solve(np.eye(len(moves)) - discount * moves, np.sum(policy * rewards, axis=1))


def best_policy(rewards: np.ndarray, transition_probs: np.ndarray, *, discount: float) -> np.ndarray:
    """A deterministic optimal policy by policy iteration. float [S, A], [S, A, S] -> float [S, A], one-hot."""
    actions = np.eye(rewards.shape[1])
    policy = actions[np.argmax(rewards, axis=1)]
    while True:
        values = policy_values(rewards, transition_probs, policy, discount=discount)
        q = rewards + discount * transition_probs @ values
        own = np.sum(policy * q, axis=1)
        # Only what is better moves: without this, ties and rounding could go on for ever.
        better = np.max(q, axis=1) > own + 1e-10 * (1.0 + np.abs(own))
        if not better.any():
            return policy
        policy = np.where(better[:, None], actions[np.argmax(q, axis=1)], policy)


def regret(rewards: np.ndarray, proxy: np.ndarray, transition_probs: np.ndarray, *, discount: float) -> float:
    """What the proxy's best policy loses under the true reward, as a share of all there is to lose, in [0, 1].

    (J* - J(pi_proxy)) / (J* - J_worst), J the mean value over all states; 0 if all policies are equal.

    Args:
      rewards: float [S, A, S], the true one.
      proxy: float [S, A, S].
      transition_probs: float [S, A, S].
      discount: gamma.
    """
    true, other = (_expected(x, transition_probs, discount) for x in (rewards, proxy))

    def reached(of: np.ndarray) -> float:
        policy = best_policy(of, transition_probs, discount=discount)
        return float(policy_values(true, transition_probs, policy, discount=discount).mean())

    best, worst = reached(true), reached(-true)
    return (best - reached(other)) / (best - worst) if best - worst > 1e-12 else 0.0


def _expected(rewards: np.ndarray, transition_probs: np.ndarray, discount: float) -> np.ndarray:
    """E_{s'}[R(s, a, s')], float [S, A]. Raises ValueError if the arrays are not of one finite MDP."""
    rewards, moves = np.asarray(rewards, np.float64), np.asarray(transition_probs, np.float64)
    if rewards.shape != moves.shape or moves.ndim != 3 or moves.shape[0] != moves.shape[2]:
        raise ValueError(f"expected rewards and transition_probs of [S, A, S], found {rewards.shape} and {moves.shape}")
    if not np.allclose(moves.sum(axis=2), 1.0):
        raise ValueError("the rows of transition_probs must add up to 1")
    if not 0 <= discount < 1:
        raise ValueError(f"discount={discount} must be in [0, 1)")
    return np.sum(rewards * moves, axis=2)
