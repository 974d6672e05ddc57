"""COPO: a second advantage between prompts, for groups whose answers are all alike.

Named in a config by its import path, "rl_jax.advantages.consistency:copo".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import group_relative, grouped


def copo(
    rewards: chex.Array,
    *,
    group_size: int,
    components: chex.Array,
    slope: float = 1.0,
    midpoint: float = 0.5,
    eps: float = 1e-6,
) -> chex.Array:
    """COPO: GRPO's advantage where a group's answers differ, an advantage between prompts where they agree.

        A_i   = w A_local + (1 - w) A_global,   w = sigma(slope (H_q - midpoint)), 0 if all R of the group are equal
        A_global = (g_q - mean over prompts) / (std + eps),   g_q = mean_g(R) (1 - lambda H_q)

    lambda = (1 - 1/G) / log2 G, so that a group whose answers all differ has g = mean / G. Batch-coupled.
    Source: arXiv 2508.04138. The paper blends two losses with w; blending the advantages is the same except on clipped
    tokens whose two advantages differ in sign.

    Args:
      rewards: float [B].
      group_size: G.
      components: float [B, K]; the last one is H, the entropy of the group's answers in bits, the same on all its rows
        (rl_jax.rewards.contrast.answer_entropy).
      slope: of w, per bit.
      midpoint: of w, in bits.
      eps: added to the stds.

    Returns:
      float [B].

    Raises:
      ValueError: if group_size is below 2, or B is not a multiple of it.
    """
    if group_size < 2:
        raise ValueError("copo needs group_size >= 2: a group of one has no consistency")
    groups, entropy = grouped(rewards, group_size), grouped(components[:, -1], group_size)[:, :1]
    local = group_relative(rewards, group_size=group_size, eps=eps).reshape(groups.shape)
    share = (1.0 - 1.0 / group_size) / jnp.log2(jnp.float32(group_size))
    scores = (jnp.mean(groups, axis=1, keepdims=True) * (1.0 - share * entropy))[:, 0]
    if len(scores) > 1:
        between = group_relative(scores, group_size=len(scores), eps=eps)
    else:
        between = jnp.zeros_like(scores)
    spread = jnp.any(groups != groups[:, :1], axis=1, keepdims=True)
    weight = jnp.where(spread, jax.nn.sigmoid(slope * (entropy - midpoint)), 0.0)
    return (weight * local + (1.0 - weight) * between[:, None]).reshape(-1)
