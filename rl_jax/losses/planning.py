"""MuZero's loss: a model unrolled over K actions that were taken, against the policies and values of a search.

    k = 0 .. K:  p_k to the search's policy pi_{t+k},   v_k to z_{t+k},   k >= 1: r_k to the reward u_{t+k-1}
    l = l_0 + 1 / K sum_{k >= 1} l_k,   l_k = CE(p_k, pi) + value_coef l(v_k, z) + reward_coef l(r_k, u)

Arrays are [N, ...], one row per draw of W successive steps. Models are unrolled elsewhere
(rl_jax.control.replay_methods.muzero): here are arithmetic and targets. Source: arXiv 1911.08265, its pseudocode.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class PlanTargets(NamedTuple):
    """What a model unrolled over K steps is trained on; position k is the state after k of the actions.

    Attributes:
      values: float [N, K + 1], z.
      value_mask: bool [N, K + 1].
      rewards: float [N, K], of the step from position k.
      reward_mask: bool [N, K].
      policy_mask: bool [N, K + 1], whether the search's policy there is one of the same episode.
    """

    values: chex.Array
    value_mask: chex.Array
    rewards: chex.Array
    reward_mask: chex.Array
    policy_mask: chex.Array


def plan_targets(
    rewards: chex.Array,
    terminated: chex.Array,
    truncated: chex.Array,
    search_values: chex.Array,
    *,
    discount: float,
    steps: int,
    unroll: int,
    absorbing: bool = True,
) -> PlanTargets:
    """The n-step targets of every position, bootstrapped by the search's values; without a gradient.

        z_k = sum_{i < n} gamma^i u_{k+i} + gamma^n nu_{k+n}     to the end of the episode at most
              a limit cuts the episode at step m < k + n:  sum_{i < m-k} gamma^i u_{k+i} + gamma^{m-k} nu_m

    The state after a cut was never searched, so nu of the last state that was stands for it and for the last reward.
    States after a termination are absorbing: value and reward 0, no policy. After a cut nothing is known.

    Args:
      rewards: float [N, W], u; W is K + n + 1 or more.
      terminated: bool [N, W].
      truncated: bool [N, W].
      search_values: float [N, W], nu, the value of the search's root.
      discount: gamma; may be traced.
      steps: n.
      unroll: K.
      absorbing: if False, values and rewards after a termination are masked. The pseudocode trains them towards 0;
        without that a search sees what it likes behind the end.

    Raises:
      ValueError: if a row has fewer than K + n + 1 steps, or n or K is below 1.
    """
    chex.assert_rank([rewards, terminated, truncated, search_values], 2)
    chex.assert_equal_shape([rewards, terminated, truncated, search_values])
    if min(steps, unroll) < 1 or rewards.shape[1] < unroll + steps + 1:
        raise ValueError(
            f"rows of {rewards.shape[1]} steps: unroll={unroll} and steps={steps} must be 1 or more, and need "
            f"{unroll + steps + 1}"
        )
    rewards, search_values = jax.lax.stop_gradient((rewards, search_values))
    done, cut = terminated | truncated, truncated & ~terminated
    values = []
    for k in range(unroll + 1):
        now, upto = slice(k, k + steps), _before(done[:, k : k + steps])
        powers = jnp.power(jnp.asarray(discount, rewards.dtype), jnp.arange(steps + 1, dtype=rewards.dtype))
        paid = jnp.where(cut[:, now], search_values[:, now], rewards[:, now])
        total = jnp.sum(jnp.where(upto[:, :-1], powers[None, :-1] * paid, 0.0), axis=1)
        values.append(total + jnp.where(upto[:, -1], powers[-1] * search_values[:, k + steps], 0.0))
    alive, uncut = _before(done[:, :unroll]), _before((cut & _before(done)[:, :-1])[:, :unroll])
    over = uncut & ~alive  # after a termination
    known = alive | over if absorbing else alive
    return PlanTargets(
        values=jnp.where(alive, jnp.stack(values, axis=1), 0.0),
        value_mask=known,
        rewards=jnp.where(alive[:, :-1], rewards[:, :unroll], 0.0),
        reward_mask=known[:, :-1],
        policy_mask=alive,
    )


def unrolled_loss(
    policy_losses: chex.Array,
    value_losses: chex.Array,
    reward_losses: chex.Array,
    targets: PlanTargets,
    *,
    value_coef: float = 1.0,
    reward_coef: float = 1.0,
) -> chex.Array:
    """l_0 + 1 / K sum_{k >= 1} l_k, float [N]: the pseudocode's gradients, which are scaled by 1 / K from k = 1 on.

    Args:
      policy_losses: float [N, K + 1], cross-entropies to the search's policies.
      value_losses: float [N, K + 1], of targets.values.
      reward_losses: float [N, K], of targets.rewards; that of step k belongs to position k + 1.
      targets: for their masks; what is masked counts 0.
      value_coef: 1 as published; later works take .25.
      reward_coef: 1 as published.
    """
    chex.assert_rank([policy_losses, value_losses, reward_losses], 2)
    chex.assert_equal_shape([policy_losses, value_losses, targets.policy_mask, targets.value_mask])
    chex.assert_equal_shape([reward_losses, targets.reward_mask])
    each = jnp.where(targets.policy_mask, policy_losses, 0.0)
    each += value_coef * jnp.where(targets.value_mask, value_losses, 0.0)
    rewards = reward_coef * jnp.where(targets.reward_mask, reward_losses, 0.0)
    return each[:, 0] + jnp.mean(each[:, 1:] + rewards, axis=1)


def scale_gradient(x: chex.Array, scale: float) -> chex.Array:
    """x, whose gradient is multiplied by `scale`."""
    return scale * x + (1.0 - scale) * jax.lax.stop_gradient(x)


def _before(flags: chex.Array) -> chex.Array:
    """Whether none of the flags before is set: bool [N, M] -> [N, M + 1], the first True."""
    first = jnp.ones_like(flags[:, :1])
    return jnp.concatenate([first, jnp.cumsum(flags, axis=1) == 0], axis=1)
