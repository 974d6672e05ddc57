"""Labelled steps as arrays: each ends where a prefix of the text ends, what is cut has no label."""

import numpy as np
import pytest

from rl_jax import preferences
from rl_jax.tokenizers import CharTokenizer, Llama2cTokenizer
from tests.paths import shared_data

TOKENIZER = CharTokenizer("abcdefgh\n")
SETTINGS = {"prompt_buckets": (4, 8), "completion_length": 9}
RECORDS = [
    {"prompt": "ab", "steps": ["aa", "b", "ccc"], "labels": [1, 0, None], "info": {}},
    {"prompt": "abcde", "steps": ["dddd", "eeee"], "labels": [1, 1], "info": {}},
]


def encode(records, **settings):
    return preferences.encode_steps(TOKENIZER, records, **SETTINGS | settings)


def test_ends_and_labels():
    arrays, counts = encode(RECORDS)
    # "aa\nb\nccc\n" is 9 characters; the second's second step would end at 10.
    np.testing.assert_array_equal(arrays["step_ends"], [[2, 4, 8], [4, -1, -1]])
    np.testing.assert_array_equal(arrays["step_labels"], [[1, 0, -100], [1, -100, -100]])
    np.testing.assert_array_equal(arrays["completion_mask"].sum(-1), [9, 9])
    np.testing.assert_array_equal(arrays["segment_ids"].sum(-1), [3 + 9, 6 + 9])
    assert arrays["tokens"].shape == (2, 17)
    text = TOKENIZER.decode(arrays["tokens"][1])
    assert text == "abcdedddd\neeee"  # cut before its separator
    newline = TOKENIZER.encode("\n")[0]
    completions = arrays["tokens"][:, 8:]
    for row, column in np.argwhere(arrays["step_ends"] >= 0):
        assert completions[row, arrays["step_ends"][row, column]] == newline
    expected = {"num_records": 2, "num_kept": 2, "num_prompts_cut": 0, "num_prompts_dropped": 0, "num_steps": 5}
    assert counts == expected | {"num_steps_cut": 1, "num_unlabelled_dropped": 0}


def test_without_a_labelled_step():
    with pytest.raises(ValueError, match="record 1 has no labelled step within 4 tokens"):
        encode(RECORDS, completion_length=4)
    arrays, counts = encode(RECORDS, completion_length=4, unlabelled="drop")
    assert list(arrays["indices"]) == [0] and counts["num_unlabelled_dropped"] == 1
    np.testing.assert_array_equal(arrays["step_ends"], [[2, -1, -1]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 2}, "record 0 has 3 steps, more than num_steps=2"),
        ({"prompt_buckets": (4,)}, "record 1: its prompt has 6 tokens with BOS, over the largest bucket 4"),
        ({"truncate": "x"}, "truncate='x' is none of refuse, left, drop"),
        ({"unlabelled": "x"}, "unlabelled='x' is none of refuse, drop"),
        ({"completion_length": 0}, "completion_length must be at least 1"),
        ({"prompt_buckets": (2,), "truncate": "drop"}, "no record is left to encode"),
    ],
)
def test_what_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        encode(RECORDS, **settings)


def test_the_real_steps_of_word_sorting(tmp_path):
    """Decoded up to the end of step s, a row reads as its first s steps."""
    folder = shared_data("prm/bbmistake_word_sorting.jsonl.gz").parent
    prefs = preferences.load("bbmistake", path=str(folder), subsets=["word_sorting"], data_dir=str(tmp_path))
    records = [prefs.data_source("test")[i] for i in range(10)]
    tokenizer = Llama2cTokenizer(shared_data("models/tok512.bin"))
    settings = {"prompt_buckets": (512,), "completion_length": 256, "truncate": "left", "unlabelled": "drop"}
    arrays, counts = preferences.encode_steps(tokenizer, records, separator="\n\n", **settings)
    assert counts["num_kept"] >= 5
    for row, index in enumerate(arrays["indices"]):
        steps, seen = records[index]["steps"], arrays["step_ends"][row]
        assert np.all(np.diff(seen[seen >= 0]) > 0)
        for number, end in enumerate(seen[seen >= 0]):
            text = tokenizer.decode(arrays["tokens"][row, 512 : 512 + end + 1])
            assert text == "".join(step + "\n\n" for step in steps[: number + 1])
            label = records[index]["labels"][number]
            assert arrays["step_labels"][row, number] == (-100 if label is None else label)
