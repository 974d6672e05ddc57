"""Micro-batches of about equal work, as many as the rows need. numpy on the host.

    parts(lengths, max_tokens=10_240)       index arrays, none with more tokens than fit
    partition(workload(lengths), 4)         Karmarkar-Karp: 4 parts of similar load
    by_rank(lengths, 4, 32, group=8)        the first 128 rows in whole groups, 32 to each data-parallel rank

A batch is never chosen by length here, only split: which rows a step trains on is decided before.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rl_jax.training.packing import round_up

HIDDEN = 4096  # of the 7B model that verl's constant is of


def workload(lengths: Sequence[int] | np.ndarray, *, hidden: int = HIDDEN) -> np.ndarray:
    """FLOPs of a row of a transformer, up to a factor: 6 D L + L^2, the projections and the attention.

    Source: verl's calculate_workload, with D = 4096: 24576 L + L^2.

    Args:
      lengths: int [N], L, tokens of each row.
      hidden: D, width of the model.

    Returns:
      int64 [N].
    """
    lengths = np.asarray(lengths, np.int64)
    return 6 * hidden * lengths + lengths**2


def partition(loads: Sequence[int] | np.ndarray, count: int, *, equal_size: bool = False) -> list[np.ndarray]:
    """Splits rows into parts of similar load by the largest differencing method (Karmarkar and Karp, 1982).

    Repeatedly the two partial solutions with the largest spread become one, the largest part of one with the smallest
    of the other, and so on.

    Args:
      loads: int [N], load of each row.
      count: k, number of parts.
      equal_size: whether each part gets N / k rows.

    Returns:
      k index arrays, in order, all N rows once; the heaviest part first.

    Raises:
      ValueError: if there are fewer rows than parts, or N / k is not whole where it must be.
    """
    loads = [int(load) for load in loads]
    if count < 1 or len(loads) < count:
        raise ValueError(f"{len(loads)} rows cannot be split into {count} parts, with a row in each")
    if equal_size and len(loads) % count:
        raise ValueError(f"{len(loads)} rows do not divide into {count} parts of equal size")
    ordered = sorted(zip(loads, range(len(loads)), strict=True))
    width = count if equal_size else 1
    heap = [_Solution.of(ordered[start : start + width], count) for start in range(0, len(ordered), width)]
    heapq.heapify(heap)
    while len(heap) > 1:
        heapq.heappush(heap, heapq.heappop(heap).joined(heapq.heappop(heap)))
    return [np.sort(np.asarray([row for row, _ in part[2]], np.int64)) for part in heap[0].parts]


def by_rank(lengths: Sequence[int] | np.ndarray, ranks: int, rows_per_rank: int, *, group: int = 1) -> list[np.ndarray]:
    """Which of the rows that are ready go to which data-parallel rank, so that ranks get similar numbers of tokens.

    The first R n rows are taken, in whole groups of G. A group weighs the sum of its lengths; groups are split by
    `partition` into R parts of equal size, so that no rank sees a part of a group.

    Source: the sampler of AsyncFlow's TransferQueue (arXiv 2507.01663) as its public code has it: SeqlenBalancedSampler
    over GRPOGroupNSampler, of Ascend/TransferQueue.

    Args:
      lengths: int [N], tokens of the ready rows, in the order in which they became ready; groups one after the other.
      ranks: R.
      rows_per_rank: n, a multiple of G.
      group: G, rows of a group.

    Returns:
      R index arrays int [n], ascending, the rank with most tokens first; [] if fewer than R n rows are ready.

    Raises:
      ValueError: if n is not made of whole groups, or a number is below 1.
    """
    if min(ranks, rows_per_rank, group) < 1 or rows_per_rank % group:
        raise ValueError(
            f"{ranks} ranks of {rows_per_rank} rows in groups of {group}: each rank gets whole groups, one or more"
        )
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) < ranks * rows_per_rank:
        return []
    loads = lengths[: ranks * rows_per_rank].reshape(-1, group).sum(axis=1)
    members = np.arange(ranks * rows_per_rank).reshape(-1, group)
    return [members[part].reshape(-1) for part in partition(loads, ranks, equal_size=True)]


class _Solution(NamedTuple):
    """k parts, the heaviest first, each (load, number of rows, its (row, load) pairs)."""

    parts: list[tuple[int, int, tuple]]

    @classmethod
    def of(cls, rows: list[tuple[int, int]], count: int) -> "_Solution":
        """Each of the (load, row) pairs in a part of its own."""
        parts = [(load, 1, ((row, load),)) for load, row in rows]
        return cls(sorted(parts + [(0, 0, ())] * (count - len(parts)), reverse=True))

    def joined(self, other: "_Solution") -> "_Solution":
        """The heaviest part of one with the lightest of the other, and so on."""
        pairs = zip(self.parts, reversed(other.parts), strict=True)
        return _Solution(sorted((tuple(x + y for x, y in zip(a, b, strict=True)) for a, b in pairs), reverse=True))

    def __lt__(self, other: "_Solution") -> bool:
        """For the heap: the larger spread comes first; of equal ones, that with the heavier part."""
        mine, theirs = (x.parts[0][0] - x.parts[-1][0] for x in (self, other))
        return mine > theirs or (mine == theirs and self.parts[0] > other.parts[0])


def parts(
    lengths: Sequence[int] | np.ndarray, *, max_tokens: int, multiple_of: int = 1, hidden: int = HIDDEN
) -> list[np.ndarray]:
    """Splits rows into as few micro-batches as hold them, with similar work in each.

    The number is one of packing.round_up's, so that a run sees few of them. Empty parts may be added to reach a
    multiple.

    Args:
      lengths: int [N], tokens of each row.
      max_tokens: of one micro-batch.
      multiple_of: of the number of micro-batches, such as the devices that share them.
      hidden: width of the model, for the work of a row.

    Returns:
      Index arrays; every row is in one of them.

    Raises:
      ValueError: if a row is longer than max_tokens.
    """
    lengths = np.asarray(lengths, np.int64)
    if len(lengths) and lengths.max() > max_tokens:
        row = int(lengths.argmax())
        raise ValueError(f"row {row} has {lengths[row]} tokens, above max_tokens={max_tokens} of a micro-batch")
    loads = workload(lengths, hidden=hidden)
    most = len(first_fit(lengths, max_tokens))
    count = max(1, -(-int(lengths.sum()) // max_tokens))
    while count < most:
        found = partition(loads, count)
        if all(lengths[part].sum() <= max_tokens for part in found):
            break
        count += 1
    wanted = -(-round_up(count) // multiple_of) * multiple_of
    for number in (min(wanted, len(lengths)), count):
        found = partition(loads, number) if number else []
        if all(lengths[part].sum() <= max_tokens for part in found):
            break
    else:
        found = first_fit(lengths, max_tokens)
    return found + [np.zeros(0, np.int64)] * (wanted - len(found))


def first_fit(lengths: np.ndarray, max_tokens: int) -> list[np.ndarray]:
    """First-fit decreasing: the longest row first, each to the first part with room. int [N] -> index arrays."""
    found, room = [], []
    for row in np.argsort(-np.asarray(lengths), kind="stable"):
        place = next((i for i, free in enumerate(room) if lengths[row] <= free), len(found))
        if place == len(found):
            found.append([])
            room.append(max_tokens)
        found[place].append(int(row))
        room[place] -= int(lengths[row])
    return [np.sort(np.asarray(part, np.int64)) for part in found]
