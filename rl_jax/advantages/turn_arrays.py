"""What credit over turns is made of: where the turns of a batch are, sums to go over turns, moments by group."""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import grouped
from rl_jax.advantages.recursion import backward_sums, following
from rl_jax.core.masked import zero_masked

REST = 1e-6  # a rest of the reward below this share of its terms is their rounding


class Episodes(NamedTuple):
    """The turns of a batch. `ids` are of segment sums; arrays are [B, C]."""

    on: chex.Array
    """bool. Tokens of a turn."""
    ends: chex.Array
    """bool. The last token of each turn."""
    rewards: chex.Array
    """float. The reward of each turn on its last token, with the row's rest in the last turn; 0 elsewhere."""
    turn_ids: chex.Array
    """int32. On tokens of turns: the same for equal turns of a group; below `number`."""
    group_ids: chex.Array
    """int32. The row's group; below `number`."""
    last_turn: chex.Array
    """bool. Tokens of the row's last turn."""
    company: chex.Array
    """bool [B, 1]. Whether another row of the group has a turn, too."""
    number: int
    """B C, an upper bound of the ids."""


def episodes(rewards: chex.Array, turns: chex.Array, turn_rewards: chex.Array, group_size: int) -> Episodes:
    """Where the turns are, and what each has earned.

    Args:
      rewards: float [B], of whole rows.
      turns: int32 [B, C], number of the turn on its tokens, never falling; -1 elsewhere.
      turn_rewards: float [B, C], on the last token of each turn; values elsewhere are not read.
      group_size: G, rows per prompt; the rows of a group are neighbours.

    Raises:
      ValueError: for groups of one, or if B is not a multiple of group_size.
    """
    chex.assert_rank([rewards, turns], [1, 2])
    chex.assert_equal_shape([turns, turn_rewards])
    chex.assert_equal_shape_prefix([rewards, turns], 1)
    chex.assert_type([rewards, turns, turn_rewards], [float, int, float])
    grouped(rewards, group_size)
    if group_size < 2:
        raise ValueError(f"turns are compared within a group: group_size={group_size} must be at least 2")
    rows, width = turns.shape
    on = turns >= 0
    number = turns.astype(rewards.dtype)
    ends = on & (following(number, on, jnp.full(rows, jnp.inf, rewards.dtype)) != number)
    earned = zero_masked(turn_rewards, ends)
    rest = rewards - jnp.sum(earned, axis=1)
    size = jnp.abs(rewards) + jnp.sum(jnp.abs(earned), axis=1)
    rest = jnp.where(jnp.abs(rest) > REST * size, rest, 0.0)
    last_turn = on & (turns == jnp.max(turns, axis=1, keepdims=True))
    earned = earned + jnp.where(last_turn & ends, rest[:, None], 0.0)
    group = jnp.arange(rows) // group_size
    present = jnp.any(on, axis=1).reshape(-1, group_size)
    company = jnp.repeat(jnp.sum(present, axis=1) > 1, group_size)[:, None]
    group_ids = jnp.broadcast_to(group[:, None], turns.shape)
    turn_ids = group[:, None] * (group_size * width) + turns  # a turn without a token counts, too: width may be passed
    return Episodes(on, ends, earned, turn_ids, group_ids, last_turn, company, rows * width)


def to_go(x: chex.Array, at: Episodes, discount: float | chex.Array = 1.0) -> chex.Array:
    """sum_{k >= j} gamma^(k - j) x_k on each token of turn j. x: float [B, C], read on `ends` -> float [B, C]."""
    steps = jnp.where(at.ends, jnp.asarray(discount, x.dtype), 1.0)
    return zero_masked(backward_sums(zero_masked(x, at.ends), steps), at.on)


def spread(x: chex.Array, at: Episodes) -> chex.Array:
    """x of the last token of each turn on all of its tokens. float [B, C] -> float [B, C]."""
    return to_go(x, at, 0.0)


class Moments(NamedTuple):
    """Of the values with the same id, on each of their tokens. shifted = x - the least of them."""

    count: chex.Array
    total: chex.Array
    """Sum of the shifted values."""
    shifted: chex.Array
    mean: chex.Array
    """Mean of the shifted values."""
    std: chex.Array
    uneven: chex.Array
    """Whether the values differ by more than rounding."""


def moments(
    x: chex.Array,
    where: chex.Array,
    ids: chex.Array,
    number: int,
    *,
    ddof: int = 1,
    relative_tolerance: float = 1e-6,
) -> Moments:
    """Moments of x over the places `where`, by id; 0 elsewhere. Equal values have exactly the mean 0 after the shift.

    Args:
      x: float [B, C].
      where: bool [B, C], places that count.
      ids: int32 [B, C], below `number`.
      number: number of ids.
      ddof: of the std; that of a single value is 0.
      relative_tolerance: a std below this share of the largest |x| is rounding.
    """
    at = where.reshape(-1)
    flat = jnp.where(at, x.reshape(-1), 0.0)
    ids = jnp.where(at, ids.reshape(-1), number)  # dropped; what such places read back is replaced by 0 at the end

    def total(values):
        return jax.ops.segment_sum(values, ids, number)[ids]

    shifted = flat - jax.ops.segment_min(flat, ids, number)[ids]
    largest = jax.ops.segment_max(jnp.abs(flat), ids, number)[ids]
    count = total(jnp.ones_like(flat))
    sums = total(shifted)
    mean = sums / jnp.maximum(count, 1.0)
    std = jnp.sqrt(total(jnp.square(shifted - mean)) / jnp.maximum(count - ddof, 1.0))
    result = (count, sums, shifted, mean, std, std > relative_tolerance * largest)
    return Moments(*(jnp.where(at, value, jnp.zeros_like(value)).reshape(x.shape) for value in result))


def normed(found: Moments, eps: float, use_std: bool = True) -> chex.Array:
    """(x - mean) / (std + eps), 0 where the values are equal; without the division if not use_std."""
    centred = found.shifted - found.mean
    return jnp.where(found.uneven, centred / (found.std + eps), 0.0) if use_std else centred


def whole_rows(at: Episodes) -> tuple[chex.Array, chex.Array]:
    """(R_i on the row's last end, that place): float [B, C], bool [B, C]."""
    place = at.ends & at.last_turn
    return jnp.where(place, jnp.sum(at.rewards, axis=1, keepdims=True), 0.0), place


def on_rows(x: chex.Array, at: Episodes) -> chex.Array:
    """x of the row's last end on all tokens of its turns; 0 without company."""
    place = at.ends & at.last_turn
    of_row = jnp.sum(jnp.where(place, x, 0.0), axis=1, keepdims=True)
    return jnp.where(at.on & at.company, of_row, 0.0)


def row_relative(at: Episodes, *, ddof: int, eps: float, use_std: bool = True) -> chex.Array:
    """(R_i - mean_g) / (std_g + eps) over the rows that have a turn, on the tokens of all turns. -> float [B, C]."""
    whole, place = whole_rows(at)
    return on_rows(normed(moments(whole, place, at.group_ids, at.number, ddof=ddof), eps, use_std), at)


def state_ids(owners: chex.Array, keys: chex.Array, where: chex.Array) -> chex.Array:
    """Numbers of the pairs (owner, key): equal pairs have equal numbers, below B C. int32 [B, C] x2, bool -> int32.

    Places outside `where` and keys below 0 (no key) are alone.
    """
    shape, size = keys.shape, keys.size
    known = (where & (keys >= 0)).reshape(-1)
    place = jnp.arange(size)
    owner = owners.reshape(-1)
    key = jnp.where(known, keys.reshape(-1), ~place)  # below 0, and all different
    order = jnp.lexsort((key, owner))
    changes = (jnp.diff(owner[order]) != 0) | (jnp.diff(key[order]) != 0)
    number = jnp.pad(jnp.cumsum(changes, dtype=jnp.int32), (1, 0))
    return jnp.zeros(size, jnp.int32).at[order].set(number).reshape(shape)


def sums(at: Episodes, values: chex.Array, ids: chex.Array) -> Moments:
    """Moments whose total is that of `values` themselves, not shifted."""
    found = moments(values, at.ends, ids, at.number)
    least = values - found.shifted
    return found._replace(total=found.total + found.count * least)


def held(x: chex.Array, starts: chex.Array) -> chex.Array:
    """x of the last place on `starts`, from there on; 0 before the first. [B, C] of any dtype, bool [B, C]."""
    last = jax.lax.cummax(jnp.where(starts, jnp.arange(x.shape[1]), -1), axis=1)
    return jnp.where(last >= 0, jnp.take_along_axis(x, jnp.maximum(last, 0), axis=1), 0)


def sums_of_turns(x: chex.Array, on: chex.Array, ends: chex.Array) -> chex.Array:
    """The sum of x over the tokens of each turn, on its last token; 0 elsewhere.

    Args:
      x: float [B, C].
      on: bool [B, C], tokens of turns.
      ends: bool [B, C], the last token of each.
    """
    chex.assert_equal_shape([x, on, ends])

    def step(so_far, now):
        value, end = now
        total = so_far + value
        return jnp.where(end, 0.0, total), jnp.where(end, total, 0.0)

    _, sums = jax.lax.scan(step, jnp.zeros(x.shape[0], x.dtype), (zero_masked(x, on).T, ends.T))
    return sums.T
