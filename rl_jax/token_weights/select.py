"""The k lowest of the tokens on a mask, k traced, without sorting: by counting the values below a threshold.

A float is read as an unsigned integer of the same order, and a threshold is built bit by bit. At most 32 counts over
[B, T] give an exact order statistic, much faster than a sort, with static shapes and no temporary larger than [B, T].
"""

import chex
import jax
import jax.numpy as jnp


def ordered_bits(x: chex.Array) -> chex.Array:
    """Unsigned integers in the order of `x`: a < b iff bits(a) < bits(b), and -0 equals 0. float [...]."""
    chex.assert_type(x, float)
    width = 8 * x.dtype.itemsize
    dtype = jnp.dtype(f"uint{width}")
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros_like(x), x), dtype)
    top = jnp.asarray(1, dtype) << (width - 1)
    return jnp.where((bits & top) == 0, bits | top, ~bits)


def _hide(bits: chex.Array, mask: chex.Array) -> chex.Array:
    """`bits` with the largest integer outside the mask, which is below no threshold: every count reads one array."""
    return jnp.where(mask, bits, ~jnp.zeros_like(bits))


def _num_below(hidden: chex.Array, threshold: chex.Array) -> chex.Array:
    # A row's float32 sum is exact up to 2^24 columns, and three times as fast on a CPU as an integer sum.
    return jnp.sum(jnp.sum((hidden < threshold).astype(jnp.float32), axis=1).astype(jnp.int32))


def _cut(hidden: chex.Array, count: chex.Array, first_bit: chex.Array | int = 0) -> tuple[chex.Array, chex.Array]:
    """(threshold, found): found if exactly `count` numbers are below; else, among equals, the largest with fewer below.

    first_bit: from the top, the first bit that the threshold may have set; the caller guarantees it.
    """
    width, one = 8 * hidden.dtype.itemsize, jnp.asarray(1, hidden.dtype)

    def set_bit(state):
        i, threshold, _ = state
        candidate = threshold | (one << (width - 1 - i).astype(hidden.dtype))
        num_below = _num_below(hidden, candidate)
        return i + 1, jnp.where(num_below <= count, candidate, threshold), num_below == count

    def going(state):  # a threshold with `count` below it is found before its last bit, unless ties straddle it
        i, _, found = state
        return (i < width) & ~found

    _, threshold, found = jax.lax.while_loop(
        going, set_bit, (first_bit, jnp.zeros((), hidden.dtype), jnp.asarray(False))
    )
    return threshold, found


def at_rank(bits: chex.Array, mask: chex.Array, rank: chex.Array) -> chex.Array:
    """The integer with `rank` others of the mask below it in sorted order. uint [B, T], bool [B, T], int [] -> uint [].

    A rank beyond the last one gives the largest integer of the type, which no number exceeds.
    """
    chex.assert_equal_shape([bits, mask])
    hidden = _hide(bits, mask)
    threshold, _ = _cut(hidden, rank)
    return jnp.min(jnp.where(hidden >= threshold, hidden, ~jnp.zeros_like(hidden)))


def lowest(bits: chex.Array, mask: chex.Array, count: chex.Array, *, uniform: bool = False) -> chex.Array:
    """True on the `count` lowest of the mask, or on all of it if it has fewer. Ties go to the first, row by row.

    Args:
      bits: uint [B, T].
      mask: bool [B, T].
      count: int [].
      uniform: whether `bits` are uniformly random. The result is the same, in half the time if `count` is small,
        because the threshold's upper bits are then predictable.

    Returns:
      bool [B, T].
    """
    chex.assert_equal_shape([bits, mask])
    hidden, first_bit = _hide(bits, mask), 0
    if uniform:  # 2^-skipped is two to four times the share: one count shows whether that is enough
        width = 8 * bits.dtype.itemsize
        share = count / jnp.sum(mask, dtype=jnp.float32)
        skipped = jnp.clip(-jnp.ceil(jnp.log2(share)) - 1, 1, width - 1).astype(jnp.int32)
        ceiling = jnp.asarray(1, bits.dtype) << (width - skipped).astype(bits.dtype)
        first_bit = jnp.where(_num_below(hidden, ceiling) > count, skipped, 0)
    threshold, found = _cut(hidden, count, first_bit)
    below = mask & (bits < threshold)

    def with_equals():
        equal = mask & (bits == threshold)
        place = jnp.cumsum(equal.reshape(-1)).reshape(mask.shape)  # 1 for the first of the equals
        return below | (equal & (place <= count - jnp.sum(below)))

    return jax.lax.cond(found, lambda: below, with_equals)
