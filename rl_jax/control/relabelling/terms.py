"""Named terms of a reward for `by_terms`: (rows, keywords) -> float32 [B, T], rows as the environment saw them.

own                                   r of the environment
residual    -n(o'[i] - target)        n of MuJoCo MPC, the residual terms of 2306.08647 (Language to Rewards)
closeness   exp(-|o'[I] - g|^2 / 2 w^2)            a dense term as in 2309.11489 (Text2Reward)
goal_baseline  1 - |alpha proj_L e + (1 - alpha) e - g|^2 / 2     2310.12921 (VLM-RM), e the embedded state
"""

import math

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.relabelling import potentials, similarity
from rl_jax.control.relabelling.base import flat
from rl_jax.core.vectors import unit
from rl_jax.rollout.envs.steps import Transitions


def own(rows: Transitions) -> chex.Array:
    """The environment's own reward."""
    return rows.rewards


def feature(rows: Transitions, *, index: int) -> chex.Array:
    """o'[index], of the observation that the step leads to."""
    return rows.next_observations[..., index]


def progress(rows: Transitions, *, index: int) -> chex.Array:
    """o'[index] - o[index]."""
    return rows.next_observations[..., index] - rows.observations[..., index]


def place(rows: Transitions) -> chex.Array:
    """Which entry of a one-hot observation is on after the step, over the number of entries less 1: from 0 to 1."""
    return _place(rows.next_observations)


def place_before(rows: Transitions) -> chex.Array:
    """`place` before the step."""
    return _place(rows.observations)


def _place(seen: chex.Array) -> chex.Array:
    return jnp.argmax(seen, axis=-1).astype(jnp.float32) / (seen.shape[-1] - 1)


def grid_distance(rows: Transitions, *, goal: int) -> chex.Array:
    """-(steps up, down, left and right from the place after the step to `goal`), over the longest way: from -1 to 0.

    Args:
      rows: [B, T], with one-hot places of a square, row by row, as observations.
      goal: its place.

    Raises:
      ValueError: if the places are not a square.
    """
    places = rows.next_observations.shape[-1]
    side = math.isqrt(places)
    if side * side != places:
        raise ValueError(f"grid_distance: {places} places are no square")
    at = jnp.argmax(rows.next_observations, axis=-1)
    away = jnp.abs(at // side - goal // side) + jnp.abs(at % side - goal % side)
    return -away.astype(jnp.float32) / (2 * (side - 1))


def residual(
    rows: Transitions, *, index: int, target: float = 0.0, norm: str = "quadratic", width: float = 0.1
) -> chex.Array:
    """-n(x), x = o'[index] - target: x^2 / 2, or sqrt(x^2 + w^2) - w, or w^2 (cosh(x / w) - 1).

    Source: the norms of MuJoCo MPC that arXiv 2306.08647 sets weights for.

    Args:
      rows: [B, T].
      index: of the observation.
      target: what the number should be.
      norm: "quadratic", "smooth_abs" or "cosh", in this order.
      width: w, where the norm turns from quadratic.

    Raises:
      ValueError: if the norm is unknown.
    """
    if norm not in NORMS:
        raise ValueError(f"residual: norm={norm!r} is none of {', '.join(NORMS)}")
    return -NORMS[norm](rows.next_observations[..., index] - target, width)


NORMS = {
    "quadratic": lambda x, w: 0.5 * jnp.square(x),
    "smooth_abs": lambda x, w: jnp.sqrt(jnp.square(x) + w * w) - w,
    "cosh": lambda x, w: w * w * (jnp.cosh(x / w) - 1.0),
}


def closeness(
    rows: Transitions, *, indices: tuple[int, ...], target: tuple[float, ...], width: float = 1.0
) -> chex.Array:
    """exp(-|o'[indices] - target|^2 / (2 width^2)): 1 at the target, 0 far from it."""
    return potentials.closeness(rows.next_observations, indices=indices, target=target, width=width)


def effort(rows: Transitions) -> chex.Array:
    """-|a|^2 of continuous actions."""
    return -jnp.sum(jnp.square(rows.actions.reshape(*rows.rewards.shape, -1)), axis=-1)


def action_is(rows: Transitions, *, action: int) -> chex.Array:
    """1 if this discrete action was taken, else 0."""
    return (rows.actions == action).astype(jnp.float32)


def alive(rows: Transitions) -> chex.Array:
    """1 for a step that did not terminate the episode."""
    return jnp.where(rows.terminated, 0.0, 1.0)


def ended(rows: Transitions) -> chex.Array:
    """1 for the step that terminated the episode."""
    return rows.terminated.astype(jnp.float32)


def goal_baseline(
    rows: Transitions,
    *,
    goal: tuple[float, ...],
    baseline: tuple[float, ...],
    alpha: float = 0.0,
    features: int = 0,
) -> chex.Array:
    """1 - |alpha proj_L(e) + (1 - alpha) e - g|^2 / 2 for unit vectors, L the line through the baseline and the goal.

    alpha = 0 is the cosine of e and g. Source: arXiv 2310.12921 section 3.2 (goal-baseline regularisation). Stand-in:
    the encoder is a fixed random map, or none; relabelling.by_image_goal has CLIP's.

    Args:
      rows: [B, T].
      goal: an observation that shows the goal.
      baseline: one that shows the ordinary state.
      alpha: from 0 to 1.
      features: outputs of the fixed map tanh(W o); 0 takes the observation itself.
    """
    size = rows.next_observations.shape[-1]
    weights = jax.random.normal(jax.random.key(0), (size, features)) if features else None

    def embed(x: chex.Array) -> chex.Array:
        return unit(jnp.tanh(x @ weights) if features else x, 1e-16)

    end, start = embed(jnp.asarray([goal, baseline], jnp.float32))
    found = similarity.goal_baseline(embed(flat(rows.next_observations)), end, start, alpha)
    return found.reshape(rows.rewards.shape)
