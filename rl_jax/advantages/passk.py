"""Rewards [B] -> advantages [B] for the best of k samples instead of the mean of all."""

import math

import chex
import jax.numpy as jnp
import numpy as np

from rl_jax.advantages.groups import group_std, grouped, has_spread


def best_of_group(
    rewards: chex.Array,
    *,
    group_size: int,
    normalize: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
    relative_tolerance: float = 1e-6,
) -> chex.Array:
    """Pass@G: the best sample of a group gets (R_max - R_second) / (std_g + eps), the others 0.

    R_max - R_second is what the group's maximum would lose without that sample; a tie at the top gives 0 to all.
    Source: arXiv 2503.19595; verl's grpo_passk.

    Args:
      rewards: float [B].
      group_size: G.
      normalize: divide by the std.
      ddof: as in `group_relative`.
      eps: as in `group_relative`.
      relative_tolerance: as in `group_relative`.

    Returns:
      float [B].

    Raises:
      ValueError: if group_size is 1, or B is not a multiple of it.
    """
    groups = grouped(rewards, group_size)
    if group_size < 2:
        raise ValueError("best_of_group needs group_size >= 2: a group of one has no second")
    ranked = jnp.sort(groups, axis=1)
    gap = ranked[:, -1] - ranked[:, -2]
    if normalize:
        std = group_std(rewards, group_size=group_size, ddof=ddof)
        gap = jnp.where(has_spread(groups, std, relative_tolerance), gap / (std + eps), 0.0)
    is_best = jnp.arange(group_size)[None, :] == jnp.argmax(groups, axis=1, keepdims=True)
    return jnp.where(is_best, gap[:, None], 0.0).reshape(-1)


def pass_at_k(rewards: chex.Array, *, group_size: int, k: int, threshold: float = 0.5, eps: float = 1e-6) -> chex.Array:
    """Pass@k training in closed form.

        rho = 1 - C(n-c, k) / C(n, k),   s = sqrt(rho (1 - rho)),   c of the n = G samples correct
        A+ = (1 - rho) / (s + eps),   A- = (1 - rho - C(n-c-1, k-1) / C(n-1, k-1)) / (s + eps)

    This is the mean of the best reward over the subsets of k samples that contain the sample, minus the mean over all
    subsets, over its std. 0 if every subset, or none, contains a correct sample. k = 1 is GRPO with ddof 0. Source:
    arXiv 2508.10751.

    Args:
      rewards: float [B]; correct if R > threshold.
      group_size: G.
      k: at most G.
      threshold: in the reward's units.
      eps: added to s.

    Returns:
      float [B].

    Raises:
      ValueError: if k is outside 1..G, or B is not a multiple of group_size.
    """
    groups = grouped(rewards, group_size)
    if not 1 <= k <= group_size:
        raise ValueError(f"pass@{k} of {group_size} samples: k must be from 1 to group_size")
    correct = groups > threshold
    count = jnp.sum(correct, axis=1)
    positive, negative = jnp.asarray(_pass_at_k_table(group_size, k, eps), rewards.dtype)
    return jnp.where(correct, positive[count][:, None], negative[count][:, None]).reshape(-1)


def _pass_at_k_table(n: int, k: int, eps: float) -> np.ndarray:
    """A+ and A- for c = 0..n correct samples, from exact integers: float64 [2, n + 1]."""

    def pair(c: int) -> tuple[float, float]:
        fails = math.comb(n - c, k) / math.comb(n, k)
        with_it = math.comb(max(n - c - 1, 0), k - 1) / math.comb(n - 1, k - 1)
        std = math.sqrt(fails * (1 - fails))
        return fails / (std + eps), (fails - with_it) / (std + eps)

    return np.array([pair(c) for c in range(n + 1)]).T
