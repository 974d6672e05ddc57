"""Draws by weight among a million: a tree of sums, so that no small weight is lost beside the sum of all.

A running sum over all weights in float32 is above 2^17 in steps of 1 / 64: a weight below that adds nothing to many of
them, and can never be drawn. Here each running sum is over WIDTH numbers of about the same size.
"""

import chex
import jax
import jax.numpy as jnp

WIDTH = 32  # children of a node


def levels(weights: chex.Array) -> list[chex.Array]:
    """The weights in rows of WIDTH, the sums of these rows in rows of WIDTH, ... to one row: float [rows, WIDTH] each.

    Args:
      weights: float [M], 0 or more.
    """
    chex.assert_rank(weights, 1)
    result, sums = [], weights
    while not result or len(sums) > 1:
        rows = jnp.pad(sums, (0, -len(sums) % WIDTH)).reshape(-1, WIDTH)
        result.append(rows)
        sums = jnp.sum(rows, axis=1)
    return result


def draw_stratified(weights: chex.Array, key: chex.PRNGKey, size: int) -> tuple[chex.Array, chex.Array]:
    """N = size draws with P(i) = w_i / sum w: the unit interval is cut into N equal parts, one number drawn in each.

    What has weight 0 is never drawn. Source of the tree and of the parts: arXiv 1511.05952.

    Args:
      weights: w, float [M], 0 or more, not all 0.
      key: typed PRNG key.
      size: N.

    Returns:
      (places int32 [N], in order; the sum of the weights, float []).
    """
    *below, top = levels(weights)
    total = jnp.sum(top)
    cuts = jnp.arange(size + 1) / size * total
    # A number is kept as its part's beginning and the way from there: their sum would be rounded to steps of the total.
    place, share = _child(top, cuts[:-1], jax.random.uniform(key, (size,)) * jnp.diff(cuts))
    for rows in reversed(below):
        children = rows[place]
        child, share = _child(children, jnp.zeros(size), share * jnp.sum(children, axis=1))
        place = place * WIDTH + child
    return place, total


def _child(children: chex.Array, start: chex.Array, way: chex.Array) -> tuple[chex.Array, chex.Array]:
    """The child that start + way falls in, int32 [N], and how far into it that is, float [N] from 0 to 1.

    Args:
      children: float [N, WIDTH], or [1, WIDTH] for all.
      start: float [N].
      way: float [N].
    """
    index = jnp.arange(WIDTH, dtype=jnp.int32)
    # Running sums as a product with ones: of so few numbers that is faster than jnp.cumsum. Seen from the start.
    ones = (index[:, None] <= index[None, :]).astype(children.dtype)
    ends = jnp.dot(children, ones, precision=jax.lax.Precision.HIGHEST) - start[:, None]
    # Rounding of the sums may leave room for a child without weight, or end before the last one that has some.
    first = jnp.min(jnp.where((children > 0) & (ends > way[:, None]), index, WIDTH), axis=1)
    last = jnp.max(jnp.where(children > 0, index, 0), axis=1)
    found = jnp.minimum(first, last)
    begins = jnp.concatenate([-start[:, None], ends[:, :-1]], axis=1)
    begin, end = (jnp.take_along_axis(x, found[:, None], axis=1)[:, 0] for x in (begins, ends))
    return found, jnp.clip((way - begin) / jnp.maximum(end - begin, 1e-30), 0.0, 1.0)
