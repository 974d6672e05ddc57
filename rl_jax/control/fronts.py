"""Fronts inside a compiled program: stats.pareto's functions of N points, some of which may be missing.

Points are float32 [N, K], all objectives to be large, and `kept` bool [N] says which of them count.
"""

import chex
import jax
import jax.numpy as jnp


def nondominated(points: chex.Array, kept: chex.Array) -> chex.Array:
    """The points of the front, of equal ones the first: bool [N]."""
    chex.assert_rank([points, kept], [2, 1])
    other, own = points[None], points[:, None]
    better = jnp.all(other >= own, -1) & jnp.any(other > own, -1)
    before = jnp.all(other == own, -1) & (jnp.arange(len(points))[None] < jnp.arange(len(points))[:, None])
    return kept & ~jnp.any((better | before) & kept[None], axis=1)


def hypervolume(points: chex.Array, kept: chex.Array, reference: chex.Array) -> chex.Array:
    """The volume that the points dominate above the reference, float32 []: slices along the last objective.

    Source: the definition. N^(K - 2) sorts of N numbers.

    Args:
      points: float32 [N, K].
      kept: bool [N].
      reference: float32 [K]. Points that are not above it count nothing.
    """
    chex.assert_rank([points, kept, reference], [2, 1, 1])
    above = points - reference[None]
    return _volume(jnp.where((kept & jnp.all(above > 0, axis=1))[:, None], above, 0.0))


def _volume(x: chex.Array) -> chex.Array:
    """The volume above 0 of points that are positive, or 0 in each objective: float32 [N, K] -> []."""
    if x.shape[1] == 1:
        return jnp.max(x)
    x = x[jnp.argsort(-x[:, -1])]
    heights = x[:, -1] - jnp.append(x[1:, -1], 0.0)
    if x.shape[1] == 2:
        return jnp.sum(heights * jax.lax.cummax(x[:, 0]))
    index = jnp.arange(len(x))
    return jnp.sum(heights * jax.vmap(lambda i: _volume(jnp.where((index <= i)[:, None], x[:, :-1], 0.0)))(index))


def expected_utility(points: chex.Array, kept: chex.Array, weights: chex.Array) -> chex.Array:
    """mean_w max_p w . p, float32 []. weights: float32 [W, K]."""
    return jnp.mean(jnp.max(jnp.where(kept[None], weights @ points.T, -jnp.inf), axis=1))


def crowding(points: chex.Array, kept: chex.Array) -> chex.Array:
    """stats.pareto.crowding of the points that are kept, -1 for the others: float32 [N]. Source: NSGA-II."""
    count, index = jnp.sum(kept), jnp.arange(len(points))

    def along(values: chex.Array) -> chex.Array:
        order = jnp.argsort(jnp.where(kept, values, jnp.inf), stable=True)
        ordered = values[order]
        spread = ordered[count - 1] - ordered[0]
        gaps = jnp.append(ordered[1:], 0.0) - jnp.append(0.0, ordered[:-1])
        scaled = jnp.where(spread > 0, gaps / jnp.where(spread > 0, spread, 1.0), 0.0)
        return jnp.zeros_like(values).at[order].set(jnp.where((index == 0) | (index == count - 1), jnp.inf, scaled))

    return jnp.where(kept, jnp.sum(jax.vmap(along, 1)(points), axis=0), -1.0)
