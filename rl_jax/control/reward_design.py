"""A teacher designs the rewards of a finite MDP from which a student learns sooner: linear programs, on the host.

pi is a best policy of the given rewards, Q_h^pi(s, a) = R(s, a) + gamma sum P pi Q_{h-1}^pi, and
    D_h R = Q_h^pi(s, pi(s)) - Q_h^pi(s, a)                                    h steps; D without h: all steps
    invariance:   D R >= delta_s for actions that are not optimal, >= 0 for the others;    |R| <= largest
    explicable    I(R) = -1 / (|H| S) sum_h sum_s max_a [delta_s - (D_h R)(s, a)]_+,   R = 0 outside of few states
    adaptive      I(R) = sum_{s, a} mu_L(s, a) mu_T(s) pi_L(a | s) (A(s, a) - A(s, pi_L)) (R(s, a) - R(s, pi_L))

delta_s is how much the best of the other actions is worse under the given rewards, a ranges over those. What is best
for the designed rewards is then best for the given ones. Sources: arXiv 2503.21949; ExpRD, NeurIPS 2021 and
adishs/neurips2021_explicable-reward-design_code; ExpAdaRD, AAMAS 2024 and
machine-teaching-group/aamas2024-informativeness-of-reward-functions (h = 1, as its code). The equations are the code's:
the thesis itself was not read. Departs: Q_h sums h rewards, as the later code (the earlier one h + 1); one best policy
pi, as the later code (the earlier one takes several); the solver is HiGHS. The third teacher is in control.students.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize

from rl_jax.stats import starc

HORIZONS = (1, 4, 8, 16, 32)
SLACK = 1e-5  # of delta, as in the published code: the given rewards stay feasible for a solver with a tolerance
TIE = 1e-6  # actions whose values differ by less, over the largest |Q|, are alike; tables are float32


class Target(NamedTuple):
    """What the teacher wants, from the given rewards.

    Attributes:
      policy: int [S], a best one.
      best: bool [S, A], all best actions.
      gaps: float64 [S], delta_s; 0 if every action is best.
      advantages: float64 [S, A], A of `policy`.
      occupancy: float64 [S], mu_T of `policy`.
    """

    policy: np.ndarray
    best: np.ndarray
    gaps: np.ndarray
    advantages: np.ndarray
    occupancy: np.ndarray


class Design(NamedTuple):
    """Designed rewards. rewards: float64 [S, A]. informativeness: I(R), a number. states: that may have a reward."""

    rewards: np.ndarray
    informativeness: float
    states: tuple[int, ...]


def action_values(
    rewards: np.ndarray, transition_probs: np.ndarray, policy: np.ndarray, *, discount: float
) -> np.ndarray:
    """Q^pi(s, a), float64 [S, A], by the linear equation of V.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S]; what a row lacks to 1 is the end.
      policy: float [S, A], probabilities.
      discount: gamma, below 1.
    """
    probs, rewards = np.asarray(transition_probs, np.float64), np.asarray(rewards, np.float64)
    return rewards + discount * probs @ starc.policy_values(rewards, probs, policy, discount=discount)


def occupancy(
    transition_probs: np.ndarray, start_probs: np.ndarray, policy: np.ndarray, *, discount: float
) -> np.ndarray:
    """mu(s) = sum_t gamma^t P(s_t = s), scaled to a sum of 1, float64 [S]. Arguments as for `action_values`."""
    moves = np.einsum("sat,sa->st", np.asarray(transition_probs, np.float64), policy)
    visits = np.linalg.solve(np.eye(len(moves)) - discount * moves.T, np.asarray(start_probs, np.float64))
    return visits / np.sum(visits)


def target_of(rewards: np.ndarray, transition_probs: np.ndarray, start_probs: np.ndarray, *, discount: float) -> Target:
    """The Target of the given rewards, by policy iteration.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S].
      start_probs: float [S].
      discount: gamma, from 0 to below 1.

    Raises:
      ValueError: if the shapes do not fit or the discount is out of range.
    """
    shape = np.shape(rewards)
    if len(shape) != 2 or np.shape(transition_probs) != (*shape, shape[0]) or np.shape(start_probs) != shape[:1]:
        raise ValueError(
            f"rewards {shape}, transition_probs {np.shape(transition_probs)} and start_probs "
            f"{np.shape(start_probs)} are no [S, A], [S, A, S] and [S]"
        )
    if not 0.0 <= discount < 1.0:
        raise ValueError(f"discount={discount} must be from 0 to below 1")
    states, actions = shape
    policy, places = np.zeros(states, int), np.arange(states)
    while True:
        q = action_values(rewards, transition_probs, np.eye(actions)[policy], discount=discount)
        tie = TIE * max(np.abs(q).max(), 1e-12)
        better = q.max(axis=1) > q[places, policy] + tie
        if not better.any():
            break
        policy = np.where(better, q.argmax(axis=1), policy)
    behind = q[places, policy][:, None] - q
    best = behind <= tie
    gaps = np.where(best.all(axis=1), 0.0, np.min(np.where(best, np.inf, behind), axis=1, initial=np.inf))
    own = occupancy(transition_probs, start_probs, np.eye(actions)[policy], discount=discount)
    return Target(policy, best, np.where(np.isfinite(gaps), gaps, 0.0), -behind, own)


def differences(
    transition_probs: np.ndarray, policy: np.ndarray, *, discount: float, horizon: int | None = None
) -> np.ndarray:
    """D_h, float64 [S A, S A]: D_h R = Q_h^pi(s, pi(s)) - Q_h^pi(s, a), with rewards R [S, A] flattened.

    Args:
      transition_probs: float [S, A, S].
      policy: int [S].
      discount: gamma.
      horizon: h rewards are summed; None: all.
    """
    states, actions, _ = transition_probs.shape
    size = states * actions
    moves = np.zeros((size, states, actions))
    moves[:, np.arange(states), policy] = discount * np.asarray(transition_probs, np.float64).reshape(size, states)
    moves, sums = moves.reshape(size, size), np.eye(size)
    if horizon is None:
        sums = np.linalg.inv(np.eye(size) - moves)
    else:
        for _ in range(horizon - 1):
            sums = np.eye(size) + moves @ sums
    own = np.repeat(np.arange(states) * actions + policy, actions)
    return sums[own] - sums


class Teacher:
    """Designs rewards for one MDP; arguments as for `target_of`.

    Attributes:
      target: Target.
      given: float64 [S, A], the given rewards.
      essential: tuple of int, the states with a given reward: the smallest set that is surely feasible.
    """

    def __init__(
        self,
        rewards: np.ndarray,
        transition_probs: np.ndarray,
        start_probs: np.ndarray,
        *,
        discount: float,
        horizons: Sequence[int] = HORIZONS,
        largest: float = 1.0,
    ):
        """horizons: H, of `explicable`. largest: bound of |R|; at least that of the given rewards.

        Raises:
          ValueError: if a horizon is below 1, or `largest` would refuse the given rewards; as in `target_of`.
        """
        self.given = np.asarray(rewards, np.float64)
        if not horizons or min(horizons) < 1 or largest < np.abs(self.given).max():
            raise ValueError(
                f"horizons={tuple(horizons)} must be 1 or more, largest={largest} at least the largest given reward, "
                f"{np.abs(self.given).max():g}"
            )
        self.target = target_of(rewards, transition_probs, start_probs, discount=discount)
        self.essential = tuple(np.flatnonzero(np.abs(self.given).max(axis=1)).tolist())
        self._probs, self._start, self._discount = np.asarray(transition_probs, np.float64), start_probs, discount
        self._largest, policy = largest, self.target.policy
        gaps = np.repeat(self.target.gaps / (1.0 + SLACK), self.given.shape[1])
        self._worse = ~self.target.best.reshape(-1)
        self._bound = np.where(self._worse, gaps, 0.0)
        self._all = differences(self._probs, policy, discount=discount)
        self._near = [differences(self._probs, policy, discount=discount, horizon=h)[self._worse] for h in horizons]

    def explicable(self, states: Sequence[int], *, size_cost: float = 0.0) -> Design:
        """The most informative rewards that are 0 outside of `states` (ExpRD).

        Args:
          states: that may have a reward.
          size_cost: of sum |R|, beside -I(R); 0 in the published experiments (C_2 of the code). Above 0 it decides
            between rewards that are as informative: without it a solver gives any, at the bound wherever it may.

        Raises:
          ValueError: if size_cost is negative, or no such rewards keep the target policy the best one.
        """
        if size_cost < 0.0:
            raise ValueError(f"size_cost={size_cost} must not be negative")
        num_states, actions = self.given.shape
        columns = (np.asarray(sorted(states), int)[:, None] * actions + np.arange(actions)).reshape(-1)
        count, horizons = len(columns), len(self._near)
        owner = np.flatnonzero(self._worse) // actions  # the state of each row of a near D
        hinges = [np.eye(horizons * num_states)[i * num_states + owner] for i in range(horizons)]
        near = [np.hstack([d[:, columns], -d[:, columns], x]) for d, x in zip(self._near, hinges, strict=True)]
        far = self._all[:, columns]
        far = np.hstack([far, -far, np.zeros((len(far), horizons * num_states))])
        lower = np.concatenate([self._bound, *[self._bound[self._worse]] * horizons])
        share = 1.0 / (horizons * num_states)
        cost = np.concatenate([np.full(2 * count, size_cost), np.full(horizons * num_states, share)])
        # R = R_+ - R_-, then the hinges [delta - D_h R]_+ of each horizon and state.
        bounds = [(0.0, self._largest)] * (2 * count) + [(0.0, None)] * (horizons * num_states)
        solved = self._solved(cost, np.vstack([far, *near]), lower, bounds, f"states {sorted(states)}")
        flat = np.zeros(num_states * actions)
        flat[columns] = solved.x[:count] - solved.x[count : 2 * count]
        missing = share * float(np.sum(solved.x[2 * count :]))
        return Design(flat.reshape(num_states, actions), -missing, tuple(sorted(int(s) for s in states)))

    def greedy(self, budget: int, *, size_cost: float = 0.0) -> Design:
        """`explicable` on the given rewards' states and others, chosen one by one, `budget` in all.

        Args:
          budget: number of states.
          size_cost: as in `explicable`, which it is for.

        Raises:
          ValueError: if the budget is below the number of states with a given reward, or above all states.
        """
        if not len(self.essential) <= budget <= len(self.given):
            raise ValueError(
                f"budget={budget} must be from {len(self.essential)}, those paid now, to {len(self.given)}"
            )
        design = self.explicable(self.essential, size_cost=size_cost)
        while len(design.states) < budget:
            others = sorted(set(range(len(self.given))) - set(design.states))
            found = [self.explicable((*design.states, state), size_cost=size_cost) for state in others]
            design = max(found, key=lambda one: one.informativeness - size_cost * np.abs(one.rewards).sum())
        return design

    def adaptive(self, student: np.ndarray) -> Design:
        """The most informative rewards for a student's policy, float [S, A], in all states (ExpAdaRD)."""
        coefficients = adaptive_weights(self.target, student, self._probs, self._start, discount=self._discount)
        scale = max(np.abs(coefficients).max(), 1e-300)  # the solver's tolerances are absolute
        bounds = [(-self._largest, self._largest)] * coefficients.size
        solved = self._solved(-coefficients.reshape(-1) / scale, self._all, self._bound, bounds, "a student")
        rewards = solved.x.reshape(self.given.shape)
        return Design(rewards, float(np.sum(coefficients * rewards)), tuple(range(len(self.given))))

    def _solved(self, cost, matrix, lower, bounds, what: str):
        """The program: cost x is least, matrix x >= lower. Raises ValueError if there is no such x."""
        solved = optimize.linprog(cost, A_ub=-matrix, b_ub=-lower, bounds=bounds, method="highs")
        if solved.status != 0:
            raise ValueError(f"no rewards of at most {self._largest:g} for {what} keep the target: {solved.message}")
        return solved


def adaptive_weights(
    target: Target, student: np.ndarray, transition_probs: np.ndarray, start_probs: np.ndarray, *, discount: float
) -> np.ndarray:
    """dI / dR of the adaptive informativeness, float64 [S, A]; I(R) is its sum with R.

    Args:
      target: from the given rewards.
      student: float [S, A], pi_L.
      transition_probs: float [S, A, S].
      start_probs: float [S].
      discount: gamma.
    """
    student = np.asarray(student, np.float64)
    student = student / student.sum(axis=1, keepdims=True)
    visits = occupancy(transition_probs, start_probs, student, discount=discount)
    ahead = target.advantages - np.sum(student * target.advantages, axis=1, keepdims=True)
    each = (visits * target.occupancy)[:, None] * student**2 * ahead
    return each - student * np.sum(each, axis=1, keepdims=True)
