"""config.packing in supervised fine-tuning: the same updates as with padded rows, of fewer columns."""

import jax
import numpy as np
import pytest

from configs.tasks import arithmetic
from experiments import sft
from experiments.parts import packers, warm_start
from experiments.parts.setup import load_params, make_setup
from rl_jax.core.types import Packed, TokenBatch
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
    assert len(seen) == 2 * 4, "each batch of two runs, and the one that they compiled for"
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


def test_several_processes_and_losses_that_draw_keep_padded_rows(monkeypatch):
    setup = make_setup(config_of("packed"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    batch = (object(), object())
    assert packers.DemonstrationPacker(setup)(*batch) == batch == warm_start._as_they_are(*batch)


def test_nothing_to_train_is_refused(tmp_path):
    config = config_of("padded")
    config.sft.steps = 0
    with pytest.raises(ValueError, match="sft.steps=0, as a config has it whose model needs no warm start"):
        sft.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
