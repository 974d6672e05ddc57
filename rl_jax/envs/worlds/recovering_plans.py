"""Plans for arms that recover (2106.14813): rates of the relaxation become periods, and R is learned while pulling.

A purely periodic policy pulls arm i at the steps t = phase_i (mod d_i). Offline (`plan`):

    x        the rates of the relaxation (recovering.relaxed_rates)
    d_i      a period of the grid {a 2^j : a in bases}, near 1 / x_i
    pack     arms of one base a share a lane (one pull per step) if their rates 1 / d_i add up to at most 1: such
             periods always fit, as a free slot of period d splits into two of period 2 d
    lanes    the K of most reward are kept; arms without a lane take the slots that are free

With the bases 1, 3, ..., 2 m - 1 neighbours of the grid are at most a factor 1 + 1 / m apart and at most m - 1 lanes
are dropped, so that m / (m + 1) K / (K + m - 1) of the bound remains, apart from the one arm that may be between two
corners of its envelope. m near sqrt(K) gives the paper's 1 - O(1 / sqrt(K)). `plan` tries several m, single bases and
random roundings, and keeps the best. Online (`learn`): plan for the upper confidence bounds of R, follow the plan for
an epoch, plan again.

The paper's body could not be read (only its abstract). Its bound, its class of policies, the order of the ratio and
UCB are the paper's. The grid, the choice of lanes, the random rounding and the constant of the bonus are ours.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.envs.worlds import recovering

Slot = tuple[int, int]  # (period, phase)


class Plan(NamedTuple):
    """A purely periodic policy.

    Attributes:
      periods: int64 [N]. d_i; 0 for an arm that is never pulled.
      phases: int64 [N]. Step of the first pull; less than d_i.
      value: sum_i R_i(d_i) / d_i, the mean reward per step in the long run.
    """

    periods: np.ndarray
    phases: np.ndarray
    value: float

    def arms(self, time: int) -> np.ndarray:
        """The arms that are pulled in this step, int64 [at most K]."""
        used = self.periods > 0
        return np.flatnonzero(used & (time % np.where(used, self.periods, 1) == self.phases))


def value_of(rewards: np.ndarray, periods: np.ndarray) -> np.ndarray:
    """R_i(d_i) / d_i, float [N]; 0 for d_i = 0.

    Args:
      rewards: R_i(tau), float [N, D]; longer waits pay as the last.
      periods: d_i, int [N].
    """
    waits = np.clip(periods, 1, rewards.shape[1])
    return np.where(periods > 0, rewards[np.arange(len(rewards)), waits - 1] / np.maximum(periods, 1), 0.0)


def grid(bases: Sequence[int], longest: int) -> np.ndarray:
    """{a 2^j : a in bases} from its least element to the first one of at least `longest`, int64, rising."""
    found = set()
    for base in bases:
        period = base
        found.add(period)
        while period < longest:
            period *= 2
            found.add(period)
    return np.array(sorted(found), np.int64)


def rounded(
    rewards: np.ndarray, rates: np.ndarray, bases: Sequence[int], *, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Periods of the grid in place of rates, int64 [N].

    The longer neighbour of arm i is the period of at least 1 / x_i that pays most per step. Without `rng` every arm
    takes it. With `rng` an arm takes the shorter neighbour d' instead with the probability that keeps the mean rate,

        p = (x_i - 1 / d) / (1 / d' - 1 / d)

    Args:
      rewards: R_i(tau), float [N, D].
      rates: x_i in [0, 1], float [N]. 0 gives the period 0.
      bases: of the grid.
      rng: source of the coins, or None.
    """
    chosen = np.zeros(len(rates), np.int64)
    for arm, rate in enumerate(rates):
        if rate < 1e-9:
            continue
        least = math.ceil(1.0 / rate - 1e-9)
        periods = grid(bases, max(least, rewards.shape[1]))
        longer, shorter = periods[periods >= least], periods[periods < 1.0 / rate - 1e-9]
        pays = rewards[arm, np.minimum(longer, rewards.shape[1]) - 1] / longer
        chosen[arm] = longer[np.argmax(pays)]
        if rng is not None and len(shorter) and 1.0 / chosen[arm] < rate:
            share = (rate - 1.0 / chosen[arm]) / (1.0 / shorter[-1] - 1.0 / chosen[arm])
            chosen[arm] = shorter[-1] if rng.random() < share else chosen[arm]
    return chosen


def packed(rewards: np.ndarray, periods: np.ndarray, bases: Sequence[int], *, pulls: int) -> Plan:
    """The arms of most reward that fit into `pulls` lanes at these periods; the others take the slots that are free.

    Args:
      rewards: R_i(tau), float [N, D].
      periods: d_i of the grid, int64 [N]; 0 for an arm that is not wanted.
      bases: of the grid.
      pulls: K per step.
    """
    worth, phases = value_of(rewards, periods), np.zeros(len(periods), np.int64)
    lanes: list[tuple[list[int], list[Slot]]] = []
    for base in bases:
        lanes += _lanes(base, [int(arm) for arm in np.argsort(periods, kind="stable")], periods, bases, phases)
    lanes.sort(key=lambda lane: -sum(worth[arm] for arm in lane[0]))
    kept = [arm for arms, _ in lanes[:pulls] for arm in arms]
    free = [slot for _, slots in lanes[:pulls] for slot in slots] + [(1, 0)] * max(pulls - len(lanes), 0)
    chosen = np.zeros_like(periods)
    chosen[kept] = periods[kept]
    for period, phase in sorted(free):
        pays = np.where(chosen > 0, 0.0, value_of(rewards, np.full_like(periods, period)))
        arm = int(np.argmax(pays))
        if pays[arm] > 0:
            chosen[arm], phases[arm] = period, phase
    return Plan(chosen, phases, float(np.sum(value_of(rewards, chosen))))


def _lanes(
    base: int, order: list[int], periods: np.ndarray, bases: Sequence[int], phases: np.ndarray
) -> list[tuple[list[int], list[Slot]]]:
    """Lanes of the arms of one base, each its arms and free slots; fills in their phases. order: by period, rising."""
    lanes: list[tuple[list[int], list[Slot]]] = []
    for arm in order:
        period = int(periods[arm])
        if not period or _base_of(period, bases) != base:
            continue
        fitting = [lane for lane in lanes if lane[1]]  # no free slot has a longer period than the last arm: it fits
        if not fitting:
            lanes.append(([], [(base, phase) for phase in range(base)]))
            fitting = lanes[-1:]
        arms, slots = fitting[0]
        width, phase = slots.pop()
        while width < period:
            slots.append((2 * width, phase + width))
            width *= 2
        arms.append(arm)
        phases[arm] = phase
        slots.sort()  # the least capacity last, which is used first
    return lanes


def _base_of(period: int, bases: Sequence[int]) -> int:
    return next(a for a in bases if period % a == 0 and (period // a) & (period // a - 1) == 0)


def plan(rewards: Sequence[Sequence[float]], *, pulls: int = 1, draws: int = 8, seed: int = 0) -> Plan:
    """The best periodic policy among several roundings of the relaxation.

    Args:
      rewards: R_i(tau) >= 0 of tau = 1, 2, ..., nondecreasing; longer waits pay as the last: [N][D].
      pulls: K per step.
      draws: random roundings for each set of bases, beside the one without coins.
      seed: of the coins.

    Raises:
      ValueError: if pulls < 1, or a row of rewards falls or is negative.
    """
    table = np.asarray(rewards, float)
    if pulls < 1 or np.any(np.diff(table, axis=1) < -1e-9) or np.any(table < 0):
        raise ValueError(f"plan needs pulls >= 1 and rewards that are >= 0 and nondecreasing, got {pulls=}, {rewards=}")
    _, rates = recovering.relaxed_rates(table, pulls=pulls)
    rng = np.random.default_rng(seed)
    families = [tuple(range(1, 2 * m, 2)) for m in range(1, math.isqrt(pulls) + 3)]
    families += [(base,) for base in range(2, table.shape[1] + 1)]
    best = None
    for bases in families:
        for coins in [None] + [rng] * draws:
            found = packed(table, rounded(table, rates, bases, rng=coins), bases, pulls=pulls)
            best = found if best is None or found.value > best.value else best
    return best


def optimistic(counts: np.ndarray, sums: np.ndarray, *, steps: int, bonus: float = 2.0) -> np.ndarray:
    """Upper confidence bounds of R_i(tau), float [N, D], nondecreasing in tau as R is.

        u = min(1, mean + sqrt(bonus ln T / n)),    U(tau) = min over tau' >= tau of u(tau')

    Args:
      counts: n, float [N, D]. Rewards seen for each arm and idle time; 0 gives u = 1.
      sums: their sums, float [N, D].
      steps: T.
      bonus: the constant; 2 is UCB1's.
    """
    seen = np.maximum(counts, 1.0)
    bounds = np.minimum(1.0, sums / seen + np.sqrt(bonus * math.log(steps) / seen))
    bounds = np.where(counts > 0, bounds, 1.0)
    return np.minimum.accumulate(bounds[:, ::-1], axis=1)[:, ::-1]


def learn(
    rewards: Sequence[Sequence[float]],
    *,
    pulls: int = 1,
    steps: int,
    epoch: int = 100,
    bonus: float = 2.0,
    draws: int = 0,
    seed: int = 0,
) -> np.ndarray:
    """Expected reward of each step of a learner who sees coins with the means R_i(tau), float [T].

    Args:
      rewards: R_i(tau) in [0, 1], nondecreasing, [N][D]. The learner knows N, D and that they do not fall.
      pulls: K per step.
      steps: T.
      epoch: steps between two plans.
      bonus: as in `optimistic`.
      draws: as in `plan`.
      seed: of the coins.

    Raises:
      ValueError: if a reward is not in [0, 1], or epoch or steps is less than 1.
    """
    table = np.asarray(rewards, float)
    if np.any(table < 0) or np.any(table > 1) or epoch < 1 or steps < 1:
        raise ValueError(f"learn needs rewards in [0, 1], epoch and steps >= 1, got {rewards=}, {epoch=}, {steps=}")
    arms, longest = table.shape
    rng, idle, paid = np.random.default_rng(seed), np.full(arms, longest), np.zeros(steps)
    counts, sums = np.zeros_like(table), np.zeros_like(table)
    for start in range(0, steps, epoch):
        upper = optimistic(counts, sums, steps=steps, bonus=bonus)
        policy = plan(upper, pulls=pulls, draws=draws, seed=seed)
        for time in range(start, min(start + epoch, steps)):
            for arm in policy.arms(time):
                wait = idle[arm] - 1
                paid[time] += table[arm, wait]
                counts[arm, wait] += 1.0
                sums[arm, wait] += rng.random() < table[arm, wait]
                idle[arm] = 0
            idle = np.minimum(idle + 1, longest)
    return paid
