"""Credit over turns of rollouts that branch: rows of a group share the tokens before their branches part.

Each row holds its whole path, so shared tokens are in several rows. `branches` says which: int32 [B, C], the number of
the branch on its tokens, the same in two rows of a group if and only if they share those tokens; -1 elsewhere. With a
branch of its own for each row (no branching) `arpo` and `tree_grpo` compare rows as GRPO does.
"""

import chex
import jax.numpy as jnp

from rl_jax.advantages.turn_arrays import (
    episodes,
    held,
    moments,
    normed,
    on_rows,
    row_relative,
    spread,
    state_ids,
    sums,
    to_go,
    whole_rows,
)
from rl_jax.core.masked import last_of


def arpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    branches: chex.Array,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-6,
    use_std: bool = True,
) -> chex.Array:
    """ARPO, hard attribution: a token's advantage is the mean of GRPO's over the rows that share it.

        A_t = mean_{l shares t} (R_l - mean_g) / (std_g + eps)

    The paper's soft form is GRPO on the rows as they are (`turns.trajectory`): the sum over the copies is the same.
    Biased: the mean includes the own row and the rows of a tree are not independent; the std weighs groups.
    Source: arXiv 2507.19849 section 3.2; RUC-NLPIR/ARPO trains the soft form (verl's grpo: ddof 1, eps 1e-6).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      branches: int32 [B, C].
      group_size: G.
      ddof: of the std.
      eps: added to the std.
      use_std: False: the mean only.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, branches])
    base = row_relative(at, ddof=ddof, eps=eps, use_std=use_std)
    shared = moments(base, at.on, state_ids(at.group_ids, branches, at.on), at.number)
    return base - shared.shifted + shared.mean


def tree_grpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    branches: chex.Array,
    group_size: int,
    ddof: int = 1,
    eps: float = 1e-6,
    use_std: bool = True,
) -> chex.Array:
    """Tree-GRPO: A_i = (R_i - mean_tree) / (std_tree + eps) + (R_i - mean_g) / (std_g + eps).

    Rows whose first turns share a branch are one tree. On a row's tokens, shared ones included. Biased: both terms
    count the return, means include the own row, and the first turn's tokens are judged within their own tree, where
    they are the same in all rows. The first term of a row alone in its tree is its plain reward in the code; here 0.
    Source: arXiv 2509.21240; AMAP-ML/Tree-GRPO verl/trainer/ppo/ray_trainer_ts.py, "tree" (ddof 1, eps 1e-6).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      branches: int32 [B, C].
      group_size: G.
      ddof: of the stds.
      eps: added to the stds.
      use_std: False: the means only.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, branches])
    first = last_of(at.on[:, ::-1])[:, ::-1]
    root = jnp.sum(jnp.where(first, branches, 0), axis=1, keepdims=True)
    whole, place = whole_rows(at)
    ids = state_ids(at.group_ids, jnp.broadcast_to(root, turns.shape), place)
    inside = normed(moments(whole, place, ids, at.number, ddof=ddof), eps, use_std)
    return on_rows(inside, at) + row_relative(at, ddof=ddof, eps=eps, use_std=use_std)


def branch_return_loo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    branches: chex.Array,
    group_size: int,
    discount: float = 1.0,
) -> chex.Array:
    """Leave-one-out over siblings: unbiased where the shape of the tree does not depend on what was said.

        A(n) = Q(n) - mean of G over the rows below n's siblings

    n: a turn's branch; Q(n): the mean return to go over the rows that share it; siblings: the other turns after the
    same history. Without a sibling: the group's other rows alive at that turn; without those 0. Shared tokens are in
    as many rows as there are leaves below them, so each depth weighs the same. Without branches: `turn_return_loo`.
    Source: ours; sibling comparison as in TreeRL (arXiv 2506.11902).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      branches: int32 [B, C].
      group_size: G.
      discount: gamma, per turn.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, branches])
    returns = to_go(at.rewards, at, discount)
    nodes = state_ids(at.turn_ids, branches, at.ends)
    earlier = jnp.pad(held(nodes + 1, at.ends)[:, :-1], ((0, 0), (1, 0)))
    families = state_ids(at.turn_ids, earlier, at.ends)
    of_turn = moments(returns, at.ends, at.turn_ids, at.number)
    own = sums(at, of_turn.shifted, nodes)
    family = sums(at, of_turn.shifted, families)
    mean = own.total / jnp.maximum(own.count, 1.0)

    def others(found):
        return (found.total - own.total) / jnp.maximum(found.count - own.count, 1.0)

    to_family, to_turn = mean - others(family), mean - others(of_turn)
    alone = mean + returns - of_turn.shifted  # the baseline is 0
    chosen = jnp.where(family.count > own.count, to_family, jnp.where(of_turn.count > own.count, to_turn, alone))
    return spread(jnp.where(at.company, chosen, 0.0), at)
