"""The implicit reward model: a language model whose log-ratio to its reference is the reward."""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.reward_model.base import Terms
from rl_jax.losses.reward_model.grades import outcome
from rl_jax.losses.reward_model.rankings import k_wise


def implicit_rewards(log_ratios: chex.Array, mask: chex.Array, *, beta: float = 0.05) -> chex.Array:
    """Q = beta sum_t (log phi_t - log ref_t).

    Args:
      log_ratios: float [N, K, C], of the tokens of each response.
      mask: bool [N, K, C].
      beta: 0.05 in PRIME (beta_train).

    Returns:
      float [N, K].
    """
    chex.assert_rank([log_ratios, mask], 3)
    return beta * jnp.sum(zero_masked(log_ratios, mask), axis=-1)


def implicit_outcome(
    log_ratios: chex.Array, mask: chex.Array, present: chex.Array, *, targets: chex.Array, beta: float
) -> Terms:
    """Cross-entropy of the implicit reward, one term per response. At phi = ref the loss is log 2.

        l = -y log sigma(Q) - (1 - y) log sigma(-Q), Q = beta sum_t (log phi_t - log ref_t)

    Source: arXiv 2412.01981 (implicit PRM), 2502.01456 (PRIME, compute_ce_dpo_loss_rm). For pairs it is rl_jax.dpo.

    Args:
      log_ratios: float [N, K, C], differentiated through log phi.
      mask: bool [N, K, C].
      present: bool [N, K].
      targets: float [N, K], y: 1 if the response is right.
      beta: as in `implicit_rewards`; required, since it is supplied by name.
    """
    return outcome(implicit_rewards(log_ratios, mask, beta=beta), present, targets=targets)


def implicit_pairs(
    log_ratios: chex.Array, mask: chex.Array, present: chex.Array, *, targets: chex.Array, beta: float
) -> Terms:
    """DPO on whole episodes: all pairs of a prompt whose outcomes differ. At phi = ref the loss is log 2.

        l = 1 / P sum_{R_i > R_j} -log sigma(Q_i - Q_j), Q_i = beta sum_t (log phi_t - log ref_t)

    The sum is over sampled tokens of all turns; what the environment says is in neither. Source: arXiv 2509.19199
    (iStar, OPRL), whose ref is the policy that played. Which pairs of a group it takes was not readable: here all.

    Args:
      log_ratios: float [N, K, C], differentiated through log phi.
      mask: bool [N, K, C].
      present: bool [N, K].
      targets: float [N, K], R, the episodes' outcomes. Two of equal R are not a pair.
      beta: as in `implicit_rewards`; required, since it is supplied by name.
    """
    return k_wise(implicit_rewards(log_ratios, mask, beta=beta), present, targets=targets)
