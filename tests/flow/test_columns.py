"""The transfer queue, against a table of which column of which row is there and which task has had it."""

import json
import random

import numpy as np
import pytest

from rl_jax.flow.columns import Task, TransferQueue

TASKS = {
    "sample": Task((), ("response", "length")),
    "judge": Task(("response",), ("reward",)),
    "score": Task(("response", "length"), ("log_probs",)),
    "train": Task(("reward", "log_probs")),
}
G = 3


class Table:
    """The same, kept as the public code does: two tables of flags, and the number of the put beside each."""

    def __init__(self, rows):
        self.columns = [column for task in TASKS.values() for column in task.writes]
        self.when = np.full((rows, len(self.columns)), -1)
        self.had = np.zeros((rows, len(TASKS)), bool)
        self.gone = np.zeros(rows, bool)

    def ready(self, task, group):
        wanted = [self.columns.index(column) for column in TASKS[task].reads]
        free = (self.when[:, wanted] >= 0).all(axis=1) & ~self.had[:, list(TASKS).index(task)] & ~self.gone
        last = self.when[:, wanted].max(axis=1)
        blocks = [
            (max(last[first : first + group]), first)
            for first in range(0, len(free), group)
            if free[first : first + group].all()
        ]
        return [number for _, first in sorted(blocks) for number in range(first, first + group)]


def moved(queue):
    """Another queue with the same state, which has been JSON and Arrow."""
    words, tables = queue.state()
    other = TransferQueue(TASKS)
    other.restore(json.loads(json.dumps(words)), tables)
    return other


def value_of(column, number):
    """What row `number` has in a column."""
    return np.full(number % 3, number, np.float32) if column in ("response", "log_probs") else float(number)


def test_random_runs_are_those_of_a_table():
    """Puts, takes by row and by group, forgotten rows and restored states, in any order."""
    for seed in range(20):
        rng, queue, table, rows = random.Random(seed), TransferQueue(TASKS), Table(12), list(range(12))
        served = {task: [] for task in TASKS}
        for put in range(60):
            task = rng.choice(list(TASKS))
            column = rng.choice(TASKS[task].writes or ("",))
            index = table.columns.index(column) if column else 0
            if found := [n for n in rng.sample(rows, 4) if column and table.when[n, index] < 0 and not table.gone[n]]:
                queue.put(task, {n: {column: value_of(column, n)} for n in found})
                table.when[found, index] = put
            task, group, count = rng.choice(list(TASKS)[1:]), rng.choice((1, G)), rng.choice((3, 6))
            expected = table.ready(task, group)
            assert queue.ready(task, group=group) == expected
            taken = queue.take(task, count, group=group, at_least=rng.choice((1, count)))
            assert [row.number for row in taken] in ([], expected[:count])
            assert bool(taken) or len(expected) < count
            for row in taken:
                assert row.values.keys() == set(TASKS[task].reads)
                for name, value in row.values.items():
                    np.testing.assert_array_equal(value, value_of(name, row.number))
            table.had[[row.number for row in taken], list(TASKS).index(task)] = True
            served[task] += [row.number for row in taken]
            if rng.random() < 0.05:
                number = rng.choice(rows)
                queue.forget([number])
                table.gone[number] = True
            if rng.random() < 0.1:
                queue = moved(queue)
        assert all(len(set(numbers)) == len(numbers) for numbers in served.values()), "a row goes to a task once"
        assert queue.taken == {task: len(numbers) for task, numbers in served.items()}


def test_a_task_waits_for_its_columns_and_for_no_other_task():
    """A row is judged before its siblings have ended; scored or not, it is not trained on before it is both."""
    queue = TransferQueue(TASKS)
    queue.put("sample", {4: {"response": np.arange(2), "length": 2}, 3: {"response": np.arange(5)}})
    assert [row.number for row in queue.take("judge", 2)] == [3, 4] and queue.take("judge", 1) == []
    assert queue.ready("score") == [4] and queue.take("score", 2) == []
    queue.put("judge", {3: {"reward": 0.5}, 4: {"reward": 1.5}})
    queue.put("sample", {3: {"length": 5}})
    assert queue.take("train", 1) == [] and [row.number for row in queue.take("score", 2)] == [4, 3]
    queue.put("score", {3: {"log_probs": np.zeros(5)}})
    assert queue.take("train", G, group=G) == [] and queue.ready("train", ("reward",)) == [3, 4]
    assert queue.take("train", 2, numbers=[4, 3]) == []
    assert [row.number for row in queue.take("train", 2, ("reward",), numbers=[4, 3])] == [4, 3]


def test_consumers_of_one_task_share_its_rows():
    """Who asks more often gets more, and nobody gets a row twice."""
    queue = TransferQueue(TASKS)
    queue.put("sample", {number: {"response": np.arange(1)} for number in range(9)})
    got = {"slow": [], "fast": []}
    for consumer in ("fast", "fast", "slow", "fast", "slow"):
        got[consumer] += [row.number for row in queue.take("judge", 2, at_least=1)]
    assert got == {"fast": [0, 1, 2, 3, 6, 7], "slow": [4, 5, 8]}


def wrong(reads=(), writes=(), name="extra"):
    return TransferQueue(TASKS | {name: Task(reads, writes)})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda queue: wrong(writes=("reward",)), "'reward' is written by 'judge' and by 'extra'"),
        (lambda queue: wrong(reads=("values",)), "'extra' reads 'values', which nobody writes; the columns are"),
        (lambda queue: queue.put("judge", {0: {"rewrd": 1.0}}), "put column 'rewrd' of row 0: it writes reward"),
        (lambda queue: queue.put("judge", {0: {"log_probs": 1.0}}), "column 'log_probs' of row 0: it writes reward"),
        (lambda queue: queue.put("train", {0: {"reward": 1.0}}), "put column 'reward' of row 0: it writes none"),
        (lambda queue: queue.put("sample", {0: {"response": 1.0}}), "'response' of row 0 is there: a column is"),
        (lambda queue: queue.put("judge", {9: {"reward": 1.0}}), "row 9 was forgotten, and task 'judge' put reward"),
        (lambda queue: queue.put("jugde", {0: {"reward": 1.0}}), "no task 'jugde': there are sample, judge"),
        (lambda queue: queue.take("jugde", 1), "no task 'jugde'"),
        (lambda queue: queue.take("judge", 1, ("values",)), "'judge' reads 'values', which nobody writes"),
        (lambda queue: queue.take("judge", 4, group=3), "with group=3: count is rows of whole groups"),
        (lambda queue: queue.take("judge", 2, numbers=[1, 1]), "and 1 different numbers"),
        (lambda queue: queue.restore(wrong().state()[0], {}), "a state of tasks sample, judge, score, train, extra"),
    ],
)
def test_wrong_calls_are_refused(call, words):
    queue = TransferQueue(TASKS)
    queue.put("sample", {0: {"response": np.arange(1)}, 9: {"length": 3}})
    queue.forget([9])
    before = queue.state()[0]
    with pytest.raises(ValueError, match=words):
        call(queue)
    assert queue.state()[0] == before, "nothing of it has happened"


def test_a_queue_without_guards_keeps_no_numbers():
    """A trainer that comes back gets rows from a high number on, in any order; its link refuses what was there."""
    queue = TransferQueue(TASKS, guards=False)
    queue.put("sample", {90: {"response": 1.0}})
    queue.forget([90, 70])
    assert queue.state()[0]["done"] == {"below": 0, "others": []} and queue.numbers() == []
    queue.put("sample", {70: {"response": 1.0}})
