"""The bookkeeping of groups, against the one promise: in the end every group was used once."""

import random

import pytest

from rl_jax.flow.ledger import Done, Ledger, from_state


def test_oldest_finished_goes_first():
    ledger = Ledger()
    for number, finished in ((0, 9), (1, 4), (2, 4)):
        assert ledger.add(number, finished)
    assert ledger.take(4) == [] and ledger.take(2) == [1, 2] and ledger.take(1, [0]) == [0]


def test_numbers_are_entered_once():
    ledger = Ledger()
    assert ledger.add(5, 0) and not ledger.add(5, 1)
    ledger.take(1)
    assert not ledger.add(5, 0)
    ledger.acknowledge(1, [5])
    assert not ledger.add(5, 0)
    ledger.settle(1)
    assert not ledger.add(5, 0) and ledger.knows(5)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda ledger: ledger.take(1, [0]), "taken before"),
        (lambda ledger: ledger.take(2, [1, 1]), "1 different numbers"),
        (lambda ledger: ledger.acknowledge(2, [1]), "group 1 was not taken"),
        (lambda ledger: ledger.acknowledge(1, []), "only go up"),
        (lambda ledger: (ledger.settle(1), ledger.resume(0)), "restore a newer checkpoint"),
    ],
)
def test_wrong_calls_are_refused(call, words):
    ledger = Ledger()
    ledger.add(0, 0), ledger.add(1, 1)
    ledger.take(1)
    ledger.acknowledge(1, [0])
    with pytest.raises(ValueError, match=words):
        call(ledger)


def test_done_stays_small():
    done = Done()
    order = list(range(100))
    random.Random(0).shuffle(order)
    for number in order:
        done.add([number])
        assert number in done
    assert done.below == 100 and done.others == set() and 100 not in done


def test_dropped_numbers_are_done_with_their_step():
    """10 % are never put; also over a saved state and a step that is lost."""
    ledger, rng, number, dropped = Ledger(), random.Random(0), 0, []
    for step in range(1, 200):
        batch = []
        while len(batch) < 4:
            (dropped if rng.random() < 0.1 else batch).append(number)
            number += 1
        for one in batch:
            ledger.add(one, one)
        for is_killed in (True, False):
            ledger.take(4)
            ledger.acknowledge(step, batch, dropped)
            if is_killed:
                ledger = from_state(ledger.state())
                ledger.resume(step - 1)
                assert not ledger.dropped
        dropped = []
        ledger = from_state(ledger.state())
        ledger.settle(step)
        assert (ledger.done.below, ledger.done.others) == (number, set())
    assert from_state({"waiting": [], "trained": {}, "settled": 3, "done": {"below": 1, "others": [5]}}).knows(5)


def test_random_runs_use_every_group_once():
    """Put, take, acknowledge, save, settle and dying in any order: the params of a checkpoint hold each group once."""
    for seed in range(300):
        rng = random.Random(seed)
        ledger, step, used, saved = Ledger(), 0, [], (0, [])
        made = 0
        for _ in range(60):
            match rng.randrange(7):
                case 0 | 1:
                    ledger.add(made, rng.randrange(9))
                    made += 1
                case 2 | 3:
                    taken = ledger.take(rng.randrange(1, 4))
                    if taken:
                        step += 1
                        ledger.acknowledge(step, taken)
                        used = used + taken
                case 4:
                    saved = (step, used)
                case 5:
                    ledger.settle(saved[0])
                case 6:
                    ledger = from_state(ledger.state()) if rng.random() < 0.5 else ledger
                    step, used = saved
                    ledger.resume(step)
        used = used + ledger.take(len(ledger.waiting))
        assert sorted(used) == list(range(made)), seed
