"""Sequence packing: the model's forward sees dense rows, the loss still sees [B, C].

A padded batch spends most of its forward on padding, and repeats each prompt once per completion. Here the real tokens
go into rows of a fixed length, first-fit decreasing, each sequence a separate segment. With share_prefix a prompt
appears once in its row and its completions attend to it (TokenBatch.prefix_ids). Only tokens up to the last scored one
of a row are kept. Everything happens on the host, in numpy, before the batch is sent to a device.

Shapes: T is fixed, N follows from R, and R takes few sizes (`round_up`), so a run compiles a handful of programs: 3 or
4 in 200 steps of 32 rows with heavy-tailed lengths, fewer for larger batches; min_rows makes it one. The result depends
on the batch only, not on earlier batches, so a resumed run packs identically.
"""

from typing import NamedTuple

import chex
import numpy as np

from rl_jax.core.types import Packed, TokenBatch


class _Group(NamedTuple):
    """A prompt and its completions.

    Attributes:
      prompt: (row, its columns).
      completions: (row, columns) pairs.
    """

    prompt: tuple[int, np.ndarray]
    completions: list[tuple[int, np.ndarray]]

    @property
    def size(self) -> int:
        return len(self.prompt[1]) + sum(len(columns) for _, columns in self.completions)


def round_up(rows: int) -> int:
    """The smallest size >= `rows` among 1, 2, .. 8, 10, 12, 14, 16, 20, ..: four per doubling."""
    step = max(1, 2 ** (max(rows - 1, 1).bit_length() - 3))
    return max(1, -(-rows // step) * step)


def arrange(
    batch: TokenBatch, mask: np.ndarray, *, share_prefix: bool, num_parts: int = 1, num_micro_batches: int = 1
) -> np.ndarray:
    """A row order that gives each part of `pack` the same number of rows and similar loads.

    The heaviest group goes first, to the lightest part that has room for it. With one part the order is unchanged.

    Args:
      batch: as for `pack`.
      mask: as for `pack`.
      share_prefix: as for `pack`. If True, the rows of a prompt stay in one part as far as there is room.
      num_parts: as for `pack`.
      num_micro_batches: as for `pack`.

    Returns:
      int [B]. The order.

    Raises:
      ValueError: if the rows do not divide into the parts, a scored row has no prompt, or the mask covers padding.
    """
    rows = mask.shape[0]
    slots = _slots(rows, num_parts, num_micro_batches)
    if num_parts == 1:
        return np.arange(rows)
    members = {i: [] for i in range(num_parts)}
    loads, room = np.zeros(num_parts, int), slots.shape[1]
    result = _groups(batch, mask, share_prefix)
    idle = sorted(set(range(rows)) - {row for group in result for row, _ in group.completions})
    left = []
    for group in sorted(result, key=lambda group: -group.size):
        fitting = [part for part in members if len(members[part]) + len(group.completions) <= room]
        if not fitting:
            left += [row for row, _ in group.completions]
            continue
        part = min(fitting, key=lambda part: loads[part])
        members[part] += [row for row, _ in group.completions]
        loads[part] += group.size
    rest = iter(left + idle)
    order = np.empty(rows, int)
    for part, chosen in members.items():
        order[slots[part]] = chosen + [next(rest) for _ in range(room - len(chosen))]
    return order


def pack(
    batch: TokenBatch,
    mask: np.ndarray,
    *,
    share_prefix: bool,
    row_length: int = 0,
    min_rows: int = 1,
    num_parts: int = 1,
    num_micro_batches: int = 1,
) -> Packed:
    """Packs the rows of `batch`, in numpy.

    Args:
      batch: TokenBatch [B, P + C] with one sequence per row, as the sampler returns it (prefix_ids None).
      mask: bool [B, C]. Tokens to score. Rows without any are dropped.
      share_prefix: whether equal prompts appear only once per packed row.
      row_length: T. 0 means 2 (P + C).
      min_rows: lower bound of R, so that smaller batches all share one shape.
      num_parts: S, a multiple of num_micro_batches and of the devices that share a micro-batch. Part s holds rows that
        step._deal gives to micro-batch s % num_micro_batches, so that indices never leave it.
      num_micro_batches: gradient-accumulation steps of the train step.

    Returns:
      Packed, of numpy arrays.

    Raises:
      ValueError: if the rows do not divide into the parts, a sequence is longer than row_length, a scored row has no
        prompt, or the mask covers padding.
    """
    chex.assert_rank([batch.tokens, batch.positions, batch.segment_ids, mask], 2)
    rows, length = mask.shape
    slots = _slots(rows, num_parts, num_micro_batches)
    row_length = row_length or 2 * batch.tokens.shape[1]
    result = _groups(batch, mask, share_prefix)
    longest = max((len(g.prompt[1]) + len(columns) for g in result for _, columns in g.completions), default=0)
    if longest > row_length:
        raise ValueError(f"a sequence of {longest} tokens does not fit into rows of row_length={row_length}")
    part_of = np.empty(rows, int)
    part_of[slots] = np.arange(num_parts)[:, None]
    bins = [_first_fit(_of_rows(result, part_of == part), row_length) for part in range(num_parts)]
    height = round_up(max(min_rows, *map(len, bins)))
    blank = np.zeros((num_parts, height, row_length), np.int32)
    number = min(slots.shape[1] * length, height * row_length)
    packed = Packed(
        rows=TokenBatch(blank, blank.copy(), blank.copy(), blank.copy() if share_prefix else None),
        sources=np.zeros((num_parts, number), np.int32),
        targets=np.zeros((num_parts, number), np.int32),
        counts=np.zeros(num_parts, np.int32),
        places=np.full((rows, length), -1, np.int32),
        columns=np.full((rows, length + 1), -1, np.int32),
    )
    host = TokenBatch(*(np.asarray(x) for x in batch[:3]))
    for part, rows_of_groups in enumerate(bins):
        _fill(packed, part, rows_of_groups, host, np.asarray(mask))
    return packed._replace(places=packed.places[slots], columns=packed.columns[slots])


def occupancy(batch: TokenBatch | Packed) -> float:
    """Fraction of the forward's columns that hold a token."""
    rows = batch.rows if isinstance(batch, Packed) else batch
    return float(np.mean(np.asarray(rows.segment_ids) != 0))


def _slots(rows: int, num_parts: int, num_micro_batches: int) -> np.ndarray:
    """int [S, B / S]: the rows of each part.

    Micro-batch m gets rows m, m + M, ... (step._deal), and each of its devices gets neighbouring ones of those.
    """
    if num_parts % num_micro_batches or rows % num_parts:
        raise ValueError(f"{rows} rows do not divide into {num_parts} parts of {num_micro_batches} micro-batches")
    dealt = np.arange(rows).reshape(num_parts // num_micro_batches, -1, num_micro_batches)
    return dealt.transpose(0, 2, 1).reshape(num_parts, -1)


def _groups(batch: TokenBatch, mask: np.ndarray, share_prefix: bool) -> list[_Group]:
    """The rows that have a scored token; rows of one prompt form one group if they share it."""
    mask, segments = np.asarray(mask), np.asarray(batch.segment_ids)
    tokens, positions = np.asarray(batch.tokens), np.asarray(batch.positions)
    width = segments.shape[1] - mask.shape[1]
    if (mask & (segments[:, width:] == 0)).any():
        raise ValueError("the mask covers padding: a scored token must be a token of its row")
    result: dict[object, _Group] = {}
    for row in np.flatnonzero(mask.any(axis=1)):
        end = width + np.flatnonzero(mask[row])[-1] + 1
        columns = np.flatnonzero(segments[row, :end])
        prompt, completion = columns[columns < width], columns[columns >= width]
        if not len(prompt):
            raise ValueError(f"row {row} has scored tokens and no prompt to predict the first one from")
        key = (tokens[row, prompt].tobytes(), positions[row, prompt].tobytes()) if share_prefix else row
        result.setdefault(key, _Group((row, prompt), [])).completions.append((row, completion))
    return list(result.values())


def _of_rows(groups: list[_Group], chosen: np.ndarray) -> list[_Group]:
    """The groups, keeping only the completions whose row is chosen."""
    kept = [g._replace(completions=[c for c in g.completions if chosen[c[0]]]) for g in groups]
    return [group for group in kept if group.completions]


def _first_fit(groups: list[_Group], row_length: int) -> list[list[_Group]]:
    """The groups of each packed row: largest first, each into the first row with room for it.

    A group longer than a row is split over several, with its prompt in each of them.
    """
    rows, room = [], []

    def put(group):
        place = next((i for i, free in enumerate(room) if group.size <= free), len(rows))
        if place == len(rows):
            rows.append([])
            room.append(row_length)
        rows[place].append(group)
        room[place] -= group.size

    for group in sorted(groups, key=lambda group: -group.size):
        while group.size > row_length:
            free, taken, rest = row_length - len(group.prompt[1]), [], []
            for completion in sorted(group.completions, key=lambda c: -len(c[1])):
                if len(completion[1]) <= free:
                    taken.append(completion)
                    free -= len(completion[1])
                else:
                    rest.append(completion)
            put(group._replace(completions=taken))
            group = group._replace(completions=rest)
        put(group)
    return rows


def _fill(packed: Packed, part: int, bins: list[list[_Group]], batch: TokenBatch, mask: np.ndarray) -> None:
    """Writes one part's groups into the arrays of `packed`, whose places and columns are still [B, C (+ 1)]."""
    width, number = batch.tokens.shape[1] - mask.shape[1], 0
    rows, share_prefix = packed.rows, packed.rows.prefix_ids is not None
    row_length = rows.tokens.shape[2]

    def write(r, column, row, columns, segment, prefix):
        place = (part, r, slice(column, column + len(columns)))
        rows.tokens[place], rows.positions[place] = batch.tokens[row, columns], batch.positions[row, columns]
        rows.segment_ids[place] = segment
        if share_prefix:
            rows.prefix_ids[place] = prefix
        return column + len(columns)

    for r, groups in enumerate(bins):
        column, segment = 0, 0
        for group in groups:
            segment += 1
            prompt_segment = segment
            column = write(r, column, *group.prompt, segment, 0)
            last = column - 1
            for row, columns in group.completions:
                segment += share_prefix
                scored = np.flatnonzero(mask[row, columns - width])
                sources = column - 1 + scored
                sources[scored == 0] = last  # the first token is predicted from the end of the prompt, wherever that is
                n = slice(number, number + len(scored))
                packed.sources[part, n] = r * row_length + sources
                packed.targets[part, n] = batch.tokens[row, columns[scored]]
                packed.places[row, columns[scored] - width] = np.arange(number, number + len(scored))
                packed.columns[row, 0] = r * row_length + last
                packed.columns[row, columns - width + 1] = r * row_length + column + np.arange(len(columns))
                number += len(scored)
                column = write(r, column, row, columns, segment, prompt_segment)
    packed.counts[part] = number
