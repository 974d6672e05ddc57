"""config.packing in supervised fine-tuning: the same updates as with padded rows, of fewer columns."""

import jax
import numpy as np
import pytest

from configs.tasks import arithmetic
from experiments import sft
from experiments.parts import packers
from experiments.parts.setup import load_params, make_setup
from rl_jax.core.types import Packed, TokenBatch
from rl_jax.runs.logging import read_jsonl
from tests.tiny import max_difference


def config_of(mode: str, **sft_fields):
    config = arithmetic.get_config("smoke")
    config.packing.mode = mode
    config.sft.update(steps=3, batch_size=8, **sft_fields)
    return config


@pytest.mark.slow
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_packed_rows_give_the_updates_of_padded_ones(tmp_path, monkeypatch, micro_batches):
    seen, found = [], {}
    pack = packers.Packing.pack
    monkeypatch.setattr(packers.Packing, "pack", lambda *args, **kwargs: seen.append(pack(*args, **kwargs)) or seen[-1])
    for mode in packers.MODES:
        config = config_of(mode, micro_batches=micro_batches)
        assert sft.run(config, tmp_path / mode)
        found[mode] = jax.device_get(load_params(make_setup(config), tmp_path / mode))
    assert len(seen) == 2 * 2 * 4, "each batch of two runs, and the one that they compiled for, in two lengths"
    start = jax.device_get(make_setup(config_of("padded")).init_params())
    assert max_difference(start, found["padded"]) > 5e-4, "nothing was learned"
    assert max_difference(found["padded"], found["packed"]) < 5e-5
    assert max_difference(found["padded"], found["shared_prefix"]) < 5e-5


def test_a_batch_is_reordered_with_its_mask_and_padding_is_gone():
    """Two micro-batches: the heaviest rows go to different ones, and a row's mask goes along."""
    setup = make_setup(config_of("packed", micro_batches=2))
    lengths, width = [8, 1, 8, 1], 8
    mask = np.zeros((4, setup.config.rollout.completion_length), bool)
    segments = np.zeros((4, width + mask.shape[1]), np.int32)
    for row, length in enumerate(lengths):
        mask[row, :length], segments[row, width - 2 : width + length] = True, 1
    tokens = TokenBatch(np.arange(segments.size, dtype=np.int32).reshape(segments.shape), segments.cumsum(1), segments)
    rows, ordered = packers.DemonstrationPacker(setup)(tokens, mask)
    assert isinstance(rows, Packed) and rows.rows.tokens.shape[0] == 2
    assert sorted(ordered.sum(1).tolist()) == sorted(lengths) and ordered.sum(1).tolist() != lengths
    assert rows.counts.tolist() == [9, 9], "each micro-batch has a long and a short row"
    assert rows.rows.tokens.shape == (2, 1, segments.shape[1]), "13 of 20 columns, in a row of one width"


def test_rows_are_as_long_as_two_where_that_makes_fewer_columns():
    """Half-full completions: three sequences do not fit in two padded rows, but two in one of twice the width."""
    setup = make_setup(config_of("packed"))
    length = setup.config.rollout.completion_length
    mask, segments = np.zeros((6, length), bool), np.zeros((6, 4 + length), np.int32)
    pack = packers.DemonstrationPacker(setup)

    def shape(size):
        mask[:, :size], segments[:, : 4 + size] = True, 1
        return pack(TokenBatch(segments, segments.cumsum(1), segments), mask)[0].rows.tokens.shape[1:]

    assert shape(length // 2) == (2, 2 * (4 + length)) and shape(length) == (6, 4 + length)


def test_several_processes_keep_padded_rows(monkeypatch):
    setup = make_setup(config_of("packed"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    batch = (object(), object())
    assert packers.DemonstrationPacker(setup)(*batch) == batch


def test_a_batch_with_a_row_that_has_no_prompt_stays_as_it_is():
    setup = make_setup(config_of("packed"))
    setup.config.packing.min_rows = 50  # of other programs
    mask = np.ones((2, setup.config.rollout.completion_length), bool)
    segments = np.ones((2, 4 + mask.shape[1]), np.int32)
    whole, pack = TokenBatch(segments, segments.cumsum(1), segments), packers.DemonstrationPacker(setup)
    assert isinstance(pack(whole, mask)[0], Packed) and pack(whole, mask)[0].rows.tokens.shape[1] == 2
    segments[1, :4] = 0
    assert pack(whole, mask)[0] is whole


@pytest.mark.slow
def test_a_loss_that_draws_keeps_padded_rows(tmp_path, monkeypatch):
    """It draws for columns of padded rows, and reads no others."""
    monkeypatch.setattr(packers.Packing, "pack", lambda *args, **kwargs: pytest.fail("packed"))
    config = config_of("packed")
    with config.unlocked():
        config.sft.loss = dict(fn="one_token_rollout", samples=4, temperature=1.3, wrong=-0.1)
    assert sft.run(config, tmp_path / "run")
    rows = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 3 and all(row["data/num_responses_cut"] == row["data/skipped_records"] == 0 for row in rows)


def test_nothing_to_train_is_refused(tmp_path):
    config = config_of("padded")
    config.sft.steps = 0
    with pytest.raises(ValueError, match="sft.steps=0, as a config has it whose model needs no warm start"):
        sft.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
