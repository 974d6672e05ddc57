"""Several reward models as one: (rewards [..., M] of M members) -> float [...]. A config names one of these.

Members differ in head initialization and/or data order; disagreement indicates inputs unlike the training data.
"""

import chex
import jax.numpy as jnp


def mean(rewards: chex.Array) -> chex.Array:
    """1/M sum_k r_k. float [..., M] -> float [...]. One member is that member."""
    chex.assert_type(rewards, float)
    return jnp.mean(rewards, axis=-1)


def worst_case(rewards: chex.Array) -> chex.Array:
    """WCO: min_k r_k. float [..., M] -> float [...]. Source: arXiv 2310.02743 section 3."""
    chex.assert_type(rewards, float)
    return jnp.min(rewards, axis=-1)


def uncertainty_weighted(rewards: chex.Array, *, coef: float = 0.1, ddof: int = 1) -> chex.Array:
    """UWO: mean_k r_k - coef Var_k r_k. float [..., M] -> float [...].

    Source: arXiv 2310.02743 section 3, tlc4418/llm_optimization.

    Args:
      rewards: float [..., M].
      coef: 0.1 for PPO, 0.5 for best-of-n in the paper's code.
      ddof: Var divides by M - ddof: the code has 1 for PPO (torch.var) and 0 for best-of-n (np.var). If M - ddof is 0,
        Var is 0, not nan.
    """
    chex.assert_type(rewards, float)
    members = rewards.shape[-1]
    if members <= ddof:
        return jnp.mean(rewards, axis=-1)
    return jnp.mean(rewards, axis=-1) - coef * jnp.var(rewards, axis=-1, ddof=ddof)


def robust(rewards: chex.Array, *, weight: float = 0.3, batch: bool = True) -> chex.Array:
    """weight r_nominal + (1 - weight) r_min, r_min of the member with the lowest mean. float [B, M] -> float [B].

    The nominal member is the one that is nearest the mean of all; the pessimistic one has the lowest expectation over
    the batch, which is less than the worst case row by row. Our reading: the paper's heads predict a deviation each,
    and its nominal head is the one with the smallest. Source: arXiv 2409.15360 (BRME).

    Args:
      rewards: float [B, M] of the whole batch.
      weight: 1 is the nominal member alone; 0.2 to 0.4 with five heads in the paper.
      batch: False takes the minimum of each row, as `worst_case` does.
    """
    chex.assert_type(rewards, float)
    chex.assert_rank(rewards, 2)
    distances = jnp.mean(jnp.square(rewards - jnp.mean(rewards, axis=1, keepdims=True)), axis=0)
    lowest = rewards[:, jnp.argmin(jnp.mean(rewards, axis=0))] if batch else jnp.min(rewards, axis=1)
    return weight * rewards[:, jnp.argmin(distances)] + (1.0 - weight) * lowest


def max_min(rewards: chex.Array) -> chex.Array:
    """r_u of the group u with the lowest mean over the batch: max_pi min_u E[r_u]. float [B, U] -> float [B].

    Less pessimistic than `worst_case`, which takes the lowest of each row. Source: arXiv 2402.08925 (MaxMin-RLHF).
    """
    chex.assert_type(rewards, float)
    chex.assert_rank(rewards, 2)
    return rewards[:, jnp.argmin(jnp.mean(rewards, axis=0))]


def standardized(rewards: chex.Array, means: chex.Array, stds: chex.Array) -> chex.Array:
    """(r_k - mean_k) / std_k, so that no member dominates by its scale.

    Args:
      rewards: float [..., M].
      means: float [M], of each member's rewards on held-out responses.
      stds: float [M], likewise; a std of 0 counts as 1.
    """
    chex.assert_rank([means, stds], 1)
    scale = jnp.where(stds > 0, stds, 1.0)
    return (rewards - jnp.broadcast_to(means, rewards.shape)) / jnp.broadcast_to(scale, rewards.shape)
