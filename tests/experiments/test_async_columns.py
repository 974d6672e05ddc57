"""flow.columns: what a judge says travels row by row, and what cannot be is refused. The runs: test_async_stream."""

import copy
import json
import threading
import types

import numpy as np
import pytest

from experiments.parts import async_check, async_columns, async_rows
from experiments.parts.async_collect import AsyncCollector
from experiments.parts.async_columns import ColumnCollector, coupled, joined_results, problems, split_results
from experiments.parts.async_flow import Flow
from experiments.parts.async_groups import GroupRows
from experiments.parts.async_rows import TASKS, RowFlow, RowTrainer, digest_of
from rl_jax.core.binding import public_functions
from rl_jax.experience.admission import Counters
from rl_jax.flow.columns import Row, TransferQueue
from rl_jax.rewards import compose
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


def test_rows_come_in_as_they_end_and_go_with_their_group():
    """A group that is thrown away takes its rows along, also while they are judged."""
    groups = [GroupRows(number, {"prompt": str(number)}, 2) for number in (3, 5)]
    ended = types.SimpleNamespace(tokens=np.arange(3, dtype=np.int32), reason="eos", routes=None)
    side, begun = object.__new__(ColumnCollector), []
    side._flow = types.SimpleNamespace(groups=lambda: groups, counters=Counters(admitted=6))
    side._queue, side._size = TransferQueue(TASKS), 2
    side._chosen, side._forwards, side._begun = [], (), []
    side._judge = lambda: begun.extend(side._queue.take("judge", 9, at_least=1))
    groups[0].rows[1] = groups[1].rows[0] = ended
    side._turn(), side._turn()
    assert [row.number for row in begun] == side._queue.numbers() == [7, 10]
    assert begun[0].values["record"] == '{"prompt": "3"}' and begun[0].values["ended"] == "eos"
    side._begin("judge", begun, lambda: [{"reward": 1.0}, {"reward": 2.0}])
    groups[1].rows[1] = ended
    del groups[0]
    side._turn()
    assert side._queue.numbers() == [10, 11]
    side._receive(lambda: False)
    assert side._queue.ready("train", ("reward",)) == [10], "what was judged of the other is not put"
    assert side._queue.state()[0]["done"] == {"below": 10, "others": []}, "nothing is kept of a row that never ended"


def restored(monkeypatch, saved_by, config):
    """The rows in the queue of a run that goes on, with `config`, from what a run of `saved_by` has saved."""
    monkeypatch.setattr(Flow, "get_state", lambda self: {})
    monkeypatch.setattr(Flow, "set_state", lambda self, state: None)
    one, other = object.__new__(RowFlow), object.__new__(RowFlow)
    for side, its in ((one, saved_by), (other, config)):
        side.queue, side._digest = TransferQueue(TASKS), digest_of(its)
    one.queue.put("sampler", {3: dict(record="{}", response=np.arange(2, dtype=np.int32), ended="eos")})
    one.queue.put("judge", {3: dict(reward=1.0, judgement="{}")})
    other.set_state(json.loads(json.dumps(one.get_state())))
    return other.queue.numbers()


def test_a_run_with_another_reward_judges_again(tmp_path, monkeypatch):
    """--fork=NEW --config.reward...: rows that were judged ahead have the old reward, so the queue starts empty."""
    config = streamed(tmp_path, dict(columns=True))

    def found(**fields):
        other = copy.deepcopy(config)
        other.update_from_flattened_dict(fields)
        return restored(monkeypatch, config, other)

    assert found() == found(**{"train.steps": 9, "reward.num_workers": 3}) == [3], "no column depends on these"
    assert found(**{"reward.failure_reward": -7.0}) == found(**{"model.num_layers": 2}) == []
    assert found(**{"algorithm.reference_schedule.fn": "moving_average"}) == []


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


def lowest(terms, weights):
    """A composition that reads all rows."""
    return terms["a"] - terms["a"].min()


def test_compositions_that_may_couple_rows_are_refused(tmp_path):
    """One's own, as a path or as a function, also within another one; all of this project's own are known."""
    path = f"{lowest.__module__}:lowest"
    for spec, field in (
        (dict(fn=path), "reward.compose"),
        (lowest, "reward.compose"),
        (dict(fn="clip", low=0.0, of=dict(fn="gate", by="a", of=path)), "reward.compose.of.of"),
    ):
        (said,) = coupled(spec)
        assert said.startswith(f"{field}={path!r}: ") and said.endswith("or set flow.columns=False")
    for name, function in public_functions(compose).items():
        assert coupled(dict(fn=name)) == coupled(function) == [], name
    config = streamed(tmp_path, dict(columns=True))
    config.reward.compose = dict(fn=path)
    assert problems(config) == [], "without terms nothing is composed"
    config.reward.terms = dict(a=dict(fn="task", weight=1.0))
    assert len(problems(config)) == 1


@pytest.mark.parametrize("kind", [RowFlow, RowTrainer])
def test_one_thread_judges_until_the_run_ends(monkeypatch, kind):
    """A reward worker ends with the thread that has started it, so that thread outlasts a step."""
    base, ended, threads = kind.__bases__[0], [], []

    def judge_rows(*_):
        threads.append(threading.current_thread())
        return types.SimpleNamespace(result=result_of([1.0], None))

    monkeypatch.setattr(base, "__init__", lambda self, setup: None)
    monkeypatch.setattr(base, "__exit__", lambda self, *error: ended.append(error))
    monkeypatch.setattr(async_rows, "digest_of", lambda config: "")
    monkeypatch.setattr(async_columns, "judge_rows", judge_rows)
    flow, side = kind(types.SimpleNamespace(config=None)), object.__new__(ColumnCollector)
    monkeypatch.setattr(flow, "parts", lambda: iter(()), raising=False)
    flow.groups, flow.counters = (lambda: []), Counters()
    side._flow, side._queue, side._judged_by, side._judging, side._size = flow, flow.queue, 1, None, 1
    side._begun, side._chosen, side._rollout = [], [], lambda rows: (None, [])
    monkeypatch.setattr(side, "_enter", lambda groups: None)
    monkeypatch.setattr(async_columns, "needs_scores", lambda config: False)
    monkeypatch.setattr(async_columns.policy, "needs_ref_log_probs", lambda config: False)
    monkeypatch.setattr(side, "_known", lambda: [])
    side._setup = types.SimpleNamespace(config=None)
    for number in range(2):  # steps
        flow.queue.put("sampler", {number: dict(record="{}", response=np.zeros(1, np.int32), ended="eos")})
        assert list(side(None, types.SimpleNamespace(looks=False))) == []
    assert threads[0] is threads[1] is not threading.current_thread() and threads[0].is_alive()
    flow.__exit__(None, None, None)
    assert ended and not threads[0].is_alive(), "no thread is left"


def test_only_tasks_that_run_are_logged(monkeypatch):
    """Without a reference term nothing is said of reference."""
    monkeypatch.setattr(AsyncCollector, "joined", lambda self, parts: types.SimpleNamespace(metrics={}))
    side = object.__new__(ColumnCollector)
    side._queue, side._forwards, side._reads = TransferQueue(TASKS), ("policy",), {}
    names = {name.split("/")[2].rpartition("_")[0] for name in side.joined([]).metrics}
    assert names == {"judge", "policy", "train"}
