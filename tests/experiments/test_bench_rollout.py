"""experiments/bench/rollout.py at toy size: its line of JSON, its lengths, and what it takes for equal."""

import json

import numpy as np
import pytest

from experiments.bench import rollout

SMALL = (
    "--layers=1 --d=32 --ff=32 --heads=2 --kv=1 --head_dim=16 --vocab=64 --requests=16 --slots=8 --group=4 --plen=8 "
    "--clen=16 --rounds=1 --chunk=8 --steps=8"
).split()


@pytest.mark.slow
def test_one_line_of_json(capsys):
    rollout.main(SMALL)
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    static, ours = found["rows"]
    assert (static["name"], ours["name"]) == ("lockstep", "continuous")
    for row in found["rows"]:
        assert row["rows_equal"] + row["rows_tied"] == 16 and row["tokens_per_s"] > 0
    assert found["recompiled"] == 0 and ours["sizes"] == [8, 4] and list(found["decode"]) == ["8", "4"]
    assert found["ratio"] > 0 and found["prefill_tokens_per_s"] > 0 and 0 < found["tokens"] <= 16 * 16
    assert all(0 < by_size["bandwidth_share"] for by_size in found["decode"].values())


def test_most_lengths_end_by_a_quarter():
    lengths = rollout.heavy_tailed(4000, 256, seed=0)
    assert lengths.min() >= 1 and 250 < lengths.max() <= 256
    assert 0.75 < np.mean(lengths <= 64) < 0.85 and np.median(lengths) < 64
    np.testing.assert_array_equal(lengths, rollout.heavy_tailed(4000, 256, seed=0))


def test_what_is_a_tie_and_what_an_error():
    expected = [np.array([1, 5, 9]), np.array([4, 4])]
    assert rollout.compare(expected, expected) == {"rows_equal": 2, "rows_tied": 0}
    tied = [np.array([1, 6, 30]), np.array([4, 4])]
    assert rollout.compare(tied, expected) == {"rows_equal": 1, "rows_tied": 1}
    for wrong in ([np.array([1, 7, 9]), np.array([4, 4])], [np.array([1, 5, 9]), np.array([4])]):
        with pytest.raises(AssertionError, match="the same request has different tokens"):
            rollout.compare(wrong, expected)


def test_sizes_that_do_not_divide_are_refused(capsys):
    with pytest.raises(SystemExit):
        rollout.main(["--slots=12", "--group=8"])
    assert "--slots must be a multiple of --group" in capsys.readouterr().err
