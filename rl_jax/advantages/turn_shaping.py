"""Credit over turns from further signals: gains of information, tool calls, implicit rewards. See advantages.turns."""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.turn_arrays import Episodes, episodes, moments, normed, row_relative, spread, sums_of_turns
from rl_jax.advantages.turn_states import igpo_of


def information_gain(at: Episodes, answer_probs: chex.Array, prior_answer_probs: chex.Array) -> chex.Array:
    """r_ij = p_ij - p_i,j-1: how much more probable turn j and what came back have made the right answer.

    Args:
      at: the turns.
      answer_probs: float [B, C], on the last token of each turn: p_ij after the turn and the environment's answer.
      prior_answer_probs: float [B], p_i before the first turn.

    Returns:
      float [B, C], on the last token of each turn; 0 elsewhere.
    """
    chex.assert_equal_shape([at.on, answer_probs])
    chex.assert_equal_shape_prefix([prior_answer_probs, answer_probs], 1)
    probs = jax.lax.stop_gradient(answer_probs)

    def step(before, now):
        prob, end = now
        return jnp.where(end, prob, before), jnp.where(end, prob - before, 0.0)

    _, gains = jax.lax.scan(step, jax.lax.stop_gradient(prior_answer_probs), (probs.T, at.ends.T))
    return gains.T


def igpo_policy(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    answer_probs: chex.Array,
    prior_answer_probs: chex.Array,
    group_size: int,
    separate: bool = False,
    logs: bool = False,
    discount: float = 1.0,
    eps: float = 1e-6,
) -> chex.Array:
    """IGPO with the policy's own probability of the right answer: turns before the last earn `information_gain`.

    The last turn's reward is the outcome; other turns' rewards are replaced. Source: arXiv 2510.14967; its code has
    both gains (prob_diff as in the paper, log_prob_diff), and moving weights of outcome and gain, which are not here.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      answer_probs: float [B, C], on the last token of each turn.
      prior_answer_probs: float [B].
      group_size: G.
      separate: as in `turn_states.igpo`.
      logs: gains of the mean log-prob in place of the probability.
      discount: as in `turn_states.igpo`.
      eps: as in `turn_states.igpo`.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    if logs:
        tiny = jnp.finfo(answer_probs.dtype).tiny
        answer_probs, prior_answer_probs = (jnp.log(jnp.maximum(x, tiny)) for x in (answer_probs, prior_answer_probs))
    gains = information_gain(at, answer_probs, prior_answer_probs)
    return igpo_of(at, jnp.where(at.last_turn, at.rewards, gains), separate=separate, discount=discount, eps=eps)


def aspo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    turn_calls: chex.Array,
    group_size: int,
    shift: float = -2.0,
    bound: float = 0.7,
    correct_above: float = 0.5,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """ASPO: right answers that call a tool earlier get a little more; never so much that the sign changes.

        A_i = A^GRPO_i + clip(shift (p_i - mean p) / mean L, -bound A^GRPO_i, bound A^GRPO_i)

    p_i: sampled tokens up to the end of the first turn with a call; L_i: sampled tokens; means over the rows of the
    group that are right and have a call, which alone are shaped. Where A^GRPO is 0 (all rows of the group right) or
    below, nothing is added. Biased on purpose: it prefers early calls.
    Source: arXiv 2508.19201 eq. 2 and section 4.5 (conservative: -2, .7; aggressive: -2.5, .9).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      turn_calls: float [B, C], number of tool calls of each turn on its last token.
      group_size: G.
      shift: delta, below 0 for earlier calls.
      bound: k, below 1.
      correct_above: a row is right if its reward is above this.
      ddof: of GRPO's std.
      eps: added to GRPO's std.

    Raises:
      ValueError: if bound is not in [0, 1): the shaping could turn the sign of an advantage.
    """
    if not 0 <= bound < 1:
        raise ValueError(f"bound={bound} must be in [0, 1): the shaping may not outweigh the answer's own advantage")
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, turn_calls])
    base = row_relative(at, ddof=ddof, eps=eps)
    spoken = jnp.cumsum(at.on, axis=1)
    calls = at.ends & (turn_calls > 0)
    first = calls & (jnp.cumsum(calls, axis=1) == 1)
    position = jnp.sum(jnp.where(first, spoken, 0), axis=1).astype(base.dtype)
    lengths = spoken[:, -1].astype(base.dtype)
    shaped = jnp.any(calls, axis=1) & (rewards > correct_above)
    weight = shaped.astype(base.dtype).reshape(-1, group_size)
    count = jnp.maximum(jnp.sum(weight, axis=1), 1.0)

    def mean(x):
        return jnp.repeat(jnp.sum(x.reshape(weight.shape) * weight, axis=1) / count, group_size)

    lean = shift * (position - mean(position)) / jnp.maximum(mean(lengths), 1.0)
    limit = bound * jnp.maximum(base, 0.0)  # 0 off the turns
    return base + jnp.where(shaped[:, None], jnp.clip(lean[:, None], -limit, limit), 0.0)


def oprl(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    implicit_rewards: chex.Array,
    group_size: int,
    step_coef: float = 1.0,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """OPRL (iStar): A_ij = A^E_i + w A^S_ij, with the implicit reward of each turn normed over all turns of the group.

        s_ij = sum_{t in turn j} beta (logp_phi - logp_old),    A^S = (s_ij - mean) / (std + eps)

    phi is trained beside the policy by DPO on pairs of episodes (experiments.parts.step_model). Biased: s is a learnt
    reward without the turns after it, and the means include the own value.
    Source: arXiv 2509.19199 (beta .05 and the weight 1 from memory).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      implicit_rewards: float [B, C], beta (logp_phi - logp_old) of each token.
      group_size: G.
      step_coef: w.
      use_std: False: the means only.
      ddof: of the stds.
      eps: added to the stds.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    summed = sums_of_turns(jax.lax.stop_gradient(implicit_rewards), at.on, at.ends)
    steps = spread(normed(moments(summed, at.ends, at.group_ids, at.number, ddof=ddof), eps, use_std), at)
    whole = row_relative(at, ddof=ddof, eps=eps, use_std=use_std)
    return whole + step_coef * jnp.where(at.company, steps, 0.0)


def sweet(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    implicit_rewards: chex.Array,
    group_size: int,
) -> chex.Array:
    """SWEET-RL: A_ij = 1/L_ij sum_{t in turn j} (logp_w - logp_ref), a learnt advantage of the turn.

    w is trained by the Bradley-Terry loss on sums over episodes, and reads what the policy does not (a reference
    answer). The rewards are not read again. As good as w: no bias of its own to state.
    Source: arXiv 2503.15478 (formula from memory).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      implicit_rewards: float [B, C], logp_w - logp_ref of each token.
      group_size: G.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    summed = sums_of_turns(jax.lax.stop_gradient(implicit_rewards), at.on, at.ends)
    tokens = sums_of_turns(jnp.ones_like(summed), at.on, at.ends)
    return spread(summed / jnp.maximum(tokens, 1.0), at)
