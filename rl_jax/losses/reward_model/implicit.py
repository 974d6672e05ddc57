"""The implicit reward model: a language model whose log-ratio to its reference is the reward."""

import chex
import jax.numpy as jnp

from rl_jax.core.masked import zero_masked
from rl_jax.losses.reward_model.base import Terms
from rl_jax.losses.reward_model.grades import outcome


def implicit_rewards(log_ratios: chex.Array, mask: chex.Array, *, beta: float = 0.05) -> chex.Array:
    """Q = beta sum_t (log phi_t - log ref_t). float [N, K, C], bool [N, K, C] -> float [N, K].

    log_ratios: of the tokens of each response. beta: 0.05 in PRIME (beta_train).
    """
    chex.assert_rank([log_ratios, mask], 3)
    return beta * jnp.sum(zero_masked(log_ratios, mask), axis=-1)


def implicit_outcome(
    log_ratios: chex.Array, mask: chex.Array, present: chex.Array, *, targets: chex.Array, beta: float
) -> Terms:
    """-y log sigma(Q) - (1 - y) log sigma(-Q), Q = beta sum_t (log phi_t - log ref_t): one term a response.

    log_ratios: float [N, K, C], differentiated through log phi. mask: bool [N, K, C]. present: bool [N, K].
    targets: float [N, K], whether the response is right. beta: 0.05 in PRIME (beta_train).
    At phi = ref the loss is log 2.
    Source: arXiv 2412.01981 (implicit PRM), 2502.01456 (PRIME, compute_ce_dpo_loss_rm). With pairs it is rl_jax.dpo.
    """
    return outcome(implicit_rewards(log_ratios, mask, beta=beta), present, targets=targets)
