"""Ids, the memory of prompts, and the stream that a run draws from."""

import json

import numpy as np
import pytest

from rl_jax.data import pipeline
from rl_jax.experience import Feedback, PromptMemory, PromptStream, PromptTable, prompt_id, sources
from tests.experience.test_sources import RECORDS, TABLE, told


def test_an_id_is_stable_and_of_source_prompt_and_info():
    record = {"prompt": "1+1=", "completion": "2", "info": '{"answer": 2}'}
    assert prompt_id(record) == "6a5c2f8d142bebc1", "it changed: checkpoints of runs with a memory become useless"
    assert prompt_id(record | {"completion": "3", "index": 7}) == prompt_id(record)
    others = [record | change for change in ({"prompt": "1+2="}, {"info": "{}"}, {"source": "sums"})]
    assert len({prompt_id(other) for other in (record, *others)}) == 4
    assert prompt_id(record | {"id": "mine"}) == "mine"


def test_a_columns_missing_value_names_file_and_line():
    records = [{"prompt": "a", "info": '{"level": 1}'}, {"prompt": "b", "info": '{"file": "P.jsonl", "line": 7}'}]
    with pytest.raises(ValueError, match="P.jsonl, line 7, field 'level': it is missing; its info has file, line. Add"):
        PromptTable(records).numbers("level")
    assert PromptTable([{"prompt": "a", "level": 2}]).column("level") == [2]


def test_a_memory_of_visits_value_length_and_successes():
    memory = PromptMemory(successes=2)
    assert memory.get("new") == {"visits": 0, "value": 0.5, "best_length": None, "successes": [], "last": None}
    memory.update(told([4], [[1, 0, 1]], lengths=[[9, 2, 7]]))
    memory.update(told([4, 5], [[1, 1, 0.5], [0, 0, 0]], lengths=[[8, 9, 1], [1, 1, 1]]))
    found = memory.get("id4")
    assert found == {"visits": 2, "value": 4.5 / 6, "best_length": 7, "successes": ["4.0", "4.1"], "last": None}
    assert memory.get("id5") == {"visits": 1, "value": 0.0, "best_length": None, "successes": [], "last": None}
    kept = {"tokens": [3, 1], "log_probs": [-0.5, -0.25]}
    memory.update(told([5], [[0, 0, 0]])._replace(newest=[kept]))
    assert memory.get("id5")["last"] == kept
    other = PromptMemory(successes=2)
    other.restore(json.loads(json.dumps(memory.state())))
    memory.update(told([4], [[1, 1, 1]], lengths=[[1, 1, 1]]))
    assert other.get("id4") == found and memory.get("id4")["best_length"] == 1 and len(memory) == 2
    memory = PromptMemory()
    for number in range(3):  # of a prompt without a visit; equal ones are kept, the oldest go first
        memory.add_success("new", {"tokens": [number // 2]}, keep=2)
    assert memory.get("new")["successes"] == [{"tokens": [0]}, {"tokens": [1]}] and memory.get("new")["value"] == 0.5
    with pytest.raises(ValueError, match="successes must be 0 or more"):
        PromptMemory(successes=-1)


def stream(source, **options):
    return PromptStream(RECORDS, source, **{"batch_size": 8, **options})


def test_the_default_stream_is_the_plain_iterator_and_takes_its_position():
    plain, ours = pipeline.train_iterator(RECORDS, batch_size=8, seed=2), stream(sources.shuffled(TABLE, seed=2))
    for _ in range(5):
        expected, batch = next(plain), next(ours)
        assert [{name: record[name] for name in RECORDS[0]} for record in batch] == expected
        assert all(RECORDS[record["index"]]["prompt"] == record["prompt"] for record in batch)
        assert {record["source"] for record in batch} == {"a", "b"}
    ours.feedback(told([0], [[1, 0]]))
    assert ours.metrics() == {}, "a run that chooses nothing logs nothing new"
    older = stream(sources.shuffled(TABLE, seed=2))
    older.set_state(plain.get_state())  # of a checkpoint from before there were sources
    assert older.get_state() == ours.get_state() and next(older) == next(ours)
    with pytest.raises(ValueError, match="resume with the sample.prompts of the run"):
        stream(sources.by_success(TABLE)).set_state(plain.get_state())


class Read:
    """Records that note which of them are read."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return len(RECORDS)

    def __getitem__(self, index):
        self.read.append(index)
        return RECORDS[index]


@pytest.mark.parametrize("name", ["shuffled", "by_success", "exp3"])
def test_processes_share_each_batch_and_hold_the_same_state(name):
    def made(rows, records=RECORDS):
        source = getattr(sources, name)(PromptTable(RECORDS), seed=1)
        return PromptStream(records, source, batch_size=8, rows=rows, memory=PromptMemory())

    whole, parts = made(None), [made((0, 5)), made((1, 2, 3)), made((4, 6, 7))]
    for step in range(4):
        batch = next(whole)
        for rows, part in zip(((0, 5), (1, 2, 3), (4, 6, 7)), parts, strict=True):
            assert next(part) == [batch[row] for row in rows]
        indices = [record["index"] for record in batch]
        seen = told(indices, [[(i + step) % 2, 1] for i in indices])
        for one in (whole, *parts):
            one.feedback(seen)
        assert [part.get_state() for part in parts] == [whole.get_state()] * 3
    records = Read()
    mine = made((2, 3), records)
    assert [record["index"] for record in next(mine)] == records.read, "rows of other processes were read"
    for rows in ((7, 8), ()):
        with pytest.raises(ValueError, match="must be some of the 8 rows of a batch"):
            made(rows)


def test_what_is_recalled_is_from_before_the_step():
    ours = stream(sources.by_success(TABLE), memory=PromptMemory())
    records = [{"index": 4, "id": "id4"}, {"index": 5, "id": "id5"}]
    ours.feedback(told([4], [[1, 1]], lengths=[[6, 5]]))
    named = ours.recall(records)
    np.testing.assert_array_equal(named["prompt_ids"], [4, 5])
    np.testing.assert_array_equal(named["best_lengths"], [5, 0])
    assert named["prompt_ids"].dtype == np.int32 and named["best_lengths"].dtype == np.float32
    assert set(stream(sources.by_success(TABLE)).recall(records)) == {"prompt_ids"}
    metrics = ours.metrics()
    assert metrics["prompts/success"] == 1.0 and 22 < metrics["prompts/effective"] < 24
    assert ours.metrics() == {}, "a step without feedback, which a resumed run could not tell of the one before"
    state = json.loads(json.dumps(ours.get_state()))
    ours.feedback(Feedback(np.array([4]), ["id4"], *[np.ones((1, 1))] * 3, [["x"]]))
    ours.set_state(state)
    assert ours.get_state() == state and ours.recall(records)["best_lengths"][0] == 5
