"""What all links promise, on each of them."""

import threading

import ml_dtypes
import numpy as np
import pyarrow
import pytest

from rl_jax.experience import trajectory
from rl_jax.flow import rows
from rl_jax.flow.flight import FlightTrainer
from rl_jax.flow.flight_sampler import FlightSampler
from rl_jax.flow.folder import Folder
from rl_jax.flow.local import Local
from rl_jax.flow.protocol import Group

TOKEN = "a-token-of-this-test"


def open_pair(kind, folder, **options):
    """(trainer's side, sampler's side)."""
    if kind == "local":
        link = Local(**options)
        return link, link
    if kind == "both":
        link = Folder(folder, role="both", **options)
        return link, link
    if kind == "folder":
        return Folder(folder, role="trainer", **options), Folder(folder, role="sampler", **options)
    trainer = FlightTrainer(folder, token=TOKEN, **options)
    return trainer, FlightSampler(trainer.address, token=TOKEN, call_s=60)


@pytest.fixture(params=["local", "both", "folder", "flight"])
def pair(request, tmp_path):
    sides = open_pair(request.param, tmp_path / "link", max_waiting=4)
    yield sides
    for side in sides[::-1]:
        side.close()


def group(number, finished=0, value=1.5):
    return Group(number, finished, pyarrow.table({"value": [value, 2.5], "name": ["x", "y"]}))


def params(value=0.0):
    return {
        "layers": {"q": np.full((2, 3), value, np.float32), "scale": np.asarray(value, ml_dtypes.bfloat16)},
        "embed": np.arange(4, dtype=np.int32),
    }


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, dict):
            same(found[name], value)
        else:
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            assert np.array_equal(found[name], value)


def test_weights_arrive_bit_for_bit(pair):
    trainer, sampler = pair
    trainer.resume(0)
    assert sampler.newest() is None and sampler.weights(0) is None
    trainer.publish(0, params(1.0))
    version, found = sampler.newest()
    same(found, params(1.0))
    assert version == 0 and sampler.newest(after=0) is None and sampler.weights(1) is None
    for step in (1, 2):
        trainer.publish(step, params(float(step)))
    assert sampler.newest(after=0)[0] == 2
    same(sampler.weights(1), params(1.0))
    with pytest.raises(LookupError, match="version 0 are gone: versions"):
        sampler.weights(0)


def test_groups_arrive_once_and_whole(pair):
    trainer, sampler = pair
    trainer.resume(0)
    assert trainer.take(1) == []
    assert sampler.put([group(1, 7, 0.1), group(0, 9)])
    assert sampler.put([group(1, 7, 0.1)]) and trainer.waiting() == [(7, 1), (9, 0)]
    assert trainer.take(3) == [] and trainer.take(2) == [group(1, 7, 0.1), group(0, 9)]
    assert sampler.put([group(0, 9)]) and trainer.waiting() == []
    trainer.acknowledge(1, [0, 1])
    trainer.settle(1)
    assert sampler.put([group(0, 9)]) and trainer.waiting() == []
    assert sampler.known([0, 1, 2]) == {0, 1}


def test_groups_that_their_sampler_dropped_leave_no_gap(pair):
    """They are never put. Without a word of them each would be remembered for ever, and read at every put."""
    trainer, sampler = pair
    trainer.resume(0)
    sampler.put([group(0), group(3)])
    trainer.take(2)
    trainer.acknowledge(1, [0, 3], [1, 2])
    assert sampler.known([0, 1, 2, 3]) == {0, 3}, "the trainer may still go back"
    trainer.settle(1)
    assert sampler.known(range(5)) == {0, 1, 2, 3}
    ledger = getattr(trainer, "_store", trainer)._ledger
    assert (ledger.done.below, ledger.done.others, ledger.dropped) == (4, set(), {})


def test_what_a_lost_step_used_waits_again(pair):
    trainer, sampler = pair
    trainer.resume(0)
    sampler.put([group(number, number) for number in range(4)])
    for step in (1, 2):
        trainer.take(1)
        trainer.acknowledge(step, [step - 1])
    trainer.take(1)
    trainer.publish(1, params())
    trainer.publish(2, params())
    trainer.resume(1)
    assert trainer.waiting() == [(1, 1), (2, 2), (3, 3)]
    assert sampler.newest(after=2)[0] == 1  # the trainer went back


def test_a_full_link_takes_nothing_more(pair):
    trainer, sampler = pair
    trainer.resume(0)
    assert sampler.put([group(number, number) for number in range(4)])
    assert not sampler.put([group(4, 4)]) and sampler.put([group(3, 3)])
    trainer.take(1)
    trainer.acknowledge(1, [0])
    assert sampler.put([group(4, 4)])


def test_groups_by_number(pair):
    trainer, sampler = pair
    trainer.resume(0)
    sampler.put([group(number, 9 - number) for number in range(3)])
    assert [g.number for g in trainer.take(2, numbers=[2, 0])] == [2, 0]
    assert trainer.take(1, numbers=[5]) == []
    with pytest.raises(ValueError, match="group 2 was taken before"):
        trainer.take(1, numbers=[2])


def test_words(pair):
    trainer, sampler = pair
    assert sampler.hear("end") is None
    assert trainer.say("end", {"at": 3}) is True
    assert sampler.say("sampler-0", 17) is True
    assert sampler.hear("end") == {"at": 3} and trainer.hear("sampler-0") == 17 and sampler.lost_s() == 0
    for name, value, words in (("../x", 1, "a name has"), ("x", object(), "not a JSON value"), ("x", np.nan, "JSON")):
        with pytest.raises(ValueError, match=words):
            sampler.say(name, value)


def test_waiting_ends_when_something_comes(pair):
    """A taker that waits is woken: the test ends long before the limit that it gives."""
    trainer, sampler = pair
    trainer.resume(0)
    thread = threading.Thread(target=sampler.put, args=([group(0)],))
    thread.start()
    assert trainer.take(1, timeout_s=60) == [group(0)]
    thread.join()


def test_local_state_goes_into_a_checkpoint():
    link = Local()
    link.put([group(number, number) for number in range(3)])
    link.take(1), link.acknowledge(1, [0]), link.take(1)
    state = link.state()
    other = Local()
    other.restore(state)
    other.resume(1)
    assert other.take(2) == [group(1, 1), group(2, 2)] and other.known([0]) == {0}
    other.restore(state)
    other.resume(0)
    assert [number for _, number in other.waiting()] == [0, 1, 2]


def test_trajectories_travel(pair):
    trainer, sampler = pair
    trainer.resume(0)
    spans = (trajectory.prompt([1, 2]), trajectory.sampled([3, 4], [-0.5, -1.5], version=7))
    one = trajectory.Trajectory("p", 3, 0, (spans,), (trajectory.Turn(1.0),), "done").check()
    sampler.put([Group(3, 0, trajectory.to_table([one]))])
    (found,) = trainer.take(1)
    (back,) = trajectory.from_table(found.table)
    assert trajectory.to_table([back]).equals(trajectory.to_table([one]))


def test_rows_of_arrays():
    given = [
        {"x": np.arange(n * 2, dtype=np.float32).reshape(n, 2), "n": n, "s": "é", "ok": True, "f": 0.1} for n in (0, 3)
    ]
    back = rows.from_table(rows.to_table(given))
    for one, other in zip(given, back, strict=True):
        assert np.array_equal(one.pop("x"), (x := other.pop("x"))) and x.dtype == np.float32 and one == other
    for wrong, words in (
        ([{"a": 1}, {"b": 1}], "row 1 has"),
        ([{"a": [1]}], "'a' is list"),
        ([{"a": 1}, {"a": "1"}], "int"),
    ):
        with pytest.raises(ValueError, match=words):
            rows.to_table(wrong)
    with pytest.raises(ValueError, match="was not made by"):
        rows.from_table(pyarrow.table({"a": [1]}))


@pytest.mark.parametrize(
    "bad, words",
    [({}, "empty"), ({"a": {}}, "empty"), ({"a/b": np.ones(1)}, "without '/'"), ({"a": np.array("x")}, "none of")],
)
def test_params_that_cannot_be_named(bad, words):
    with pytest.raises(ValueError, match=words):
        Local.publish  # noqa: B018 (Local hands over as it is)
        Folder.publish(object.__new__(Folder), 0, bad)
