"""Group-relative REINFORCE as an off-policy method (arXiv 2509.24203): rewards [B] -> advantages [B], group by group.

Named in a config by their import path, "rl_jax.advantages.off_policy:opmd".
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered, grouped


def opmd(rewards: chex.Array, *, group_size: int, tau: float = 1.0, soft: bool = True) -> chex.Array:
    """OPMD: A_i = (R_i - b_g) / (1 + tau), b_g = tau log(1/G sum_j exp(R_j / tau)).

    b_g is the group's mean for tau -> inf and its best reward for tau -> 0. With REINFORCE, 1 / (1 + tau) is what is
    left of a KL to the policy of the moment with the weight tau.
    Source: OPMD of Trinity-RFT (arXiv 2505.17826 appendix A), which calls this baseline "logavgexp".

    Args:
      rewards: float [B].
      group_size: G.
      tau: temperature, above 0, in the reward's units.
      soft: False: b_g is the group's mean, the default of Trinity's code.

    Returns:
      float [B]. With `soft` a group does not sum to 0, and equal rewards have advantage 0.

    Raises:
      ValueError: if tau is not above 0, or B is not a multiple of group_size.
    """
    if tau <= 0:
        raise ValueError(f"tau={tau} must be above 0: it is the temperature of the baseline")
    if not soft:
        return group_centered(rewards, group_size=group_size) / (1.0 + tau)
    shifted = grouped(rewards, group_size)
    shifted = shifted - shifted[:, :1]
    largest = jnp.max(shifted, axis=1, keepdims=True)
    baseline = largest + tau * jnp.log(jnp.mean(jnp.exp((shifted - largest) / tau), axis=1, keepdims=True))
    return ((shifted - baseline) / (1.0 + tau)).reshape(-1)


def asymmetric(rewards: chex.Array, *, group_size: int, shift: float = -0.1) -> chex.Array:
    """AsymRE: A_i = R_i - (mean_g + shift). float [B] -> float [B].

    With a baseline below the mean (shift < 0) good answers weigh more than bad ones, and each answer is imitated a
    little: -A logp is REINFORCE's loss and shift * logp, an SFT term on what was sampled.
    Source: AsymRE arXiv 2506.20520; "asymre" of Trinity-RFT, whose default is -0.1, and arXiv 2509.24203.

    Args:
      rewards: float [B].
      group_size: G.
      shift: of the baseline, in the reward's units.
    """
    return group_centered(rewards, group_size=group_size) - shift


def balanced(rewards: chex.Array, *, group_size: int, key: chex.PRNGKey) -> chex.Array:
    """RED-Drop: of a group with more bad answers than good ones, bad ones are dropped at random until both are equal.

        A_i = R_i - mean of those kept; 0 for the dropped ones.   Good: R_i >= mean_g

    Source: arXiv 2509.24203; drop "balance" of Trinity-RFT's REC advantage.

    Args:
      rewards: float [B].
      group_size: G.
      key: typed; the step's, of which a part of its own is used.

    Returns:
      float [B].

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    groups = grouped(rewards, group_size)
    shifted = groups - groups[:, :1]
    good = shifted >= jnp.mean(shifted, axis=1, keepdims=True)
    num_good = jnp.sum(good, axis=1, keepdims=True)
    # The rank of each bad answer in a random order of its group's bad answers; the first num_good of them stay.
    noise = jnp.where(good, jnp.inf, jax.random.uniform(jax.random.fold_in(key, 3), groups.shape))
    rank = jnp.argsort(jnp.argsort(noise, axis=1), axis=1)
    kept = good | (rank < num_good)
    mean = jnp.sum(jnp.where(kept, shifted, 0.0), axis=1, keepdims=True) / jnp.sum(kept, axis=1, keepdims=True)
    return jnp.where(kept, shifted - mean, 0.0).reshape(-1)
