"""A price of calls in the reward that follows what calls have cost of late: Router-R1's running quantiles.

Named in a config by their import paths: `cost_window` in the place trackers.reward_scale, `priced` as the shaping.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.core.trackers import Tracker

LEAST = 1e-8  # quantiles that are as near are the same


class CostWindow(NamedTuple):
    """What the last episodes have cost."""

    costs: chex.Array
    """float32 [W]. A ring: the next cost goes to `seen` modulo W."""
    seen: chex.Array
    """int32 []. Episodes so far."""
    low: chex.Array
    """float32 []. The lower quantile of what is in the window."""
    high: chex.Array
    """float32 []. The upper one."""

    def named(self, prompts: chex.Array | None = None) -> dict[str, chex.Array]:
        """cost_quantiles float32 [2]: low, high. prompts: unused."""
        return {"cost_quantiles": jnp.stack([self.low, self.high])}


def row_costs(turns: chex.Array, turn_cost: chex.Array) -> chex.Array:
    """x = sqrt(sum of a row's costs). int32 [B, C], float [B, C] on the last token of each turn -> float [B]."""
    chex.assert_equal_shape([turns, turn_cost])
    return jnp.sqrt(jnp.sum(zero_masked(turn_cost, turns >= 0), axis=1))


def cost_window(*, size: int = 1000, low: float = 0.05, high: float = 0.95) -> Tracker:
    """The quantiles of x = sqrt(cost) over the last `size` episodes, interpolated as in numpy.percentile.

    update: (state, rewards, *, turns, turn_cost) -> state, before the step's rewards are shaped. All rows of a step go
    in before any is priced, so their order is nothing; the code prices each row after those before it. Rows without a
    turn (their environment failed) are left out.
    Source: arXiv 2506.09033 (Router-R1); its fork programmer229/Router-R1, verl/trainer/main_ppo.py.

    Args:
      size: W.
      low: level of the lower quantile.
      high: level of the upper one.

    Raises:
      ValueError: if size is below 1, or not 0 <= low < high <= 1.
    """
    if size < 1 or not 0 <= low < high <= 1:
        raise ValueError(f"size={size} must be at least 1, and 0 <= low={low} < high={high} <= 1")

    def update(state: CostWindow, rewards: chex.Array, *, turns: chex.Array, turn_cost: chex.Array) -> CostWindow:
        played = jnp.any(turns >= 0, axis=1)
        place = state.seen + jnp.cumsum(played) - 1
        seen = state.seen + jnp.sum(played, dtype=jnp.int32)
        kept = played & (place >= seen - size)  # of more rows than the window holds, the last
        costs = state.costs.at[jnp.where(kept, place % size, size)].set(row_costs(turns, turn_cost), mode="drop")
        count = jnp.minimum(seen, size)
        ordered = jnp.sort(jnp.where(jnp.arange(size) < count, costs, jnp.inf))

        def quantile(level: float) -> chex.Array:
            at = jnp.maximum(count - 1, 0) * level
            below, above = jnp.floor(at).astype(jnp.int32), jnp.ceil(at).astype(jnp.int32)
            part = at - below
            found = jnp.where(part > 0, (1 - part) * ordered[below] + part * ordered[above], ordered[below])
            return jnp.where(count > 0, found, 0.0)

        return CostWindow(costs, seen, quantile(low), quantile(high))

    return Tracker(
        lambda: CostWindow(jnp.zeros(size, jnp.float32), jnp.int32(0), jnp.float32(0.0), jnp.float32(0.0)), update
    )


def priced(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    turns: chex.Array,
    turn_cost: chex.Array,
    cost_quantiles: chex.Array,
    weight: float = 0.5,
) -> chex.Array:
    """R = (1 - alpha) EM + alpha c; what is below 0 (a wrong format) stays as it is.

        c = 1 - clip((x - q_low) / (q_high - q_low), 0, 1),   0.5 if the quantiles are the same,   x = sqrt(cost)

    Source: arXiv 2506.09033; c as in its fork's code (verified), how it is combined from its paper by way of the atlas.

    Args:
      rewards: float [B], 1 for a right answer, 0 for a wrong one, below 0 for a wrong format.
      lengths: unused.
      truncated: unused.
      key: unused.
      turns: int32 [B, C], number of the turn on its tokens; -1 elsewhere.
      turn_cost: float [B, C], tokens times their price, on the last token of each turn.
      cost_quantiles: float [2], of a `cost_window`.
      weight: alpha, in [0, 1].

    Raises:
      ValueError: if weight is not in [0, 1].
    """
    chex.assert_equal_shape_prefix([rewards, turns], 1)
    chex.assert_shape(cost_quantiles, (2,))
    if not 0 <= weight <= 1:
        raise ValueError(f"weight={weight} must be in [0, 1]")
    low, high = jax.lax.stop_gradient(cost_quantiles)
    apart = high - low
    share = jnp.clip((row_costs(turns, turn_cost) - low) / jnp.maximum(apart, LEAST), 0.0, 1.0)
    cheap = jnp.where(apart < LEAST, 0.5, 1.0 - share)
    return jnp.where(rewards < 0, rewards, (1.0 - weight) * rewards + weight * cheap)
