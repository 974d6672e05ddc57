"""The model of time behind asynchronous_speed: small cases by hand."""

import numpy as np

from experiments.studies import asynchrony
from experiments.studies.asynchrony import Clock, Costs, asynchronous_schedules
from rl_jax.experience.admission import Rule

LENGTHS = np.array([[10.0], [10.0], [30.0], [10.0], [10.0], [10.0], [10.0], [10.0]])


def test_times_by_hand():
    """Two groups a batch, two slots, a train step of 10: eta 0 waits for every batch, then for every train step."""
    costs = Costs(mean=10, longest=8.0, slots=2, train=1.0)
    clock = Clock(Rule(2, 0, 0), costs, LENGTHS).run(3)
    assert clock.started == [10.0, 50.0, 70.0]  # 10 | train 10, sample 30 | train 10, sample 10
    assert clock.ages == [0] * 6 and clock.taken == [0, 1, 2, 3, 4, 5]
    ahead = Clock(Rule(2, 1, 8), costs, LENGTHS).run(3)
    assert ahead.started == [10.0, 30.0, 40.0]  # the long row of group 2 is overtaken
    assert ahead.taken == [0, 1, 3, 4, 2, 5] and max(ahead.ages) == 2
    barrier = Clock(Rule(2, 1, 1, "oldest"), costs, LENGTHS, drain=True).run(3)
    assert barrier.started == [10.0, 40.0, 50.0] and barrier.taken == [0, 1, 2, 3, 4, 5]


def test_what_is_dropped_is_gone_and_counted():
    lengths = np.where(np.arange(40)[:, None] % 4 == 2, 90.0, 10.0)
    clock = Clock(Rule(2, 1, 8, "drop"), Costs(10, 8.0, 4, 1.0), lengths).run(8)
    assert clock.dropped and not set(clock.dropped) & set(clock.taken) and max(clock.ages) <= 1
    assert len(set(clock.taken)) == len(clock.taken) == 16


def test_long_rows_that_still_wait_are_not_kept():
    """Group 2 is overtaken: until it is trained on, what was trained on is shorter than what was begun."""
    costs = Costs(mean=10, longest=8.0, slots=2, train=1.0)
    overtaken, later = (Clock(Rule(2, 1, 8), costs, LENGTHS).run(steps) for steps in (2, 3))
    assert asynchrony.kept_length(overtaken.taken, LENGTHS) == 10 / 14
    assert asynchrony.kept_length(later.taken, LENGTHS) == 1.0


def test_measurements_have_every_arm_and_sigma():
    found = asynchronous_schedules(
        (0, 1), arms={"a": dict(eta=1, age=4), "b": dict(eta=1, order="oldest", drain=True)}, base="a",
        sigmas=(0.25, 0.75),
        prompts=3, group_size=2, mean=8, longest=4.0, train=1.0, steps=9,
    )  # fmt: skip
    metrics = ("speed", "age", "kept", "over_base")
    assert set(found.values["a"]) == {f"{metric}_{sigma}" for metric in metrics for sigma in ("025", "075")}
    assert all(np.shape(column) == (2,) for metrics in found.values.values() for column in metrics.values())
    np.testing.assert_array_equal(found.values["a"]["over_base_075"], 1.0)
    assert max(found.values["a"]["age_075"]) <= 4 and max(found.values["b"]["age_075"]) <= 1
