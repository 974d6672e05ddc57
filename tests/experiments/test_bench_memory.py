"""experiments.bench.memory at a small size: ours stays under the limit, and packing needs less than padding."""

import json

import numpy as np
import pytest

from experiments.bench import memory

SMALL = "--vocab=8192 --length=128 --prompt=32 --rows=8 --group=4 --width=32 --layers=1 --heads=1 --chunk=4".split()


@pytest.mark.slow
def test_the_table_and_its_json_line(capsys):
    memory.main(SMALL)
    *printed, last = capsys.readouterr().out.strip().splitlines()
    found = json.loads(last)
    assert found["bench"] == "memory" and found["options"]["vocab"] == 8192
    naive, padded, packed, shared = found["lines"]
    assert naive["temporary_bytes"] > 8 * 128 * 8192 * 4, "the plain program holds [B, T, V]"
    assert padded["temporary_bytes"] < memory.LIMIT * naive["temporary_bytes"]
    assert shared["temporary_bytes"] < packed["temporary_bytes"] < padded["temporary_bytes"]
    assert (naive["rows"], padded["rows"]) == (8, 8) and shared["rows"] < packed["rows"] < 8
    assert naive["occupancy"] == padded["occupancy"] < packed["occupancy"]
    text = "\n".join(printed)
    share = padded["temporary_bytes"] / naive["temporary_bytes"]
    assert f"padded rows take {share:.1%} of the naive temporaries; the limit is 15%: ok" in text
    assert "| naive log_softmax [B, T, V] | 8 x 128 |" in text and "Vocabulary 8192" in text


def test_completions_are_heavy_tailed_and_groups_share_their_prompt():
    batch, mask = memory.ragged_batch(16, 4, 8, 64)
    lengths = mask.sum(axis=1)
    assert lengths.max() == 64 and np.mean(lengths <= 16) > 0.6 and lengths.min() == 1
    prompts = batch.tokens[:, :8].reshape(4, 4, 8)
    assert (prompts == prompts[:, :1]).all() and len(np.unique(prompts[:, 0], axis=0)) == 4
    np.testing.assert_array_equal(batch.segment_ids[:, 8:] != 0, mask)
