"""Admission: 10^4 random schedules in plain numpy hold both bounds, lose nothing, take nothing twice, also after a
restore."""

import numpy as np
import pytest

from rl_jax.experience import admission
from rl_jax.experience.admission import Counters, Group, Rule


class Schedule:
    """A run without a model: a group takes some ticks, the trainer takes some; everything else is admission."""

    def __init__(self, rule, seed, choose=admission.next_batch):
        self.rule, self.draw, self.choose = rule, np.random.default_rng(seed), choose
        self.counters, self.inside, self.left = Counters(), {}, {}
        self.taken, self.dropped, self.lags, self.ahead, self.busy = [], [], [], 0, 0
        self.sigma = self.draw.uniform(0.2, 2.0)
        self.train_ticks = int(self.draw.integers(0, 8))

    def groups(self):
        return [
            Group(number, self.counters.version if oldest is None else oldest, self.left[number] == 0)
            for number, oldest in self.inside.items()
        ]

    def tick(self):
        if self.busy > 0:
            self.busy -= 1
            if self.busy == 0:
                self.counters = self.counters._replace(version=self.counters.version + 1)
        old = admission.too_old(self.rule, self.counters.version, self.groups())
        self._remove(old)
        self.dropped += old
        self.counters = self.counters._replace(dropped=self.counters.dropped + len(old))
        if self.busy == 0 and (batch := self.choose(self.rule, self.counters, self.groups())) is not None:
            self.lags += [self.counters.version - self.inside[number] for number in batch]
            self.taken += batch
            self._remove(batch)
            self.counters = self.counters._replace(taken=self.counters.taken + len(batch))
            self.busy = self.train_ticks + 1
        for _ in range(admission.room(self.rule, self.counters, self.groups())):
            number = self.counters.admitted
            self.inside[number] = None
            self.left[number] = 1 + min(int(self.draw.lognormal(1.0, self.sigma)), 60)
            self.counters = self.counters._replace(admitted=number + 1)
            most = (self.rule.eta + self.counters.version + 1) * self.rule.batch
            assert self.counters.admitted - self.counters.dropped <= most
        running = [number for number in self.inside if self.left[number]]
        assert not self.rule.max_running or len(running) <= self.rule.max_running
        for number in running:
            self.inside[number] = self.counters.version if self.inside[number] is None else self.inside[number]
            self.left[number] -= 1

    def _remove(self, numbers):
        for number in numbers:
            del self.inside[number], self.left[number]

    def restored(self):
        """A run that goes on from the numbers alone."""
        other = Schedule(self.rule, 0, self.choose)
        other.draw.bit_generator.state = self.draw.bit_generator.state
        other.counters, other.busy, other.train_ticks = Counters(*self.counters), self.busy, self.train_ticks
        other.inside, other.left, other.sigma = dict(self.inside), dict(self.left), self.sigma
        other.taken, other.dropped, other.lags = list(self.taken), list(self.dropped), list(self.lags)
        return other


def rule_of(draw):
    batch, eta = int(draw.integers(1, 5)), int(draw.integers(0, 5))
    order = admission.ORDERS[draw.integers(3)]
    limit = int(draw.choice([0, batch, 3 * batch]))
    return Rule(batch, eta, eta + int(draw.integers(0, 5)), order, limit).check()


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_random_schedules_keep_both_bounds_and_lose_nothing(count):
    draw, trained = np.random.default_rng(0), 0
    for seed in range(count):
        rule = rule_of(draw)
        run, ticks = Schedule(rule, seed), int(draw.integers(5, 25))
        for tick in range(ticks):
            run.tick()
            if tick == ticks // 2 and seed % 4 == 0:
                twin, run = run, run.restored()
                twin.tick()
                like = run.restored()
                like.tick()
                assert (like.taken, like.dropped, like.counters) == (twin.taken, twin.dropped, twin.counters)
        assert max(run.lags, default=0) <= rule.bound
        seen = sorted([*run.taken, *run.dropped, *run.inside])
        assert seen == list(range(run.counters.admitted))  # none lost, none twice
        assert run.counters[2:] == (len(run.taken), len(run.dropped))
        trained += len(run.lags)
    assert trained > 5 * count, "the schedules must train on something"


def test_a_run_always_goes_on():
    """Whatever the rule, some batch is made within the longest group's time."""
    draw = np.random.default_rng(1)
    for seed in range(6):
        run = Schedule(rule_of(draw), seed)
        for _ in range(4):
            before = len(run.taken)
            for _ in range(3 * 62 * (run.rule.batch if run.rule.max_running else 1)):
                run.tick()
            assert len(run.taken) > before


def waits_for_the_due_only(rule, counters, groups):
    """The rule of the design: a batch waits only for groups that are `age` versions old now."""
    ready = sorted(group for group in groups if group.finished)[: rule.batch]
    due = [group for group in groups if counters.version - group.oldest >= rule.age]
    waiting = len(ready) < rule.batch or any(not group.finished for group in due)
    return None if waiting else sorted(group.number for group in ready)


@pytest.mark.parametrize("choose", [waits_for_the_due_only, admission.next_batch])
def test_more_groups_than_a_batch_may_fall_due_at_once(choose):
    """The design's rule breaks its bound: 2 B groups of version 0 end together at their age, and one batch takes B."""
    rule = Rule(batch=2, eta=2, age=3)
    run = Schedule(rule, 0, choose)
    run.train_ticks = 0
    slow, taken, still = [2, 3, 4, 5], 0, 0  # of the 6 groups that version 0 lets in
    for _ in range(60):
        run.tick()
        still, taken = (still + 1 if len(run.taken) == taken else 0), len(run.taken)
        for number, ticks in run.left.items():  # the slow ones end only while the trainer waits for them
            run.left[number] = 30 if number in slow and ticks and still < 3 else min(ticks, 1)
    assert max(run.lags) == (4 if choose is waits_for_the_due_only else 3)
    assert set(slow) < set(run.taken)


def test_orders_differ_where_a_group_is_slow():
    groups = [Group(0, 0, False), Group(1, 0, True), Group(2, 1, True), Group(3, 1, True)]
    now = Counters(version=1, admitted=4)
    assert admission.next_batch(Rule(2, 2, 8), now, groups) == [1, 2]
    assert admission.next_batch(Rule(2, 2, 8, "oldest"), now, groups) is None
    assert admission.too_old(Rule(2, 2, 8, "drop"), 3, groups) == [0, 1]
    assert admission.too_old(Rule(2, 2, 8), 30, groups) == []
    assert admission.room(Rule(2, 2, 8), now, groups) == 4
    assert admission.room(Rule(2, 2, 8, max_running=3), now, groups) == 2
    assert admission.room(Rule(2, 0, 8), now._replace(version=0), groups) == 0


@pytest.mark.parametrize("order", admission.ORDERS)
def test_nothing_is_stale_if_nothing_runs_ahead(order):
    """eta=0 alone makes a run synchronous, whatever its age: the bound says so, and a schedule keeps it."""
    rule = Rule(2, 0, 8, order).check()
    run = Schedule(rule, 3)
    for _ in range(200):
        run.tick()
    assert rule.bound == 0 and len(run.lags) > 20 and max(run.lags) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (dict(order="newest"), "order='newest' is none of ready, oldest, drop"),
        (dict(eta=-1), "eta=-1 must be 0 or more"),
        (dict(batch=0), "batch=0 must be 1 or more"),
        (dict(eta=4, age=3), "age=3 must be at least eta=4"),
    ],
)
def test_rules_that_bound_nothing_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Rule(**dict(batch=2) | fields).check()


class ByGroup:
    """Takes a batch group by group, at each tick those that it is sure of."""

    def __init__(self):
        self.held, self.early = [], 0

    def __call__(self, rule, counters, groups):
        while left := rule.batch - len(self.held):
            number = admission.next_group(rule, counters, [g for g in groups if g.number not in self.held], left)
            if number is None:
                break
            self.held.append(number)
        whole = admission.next_batch(rule, counters, groups)
        assert (whole is None) == (len(self.held) < rule.batch), "both make the batch at the same tick"
        if whole is None:
            self.early += len(self.held) > 0
        else:
            assert sorted(self.held) == whole
            self.held = []
        return whole


@pytest.mark.parametrize("count", [100, pytest.param(1_000, marks=pytest.mark.slow)])
def test_a_batch_taken_group_by_group_is_the_batch(count):
    """Of random schedules: what is sure is in the batch, whatever else ends; the last group waits as the batch does."""
    draw, early = np.random.default_rng(2), 0
    for seed in range(count):
        choose = ByGroup()
        run = Schedule(rule_of(draw), seed, choose)
        for _ in range(20):
            run.tick()
        early += choose.early
    assert early > count, "some groups are taken while others of their batch are sampled"
