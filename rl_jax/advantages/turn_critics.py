"""Credit over turns from values of states: a critic's, several critics', or those of fresh rollouts.

`turn_gae`, `bilevel_gae`, `outcome_mixture` and `archer_td` are for critic.advantage of PPO: token rewards and values
[B, C] -> (advantages, returns).
The others are for algorithm.advantage, with the arguments of advantages.turns.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums, following
from rl_jax.advantages.turn_arrays import episodes, held, spread, sums_of_turns
from rl_jax.core.masked import last_of, zero_masked


def turn_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    turns: chex.Array,
    discount: float = 0.99,
    lam: float = 0.9,
) -> tuple[chex.Array, chex.Array]:
    """Turn-PPO: GAE whose steps are turns; a turn's tokens share its advantage and return.

        A_j = delta_j + gamma lambda A_{j+1},   delta_j = r_j + gamma V_{j+1} - V_j

    V_j: the value at the first token of turn j, the state that the turn answers; r_j: the sum of its tokens' rewards.
    Unbiased with the true values, or with lambda and gamma 1 for any. Turns of one token: `tokens.gae`. The paper clips
    by the turn's ratio: rl_jax.losses.policy.turns:turn_clip. Source: arXiv 2512.17008 (gamma .99, lambda .9).

    Args:
      token_rewards: float [B, C].
      values: float [B, C].
      completion_mask: bool [B, C].
      bootstrap_values: float [B], V after the last turn.
      turns: int32 [B, C], number of the turn on its tokens; -1 elsewhere.
      discount: gamma, per turn.
      lam: lambda, per turn.

    Returns:
      (A, A + V_j), float [B, C] each, 0 outside the mask.
    """
    on, starts, ends = _bounds(turns, completion_mask)
    chex.assert_equal_shape([token_rewards, values, turns])
    value = held(zero_masked(values, starts), starts)
    delta = sums_of_turns(token_rewards, on, ends) + discount * following(values, starts, bootstrap_values) - value
    advantages = _back(delta, ends, on, discount * lam)
    return advantages, zero_masked(advantages + value, on)


def bilevel_gae(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    turns: chex.Array,
    discount: float = 1.0,
    lam: float = 1.0,
    turn_discount: float = 0.95,
    turn_lam: float = 1.0,
) -> tuple[chex.Array, chex.Array]:
    """VAGEN's bi-level GAE: over turns first, then over the tokens of each turn towards the turn's return.

        turns:   A_j = delta_j + gamma_turn lambda_turn A_{j+1},  delta_j = r_j + gamma_turn V^e_{j+1} - V^e_j
        tokens:  GAE within turn j, the last token's reward A_j + V^e_j, no value after it

    V^e_j is the value at the *last* token of turn j; r_j the sum of the turn's token rewards. Biased for values that
    are not exact: V^e_{j+1} has already seen turn j + 1. The code takes a turn's end from a reward that is not 0, so a
    turn without a reward joins the next one; here turns are counted. It whitens the result; here the recipe does.
    Source: arXiv 2510.16907; RAGEN ragen/trainer/core_algos.py (gamma 1, lambda 1, high_level_gamma .95).

    Args:
      token_rewards: float [B, C].
      values: float [B, C].
      completion_mask: bool [B, C].
      bootstrap_values: float [B], V after the last turn; 0 there.
      turns: int32 [B, C].
      discount: gamma of tokens.
      lam: lambda of tokens.
      turn_discount: gamma of turns.
      turn_lam: lambda of turns; the code's first version has lambda of tokens for both.

    Returns:
      (A, A + V), float [B, C] each, 0 outside the mask.
    """
    on, _, ends = _bounds(turns, completion_mask)
    chex.assert_equal_shape([token_rewards, values, turns])
    rewards = sums_of_turns(token_rewards, on, ends)
    delta = rewards + turn_discount * following(values, ends, bootstrap_values) - values  # read on the ends
    of_turn = _back(delta, ends, on, turn_discount * turn_lam)
    ahead = jnp.where(ends, of_turn + values, discount * following(values, on, bootstrap_values))
    decays = jnp.where(ends, 0.0, jnp.where(on, discount * lam, 1.0))
    advantages = zero_masked(backward_sums(zero_masked(ahead - values, on), decays), on)
    return advantages, zero_masked(advantages + values, on)


def outcome_mixture(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    bootstrap_values: chex.Array,
    turns: chex.Array,
    lam: float = 0.5,
    above: float = 0.0,
) -> tuple[chex.Array, chex.Array]:
    """WebRL's credit: one step ahead by the critic, mixed with what the episode came to. arXiv 2411.02337.

        A_j = lambda (r_j + V_{j+1} - V_j) + (1 - lambda) (R - V_j),     the critic's target y = [R > above]

    V_j: the value at the first token of turn j, a probability of success if the critic is trained by cross-entropy to y
    (losses.value:two_hot over the two bins 0 and 1; of two critics the smaller: losses.several_critics); R: the row's
    whole reward. Unbiased with the true values of rewards that only the end pays. The form and lambda .5 are the
    paper's, from memory. The released code (THUDM/WebRL, webrl/algorithms/webrl/trainer.py) has V_{j+1} - V_j - .05 + R
    + gamma-discounted R, within [-1, 1], the smaller of two critics, and trains only on turns where that is above 0,
    with an advantage of 1.

    Args:
      token_rewards: float [B, C].
      values: float [B, C].
      completion_mask: bool [B, C].
      bootstrap_values: float [B], V after the last turn.
      turns: int32 [B, C], number of the turn on its tokens; -1 elsewhere.
      lam: lambda, from 0 (the outcome alone) to 1 (the critic alone).
      above: the reward that a success exceeds.

    Returns:
      (A, y), float [B, C] each, the same on all tokens of a turn, 0 outside the mask.

    Raises:
      ValueError: if lam is not in [0, 1].
    """
    if not 0 <= lam <= 1:
        raise ValueError(f"lam={lam} must be in [0, 1]")
    chex.assert_equal_shape([token_rewards, values, completion_mask, turns])
    chex.assert_type([token_rewards, values, completion_mask, turns], [float, float, bool, int])
    on, starts, ends = _bounds(turns, completion_mask)
    value = held(zero_masked(values, starts), starts)
    ahead = sums_of_turns(token_rewards, on, ends) + following(values, starts, bootstrap_values) - value
    whole = jnp.sum(zero_masked(token_rewards, on), axis=1, keepdims=True)
    mixed = lam * ahead + (1.0 - lam) * (whole - value)
    return _back(mixed, ends, on, 0.0), zero_masked(jnp.broadcast_to(whole > above, on.shape).astype(values.dtype), on)


def earned_early(turn_rewards: chex.Array, mask: chex.Array) -> chex.Array:
    """What the turns earn, as token rewards beside the row's whole reward on its last token. -> float [B, C].

        e_t = r_t - [t is the row's last token] sum_s r_s

    So each turn's reward is on its own last token, and what shaping adds to the row's stays on the last. One turn: 0.

    Args:
      turn_rewards: float [B, C], on the last token of each turn.
      mask: bool [B, C], sampled tokens.
    """
    chex.assert_equal_shape([turn_rewards, mask])
    own = zero_masked(turn_rewards, mask)
    return own - jnp.where(last_of(mask), jnp.sum(own, axis=1, keepdims=True), 0.0)


def vine(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    state_values: chex.Array,
    group_size: int,
    discount: float = 1.0,
) -> chex.Array:
    """VinePPO over turns: A_ij = r_ij + gamma V(s_i,j+1) - V(s_ij), V a mean of fresh rollouts from the state.

    Unbiased: the estimates of V do not depend on the turn's action given its state, and V after the last turn is 0.
    Needs environments that can be continued from any state. Source: arXiv 2410.01679 (steps of a solution there).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      state_values: float [B, C], V of the state in which each turn was spoken, on its last token.
      group_size: G.
      discount: gamma, per turn.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    values = jax.lax.stop_gradient(state_values)  # read on the ends
    after = following(values, at.ends, jnp.zeros_like(rewards))
    return spread(at.rewards + discount * after - values, at)


def archer(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    q_values: chex.Array,
    state_values: chex.Array,
    group_size: int,
) -> chex.Array:
    """ArCHer: A_ij = min_k Q_k(s_ij, a_ij) - min_k V_k(s_ij), a critic of whole turns. The rewards train the critics.

    Unbiased with the true Q, whatever V. Source: arXiv 2402.19446; YifeiZhou02/ArCHer archer/algorithms/archer.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      q_values: float [K, B, C], on the last token of each turn; K = 2 critics in the paper.
      state_values: float [K, B, C], V_k there.
      group_size: G.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_rank([q_values, state_values], 3)
    difference = jnp.min(q_values, axis=0) - jnp.min(state_values, axis=0)
    return spread(jax.lax.stop_gradient(difference), at)


def archer_targets(
    turn_rewards: chex.Array,
    done: chex.Array,
    next_state_values: chex.Array,
    resampled_q_values: chex.Array,
    *,
    discount: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """What ArCHer's critics regress to: y^Q_k = r + gamma (1 - done) V'_k(s'), y^V_k = Q'_k(s, a'), a' ~ pi.

    The k-th target net for the k-th critic, no minimum. Source: as `archer`.

    Args:
      turn_rewards: float [...].
      done: bool [...], the turn ended its episode.
      next_state_values: float [K, ...], V' of target nets.
      resampled_q_values: float [K, ...], Q' of target nets at an action drawn from the policy now.
      discount: gamma.

    Returns:
      (y^Q, y^V), float [K, ...] each, without gradient.
    """
    chex.assert_equal_shape([turn_rewards, done])
    chex.assert_type(done, bool)
    bootstrap = jnp.where(jnp.broadcast_to(done, next_state_values.shape), 0.0, discount * next_state_values)
    rewards = jnp.broadcast_to(turn_rewards, bootstrap.shape)
    return jax.lax.stop_gradient((rewards + bootstrap, resampled_q_values))


def at_turns(outputs: chex.Array, turns: chex.Array, mask: chex.Array) -> chex.Array:
    """Q_k and V_k of whole turns, on the last token of each; 0 elsewhere.

    Q_k(s_j, a_j) is read after the turn's last token, V_k(s_j) before its first.

    Args:
      outputs: float [B, C + 1, 2 K] of a critic: Q_1 .. Q_K, V_1 .. V_K of the state before each token and after all.
      turns: int32 [B, C].
      mask: bool [B, C].

    Returns:
      float [B, C, 2 K].
    """
    chex.assert_rank(outputs, 3)
    _, starts, ends = _bounds(turns, mask)
    pairs = outputs.shape[2] // 2
    columns = jnp.broadcast_to(jnp.arange(turns.shape[1]), turns.shape)
    first = jax.lax.cummax(jnp.where(starts, columns, 0), axis=1)
    before = jnp.take_along_axis(outputs[:, :, pairs:], first[:, :, None], axis=1)
    both = jnp.concatenate([outputs[:, 1:, :pairs], before], axis=2)
    return jnp.where(ends[:, :, None], both, 0.0)


def archer_td(
    token_rewards: chex.Array,
    values: chex.Array,
    completion_mask: chex.Array,
    *,
    turns: chex.Array,
    target_values: chex.Array,
    discount: float = 0.95,
) -> tuple[chex.Array, chex.Array]:
    """`archer` and `archer_targets` as one choice of critic.advantage.

        A_j = min_k Q_k(s_j, a_j) - min_k V_k(s_j),  y^Q_k = r_j + gamma V'_k(s_j+1),  y^V_k = Q'_k(s_j, a_j)

    The rows are the policy's own, so a_j is the fresh a' ~ pi of y^V. No value follows an episode's last turn.
    Source: arXiv 2402.19446 (gamma .95).

    Args:
      token_rewards: float [B, C].
      values: float [B, C, 2 K], of `at_turns`.
      completion_mask: bool [B, C].
      turns: int32 [B, C].
      target_values: float [B, C, 2 K], of `at_turns` of the slow copy.
      discount: gamma, per turn.

    Returns:
      (A on the tokens of each turn, float [B, C]; (y^Q, y^V) on its last token, float [B, C, 2 K]).
    """
    on, _, ends = _bounds(turns, completion_mask)
    chex.assert_equal_shape([values, target_values])
    pairs = values.shape[2] // 2
    nothing = jnp.zeros(turns.shape[0])
    target_q, target_v = jnp.split(jnp.moveaxis(target_values, 2, 0), [pairs])
    ahead = jax.vmap(lambda x: following(x, ends, nothing))(target_v)  # 0 behind an episode's last turn
    rewards = sums_of_turns(token_rewards, on, ends)
    found = archer_targets(rewards, jnp.zeros_like(ends), ahead, target_q, discount=discount)
    returns = jnp.where(ends[:, :, None], jnp.moveaxis(jnp.concatenate(found), 0, 2), 0.0)
    difference = jnp.min(values[:, :, :pairs], axis=2) - jnp.min(values[:, :, pairs:], axis=2)
    return _back(jax.lax.stop_gradient(difference), ends, on, 0.0), returns


def turn_ends(turns: chex.Array, mask: chex.Array) -> chex.Array:
    """The last token of each turn. int32 [B, C], bool [B, C] -> bool [B, C]."""
    return _bounds(turns, mask)[2]


def _bounds(turns: chex.Array, mask: chex.Array) -> tuple[chex.Array, chex.Array, chex.Array]:
    """(tokens of turns, first token of each, last token of each), bool [B, C] each."""
    chex.assert_equal_shape([turns, mask])
    chex.assert_type([turns, mask], [int, bool])
    on = mask & (turns >= 0)
    number = turns.astype(jnp.float32)
    outside = jnp.full(turns.shape[0], jnp.inf)  # the number of no turn
    ends = on & (following(number, on, outside) != number)
    starts = on & (following(number[:, ::-1], on[:, ::-1], outside)[:, ::-1] != number)
    return on, starts, ends


def _back(x: chex.Array, ends: chex.Array, on: chex.Array, decay: float) -> chex.Array:
    return zero_masked(backward_sums(zero_masked(x, ends), jnp.where(ends, decay, 1.0)), on)
