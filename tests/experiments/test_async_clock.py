"""Samplers under one clock: each decides as one process does, also if one of them is killed. No model."""

import threading
import time

import numpy as np
import pytest

from experiments.parts.async_clock import Fleet, make_exchange
from experiments.parts.async_shares import Share
from rl_jax.experience import admission
from rl_jax.experience.admission import Counters, Rule
from rl_jax.flow import Local

SAMPLERS, STEPS = 2, 6
RULES = [Rule(4, 2, 4, "ready"), Rule(4, 1, 1, "drop"), Rule(4, 2, 8, "oldest"), Rule(4, 3, 3, "ready", 5)]


class Killed(Exception):
    """Instead of SIGKILL."""


class Member:
    """In place of async_groups.Groups: a group of number n takes a number of calls that depends on n, in 3 slots."""

    def __init__(self, share, batch):
        self.share, self.batch, self.left, self.oldest = share, batch, {}, {}

    @property
    def idle(self):
        return not any(self.left.values())

    def admit(self, own):
        number = self.share.number(own, self.batch)
        self.left[number] = int(np.random.default_rng(number).geometric(0.2))

    def step(self, params, version):
        for number in [number for number, left in self.left.items() if left][:3]:
            self.oldest.setdefault(number, version)
            self.left[number] -= 1

    def inside(self, version):
        return [admission.Group(n, self.oldest.get(n, version), left == 0) for n, left in self.left.items()]

    def take(self, numbers):
        for number in numbers:
            assert self.left.pop(number) == 0
        return [admission.Group(number, self.oldest.pop(number), True) for number in numbers]

    def drop(self, numbers):
        return [self.left.pop(number) for number in numbers]

    def get_state(self):
        return {"left": dict(self.left), "oldest": dict(self.oldest)}

    def set_state(self, state):
        self.left, self.oldest = dict(state["left"]), dict(state["oldest"])


def fleet_of(rule, indices, exchange=None):
    members = {i: Member(Share(i, SAMPLERS), rule.batch) for i in indices}
    return Fleet(members, SAMPLERS, rule.batch, exchange)


class Side:
    """A sampler's loop as that of Flow: admit, call, compose, a few calls beside the training."""

    def __init__(self, rule, fleet, publish=lambda step: None):
        self.rule, self.fleet, self.publish = rule, fleet, publish
        self.counters, self.log, self.mine, self.calls_left = Counters(), [], [], 10**9

    def inside(self):
        old = admission.too_old(self.rule, self.counters.version, self.fleet.inside(self.counters.version))
        self.fleet.drop(old)
        self.counters = self.counters._replace(dropped=self.counters.dropped + len(old))
        return self.fleet.inside(self.counters.version)

    def call(self):
        for _ in range(admission.room(self.rule, self.counters, self.inside())):
            self.fleet.admit(self.counters.admitted)
            self.counters = self.counters._replace(admitted=self.counters.admitted + 1)
        if not self.fleet.idle:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Killed
            self.fleet.step(None, self.counters.version)

    def run(self):
        while self.counters.version < STEPS:
            state = self.fleet.get_state(), self.counters, len(self.log), len(self.mine)
            try:
                while (batch := admission.next_batch(self.rule, self.counters, self.inside())) is None:
                    self.call()
                self.log.append((batch, *self.counters))
                self.mine += self.fleet.take(batch)
                self.counters = self.counters._replace(taken=self.counters.taken + len(batch))
                self.publish(self.counters.version)
                for _ in range(2):
                    self.call()
            except Killed:
                self.fleet.set_state(state[0])
                self.counters, self.calls_left = state[1], 10**9
                del self.log[state[2] :], self.mine[state[3] :]
                continue
            self.counters = self.counters._replace(version=self.counters.version + 1)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.order)
def test_all_decide_as_one_does(rule):
    one = Side(rule, fleet_of(rule, range(SAMPLERS)))
    one.run()
    link, barrier, sides = Local(), threading.Barrier(SAMPLERS, timeout=60), []
    has_published = [-1] * SAMPLERS

    def patient(look, what, name):
        end = time.monotonic() + 60
        while not (found := look()):
            assert time.monotonic() < end, what
        return found

    def publish_of(index):
        def publish(version):  # as the trainer, which wants the groups of all before it has new weights
            if version > has_published[index]:
                has_published[index] = version
                barrier.wait()

        return publish

    for index in range(SAMPLERS):
        fleet = fleet_of(rule, [index], make_exchange(link, Share(index, SAMPLERS), patient))
        sides.append(Side(rule, fleet, publish_of(index)))
    sides[1].calls_left = 15  # then it dies, inside a batch or beside a train step
    threads = [threading.Thread(target=side.run) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and sides[1].calls_left > 10**6, "it was killed"
    assert all(side.log == one.log for side in sides) and len(one.log) == STEPS
    by_number = {group.number: group for side in sides for group in side.mine}
    assert [by_number[group.number] for group in one.mine] == one.mine
    assert {number % rule.batch % SAMPLERS for number in (group.number for group in sides[0].mine)} == {0}
    in_order = [batch == list(range(4 * i, 4 * i + 4)) for i, (batch, *_) in enumerate(one.log)]
    assert all(in_order) == (rule.order == "oldest")


def test_a_state_of_other_samplers_is_refused():
    state = fleet_of(RULES[0], [0]).get_state()
    with pytest.raises(ValueError, match="of other samplers: keep flow.samplers and --role"):
        fleet_of(RULES[0], [1]).set_state(state)


class Away(Local):
    """A link whose trainer is away at first, and forgets what was said when it comes back again later."""

    def __init__(self, away, forgets_at):
        super().__init__()
        self.away, self.forgets_at, self.looks = away, forgets_at, 0

    def say(self, name, value):
        self.away -= 1
        return self.away < 0 and super().say(name, value)

    def hear(self, name):
        self.looks += 1
        if self.looks == self.forgets_at:
            self._words.clear()
        return None if self.away > 0 else super().hear(name)


@pytest.mark.parametrize(("away", "forgets_at"), [(3, 0), (0, 5)], ids=["away", "restarted"])
def test_a_word_is_said_until_it_is_there(monkeypatch, away, forgets_at):
    """One that is lost would let the others wait for ever."""
    monkeypatch.setattr("experiments.parts.async_clock.PAUSE_S", 0.0)
    link, change = Away(away, forgets_at), (0, 1, 4, 0, True)

    def patient(look, what, name):
        for turn in range(3000):
            if found := look():
                return found
            if turn == 2500:  # only then the other one has made its call
                Local.say(link, "clock_1", [1, [change]])
        raise AssertionError(what)

    if away:
        Local.say(link, "clock_1", [1, [change]])  # and it is heard as soon as the trainer is back
    assert make_exchange(link, Share(0, 2), patient)(1, [change]) == [change]
    assert Local.hear(link, "clock_0") == [1, [list(change)]]
