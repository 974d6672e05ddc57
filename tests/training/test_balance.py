"""training.balance on random traces of lengths, beside verl's own partition."""

import itertools

import numpy as np
import pytest

from rl_jax.training import balance
from rl_jax.training.packing import round_up
from tests.oracles import verl


def trace(seed: int, rows: int | None = None) -> np.ndarray:
    """Lengths as they come: heavy-tailed, or of few values, so that there are ties."""
    rng = np.random.default_rng(seed)
    rows = rows or int(rng.integers(1, 40))
    if seed % 3 == 0:
        return rng.integers(1, 6, rows)
    return np.clip(rng.lognormal(4, [0.25, 0.75, 1.25][seed % 3], rows).astype(int), 1, 500)


@pytest.mark.parametrize("equal_size", [False, True])
def test_the_partition_is_verls(equal_size):
    """To the index, ties included, on 60 traces."""
    for seed in range(60):
        count = 1 + seed % 5
        lengths = trace(seed, rows=count * (1 + seed % 9))
        loads = balance.workload(lengths)
        assert loads.tolist() == verl.workload(lengths)
        ours = balance.partition(loads, count, equal_size=equal_size)
        theirs = verl.balanced_partitions(loads.tolist(), count, equal_size)
        assert sorted(part.tolist() for part in ours) == sorted(theirs), seed
        assert np.all(np.diff([loads[part].sum() for part in ours]) <= 0)


def test_small_cases_against_all_partitions():
    """Largest differencing is a heuristic: at most 7/6 of the best two-way split, and mostly it is the best."""
    best = 0
    for seed in range(30):
        lengths = trace(seed, rows=8)
        found = max(lengths[part].sum() for part in balance.partition(lengths, 2))
        splits = (lengths[list(rows)].sum() for k in range(1, 8) for rows in itertools.combinations(range(8), k))
        optimum = min(max(split, lengths.sum() - split) for split in splits)
        assert optimum <= found <= 7 / 6 * optimum
        best += found == optimum
    assert best > 15


@pytest.mark.parametrize("multiple_of", [1, 4])
def test_micro_batches_of_random_traces(multiple_of):
    """Every row once, none above the capacity, few numbers, and no worse than first-fit where that decides."""
    counts = set()
    for seed in range(120):
        lengths = trace(seed)
        capacity = int(np.random.default_rng(seed).integers(lengths.max(), 3 * lengths.max() + 1))
        found = balance.parts(lengths, max_tokens=capacity, multiple_of=multiple_of)
        assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
        assert max(lengths[part].sum() for part in found) <= capacity
        assert len(found) % multiple_of == 0 and -(-lengths.sum() // capacity) <= len(found)
        most = len(balance.first_fit(lengths, capacity))
        assert len(found) <= -(-round_up(most) // multiple_of) * multiple_of
        counts.add(len(found))
    assert {-(-round_up(n) // multiple_of) * multiple_of for n in counts} == counts


def test_the_loads_are_closer_than_first_fits():
    """On traces of more than one micro-batch: the heaviest one is what a step waits for."""
    ours, theirs = [], []
    for seed in set(range(40)) - set(range(0, 40, 3)):
        lengths = trace(seed, rows=32)
        loads = balance.workload(lengths)
        for collected, found in (
            (ours, balance.parts(lengths, max_tokens=1000)),
            (theirs, balance.first_fit(lengths, 1000)),
        ):
            collected.append(max(loads[part].sum() for part in found) / loads.sum())
    assert np.all(np.array(ours) <= np.array(theirs) + 1e-9) and np.mean(ours) < 0.9 * np.mean(theirs)


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: balance.parts([3, 9], max_tokens=8), "row 1 has 9 tokens, above max_tokens=8"),
        (lambda: balance.partition([1], 2), "1 rows cannot be split into 2 parts"),
        (lambda: balance.partition([1, 2, 3], 2, equal_size=True), "3 rows do not divide into 2"),
    ],
    ids=["long row", "few rows", "odd rows"],
)
def test_what_cannot_be_split(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_no_rows_are_one_empty_part():
    assert [part.tolist() for part in balance.parts([], max_tokens=5)] == [[]]


@pytest.mark.parametrize("group", [1, 3])
def test_ranks_get_as_many_tokens_as_the_best_split_nearly_gives(group):
    """Whole groups of the first rows, as verl's partition of their sums; and by brute force."""
    for seed in range(20):
        ranks, each = 2, 3  # groups of a rank
        lengths = trace(seed, rows=(ranks * each + 1) * group + 1)
        found = balance.by_rank(lengths, ranks, each * group, group=group)
        used = ranks * each * group
        assert sorted(np.concatenate(found).tolist()) == list(range(used)), "those that were ready first, once"
        assert all(len(rows) == each * group for rows in found)
        whole = [rows.reshape(-1, group) for rows in found]
        assert all((rows % group == np.arange(group)).all() and (np.diff(rows) == 1).all() for rows in whole)
        loads = lengths[:used].reshape(-1, group).sum(axis=1)
        theirs = verl.balanced_partitions(loads.tolist(), ranks, True)
        assert sorted(sorted(set((rows // group).tolist())) for rows in found) == sorted(theirs)
        splits = (loads[list(rows)].sum() for rows in itertools.combinations(range(ranks * each), each))
        optimum = min(max(split, loads.sum() - split) for split in splits)
        heaviest, rest = (lengths[rows].sum() for rows in found)
        assert optimum <= heaviest <= 7 / 6 * optimum and rest <= heaviest


def test_ranks_wait_for_enough_rows_and_get_whole_groups():
    assert balance.by_rank([3, 1, 2], 2, 2) == []
    (only,) = balance.by_rank([3, 1, 2, 9], 1, 4, group=2)
    assert only.tolist() == [0, 1, 2, 3], "one rank keeps the order"
    for ranks, each, group in ((2, 3, 2), (0, 2, 1), (2, 0, 1)):
        with pytest.raises(ValueError, match=f"{ranks} ranks of {each} rows in groups of {group}"):
            balance.by_rank([1] * 12, ranks, each, group=group)
