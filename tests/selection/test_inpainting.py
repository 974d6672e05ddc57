"""Hints of a reference answer, and which answers they replace."""

import numpy as np
import pytest

from rl_jax.selection import inpainting

MASK = 99


def test_chunks_are_neighbours_of_allowed_sizes_and_a_short_rest_is_left_out():
    rng = np.random.default_rng(0)
    for _ in range(50):
        chunks = inpainting.chunks_of(23, 3, 6, rng)
        assert chunks[0][0] == 0 and all(a[1] == b[0] for a, b in zip(chunks, chunks[1:], strict=False))
        assert all(3 <= end - start <= 6 for start, end in chunks) and 23 - chunks[-1][1] < 3
    assert inpainting.chunks_of(2, 3, 6, rng) == [] and inpainting.chunks_of(0, 1, 2, rng) == []


@pytest.mark.parametrize(("share", "shown"), [(0.0, 0), (0.2, 1), (0.5, 3), (1.0, 5)])
def test_a_hint_shows_that_share_of_the_chunks_where_they_stand(share, shown):
    rng, reference = np.random.default_rng(1), np.arange(10)
    seen = set()
    for _ in range(40):
        found = inpainting.hint(reference, share, 12, mask_id=MASK, min_chunk=2, max_chunk=2, rng=rng)
        kept = found != MASK
        assert kept.sum() == 2 * shown and np.all(found[:10][kept[:10]] == reference[kept[:10]])
        assert np.all(found[10:] == MASK)  # the reference is shorter than the answer
        seen.add(tuple(kept))
    assert len(seen) == 1 if shown in (0, 5) else len(seen) > 3


def test_a_reference_is_cut_and_the_rest_of_its_chunks_is_not_shown():
    rng = np.random.default_rng(2)
    found = inpainting.hint(np.arange(10), 1.0, 5, mask_id=MASK, min_chunk=2, max_chunk=2, rng=rng)
    np.testing.assert_array_equal(found, [0, 1, 2, 3, MASK])
    assert found.dtype == np.int32
    # int(K (1 - share)) are masked: of one chunk half of one is none, of five .2 x 5 is 1 in spite of rounding.
    for length, share, masked in ((2, 0.5, 0), (2, 0.0, 1), (10, 0.8, 1), (20, 0.41, 5)):
        found = inpainting.hint(np.arange(length), share, length, mask_id=MASK, min_chunk=2, max_chunk=2, rng=rng)
        assert (found == MASK).sum() == 2 * masked
    assert inpainting.chunks_of(6, 3, 3, rng) == [(0, 3), (3, 6)]
    assert inpainting.chunks_of(1, 1, 2, rng) == [(0, 1)]
    sizes = {end - start for _ in range(20) for start, end in inpainting.chunks_of(30, 1, 3, rng)}
    assert sizes == {1, 2, 3}
    assert inpainting.hopeless_groups(np.array([0.0, 0.5, -1.0, 0.0]), 2).tolist() == [False, True]


def test_only_groups_without_a_success_are_replaced_and_by_right_answers_only():
    success = np.array([0, 0, 0, 1, 0, 0, 0, 0, 0], np.float32)
    hopeless = inpainting.hopeless_groups(success, 3)
    assert hopeless.tolist() == [True, False, True]
    hinted = np.array([0, 1, 1, 1, 1, 1, 0, 0, 0], np.float32)  # the last group stays wrong
    rng = np.random.default_rng(0)
    assert sorted(inpainting.replacements(hinted, hopeless, 3, 2, rng)) in ([(0, 1), (1, 2)], [(0, 2), (1, 1)])
    assert len(inpainting.replacements(hinted, hopeless, 3, 1, rng)) == 1
    assert inpainting.replacements(hinted, np.zeros(3, bool), 3, 2, rng) == []
