"""Evaluation of a policy from data of another one: importance sampling, and fitted Q evaluation.

    IS    mean_i W_i G_i,  W_i = prod_t pi(a_t | s_t) / mu(a_t | s_t)          WIS divides by mean_i W_i
    PDIS  mean_i sum_t gamma^t W_{i,t} r_{i,t},  W_{i,t} the product up to t
    FQE   Q <- r + gamma E_{a' ~ pi} Q'(s', a'),  V = E Q(s_0, a_0)

Sources: Precup et al., ICML 2000; arXiv 1903.08738 (FQE); arXiv 1911.06854 compares them.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline.recipe import Batch, Recipe, mean, td_targets, total, with_targets
from rl_jax.core.masked import zero_masked
from rl_jax.losses import offline as losses


def importance_sampling(
    log_ratios: chex.Array,
    rewards: chex.Array,
    mask: chex.Array,
    *,
    discount: float = 1.0,
    per_decision: bool = True,
    weighted: bool = False,
    max_log_ratio: float = float("inf"),
) -> chex.Array:
    """The value of pi from N episodes of mu.

    Args:
      log_ratios: float [N, T], log pi(a | s) - log mu(a | s).
      rewards: float [N, T].
      mask: bool [N, T]; episodes begin at t = 0.
      discount: gamma.
      per_decision: a reward has the ratios up to its own step only (PDIS), not those of the whole episode.
      weighted: divide by the mean weight (of each step): biased, of less variance.
      max_log_ratio: of the summed log-ratios.

    Returns:
      float [].
    """
    chex.assert_equal_shape([log_ratios, rewards, mask])
    ratios, rewards = zero_masked(log_ratios, mask), zero_masked(rewards, mask)
    sums = jnp.cumsum(ratios, axis=1)
    sums = sums if per_decision else jnp.broadcast_to(sums[:, -1:], sums.shape)
    weights = jnp.exp(jnp.minimum(sums, max_log_ratio))  # after an episode's end its last weight: its reward is 0
    if weighted:
        means = jnp.mean(weights, axis=0, keepdims=True)
        weights = weights / jnp.broadcast_to(jnp.maximum(means, 1e-30), weights.shape)
    discounts = discount ** jnp.arange(rewards.shape[1], dtype=rewards.dtype)
    return jnp.mean(jnp.sum(weights * rewards * jnp.broadcast_to(discounts, rewards.shape), axis=1))


def effective_sample_size(log_weights: chex.Array) -> chex.Array:
    """(sum w)^2 / sum w^2 of N episodes' weights, from 1 to N. log_weights: float [N]."""
    return jnp.exp(2.0 * jax.nn.logsumexp(log_weights) - jax.nn.logsumexp(2.0 * log_weights))


def fitted_q(nets, policy: Callable, *, discount: float = 0.99, target_rate: float = 0.05) -> Recipe:
    """FQE: Q of a given policy, from the data's steps.

    Args:
      nets: OfflineNetworks; their critics are fitted.
      policy: observations [n, ...] -> outputs of nets.distribution. Finite actions are summed over, of others the
        likeliest is taken.
      discount: gamma.
      target_rate: of the targets.
    """

    def loss(params, batch: Batch):
        steps = batch.data.steps
        following = policy_values(nets, with_targets(params, batch), policy, steps.next_observations)
        q = nets.q(params, steps.observations, nets.encode(steps.actions))
        q_loss = losses.bellman(q, td_targets(batch, following, discount))
        return total(q_loss), {"q/mean": mean(q)}

    return Recipe(loss, ("q",), targets=("q",), target_rate=target_rate)


def policy_values(nets, params, policy: Callable, observations: chex.Array) -> chex.Array:
    """V(s) = E_{a ~ pi} mean of the critics' Q(s, a), float32 [n]. Arguments as for `fitted_q`."""
    outputs = policy(observations)
    if not nets.num_actions:
        return jnp.mean(nets.q(params, observations, nets.distribution.mode(outputs)), axis=0)
    every = [nets.encode(jnp.full(len(outputs), a)) for a in range(nets.num_actions)]
    q = jnp.stack([jnp.mean(nets.q(params, observations, a), axis=0) for a in every], axis=-1)
    return jnp.sum(jax.nn.softmax(outputs) * q, axis=-1)
