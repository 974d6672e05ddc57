"""Sequence packing: the model's forward sees dense rows, the loss still sees [B, C].

A padded batch spends most of its forward on padding, and repeats each prompt once per completion. Here the real tokens
go into rows of a fixed length, first-fit decreasing, each sequence a separate segment. With share_prefix a prompt
appears once in its row and its completions attend to it (TokenBatch.prefix_ids). Only tokens up to the last scored one
of a row are kept. Everything happens on the host, in numpy, before the batch is sent to a device.

Shapes: T is fixed, N follows from R, and R takes few sizes (`round_up`), so a run compiles a handful of programs: 3 or
4 in 200 steps of 32 rows with heavy-tailed lengths, fewer for larger batches; min_rows makes it one. The result depends
on the batch only, not on earlier batches, so a resumed run packs identically.
"""

import heapq
from typing import NamedTuple

import chex
import numpy as np

from rl_jax.core.types import Packed, TokenBatch
from rl_jax.training.rooms import Rooms


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
        if len(self.completions) == 1:  # twice as fast
            return len(self.prompt[1]) + len(self.completions[0][1])
        return len(self.prompt[1]) + sum(len(columns) for _, columns in self.completions)


def round_up(rows: int) -> int:
    """The smallest size >= `rows` among 1, 2, .. 8, 10, 12, 14, 16, 20, ..: four per doubling."""
    step = max(1, 2 ** ((rows - 1).bit_length() - 3))
    return max(1, -(-rows // step) * step)


def shared_row_length(prompt: int, completion: int, group_size: int) -> int:
    """T for rows that share prompts: the cheapest for groups whose tokens are all there.

    A row holds a prompt with k of its G completions, or m whole groups. Of such rows, from 1.5 to 3 (P + C) long, the
    one with the least n T (1 + T / (8 (P + C))): n rows of T columns, and attention that grows with the row. Shorter
    rows would leave completions that end early no partner, longer ones cost attention.

    Args:
      prompt: P, columns.
      completion: C, columns.
      group_size: G, completions of a prompt.
    """
    chex.assert_scalar_positive(group_size)
    width, group = prompt + completion, prompt + group_size * completion
    # Columns per group, by the length of a row.
    columns = {prompt + k * completion: -(-group_size // k) * (prompt + k * completion) for k in range(1, group_size)}
    columns |= {m * group: group for m in range(1, 3 * width // group + 1)}
    fits = [length for length in columns if 1.5 * width <= length <= 3 * width]
    return min(fits, key=lambda length: columns[length] * (1 + length / (8 * width)))


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
    lightest, room = [(0, part) for part in range(num_parts)], slots.shape[1]  # a heap of (load, part)
    result = _groups(batch, mask, share_prefix)
    idle = sorted(set(range(rows)) - {row for group in result for row, _ in group.completions})
    left = []
    for group in sorted(result, key=lambda group: -group.size):
        too_full = []
        while lightest and len(members[lightest[0][1]]) + len(group.completions) > room:
            too_full.append(heapq.heappop(lightest))
        chosen = members[lightest[0][1]] if lightest else left
        chosen += [row for row, _ in group.completions]
        if lightest:
            load, part = lightest[0]
            heapq.heapreplace(lightest, (load + group.size, part))
        for load, part in too_full:
            if len(members[part]) < room:
                heapq.heappush(lightest, (load, part))
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
        step.deal gives to micro-batch s % num_micro_batches, so that indices never leave it.
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
    bins = [_first_fit(groups, row_length) for groups in _by_part(result, part_of.tolist(), num_parts)]
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

    Micro-batch m gets rows m, m + M, ... (step.deal), and each of its devices gets neighbouring ones of those.
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
    rows = np.flatnonzero(mask.any(axis=1))
    ends = width + mask.shape[1] - np.argmax(mask[rows, ::-1], axis=1)  # after the last scored token
    real = (segments[rows] != 0) & (np.arange(segments.shape[1])[None] < ends[:, None])
    found, columns = np.nonzero(real)
    if share_prefix:
        tokens, positions = tokens[rows[found], columns], positions[rows[found], columns]
    stops = np.cumsum(np.sum(real, axis=1))
    starts = stops - np.sum(real, axis=1)
    middles = starts + np.sum(real[:, :width], axis=1)
    result: dict[object, _Group] = {}
    for row, start, middle, stop in zip(*(x.tolist() for x in (rows, starts, middles, stops)), strict=True):
        if start == middle:
            raise ValueError(f"row {row} has scored tokens and no prompt to predict the first one from")
        key = (tokens[start:middle].tobytes(), positions[start:middle].tobytes()) if share_prefix else row
        group = result.get(key)
        if group is None:
            group = result[key] = _Group((row, columns[start:middle]), [])
        group.completions.append((row, columns[middle:stop]))
    return list(result.values())


def _by_part(groups: list[_Group], part_of: list[int], num_parts: int) -> list[list[_Group]]:
    """The groups of each part, keeping only the completions whose row is in it. part_of: of each row."""
    if num_parts == 1:
        return [groups]
    result = [[] for _ in range(num_parts)]
    for group in groups:
        own: dict[int, list] = {}
        for completion in group.completions:
            own.setdefault(part_of[completion[0]], []).append(completion)
        for part, completions in own.items():
            result[part].append(group._replace(completions=completions))
    return result


def _first_fit(groups: list[_Group], row_length: int) -> list[list[_Group]]:
    """The groups of each packed row: largest first, each into the first row with room for it.

    A group longer than a row is split over several, with its prompt in each of them.
    """
    rows, rooms = [], Rooms()

    def put(group, size):
        place = rooms.first(size)
        if place == len(rows):
            rows.append([])
            rooms.put(place, row_length - size)
        else:
            rooms.put(place, rooms.left(place) - size)
        rows[place].append(group)

    for size, group in sorted([(group.size, group) for group in groups], key=lambda pair: -pair[0]):
        while size > row_length:
            free, taken, rest = row_length - len(group.prompt[1]), [], []
            for completion in sorted(group.completions, key=lambda c: -len(c[1])):
                if len(completion[1]) <= free:
                    taken.append(completion)
                    free -= len(completion[1])
                else:
                    rest.append(completion)
            part = group._replace(completions=taken)
            put(part, part.size)
            group = group._replace(completions=rest)
            size = group.size
        put(group, size)
    return rows


def _fill(packed: Packed, part: int, bins: list[list[_Group]], batch: TokenBatch, mask: np.ndarray) -> None:
    """Writes one part's groups into the arrays of `packed`, whose places and columns are still [B, C (+ 1)].

    A piece is a prompt or a completion: neighbouring tokens of a packed row. First the pieces are listed, then all
    tokens of the part are written at once.
    """
    rows, share_prefix = packed.rows, packed.rows.prefix_ids is not None
    row_length, width = rows.tokens.shape[2], batch.tokens.shape[1] - mask.shape[1]
    # Row of the batch, first place in the part, segment, its prefix, place of its prompt's end.
    pieces: list[tuple[int, int, int, int, int]] = []
    columns: list[np.ndarray] = []
    for r, groups in enumerate(bins):
        place, segment = r * row_length, 0
        for group in groups:
            segment += 1
            row, own = group.prompt
            last, prefix = place + len(own) - 1, segment
            pieces.append((row, place, segment, 0, -1))
            columns.append(own)
            place += len(own)
            for row, own in group.completions:
                segment += share_prefix
                pieces.append((row, place, segment, prefix, last))
                columns.append(own)
                place += len(own)
    if not pieces:
        return
    row, start, segment, prefix, last = np.array(pieces).T
    lengths = np.fromiter(map(len, columns), int, len(columns))
    column = np.concatenate(columns)
    piece = np.repeat(np.arange(len(pieces), dtype=np.int32), lengths)
    place = np.arange(len(column)) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)
    source = row[piece] * batch.tokens.shape[1] + column
    rows.tokens[part].reshape(-1)[place] = batch.tokens.reshape(-1)[source]
    rows.positions[part].reshape(-1)[place] = batch.positions.reshape(-1)[source]
    rows.segment_ids[part].reshape(-1)[place] = np.repeat(segment.astype(np.int32), lengths)
    if share_prefix:
        rows.prefix_ids[part].reshape(-1)[place] = np.repeat(prefix.astype(np.int32), lengths)
    own = np.flatnonzero(last[piece] >= 0)  # of the completions
    row_of, column, place, piece = row[piece[own]], column[own] - width, place[own], piece[own]
    packed.columns[row_of, column + 1] = place
    packed.columns[row[last >= 0], 0] = last[last >= 0]
    # A completion's first token is predicted from the end of the prompt, wherever that is.
    sources = np.where(place == start[piece], last[piece], place - 1)
    scored = np.flatnonzero(mask[row_of, column])
    packed.sources[part, : len(scored)] = sources[scored]
    packed.targets[part, : len(scored)] = batch.tokens.reshape(-1)[source[own[scored]]]
    packed.places[row_of[scored], column[scored]] = np.arange(len(scored))
    packed.counts[part] = len(scored)
