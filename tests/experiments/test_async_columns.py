"""flow.columns: what a judge says travels row by row, and what cannot be is refused. The runs: test_async_stream."""

import numpy as np
import pytest

from experiments.parts import async_check
from experiments.parts.async_columns import joined_results, split_results
from rl_jax.flow.columns import Row
from rl_jax.rewards.pool import RewardResult
from tests.experiments.test_async_stream import streamed


def result_of(rewards, failed, timeouts=0, error=None, **components):
    failed = None if failed is None else np.array(failed)
    errors = 0 if failed is None else int(failed.sum()) - timeouts
    columns = {name: np.array(column, np.float32) for name, column in components.items()}
    return RewardResult(np.array(rewards, np.float32), columns, timeouts, errors, error, failed)


def through(results):
    """The result of the rows of several micro-batches."""
    rows = [columns for result in results for columns in split_results(result)]
    return joined_results([Row(number, columns) for number, columns in enumerate(rows)])


def same(one, other):
    for ours, theirs in zip(one, other, strict=True):
        if isinstance(ours, dict):
            assert list(ours) == list(theirs)
        np.testing.assert_equal(ours, theirs)


def test_results_are_put_together_as_they_were():
    """To the bit, with NaN, with names that some rows lack, and counts that add up."""
    odd = result_of([0.1, np.nan, 1 / 3], [False, False, False], b=[0.1, 2, 3], a=[1, 1, 0.7])
    same(through([odd]), odd._replace(components=dict(sorted(odd.components.items()))))
    late = result_of([0.5, 0, 0, 0], [False, True, True, True], 1, "too late", a=[0.3, 0, 0, 0])
    parts = [result_of([1], [False], c=[2.0]), late]
    expected = result_of([1, 0.5, 0, 0, 0], [False, False, True, True, True], 1, "too late", a=[0, 0.3, 0, 0, 0])
    same(through(parts), expected._replace(components=expected.components | {"c": np.float32([2, 0, 0, 0, 0])}))
    assert through([result_of([1.0], None)]).failed is None


@pytest.mark.parametrize(
    ("flow", "fields", "words"),
    [
        (dict(streaming=False), {}, "flow.streaming=False: its parts are the micro-batches: set it to True"),
        ({}, dict(packing__mode="packed"), "packing.mode='packed': packed rows are of another shape each time"),
    ],
)
def test_what_cannot_be_scored_row_by_row_is_refused(tmp_path, monkeypatch, flow, fields, words):
    monkeypatch.setattr("experiments.parts.streaming.couplings", lambda config: [])  # tried on arrays: a second
    flow = dict(samplers=1) | flow
    with pytest.raises(ValueError, match=f"flow.columns=True scores rows as they end: {words}"):
        async_check.checked(streamed(tmp_path, dict(columns=True) | flow, **fields))
    async_check.checked(streamed(tmp_path, flow, **fields))
