"""Which rows of a step are trained on: (rewards [B], key, *, group_size) -> int32 [B], indices with repetitions.

Policy filtration (PF-PPO): where a reward model cannot be trusted in the middle, rows are drawn again by their reward,
with replacement, before the updates. The number of rows stays, so nothing is compiled again.
"""

import chex
import jax
import jax.numpy as jnp

EPS = 1e-8  # added to every weight, as in verl


def power(
    rewards: chex.Array, key: chex.PRNGKey, *, group_size: int, exponent: float = 2.0, per_group: bool = True
) -> chex.Array:
    """Rows with probability proportional to |R|^exponent; exponent 0 is the plain bootstrap.

    Source: arXiv 2409.06957; "pow" of verl's compute_pf_ppo_reweight_data, which draws over the whole batch.

    Args:
      rewards: float [B].
      key: a typed key.
      group_size: G, rows per prompt; the rows of a group are neighbours.
      exponent: at least 0.
      per_group: draw each group's rows from the group itself.
    """
    return _draw(rewards, key, jnp.abs(rewards) ** exponent, group_size, per_group)


def best_worst(rewards: chex.Array, key: chex.PRNGKey, *, group_size: int, per_group: bool = True) -> chex.Array:
    """The rows of the highest and of the lowest reward alone (BW, verl's "max_min").

    Source: arXiv 2409.06957.

    Args:
      rewards: float [B].
      key: a typed key.
      group_size: G.
      per_group: the highest and lowest of each group; False: of the batch.
    """
    high, low = _extremes(rewards, group_size, per_group)
    return _draw(rewards, key, ((rewards == high) | (rewards == low)).astype(rewards.dtype), group_size, per_group)


def best_random(
    rewards: chex.Array, key: chex.PRNGKey, *, group_size: int, best: float = 0.4, per_group: bool = True
) -> chex.Array:
    """The rows of the highest reward with weight `best`, all others with 0.1 (BR, verl's "max_random").

    Source: arXiv 2409.06957.

    Args:
      rewards: float [B].
      key: a typed key.
      group_size: G.
      best: weight of a row of the highest reward; 0.4 in verl.
      per_group: the highest of each group; False: of the batch.
    """
    high, _ = _extremes(rewards, group_size, per_group)
    return _draw(rewards, key, jnp.where(rewards == high, best, 0.1), group_size, per_group)


def _extremes(rewards: chex.Array, group_size: int, per_group: bool) -> tuple[chex.Array, chex.Array]:
    """(highest, lowest) reward of each row's group, or of the batch. float [B]."""
    groups = _grouped(rewards, group_size if per_group else len(rewards))
    repeats = groups.shape[1]
    return jnp.repeat(jnp.max(groups, axis=1), repeats), jnp.repeat(jnp.min(groups, axis=1), repeats)


def _draw(rewards: chex.Array, key, weights: chex.Array, group_size: int, per_group: bool) -> chex.Array:
    """int32 [B]: rows drawn with replacement, from each row's group or from the batch."""
    chex.assert_equal_shape([rewards, weights])
    size = group_size if per_group else len(rewards)
    logits = jnp.log(_grouped(weights, size) + EPS)
    drawn = jax.random.categorical(key, logits[:, None, :], axis=-1, shape=(len(logits), size))
    return (drawn + size * jnp.arange(len(logits))[:, None]).reshape(-1).astype(jnp.int32)


def _grouped(x: chex.Array, size: int) -> chex.Array:
    """float [B] -> [B / size, size]."""
    chex.assert_rank(x, 1)
    if x.shape[0] % size:
        raise ValueError(f"{x.shape[0]} rows do not divide into groups of {size}")
    return x.reshape(-1, size)
