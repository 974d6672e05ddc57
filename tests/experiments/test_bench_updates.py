"""experiments.bench.updates: the work is what it says, our side makes every update of it, a group fills its row."""

import json

import numpy as np
import pytest

from experiments.bench import updates
from experiments.parts.preference_data import PreferencePacker, take_rows
from rl_jax.training import packing

SIZES = dict(layers=1, d=16, ff=32, heads=2, kv=1, head_dim=8, vocab=32)


@pytest.mark.parametrize("method", updates.METHODS)
def test_the_work_is_the_same_at_every_call(method):
    def make():
        return updates.make_work(method, "ragged", SIZES, prompts=4, steps=2)

    work = make()
    assert work == make() == json.loads(json.dumps(work))
    assert [len(step) for step in work["records"]] == [4, 4]
    for prompt, *completions in work["records"][0]:
        assert len(prompt) == work["prompt_length"] == 64 and len(completions) == updates.METHODS[method]
        assert 4 <= min(map(len, completions)) and max(map(len, completions)) <= work["completion_length"] == 64
    assert max(len(row) for _, *rows in work["records"][0] for row in rows) == 64


def packed(shape: str, prompts: int):
    """((rows packed with the length that fits the records, with the usual one), the work)."""
    work = updates.make_work("dpo", shape, SIZES, prompts=prompts, steps=1)
    setup, arrays = updates.make_setup(work), updates.arrays_of(work, work["records"][0])
    setup.config.packing.min_rows = 1
    batch = take_rows(arrays, np.arange(prompts), prompts, set())
    fitted, usual = PreferencePacker(setup), PreferencePacker(setup)
    fitted.fit(arrays)
    return [packer(batch).batch for packer in (fitted, usual)], work


@pytest.mark.parametrize("shape", ["uniform", "long_prompt"])
def test_a_prompt_with_its_two_responses_fills_a_row(shape):
    """Two padded rows hold one such group, too, and stay empty by a quarter, or by nearly a half for long prompts."""
    (ours, usual), work = packed(shape, 4)
    assert ours.rows.tokens.shape == (1, 4, work["prompt_length"] + 2 * work["completion_length"])
    assert packing.occupancy(ours) == 1 and packing.occupancy(usual) <= 0.75


@pytest.mark.parametrize("prompts", [4, 32])
def test_short_ones_are_packed_as_before_where_that_is_better(prompts):
    (ours, usual), _ = packed("ragged", prompts)
    assert packing.occupancy(ours) >= packing.occupancy(usual) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("method", updates.METHODS)
def test_our_side_makes_every_update_with_one_program(method):
    found = updates.run_ours(updates.make_work(method, "ragged", SIZES, prompts=2, steps=3))
    assert len(found["step_s"]) == 3 and min(found["step_s"]) > 0
    assert found["compile_count"][0] == found["compile_count"][-1], "compiled after the first step"


def test_flops_are_counted_once_a_token():
    work = {"method": "sft", "sizes": SIZES, "records": [[[[1] * 3, [2] * 2]]]}
    body = 16 * (2 * 2 + 2 * 1) * 8 + 3 * 16 * 32
    assert updates.step_flops(work) == 6 * (body * 5 + 32 * 16 * 2)
    pair = {"method": "dpo", "sizes": SIZES, "records": [[[[1] * 3, [2] * 2, [3]]]]}
    assert updates.step_flops(pair) == 8 * (body * 6 + 32 * 16 * 3)


@pytest.mark.parametrize(
    ("given", "said"),
    [("--peer=x=python", "is none of tunix, trl"), ("--shapes=wide", "none of uniform"), ("--warmup=0", "at least 1")],
)
def test_what_it_does_not_know_is_refused(given, said, capsys):
    with pytest.raises(SystemExit):
        updates.main([given])
    assert said in capsys.readouterr().err
