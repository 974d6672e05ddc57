"""Batches: every record once an epoch, a position that can be saved and restored, and encodings of fixed shape."""

import json

import numpy as np
import pytest

from rl_jax.data import pipeline
from rl_jax.tokenizers import CharTokenizer, Llama2cTokenizer
from tests.paths import shared_data

TOK = CharTokenizer("0123456789+-=")
SOURCE = [{"prompt": f"{i}+1=", "completion": str(i + 1), "info": "{}"} for i in range(23)]


def prompts(batch):
    return [record["prompt"] for record in batch]


def stream(count, **kwargs):
    iterator = pipeline.train_iterator(SOURCE, **kwargs)
    return [prompt for _ in range(count) for prompt in prompts(next(iterator))]


def test_every_epoch_is_a_new_permutation_without_loss():
    seen = stream(23, batch_size=8, seed=0)  # 8 epochs of 23 records, batches span epochs
    epochs = [seen[i : i + 23] for i in range(0, len(seen), 23)]
    assert all(sorted(epoch) == sorted(prompts(SOURCE)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 8
    assert stream(23, batch_size=8, seed=0) == seen != stream(23, batch_size=8, seed=1)
    assert stream(3, batch_size=8, seed=0, shuffle=False)[:23] == prompts(SOURCE)


@pytest.mark.parametrize("steps", [0, 1, 2, 4, 11])
def test_a_restored_position_gives_the_same_rest(steps):
    first = pipeline.train_iterator(SOURCE, batch_size=8, seed=3)
    for _ in range(steps):
        next(first)
    state = json.loads(json.dumps(first.get_state()))
    rest = [prompts(next(first)) for _ in range(6)]
    second = pipeline.train_iterator(SOURCE, batch_size=8, seed=3)
    next(second)  # wherever it stands
    second.set_state(state)
    assert [prompts(next(second)) for _ in range(6)] == rest
    third = pipeline.train_iterator(SOURCE, batch_size=8, seed=3, start=steps)
    assert [prompts(next(third)) for _ in range(6)] == rest and third.get_state() == first.get_state()


@pytest.mark.parametrize("shares", [[(0, 1, 2, 3), (4, 5, 6, 7)], [(0, 5), (1, 2, 3), (4,), (6, 7)]])
def test_processes_share_each_batch(shares):
    whole = pipeline.train_iterator(SOURCE, batch_size=8, seed=0)
    parts = [pipeline.train_iterator(SOURCE, batch_size=8, seed=0, rows=rows) for rows in shares]
    for _ in range(7):
        batch = prompts(next(whole))
        assert [prompts(next(part)) for part in parts] == [[batch[row] for row in rows] for rows in shares]
    # A position means the same to any number of processes.
    assert [part.get_state() for part in parts] == [whole.get_state()] * len(parts)
    with pytest.raises(ValueError, match="must be some of the 8 rows of a batch"):
        pipeline.train_iterator(SOURCE, batch_size=8, seed=0, rows=[7, 8])


def test_only_the_own_records_are_read():
    read = []

    class Source(list):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    own = pipeline.train_iterator(Source(SOURCE), batch_size=4, seed=0, shuffle=False, rows=[2, 3])
    assert prompts(next(own) + next(own)) == [f"{i}+1=" for i in (2, 3, 6, 7)] and read == [2, 3, 6, 7]


def test_a_batch_that_was_peeked_at_is_still_the_next():
    iterator = pipeline.train_iterator(SOURCE, batch_size=8, seed=2)
    next(iterator)
    seen = prompts(pipeline.peek(iterator))
    assert seen == prompts(pipeline.peek(iterator)) == prompts(next(iterator)) != prompts(next(iterator))


def test_train_iterator_refuses_an_empty_source():
    with pytest.raises(ValueError, match="no records"):
        pipeline.train_iterator([], batch_size=2, seed=0)


def test_eval_batches():
    batches = list(pipeline.eval_batches(SOURCE, 10))
    assert [len(batch) for batch in batches] == [10, 10, 3] and [r for b in batches for r in b] == SOURCE
    assert [len(batch) for batch in pipeline.eval_batches(SOURCE, 10, limit=12)] == [10, 2]
    assert sum(map(len, pipeline.eval_batches(SOURCE, 10, limit=999))) == 23 and not list(
        pipeline.eval_batches(SOURCE, 5, 0)
    )


def test_encode_prompts():
    tokens, mask = pipeline.encode_prompts(TOK, ["1+1=", "12345+1="], buckets=(4, 16, 10))
    assert tokens.shape == (2, 10) and tokens.dtype == np.int32 and mask.dtype == bool
    np.testing.assert_array_equal(tokens[0], [0, 0, 0, 0, 0, 1, 4, 13, 4, 15])
    np.testing.assert_array_equal(mask[0], [False] * 5 + [True] * 5)
    np.testing.assert_array_equal(mask[1], [False] + [True] * 9)
    assert pipeline.encode_prompts(TOK, ["123456789"], buckets=(4, 16, 10))[0].shape == (1, 10)  # BOS counts, just fits
    with pytest.raises(ValueError, match="prompt 1 has 5 tokens with BOS, over the largest bucket 4: '1\\+1='"):
        pipeline.encode_prompts(TOK, ["1=", "1+1="], buckets=(4,))
    with pytest.raises(ValueError, match="no prompts"):
        pipeline.encode_prompts(TOK, [])


def test_encode_sft():
    records = [
        {"prompt": "1+1=", "completion": "2"},
        {"prompt": "9+1=", "completion": "10"},
        {"prompt": "99+1=", "completion": "100"},
        {"prompt": "1=", "completion": ""},
    ]
    batch = pipeline.encode_sft(TOK, records, prompt_buckets=(7,), completion_length=3)
    np.testing.assert_array_equal(
        batch["tokens"],
        [
            [0, 0, 1, 4, 13, 4, 15, 5, 2, 0],
            [0, 0, 1, 12, 13, 4, 15, 4, 3, 2],
            [0, 1, 12, 12, 13, 4, 15, 4, 3, 3],
            [0, 0, 0, 0, 1, 4, 15, 2, 0, 0],
        ],
    )  # the third is cut: it has no EOS
    np.testing.assert_array_equal(
        batch["completion_mask"].astype(int)[:, 7:], [[1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 0, 0]]
    )
    assert not batch["completion_mask"][:, :7].any()
    np.testing.assert_array_equal(
        batch["segment_ids"][[0, 3]], [[0, 0, 1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]]
    )
    np.testing.assert_array_equal(
        batch["positions"][[0, 3]], [[0, 0, 0, 1, 2, 3, 4, 5, 6, 0], [0, 0, 0, 0, 0, 1, 2, 3, 0, 0]]
    )
    assert {name: array.dtype for name, array in batch.items()} == {
        "tokens": np.int32,
        "completion_mask": bool,
        "segment_ids": np.int32,
        "positions": np.int32,
    }
    with pytest.raises(ValueError, match="completion_length"):
        pipeline.encode_sft(TOK, records, completion_length=0)


def test_sft_of_a_completion_that_ends_with_eos_has_one():
    """As dumps of chats have it, and as the DPO that follows encodes the same response."""
    for completion in ("2<eos>", "2<eos><eos>", "2<eos>\n"):
        records = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+1=", "completion": completion}]
        batch = pipeline.encode_sft(TOK, records, completion_length=4)
        assert all(np.array_equal(array[0], array[1]) for array in batch.values())
    turns = [{"prompt": "1=", "completion": "", "turns": [f"3{end}", "4", f"5{end}"]} for end in ("", "<eos>")]
    batch = pipeline.encode_sft(TOK, turns, completion_length=8)
    assert all(np.array_equal(array[0], array[1]) for array in batch.values())


def test_sft_of_a_story_is_the_tokenizers_own_encoding():
    tok = Llama2cTokenizer(shared_data("models/tok512.bin"))
    record = {"prompt": "Once upon a time, Tim ran.", "completion": " He fell.\nThe end."}
    batch = pipeline.encode_sft(tok, [record], completion_length=32)
    real = batch["tokens"][batch["segment_ids"] == 1].tolist()
    assert real == tok.encode(record["prompt"] + record["completion"], bos=True) + [1]  # ends as the model ends: BOS
    assert tok.decode(batch["tokens"][0][batch["completion_mask"][0]]) == record["completion"]


def test_recorded_episodes_teach_the_models_turns_only():
    record = {"prompt": "1+2=", "completion": "", "turns": ["3", "=5", "4"]}
    batch = pipeline.encode_sft(TOK, [record, {"prompt": "1+2=", "completion": "3"}], completion_length=8)
    ids, mask = batch["tokens"][0, -8:], batch["completion_mask"][0, -8:]
    eos = TOK.eos_id
    assert ids[:6].tolist() == [*TOK.encode("3"), eos, *TOK.encode("=5"), *TOK.encode("4"), eos]
    assert mask.tolist() == [True, True, False, False, True, True, False, False]
    assert batch["segment_ids"][0, -8:].tolist() == [1] * 6 + [0] * 2
    assert batch["positions"][0, -8:].tolist() == [5, 6, 7, 8, 9, 10, 0, 0]
    assert batch["completion_mask"][1, -8:].tolist() == [True, True] + [False] * 6
    cut = pipeline.encode_sft(TOK, [record], completion_length=3)
    assert cut["completion_mask"][0, -3:].tolist() == [True, True, False]
