"""Credit over turns that are samples of their own: rounds with a state of their own, roles, and own refinements.

For worlds that begin the history anew (Step.anew), where each turn reads a prompt of its own. Arguments as in
advantages.turns.
"""

from collections.abc import Sequence

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.turn_arrays import episodes, moments, normed, spread, state_ids, whole_rows


def eapo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    discount: float = 0.995,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """IterResearch's EAPO: each round is a sample with a share of the outcome that falls with its distance to the end.

        r_ij = gamma^(T_i - j) R_i,   A_ij = (r_ij - mean) / (std + eps) over all rounds of the group's rows

    So among right answers the shorter way earns more. gamma = 1 is `turn_states.transitions`. Biased as that is. The
    paper trains it with GSPO's ratio per round (losses.policy.turns.turn_clip) and a mean over rounds
    (token_weights.rounds.whole_rounds), and does not say gamma; neither whether its std has n or n - 1.
    Source: arXiv 2511.07327 eq. 3 and 5.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      group_size: G.
      discount: gamma, in (0, 1].
      ddof: of the std.
      eps: added to the std.

    Raises:
      ValueError: if the discount is not in (0, 1].
    """
    if not 0 < discount <= 1:
        raise ValueError(f"discount={discount} must be in (0, 1]")
    at = episodes(rewards, turns, turn_rewards, group_size)
    outcome, _ = whole_rows(at)
    left = jnp.max(turns, axis=1, keepdims=True) - turns
    earned = jnp.sum(outcome, axis=1, keepdims=True) * discount**left
    found = moments(earned, at.ends, at.group_ids, at.number, ddof=ddof)
    return jnp.where(at.company, spread(normed(found, eps), at), 0.0)


def zero_sum(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    turn_role: chex.Array,
    turn_score: chex.Array,
    group_size: int,
    roles: Sequence[int] = (1, 2, 3),
    eps: float = 1e-8,
) -> chex.Array:
    """CoMAS: a judge's score is the solver's reward, and what is left of 1 the evaluator's.

        s = (score - 1) / 2:   r = s for role 1, 1 - s for role 2, 0 for role 3;   without a score  0, 0, -1
        A = (r - mean) / sqrt(max(var, eps)) over all tokens of the batch that learn (REINFORCE++)

    A row may have several rounds of the three roles: a turn's score is the next one that is counted, in it or after it;
    a turn that no score follows does not learn. With roles=(2,) the evaluator alone learns.
    Source: arXiv 2510.08529; rewards and normalization as in its code (xxyQwQ/CoMAS, read in the fork wt-2048/comas:
    marti/verifiers/comas_reward.py, marti/trainers/replay_buffer.py): all samples of an agent, whatever its role in
    them, are normalized together, token by token.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C]; the judge's own reward is -1 in a turn without a score.
      turn_role: float [B, C], 1 (solver), 2 (evaluator) or 3 (judge) on the last token of each turn.
      turn_score: float [B, C], on the turn that ends a round: 1 to 3, or -1 if it has no score; 0 on the others.
      group_size: G.
      roles: those that learn.
      eps: the least variance.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, turn_role, turn_score])
    score = next_one(jnp.where(at.ends, turn_score, 0.0))
    role = jnp.round(turn_role).astype(jnp.int32)
    share = (score - 1.0) / 2.0
    earned = jnp.select([role == 1, role == 2], [share, 1.0 - share], at.rewards)
    earned = jnp.where((score < 0) & (role < 3), 0.0, earned)
    learns = (score != 0) & jnp.isin(role, jnp.asarray(tuple(roles), jnp.int32))
    on = spread(learns.astype(earned.dtype), at) > 0
    one = jnp.zeros_like(turns)
    found = moments(spread(jnp.where(learns, earned, 0.0), at), on, one, at.number, ddof=0)
    return normed(found._replace(std=jnp.sqrt(jnp.maximum(jnp.square(found.std), eps))), 0.0)


def next_one(x: chex.Array) -> chex.Array:
    """The first value that is not 0, here or later in the row; 0 if there is none. float [B, C] -> float [B, C]."""
    width = x.shape[1]
    place = jax.lax.cummin(jnp.where(x != 0, jnp.arange(width), width), axis=1, reverse=True)
    return jnp.take_along_axis(x, place, axis=1, mode="fill", fill_value=0.0)


def reward_weighted(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    state_keys: chex.Array,
    group_size: int,
    temperature: float = 1.0,
    best: bool = True,
) -> chex.Array:
    """RISE: weights of own refinements, for a log-likelihood (surrogate "reinforce": -w log pi).

        w_ij = exp(r_ij / tau) / Z  if r_ij is the best of the group's turns from the same state, else 0

    Z makes the mean weight of those that are left 1. So each state of a multi-turn episode, with the policy's own
    mistakes before it, is fitted to the best of the responses that the policy gave there (its self-distillation), and
    right ones weigh more. best=False keeps all turns: reward-weighted regression on what was sampled.
    Source: arXiv 2407.18219 (sum of log pi(y | s) exp(r / tau) over the improved data).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      state_keys: int32 [B, C], as in `turn_states.gigpo`.
      group_size: G.
      temperature: tau.
      best: whether only the best response of each state counts.

    Raises:
      ValueError: if the temperature is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} must be positive")
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, state_keys])
    ids = state_ids(at.group_ids, state_keys, at.ends)
    below_best = moments(-at.rewards, at.ends, ids, at.number).shifted  # max of the state - r
    kept = at.ends & (below_best <= 0) if best else at.ends
    largest = jnp.max(jnp.where(kept, at.rewards, -jnp.inf))
    weights = jnp.where(kept, jnp.exp((jnp.where(kept, at.rewards, largest) - largest) / temperature), 0.0)
    mean = jnp.sum(weights) / jnp.maximum(jnp.sum(kept), 1)
    return spread(weights / jnp.maximum(mean, jnp.finfo(weights.dtype).tiny), at)
