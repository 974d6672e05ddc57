"""Advantages that bring a policy to a target distribution p = P / Z: f-DPG and GDC. rewards [B] -> [B].

Named in a config by their import path, "rl_jax.advantages.divergences:f_dpg". With t = pi(y) / p(y), the gradient of
D_f = E_p[f(t)] is E_pi[f'(t) grad log pi], so that -f'(t) is the reward of a policy gradient (arXiv 2302.08215).
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import grouped
from rl_jax.core.masked import masked_sum

LARGEST_LOG = 40.0  # exp of twice as much is still a float32
# The divergence of each name, and f.
DIVERGENCES = {
    "kl": "KL(p || pi), f = -log t",
    "reverse_kl": "KL(pi || p), f = t log t",
    "js": "twice Jensen-Shannon, f = t log(2 t / (t + 1)) + log(2 / (t + 1))",
    "tv": "total variation, f = |1 - t| / 2",
    "chi2": "chi^2(p || pi), f = (t - 1)^2 / t",
    "reverse_chi2": "chi^2(pi || p), f = (t - 1)^2",
}


def f_prime(log_t: chex.Array, *, f: str) -> chex.Array:
    """f'(t) of a divergence, from log t, which is cut to +-40.

    Source: arXiv 2302.08215, naver/disco.

    Args:
      log_t: float [...].
      f: one of DIVERGENCES.

    Returns:
      float [...].

    Raises:
      ValueError: if f is unknown.
    """
    x = jnp.clip(log_t, -LARGEST_LOG, LARGEST_LOG)
    if f == "kl":
        return -jnp.exp(-x)
    if f == "reverse_kl":
        return x + 1.0
    if f == "js":
        return jnp.log(2.0) - jax.nn.softplus(-x)
    if f == "tv":
        return 0.5 * jnp.sign(x)
    if f == "chi2":
        return 1.0 - jnp.exp(-2.0 * x)
    if f == "reverse_chi2":
        return 2.0 * (jnp.exp(x) - 1.0)
    raise ValueError(f"f={f!r} is none of {', '.join(DIVERGENCES)}")


# --- f-DPG -----------------------------------------------------------------------------------------------------------


def f_dpg(
    rewards: chex.Array,
    *,
    group_size: int,
    partition: chex.Array,
    reward_kl_coef: float | chex.Array,
    f: str = "js",
) -> chex.Array:
    """f-DPG: A = -f'(pi Z / P) - b, the target P = ref exp(R / beta).

        log P - log pi = (R - beta log(pi / ref)) / beta
        Z = mean of P / pi over all samples of the prompt so far, the group's own included
        b = mean of the last pseudo-rewards -f' of earlier steps

    beta is the weight of the KL in the reward, which has to be k1: `rewards` are R - beta log(pi / ref).
    Source: arXiv 2302.08215, naver/disco (its Z per context and its window).

    Args:
      rewards: float [B].
      group_size: G.
      partition: float [B, 3]: log Z of the row's prompt before this step, its samples so far, and b
        (rl_jax.advantages.memory.partitions).
      reward_kl_coef: beta, above 0.
      f: one of DIVERGENCES; the tracker's, too.

    Returns:
      float [B].

    Raises:
      ValueError: if f is unknown, beta is 0, or B is not a multiple of group_size.
    """
    if isinstance(reward_kl_coef, int | float) and not reward_kl_coef > 0:
        raise ValueError(f"reward_kl_coef={reward_kl_coef} must be above 0: the target is ref exp(R / reward_kl_coef)")
    chex.assert_shape(partition, (len(rewards), 3))
    groups, log_z, samples = (grouped(x, group_size) for x in (rewards / reward_kl_coef, *partition.T[:2]))
    own = jax.nn.logsumexp(groups, axis=1, keepdims=True)
    log_z = jnp.logaddexp(log_z + jnp.log(samples), own) - jnp.log(samples + group_size)
    return -f_prime(log_z - groups, f=f).reshape(-1) - partition[:, 2]


# --- GDC -------------------------------------------------------------------------------------------------------------


def fit_moment(features: chex.Array, moment: float, *, largest: float = 20.0, iterations: int = 50) -> chex.Array:
    """The lambda with E_p[phi] = moment, p = ref exp(lambda phi), from samples of the reference, by bisection.

        E_p[phi] = sum_s phi_s exp(lambda phi_s) / sum_s exp(lambda phi_s), which rises with lambda

    Source: arXiv 2012.11635 (GDC), whose code fits lambda by gradient steps on the same self-normalised estimate.

    Args:
      features: float [S], phi.
      moment: within the range of the features; beyond it lambda ends at +-largest.
      largest: bound of |lambda|.
      iterations: halvings of the interval.

    Returns:
      float [].
    """
    chex.assert_rank(features, 1)

    def halve(_, bounds: tuple[chex.Array, chex.Array]) -> tuple[chex.Array, chex.Array]:
        low, high = bounds
        middle = 0.5 * (low + high)
        below = jnp.sum(jax.nn.softmax(middle * features) * features) < moment
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    bounds = jnp.asarray(-largest, features.dtype), jnp.asarray(largest, features.dtype)
    return 0.5 * sum(jax.lax.fori_loop(0, iterations, halve, bounds))


def gdc(
    rewards: chex.Array,
    *,
    reference_rewards: chex.Array,
    log_probs: chex.Array,
    ref_log_probs: chex.Array,
    completion_mask: chex.Array,
    moment: float,
    f: str = "kl",
    constant: float = 1.0,
) -> chex.Array:
    """GDC: a feature's mean is to be `moment`, and nothing else is to change: A = -f'(pi Z / P) - b.

        P = ref exp(lambda phi), lambda so that E_p[phi] = moment (`fit_moment`),   Z = mean over ref of exp(lambda phi)

    lambda is fitted to the reference samples of all prompts of the step, Z to those of the prompt. f="kl" is GDC: A =
    p / pi - b. Without a reward that is to be maximised, the policy stops where the share is reached.
    Source: arXiv 2012.11635; b = 1 is the baseline of arXiv 2206.00761 (GDC++), 0 is GDC's.

    Args:
      rewards: float [B], phi of each row.
      reference_rewards: float [B, M], phi of M samples of the reference for the row's prompt.
      log_probs: float [B, C] of the policy.
      ref_log_probs: float [B, C] of the reference.
      completion_mask: bool [B, C].
      moment: E_p[phi].
      f: one of DIVERGENCES.
      constant: b.

    Returns:
      float [B].

    Raises:
      ValueError: if f is unknown.
    """
    chex.assert_rank([rewards, reference_rewards, log_probs], [1, 2, 2])
    strength = fit_moment(reference_rewards.reshape(-1), moment)
    log_z = jax.nn.logsumexp(strength * reference_rewards, axis=1) - jnp.log(reference_rewards.shape[1])
    log_ratio = masked_sum(log_probs - ref_log_probs, completion_mask, axis=1)
    return -f_prime(log_ratio - strength * rewards + log_z, f=f) - constant
