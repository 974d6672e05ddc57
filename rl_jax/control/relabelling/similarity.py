"""How near an embedding is to a goal's: the reward of VLM-RM, arXiv 2310.12921."""

import chex
import jax.numpy as jnp


def goal_baseline(states: chex.Array, goal: chex.Array, baseline: chex.Array, alpha: float | chex.Array) -> chex.Array:
    """1 - |alpha proj_L(s) + (1 - alpha) s - g|^2 / 2, L the line through the baseline b and the goal g: float [N].

    alpha = 0 is the cosine of s and g, alpha = 1 reads only what lies along L. Source: arXiv 2310.12921 section 3.2;
    the same numbers as projection_reward of AlignmentResearch/vlmrm, which projects s - g.

    Args:
      states: s, float [N, E], of length 1.
      goal: g, float [E]. Of length 1; the published code takes the mean of several texts, which is shorter.
      baseline: b, float [E].
      alpha: from 0 to 1.
    """
    chex.assert_rank([states, goal, baseline], [2, 1, 1])
    chex.assert_equal_shape([goal, baseline, states[0]])
    along = goal - baseline
    share = (states - baseline[None]) @ along / jnp.maximum(jnp.sum(jnp.square(along)), 1e-8)
    mixed = alpha * (baseline[None] + share[:, None] * along[None]) + (1.0 - alpha) * states
    return 1.0 - 0.5 * jnp.sum(jnp.square(mixed - goal[None]), axis=1)
