"""Advantages of tokens [B, T] without a critic, 0 behind the mask: fn(rewards [B], *, ...) -> float [B, T].

Those that take `token_rewards` (the KL penalty in the reward, and the score on the last token) read the rewards there,
and of `rewards` only the shape. Tokens that the mask leaves out count as if they were not there.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered, grouped, has_spread, to_tokens
from rl_jax.advantages.outcome import combined_components
from rl_jax.advantages.recursion import backward_sums
from rl_jax.core.masked import masked_mean, masked_var, masked_whiten, zero_masked


def reward_to_go(
    rewards: chex.Array, *, token_rewards: chex.Array, completion_mask: chex.Array, discount: float = 1.0
) -> chex.Array:
    """REINFORCE with causality: A_t = sum_{k >= t} gamma^{k-t} r_k over the tokens of the row.

    rewards: float [B]. token_rewards: float [B, T]. completion_mask: bool [B, T]. discount: gamma for each token.
    With the score alone and gamma 1 it is the reward on every token. GAE with lambda 1 and V = 0.
    """
    chex.assert_rank([rewards, token_rewards], [1, 2])
    chex.assert_equal_shape_prefix([rewards, token_rewards], 1)
    decays = jnp.where(completion_mask, jnp.asarray(discount, token_rewards.dtype), 1.0)
    return zero_masked(backward_sums(zero_masked(token_rewards, completion_mask), decays), completion_mask)


def remax_to_go(
    rewards: chex.Array, *, token_rewards: chex.Array, completion_mask: chex.Array, greedy_rewards: chex.Array
) -> chex.Array:
    """ReMax with a KL in the reward: A_t = sum_{k >= t} r_k - R(greedy), as in verl.

    rewards, greedy_rewards: float [B], the latter of the greedy completion of the row's prompt. token_rewards: float
    [B, T]. completion_mask: bool [B, T]. `outcome.remax` takes the KL of the whole row into every token.
    Source: arXiv 2310.10505. The authors' code adds to the score the KL of token t alone, not that of the tokens after.
    """
    chex.assert_equal_shape([rewards, greedy_rewards])
    to_go = reward_to_go(rewards, token_rewards=token_rewards, completion_mask=completion_mask)
    return zero_masked(to_go - greedy_rewards[:, None], completion_mask)


def reinforce_pp(
    rewards: chex.Array,
    *,
    token_rewards: chex.Array,
    completion_mask: chex.Array,
    discount: float = 1.0,
    ddof: int = 1,
    eps: float = 1e-8,
) -> chex.Array:
    """REINFORCE++: A = (G - mean) / sqrt(var + eps) over the tokens of the batch, G_t = sum_{k >= t} gamma^{k-t} r_k.

    Arguments as of `reward_to_go`. ddof: of the variance; 1 in verl, 0 in OpenRLHF and NeMo-RL. eps: 1e-8 in verl.
    Source: arXiv 2501.03262.
    """
    to_go = reward_to_go(rewards, token_rewards=token_rewards, completion_mask=completion_mask, discount=discount)
    # Seen from the first token: equal returns give exactly 0, and not the rounding of their float32 mean.
    shifted = to_go - to_go.reshape(-1)[jnp.argmax(completion_mask)]
    return masked_whiten(shifted, completion_mask, ddof=ddof, eps=eps)


def reinforce_pp_baseline(
    rewards: chex.Array, *, group_size: int, completion_mask: chex.Array, ddof: int = 1, eps: float = 1e-8
) -> chex.Array:
    """REINFORCE++-baseline: R - mean_g on every token, then whitened over the tokens of the batch.

    rewards: float [B], the KL of the whole row taken off. group_size: G. completion_mask: bool [B, T]. ddof, eps: as
    of `reinforce_pp`. Long completions weigh more in the mean and the variance, which are those of tokens.
    Source: arXiv 2501.03262.
    """
    centered = to_tokens(group_centered(rewards, group_size=group_size), completion_mask)
    return masked_whiten(centered, completion_mask, ddof=ddof, eps=eps)


def gdpo_tokens(
    rewards: chex.Array,
    *,
    components: chex.Array,
    group_size: int,
    completion_mask: chex.Array,
    weights: tuple[float, ...] | None = None,
    ddof: int = 1,
    eps: float = 1e-6,
    whiten_eps: float = 1e-8,
) -> chex.Array:
    """GDPO as in verl: sum_k w_k (R_k - mean_g) / (std_g + eps) on every token, whitened over the tokens of the batch.

    Arguments as of `outcome.gdpo`, which normalises over completions. whiten_eps: added to the variance of the tokens.
    Source: arXiv 2601.05242.
    """
    combined = combined_components(rewards, components, group_size, weights, ddof, eps)
    return masked_whiten(to_tokens(combined, completion_mask), completion_mask, ddof=ddof, eps=whiten_eps)


def process_supervised(
    rewards: chex.Array,
    *,
    step_rewards: chex.Array,
    step_ends: chex.Array,
    completion_mask: chex.Array,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-6,
    relative_tolerance: float = 1e-6,
) -> chex.Array:
    """GRPO with process supervision: A_t = sum over the steps that end at or after t of (r - mean_g) / (std_g + eps).

    rewards: float [B], unused beyond its shape. step_rewards: float [B, T], one at the last token of each step.
    step_ends: bool [B, T], those tokens. completion_mask: bool [B, T]. group_size: G. Mean and std are those of all
    the steps of a group's completions. ddof, eps, relative_tolerance: as in group_relative, which is the case of one
    step at the end of each row. A group with one step, or whose steps are all the same, gives 0.
    Raises ValueError where the groups do not divide B. Source: arXiv 2402.03300 section 4.1.3.
    """
    chex.assert_rank([rewards, step_rewards], [1, 2])
    chex.assert_equal_shape([step_rewards, step_ends, completion_mask])
    chex.assert_equal_shape_prefix([rewards, step_rewards], 1)
    chex.assert_type([step_rewards, step_ends], [float, bool])
    prompts, shape = len(grouped(rewards, group_size)), step_rewards.shape

    def normalised(x: chex.Array, mask: chex.Array) -> chex.Array:
        # Seen from the group's first step, as in groups.py: equal rewards give exactly 0.
        shifted = zero_masked(x - x[jnp.argmax(mask)], mask)
        centered = zero_masked(shifted - masked_mean(shifted, mask).value(), mask)
        std = jnp.sqrt(masked_var(shifted, mask, ddof=ddof))
        return jnp.where(has_spread(x, std, relative_tolerance), centered / (std + eps), 0.0)

    ends = (step_ends & completion_mask).reshape(prompts, -1)
    steps = jax.vmap(normalised)(zero_masked(step_rewards.reshape(prompts, -1), ends), ends)
    return reward_to_go(rewards, token_rewards=steps.reshape(shape), completion_mask=completion_mask)


def optimal_token_baseline(
    rewards: chex.Array,
    *,
    token_rewards: chex.Array,
    completion_mask: chex.Array,
    group_size: int,
    log_probs: chex.Array,
    sum_pi_squared: chex.Array,
    eps: float = 1e-8,
) -> chex.Array:
    """A_t = G_t - b_t, b_t = sum_g G_t W_t / (sum_g W_t + eps), W_t = sum_{k <= t} (1 - 2 pi_k + sum_v pi_k(v)^2).

    G_t is the reward to go; 1 - 2 pi + sum_v pi(v)^2 is the square of the softmax's score, so W_t is how much the
    gradient of the first t tokens varies, and b_t the baseline that makes its variance least. The sums are over the
    completions of the prompt that have a token at t; where only one has, b_t is 0: its own return is no baseline.
    rewards: float [B]. token_rewards, log_probs: float [B, T], pi = exp(log_probs). completion_mask: bool [B, T].
    group_size: G. sum_pi_squared: float [B, T], over the vocabulary. Returns float [B, T].
    Raises ValueError where the groups do not divide B. Source: verl's optimal_token_baseline.
    """
    mask, prompts = completion_mask, len(grouped(rewards, group_size))
    chex.assert_equal_shape([token_rewards, mask, log_probs, sum_pi_squared])
    returns = reward_to_go(rewards, token_rewards=token_rewards, completion_mask=mask)
    energy = zero_masked(1.0 - 2.0 * jnp.exp(zero_masked(log_probs, mask)) + sum_pi_squared, mask)
    weight = zero_masked(jnp.cumsum(energy, axis=1), mask)

    def of_group(x: chex.Array) -> chex.Array:
        return jnp.sum(x.reshape(prompts, group_size, -1), axis=1)

    baseline = of_group(returns * weight) / (of_group(weight) + eps)
    baseline = jnp.where(of_group(mask) > 1, baseline, 0.0)
    return zero_masked(returns - jnp.repeat(baseline, group_size, axis=0), mask)
