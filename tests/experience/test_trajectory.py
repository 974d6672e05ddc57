"""rl_jax.experience.trajectory: what the record holds, what it refuses, and that an Arrow table is the same."""

import numpy as np
import pytest

from rl_jax.experience import trajectory as t


def example(**changes):
    """Two turns, then the history is rewritten and a third follows."""
    first = (t.prompt([5, 6]), t.sampled([7, 2], [-0.5, -0.1], [-0.4, -0.2], version=3), t.given("observation", [8]))
    first += (t.given("template", [4]), t.sampled([9], [-1.0], version=4))
    second = (t.prompt([5, 6, 9]), t.sampled([2], [-0.25], version=5))
    turns = (t.Turn(-0.05, "a", {"calls": 1.0}), t.Turn(0.0, "b", {}), t.Turn(1.0, "", {"correct": 1.0}))
    return t.Trajectory("p", 4, 1, (first, second), turns, "done")._replace(**changes)


def assert_same(one, other):
    """Every field, arrays by value and type."""
    assert one._replace(segments=()) == other._replace(segments=())
    for spans, others in zip(one.segments, other.segments, strict=True):
        for span, like in zip(spans, others, strict=True):
            assert span.kind == like.kind
            for name in ("ids", "log_probs", "raw_log_probs", "versions"):
                mine, its = getattr(span, name), getattr(like, name)
                assert mine.dtype == its.dtype
                np.testing.assert_array_equal(mine, its)


def test_ids_grow_and_rewards_add_up():
    whole = example().check()
    assert whole.ids(0).tolist() == [5, 6, 7, 2, 8, 4, 9] and whole.ids().tolist() == [5, 6, 9, 2]
    assert (whole.count("sampled"), whole.count("observation")) == (4, 1)
    assert whole.reward == pytest.approx(0.95)
    assert [span.versions.tolist() for span in whole.sampled()] == [[3, 3], [4], [5]]


def test_a_table_is_the_same_record():
    failed = t.Trajectory("q", 0, 0, (), (), "error", "ValueError: no server")
    rows = [example(), example(status="context")]
    table = t.to_table(rows)
    assert table.schema == t.schema() and table.num_rows == 2
    for one, other in zip(rows, t.from_table(table), strict=True):
        assert_same(one, other)
    assert t.to_table([failed]).to_pylist()[0]["error"] == "ValueError: no server"
    assert_same(failed, t.from_table(t.to_table([failed]))[0])
    assert t.from_table(t.to_table([])) == []
    extras = {"routes": np.arange(16, dtype=np.int16).reshape(4, 2, 2)}  # of the newest segment's tokens
    (found,) = t.from_table(t.to_table([example(extras=extras)]))
    np.testing.assert_array_equal(found.extras["routes"], extras["routes"])
    assert found.extras["routes"].dtype == np.int16
    assert t.from_table(t.to_table([example()]).drop_columns(["extras"]))[0].extras == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(status="over"), "status 'over' is none of"),
        (dict(turns=()), "0 turns, but 3 sampled spans"),
        (dict(segments=((t.given("observation", [3]),),), turns=()), "segment 0: it must begin with a prompt"),
        (dict(segments=((t.prompt([1]), t.Span("sampled", np.ones(2, np.int32))),)), "log_probs has 0 values for 2"),
        (dict(segments=((t.prompt([1]), t.given("user", [2])),), turns=()), "kind 'user' is none of"),
        (dict(segments=(), turns=()), "it has no segment"),
        (dict(extras={"routes": np.zeros((3, 1))}), "routes has 3 values for the 4 tokens"),
    ],
)
def test_what_breaks_the_record_is_named(changes, message):
    with pytest.raises(ValueError, match=f"prompt 'p', sample 1.*{message}"):
        example(**changes).check()


def test_a_table_without_a_column_is_refused():
    with pytest.raises(ValueError, match="lacks turns; it has prompt_id"):
        t.from_table(t.to_table([example()]).drop_columns(["turns"]))
