"""Advantages of tokens [B, T] without a critic, 0 outside the mask: fn(rewards [B], *, ...) -> float [B, T].

Functions with `token_rewards` (the KL penalty in the reward, and the score on the last token) take the rewards from
there and use only the shape of `rewards`. Tokens outside the mask are skipped.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.groups import group_centered, grouped, has_spread, to_tokens
from rl_jax.advantages.outcome import combined_components
from rl_jax.advantages.recursion import backward_sums
from rl_jax.core.masked import last_of, masked_mean, masked_var, masked_whiten, row_means, zero_masked


def reward_to_go(
    rewards: chex.Array, *, token_rewards: chex.Array, completion_mask: chex.Array, discount: float = 1.0
) -> chex.Array:
    """REINFORCE with causality: A_t = sum_{k >= t} gamma^{k-t} r_k over the tokens of the row.

    With only the score and gamma 1 it is the reward on every token. It equals GAE with lambda 1 and V = 0.

    Args:
      rewards: float [B].
      token_rewards: float [B, T].
      completion_mask: bool [B, T].
      discount: gamma per token.
    """
    chex.assert_rank([rewards, token_rewards], [1, 2])
    chex.assert_equal_shape_prefix([rewards, token_rewards], 1)
    decays = jnp.where(completion_mask, jnp.asarray(discount, token_rewards.dtype), 1.0)
    return zero_masked(backward_sums(zero_masked(token_rewards, completion_mask), decays), completion_mask)


def remax_to_go(
    rewards: chex.Array, *, token_rewards: chex.Array, completion_mask: chex.Array, greedy_rewards: chex.Array
) -> chex.Array:
    """ReMax with a KL in the reward: A_t = sum_{k >= t} r_k - R(greedy), as in verl.

    `outcome.remax` uses the KL of the whole row on every token. The authors' code adds only the KL of token t to the
    score, not that of later tokens. Source: arXiv 2310.10505.

    Args:
      rewards: float [B].
      token_rewards: float [B, T].
      completion_mask: bool [B, T].
      greedy_rewards: float [B], of the greedy completion of the row's prompt.
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

    Source: arXiv 2501.03262.

    Args:
      rewards: float [B].
      token_rewards: float [B, T].
      completion_mask: bool [B, T].
      discount: gamma per token.
      ddof: of the variance; 1 in verl, 0 in OpenRLHF and NeMo-RL.
      eps: added to the variance; 1e-8 in verl.
    """
    to_go = reward_to_go(rewards, token_rewards=token_rewards, completion_mask=completion_mask, discount=discount)
    # Relative to the first token: equal returns give exactly 0, not the rounding error of their float32 mean.
    shifted = to_go - to_go.reshape(-1)[jnp.argmax(completion_mask)]
    return masked_whiten(shifted, completion_mask, ddof=ddof, eps=eps)


def reinforce_pp_baseline(
    rewards: chex.Array, *, group_size: int, completion_mask: chex.Array, ddof: int = 1, eps: float = 1e-8
) -> chex.Array:
    """REINFORCE++-baseline: R - mean_g on every token, then whitened over the tokens of the batch.

    Long completions weigh more in the mean and the variance, which are over tokens. Source: arXiv 2501.03262.

    Args:
      rewards: float [B], minus the KL of the whole row.
      group_size: G.
      completion_mask: bool [B, T].
      ddof: as in `reinforce_pp`.
      eps: as in `reinforce_pp`.
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

    Source: arXiv 2601.05242.

    Args:
      rewards: float [B]; only its shape is used.
      components: float [B, K].
      group_size: G.
      completion_mask: bool [B, T].
      weights: as in `outcome.gdpo`, which normalises over completions.
      ddof: of the groups' std.
      eps: added to the groups' std.
      whiten_eps: added to the variance of the tokens.
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

    Mean and std are over all steps of a group's completions. One step at the end of each row is `group_relative`. A
    group with one step, or whose steps are all equal, gives 0. The steps are those of a judge (config.judge,
    process_reward_model). Source: arXiv 2402.03300 section 4.1.3.

    Args:
      rewards: float [B]; only its shape is used.
      step_rewards: float [B, T], at the last token of each step.
      step_ends: bool [B, T], the last token of each step.
      completion_mask: bool [B, T].
      group_size: G.
      ddof: as in `group_relative`.
      eps: as in `group_relative`.
      relative_tolerance: as in `group_relative`.

    Raises:
      ValueError: if B is not a multiple of group_size.
    """
    chex.assert_rank([rewards, step_rewards], [1, 2])
    chex.assert_equal_shape([step_rewards, step_ends, completion_mask])
    chex.assert_equal_shape_prefix([rewards, step_rewards], 1)
    chex.assert_type([step_rewards, step_ends], [float, bool])
    prompts, shape = len(grouped(rewards, group_size)), step_rewards.shape

    def normalised(x: chex.Array, mask: chex.Array) -> chex.Array:
        # Relative to the group's first step, as in groups.py: equal rewards give exactly 0.
        shifted = zero_masked(x - x[jnp.argmax(mask)], mask)
        centered = zero_masked(shifted - masked_mean(shifted, mask).value(), mask)
        std = jnp.sqrt(masked_var(shifted, mask, ddof=ddof))
        return jnp.where(has_spread(x, std, relative_tolerance), centered / (std + eps), 0.0)

    ends = (step_ends & completion_mask).reshape(prompts, -1)
    steps = jax.vmap(normalised)(zero_masked(step_rewards.reshape(prompts, -1), ends), ends)
    return reward_to_go(rewards, token_rewards=steps.reshape(shape), completion_mask=completion_mask)


def prime(
    rewards: chex.Array,
    *,
    step_rewards: chex.Array,
    completion_mask: chex.Array,
    group_size: int,
    reward_discount: float = 1.0,
    outcome_discount: float = 1.0,
) -> chex.Array:
    """PRIME's advantages: leave-one-out in each source of reward, discounted sums to go, summed, whitened.

        r'_t = r_t G/(G - 1) - sum_j mean_j / (G - 1)       mean_j: of response j's own rewarded tokens
        A_t  = whiten( sum_{u >= t} gamma_r^(u - t) r'_u + gamma_o^(T - t) o' )

    The outcome o is what a row has earned apart from its token rewards. Source: arXiv 2502.01456, compute_rloo_returns
    of its code.

    Args:
      rewards: float [B], the outcome and the sum of the token rewards, as credit.assign gives them.
      step_rewards: float [B, T], r: of an implicit reward model (credit.step_rewards.prime_token_rewards).
      completion_mask: bool [B, T].
      group_size: G, rows per prompt; the rows of a group are neighbours.
      reward_discount: gamma_r, per token.
      outcome_discount: gamma_o, per token.

    Returns:
      float [B, T], whitened with n - 1 and eps 1e-8 as in verl.

    Raises:
      ValueError: for groups of one, or if B is not a multiple of group_size.
    """
    mask = completion_mask
    chex.assert_rank([rewards, step_rewards], [1, 2])
    chex.assert_equal_shape([step_rewards, mask])
    chex.assert_equal_shape_prefix([rewards, step_rewards], 1)
    if group_size < 2:
        raise ValueError(f"leaving one out needs groups of at least 2, got group_size={group_size}")
    grouped(rewards, group_size)
    outcomes = rewards - jnp.sum(zero_masked(step_rewards, mask), axis=1)
    at_end = last_of(mask)
    on_tokens = jnp.broadcast_to(outcomes[:, None], mask.shape)  # read at the end
    total = jnp.zeros(mask.shape, step_rewards.dtype)
    for source, where, discount in ((step_rewards, mask, reward_discount), (on_tokens, at_end, outcome_discount)):
        means = row_means(source, where).reshape(-1, group_size)
        baseline = jnp.repeat(jnp.sum(means, axis=1), group_size) / (group_size - 1)
        centred = source * (group_size / (group_size - 1)) - jnp.broadcast_to(baseline[:, None], mask.shape)
        centred = zero_masked(centred, where)
        total += backward_sums(centred, jnp.where(mask, jnp.asarray(discount, centred.dtype), 1.0))
    return masked_whiten(total, mask, ddof=1, eps=1e-8)


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
    """Reward to go minus the baseline of least variance, per token.

        A_t = G_t - b_t, b_t = sum_g G_t W_t / (sum_g W_t + eps), W_t = sum_{k <= t} (1 - 2 pi_k + sum_v pi_k(v)^2)

    G_t is the reward to go. 1 - 2 pi + sum_v pi(v)^2 is the squared norm of the softmax's score, so W_t measures how
    much the gradient of the first t tokens varies, and b_t is the baseline that minimises its variance. The sums are
    over the completions of the prompt that have a token at t. If only one has, b_t is 0: its own return is not a
    baseline. Source: verl's optimal_token_baseline.

    Args:
      rewards: float [B].
      token_rewards: float [B, T].
      completion_mask: bool [B, T].
      group_size: G.
      log_probs: float [B, T], pi = exp(log_probs).
      sum_pi_squared: float [B, T], over the vocabulary.
      eps: added to the sum of weights.

    Returns:
      float [B, T].

    Raises:
      ValueError: if B is not a multiple of group_size.
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
