"""Asynchronous schedules in a model of time: rl_jax.experience.admission decides, lengths are drawn."""

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from experiments.studies.base import Outcome
from rl_jax.experience import admission
from rl_jax.experience.admission import Counters, Group, Rule

WARM_UP = 5  # batches that are not measured: the first ones find nothing begun


class Costs(NamedTuple):
    """What takes how long, in decode calls of the asynchronous sampler, which has half of the devices.

    Attributes:
      mean: tokens of a row on average; a decode call is one token of every row.
      longest: the longest row, in means.
      slots: rows that are decoded at once.
      train: a train step on the other half of the devices, in mean rows.
    """

    mean: int
    longest: float
    slots: int
    train: float


class Clock:
    """One asynchronous run.

    Args:
      rule: of admission.
      costs: of its parts.
      lengths: [N, G]. Tokens of the rows of group n; used again from the start if there are more groups.
      drain: whether what was let in ends before new weights enter.
    """

    def __init__(self, rule: Rule, costs: Costs, lengths: np.ndarray, *, drain: bool = False):
        self._rule, self._costs, self._lengths, self._drain = rule, costs, lengths, drain
        self._counters, self._time, self._free = Counters(), 0.0, costs.slots
        self._left: dict[int, int] = {}
        self._oldest: dict[int, int | None] = {}
        self._queue: deque[tuple[int, float]] = deque()
        self._running: list[tuple[float, int]] = []
        self.started: list[float] = []
        self.taken: list[int] = []
        self.dropped: list[int] = []
        self.ages: list[int] = []

    def run(self, steps: int) -> "Clock":
        """Trains on `steps` batches."""
        train_end, size = None, self._rule.batch
        while len(self.started) < steps or train_end is not None:
            self._admit()
            if train_end is None and len(self.started) < steps:
                chosen = admission.next_batch(self._rule, self._counters, self._groups())
                if chosen is not None:
                    self._take(chosen)
                    train_end = self._time + self._costs.train * self._costs.mean
                    self._counters = self._counters._replace(taken=len(self.started) * size)
                    continue
            self._advance(train_end)
            blocked = self._drain and (self._running or self._queue)
            if train_end is not None and self._time >= train_end and not blocked:
                self._counters, train_end = self._counters._replace(version=self._counters.version + 1), None
                self._evict()
        return self

    def _groups(self) -> list[Group]:
        now = self._counters.version
        return [Group(n, now if old is None else old, not self._left[n]) for n, old in self._oldest.items()]

    def _admit(self) -> None:
        for _ in range(admission.room(self._rule, self._counters, self._groups())):
            number = self._counters.admitted
            rows = self._lengths[number % len(self._lengths)]
            self._left[number], self._oldest[number] = len(rows), None
            self._queue.extend((number, float(length)) for length in rows)
            self._counters = self._counters._replace(admitted=number + 1)
        while self._free and self._queue:
            number, length = self._queue.popleft()
            if number in self._oldest:
                self._free -= 1
                heapq.heappush(self._running, (self._time + length, number))
                if self._oldest[number] is None:
                    self._oldest[number] = self._counters.version

    def _take(self, numbers: list[int]) -> None:
        self.started.append(self._time)
        self.taken += numbers
        self.ages += [self._counters.version - self._oldest[number] for number in numbers]
        for number in numbers:
            del self._left[number], self._oldest[number]

    def _advance(self, train_end: float | None) -> None:
        """To the next end of a row, or of the train step."""
        ends = [time for time in (self._running[0][0] if self._running else None, train_end) if time is not None]
        later = [time for time in ends if time > self._time]
        self._time = min(later) if later else self._time
        while self._running and self._running[0][0] <= self._time:
            _, number = heapq.heappop(self._running)
            self._free += 1
            if number in self._left:
                self._left[number] -= 1

    def _evict(self) -> None:
        for number in admission.too_old(self._rule, self._counters.version, self._groups()):
            del self._left[number], self._oldest[number]
            self.dropped.append(number)
            still = [(end, other) for end, other in self._running if other != number]
            self._free += len(self._running) - len(still)
            self._running = still
            heapq.heapify(self._running)
        self._counters = self._counters._replace(dropped=len(self.dropped))


def asynchronous_schedules(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    base: str,
    sigmas: Sequence[float],
    prompts: int,
    group_size: int,
    mean: int,
    longest: float,
    train: float,
    steps: int,
) -> Outcome:
    """How much faster than a synchronous run each schedule is, if lengths are lognormal.

    A decode call costs the same however many rows are alive, as on an accelerator. A synchronous run has all devices
    for either stage: both take half as long. Metrics, by sigma of the log length: speed_S, batches per time over those
    of the synchronous run; age_S, the oldest row; kept_S, the mean length of what was trained on over that of all rows
    up to the newest group that was trained on, with those that were dropped and those that still wait; over_base_S,
    speed over that of the arm `base`.

    Args:
      seeds: of the lengths.
      arms: name -> eta, age, order, and drain.
      base: the arm that the others are compared with.
      sigmas: of the log of a row's length.
      prompts: B, groups per batch.
      group_size: G.
      mean: tokens of a row.
      longest: where lengths are cut, in means.
      train: time of a train step on half of the devices, over that of a row of mean length there.
      steps: batches.
    """
    values: dict[str, dict[str, np.ndarray]] = {name: {} for name in arms}
    costs = Costs(mean, longest, prompts * group_size, train)
    for sigma in sigmas:
        name_of = f"{sigma:.2f}".replace(".", "")
        found = {name: [] for name in arms}
        for seed in seeds:
            lengths = draw_lengths(seed, sigma, 40 * prompts, group_size=group_size, mean=mean, longest=longest)
            batches = lengths.reshape(-1, prompts * group_size).max(axis=1)
            synchronous = (batches.mean() + train * mean) / 2
            for name, fields in arms.items():
                fields = dict(fields)
                drain = fields.pop("drain", False)
                clock = Clock(Rule(prompts, **fields).check(), costs, lengths, drain=drain).run(steps)
                found[name].append(_measured(clock, lengths, synchronous))
        for name, rows in found.items():
            speed, age, kept = np.asarray(rows).T
            first = np.asarray(found[base])[:, 0]
            measured = {"speed": speed, "age": age, "kept": kept, "over_base": speed / first}
            values[name] |= {f"{metric}_{name_of}": column for metric, column in measured.items()}
    return Outcome(values)


def _measured(clock: Clock, lengths: np.ndarray, synchronous: float) -> tuple[float, float, float]:
    """(speed, age, kept length) of a run."""
    times = clock.started[WARM_UP:]
    speed = synchronous * (len(times) - 1) / (times[-1] - times[0])
    return speed, max(clock.ages), kept_length(clock.taken, lengths)


def draw_lengths(
    seed: int, sigma: float, groups: int, *, group_size: int, mean: int, longest: float
) -> np.ndarray:
    """Lognormal lengths of rows, in whole tokens.

    Args:
      seed: of the draw.
      sigma: of the log.
      groups: N.
      group_size: G.
      mean: tokens of a row, before the cut.
      longest: where lengths are cut, in means.

    Returns:
      float [N, G], 1 or more.
    """
    draw = np.random.default_rng([seed, int(100 * sigma)])
    drawn = draw.lognormal(-(sigma**2) / 2, sigma, (groups, group_size))
    return np.ceil(mean * np.minimum(drawn, longest))


def kept_length(taken: Sequence[int], lengths: np.ndarray) -> float:
    """Mean length of what was trained on, over that of all groups up to the newest of them: those overtaken count.

    Args:
      taken: numbers of the groups that were trained on.
      lengths: [N, G]. Of the rows of group n; used again from the start if there are more groups.
    """
    trained, seen = (lengths[np.asarray(of) % len(lengths)] for of in (taken, np.arange(max(taken) + 1)))
    return float(trained.mean() / seen.mean())
