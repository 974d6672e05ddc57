"""Credit over turns: rewards [B] and rewards of turns [B, C] -> advantages [B, C]. Named by import path in a config.

A row is an episode of several turns of the policy, with what the environment said between them: its mask has holes.

    G_ij = sum_{k >= j} gamma^(k - j) r_ik,   r_ij the reward of turn j of row i

Row i is *alive* at turn j if it has that turn. A row without any turn (its environment failed) counts nowhere and gets
0, and so does a row that is the only one of its group. What a row has earned apart from its turns' rewards (a shaped
reward, a KL in the reward) belongs to its last turn. docs/pages/turn_credit.md has each estimator's bias on a small
tree, exactly.

More of the kind: turn_states (groups of equal states), turn_critics, turn_trees (branches), turn_shaping.
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.turn_arrays import episodes, moments, normed, on_rows, row_relative, spread, to_go, whole_rows


def turn_return_loo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    discount: float = 1.0,
) -> chex.Array:
    """Leave-one-out return to go per turn: unbiased. The default for several turns.

        A_ij = G_ij - mean_{l != i, alive at j} G_lj,    and G_ij if no other row is alive at j

    The baseline of a turn reads other rows only, so it does not depend on what row i did. Rows that have ended earn 0
    from there on: the baseline of the last row alive. With one turn it is `leave_one_out`.
    Source: ours, after the discussion of biased baselines in verl issue 7244.

    Args:
      rewards: float [B].
      turns: int32 [B, C], number of the turn on its tokens; -1 elsewhere.
      turn_rewards: float [B, C], on the last token of each turn.
      group_size: G, rows per prompt; the rows of a group are neighbours.
      discount: gamma, per turn.

    Returns:
      float [B, C], 0 outside the turns.

    Raises:
      ValueError: for groups of one, or if B is not a multiple of group_size.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    returns = to_go(at.rewards, at, discount)
    found = moments(returns, at.ends, at.turn_ids, at.number)
    others = (found.total - found.shifted) / jnp.maximum(found.count - 1.0, 1.0)
    return spread(jnp.where(at.company, jnp.where(found.count > 1, found.shifted - others, returns), 0.0), at)


def loop(rewards: chex.Array, *, turns: chex.Array, turn_rewards: chex.Array, group_size: int) -> chex.Array:
    """LOOP: A_i = R_i - mean of the other rows' R, on all tokens of the row. Unbiased.

    `leave_one_out` over the rows that have a turn. The paper trains it with PPO's clip per token; the ratio per turn
    is rl_jax.losses.policy.turns:turn_clip. Arguments as in `turn_return_loo`. Source: arXiv 2502.01600.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    whole, place = whole_rows(at)
    found = moments(whole, place, at.group_ids, at.number)
    return on_rows((found.shifted - found.mean) * found.count / jnp.maximum(found.count - 1.0, 1.0), at)


def trajectory(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-4,
    use_std: bool = True,
) -> chex.Array:
    """GRPO of whole episodes: A_i = (R_i - mean_g) / (std_g + eps) on all tokens of the row.

    `group_relative` over the rows that have a turn. Without the std its mean is (G - 1)/G of the true gradient; the
    std weighs groups, so it is biased. eps as in WebAgent-R1 (arXiv 2505.16421, whose code has ddof 1 and 1e-4).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      group_size: G.
      ddof: of the std.
      eps: added to the std.
      use_std: False: Dr. GRPO.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    return row_relative(at, ddof=ddof, eps=eps, use_std=use_std)


def turn_grpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """GRPO turn by turn: A_ij = sum_{k >= j} (r_ik - mean_k) / (std_k + eps), over the rows alive at turn k.

    Biased: how many baselines a row loses is its own choice, so it cannot see that going on pays. Where each further
    turn earns the same for all that are alive, its gradient is exactly 0 (verl issue 7244). Prefer `turn_return_loo`.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      group_size: G.
      ddof: of the std.
      eps: added to the std.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    normal = normed(moments(at.rewards, at.ends, at.turn_ids, at.number, ddof=ddof), eps)
    return jnp.where(at.company, to_go(normal, at), 0.0)


def mt_grpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    coef: float = 1.0,
    ddof: int = 1,
    eps: float = 1e-4,
) -> chex.Array:
    """MT-GRPO: A_ij = A^O_i + coef A^T_ij before the last turn, and A^O_i in the last one.

        A^O = (R^O - mean) / (std + eps), R^O the reward of the row's last turn, over the group's rows
        A^T_ij = (r_ij - mean_j) / (std_j + eps), over the rows whose turn j is not their last

    Biased: a turn is not credited with the rewards of later turns other than the last, and stds weigh groups. The paper
    has two turns; more are after atropos PR 162, which takes coef .5. Where a row never calls its tool, the paper's
    code takes the normed sum of both rewards; here it is its A^O.
    Source: arXiv 2505.11821; SiliangZeng/Multi-Turn-RL-Agent (turn_advantage_coef 1).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      group_size: G.
      coef: of the turns' own advantages.
      ddof: of both stds.
      eps: added to both stds.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    final = at.ends & at.last_turn
    outcome = on_rows(normed(moments(at.rewards, final, at.group_ids, at.number, ddof=ddof), eps), at)
    before = at.ends & ~at.last_turn
    own = normed(moments(at.rewards, before, at.turn_ids, at.number, ddof=ddof), eps)
    return outcome + coef * spread(own, at)
