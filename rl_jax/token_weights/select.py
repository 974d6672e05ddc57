"""The k lowest of the tokens on a mask, k traced, without sorting: counts of what lies below a threshold.

A float is read as an unsigned integer of the same order, and a threshold is built bit by bit: at most 32 counts over
[B, T] find an order statistic exactly, far faster than a sort, with static shapes and no temporary beyond [B, T].
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
    """The largest integer behind the mask, which lies below no threshold: one array to read in every count."""
    return jnp.where(mask, bits, ~jnp.zeros_like(bits))


def _num_below(hidden: chex.Array, threshold: chex.Array) -> chex.Array:
    # A row's sum in float32 is exact to 2^24 columns, and on a CPU three times as fast as one of integers.
    return jnp.sum(jnp.sum((hidden < threshold).astype(jnp.float32), axis=1).astype(jnp.int32))


def _cut(hidden: chex.Array, count: chex.Array, first_bit: chex.Array | int = 0) -> tuple[chex.Array, chex.Array]:
    """(threshold, found): found where `count` numbers lie below; else, among equals, the largest with fewer below.

    first_bit: from the top, the first that the threshold may have; the caller has made sure of it.
    """
    width, one = 8 * hidden.dtype.itemsize, jnp.asarray(1, hidden.dtype)

    def set_bit(state):
        i, threshold, _ = state
        candidate = threshold | (one << (width - 1 - i).astype(hidden.dtype))
        num_below = _num_below(hidden, candidate)
        return i + 1, jnp.where(num_below <= count, candidate, threshold), num_below == count

    def going(state):  # a threshold with `count` below it is found before its last bit, unless equals lie across it
        i, _, found = state
        return (i < width) & ~found

    _, threshold, found = jax.lax.while_loop(
        going, set_bit, (first_bit, jnp.zeros((), hidden.dtype), jnp.asarray(False))
    )
    return threshold, found


def at_rank(bits: chex.Array, mask: chex.Array, rank: chex.Array) -> chex.Array:
    """The integer with `rank` others of the mask below it in sorted order. uint [B, T], bool [B, T], int [] -> uint [].

    A rank beyond the last one gives the largest integer there is, which no number is above.
    """
    chex.assert_equal_shape([bits, mask])
    hidden = _hide(bits, mask)
    threshold, _ = _cut(hidden, rank)
    return jnp.min(jnp.where(hidden >= threshold, hidden, ~jnp.zeros_like(hidden)))


def lowest(bits: chex.Array, mask: chex.Array, count: chex.Array, *, uniform: bool = False) -> chex.Array:
    """True on the `count` lowest of the mask, or on all of it where it has fewer; of equals on the first, row by row.

    bits: uint [B, T]. mask: bool [B, T]. count: int []. uniform: whether `bits` are random; the same result, in half
    the time where `count` is small, since the threshold's upper bits are then foreseen. Returns bool [B, T].
    """
    chex.assert_equal_shape([bits, mask])
    hidden, first_bit = _hide(bits, mask), 0
    if uniform:  # about half to a quarter of 2^-skipped of the mask is wanted: one count tells whether that is enough
        width = 8 * bits.dtype.itemsize
        wanted = count / jnp.sum(mask, dtype=jnp.float32)
        skipped = jnp.clip(-jnp.ceil(jnp.log2(wanted)) - 1, 1, width - 1).astype(jnp.int32)
        ceiling = jnp.asarray(1, bits.dtype) << (width - skipped).astype(bits.dtype)
        first_bit = jnp.where(_num_below(hidden, ceiling) > count, skipped, 0)
    threshold, found = _cut(hidden, count, first_bit)
    below = mask & (bits < threshold)

    def with_equals():
        equal = mask & (bits == threshold)
        place = jnp.cumsum(equal.reshape(-1)).reshape(mask.shape)  # 1 for the first of the equals
        return below | (equal & (place <= count - jnp.sum(below)))

    return jax.lax.cond(found, lambda: below, with_equals)
