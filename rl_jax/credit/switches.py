"""Rewards that change with the group: (rewards, lengths, truncated, key, *, group_size, ...) -> rewards.

Named in a config by their import path, "rl_jax.credit.switches:brief_if_solved".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import grouped


def brief_if_solved(
    rewards: chex.Array,
    lengths: chex.Array,
    truncated: chex.Array,
    key: chex.PRNGKey,
    *,
    group_size: int,
    share: float = 0.2,
    alpha: float = 0.6,
    right: float = 1.0,
) -> chex.Array:
    """GRPO-lambda: only the groups that are solved best are asked to be brief.

        R (1 - alpha sigma((n - mean n) / std n)) for the right answers of the top `share` of the groups, R elsewhere

    Groups are ranked by their share of right answers; mean and std are those of the group's right answers. Batch-
    coupled. Source: arXiv 2505.18086, whose length reward is that of arXiv 2502.04463. Its equations, the share and the
    population's std are as a reimplementation for OpenRLHF quotes them; alpha is that one's. Equal lengths have z = 0.

    Args:
      rewards: float [B].
      lengths: int [B], n in tokens.
      truncated: unused.
      key: unused.
      group_size: G.
      share: lambda, of the batch's groups; at least one unless it is 0. Among equals the first groups come first.
      alpha: at most 1, or a right answer could earn less than a wrong one.
      right: reward from which an answer counts as right.

    Returns:
      float [B].

    Raises:
      ValueError: if share or alpha is not within [0, 1], or B is not a multiple of group_size.
    """
    if not (0 <= share <= 1 and 0 <= alpha <= 1):
        raise ValueError(f"share={share} and alpha={alpha} must lie within [0, 1]")
    chex.assert_equal_shape([rewards, lengths, truncated])
    groups = grouped(rewards, group_size)
    tokens = lengths.reshape(groups.shape).astype(groups.dtype)
    is_right = groups >= right
    count = jnp.sum(is_right, axis=1, keepdims=True)
    chosen = jnp.ceil(share * len(groups) - 1e-6).astype(jnp.int32)
    rank = jnp.argsort(jnp.argsort(-jnp.ravel(count), stable=True))
    mean = jnp.sum(jnp.where(is_right, tokens, 0.0), axis=1, keepdims=True) / jnp.maximum(count, 1)
    spread = jnp.sum(jnp.where(is_right, jnp.square(tokens - mean), 0.0), axis=1, keepdims=True)
    std = jnp.sqrt(spread / jnp.maximum(count, 1))
    z = jnp.where(std > 0, (tokens - mean) / jnp.where(std > 0, std, 1.0), 0.0)
    brief = groups * (1.0 - alpha * jax.nn.sigmoid(z))
    return jnp.where(is_right & (rank < chosen)[:, None], brief, groups).reshape(-1)
