"""Credit over turns that compares equal states, or all turns of a group. Arguments as in advantages.turns."""

import chex
import jax.numpy as jnp

from rl_jax.advantages.turn_arrays import (
    Episodes,
    episodes,
    moments,
    normed,
    row_relative,
    spread,
    state_ids,
    sums,
    to_go,
)


def gigpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    state_keys: chex.Array,
    group_size: int,
    step_coef: float = 1.0,
    discount: float = 0.95,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """GiGPO: A_ij = A^E_i + w A^S_ij, rows of a group and, inside it, turns that start from the same state.

        A^E = (R_i - mean_g) / F_g,    A^S = (G_ij - mean over the turns in the state of turn ij) / F

    F = std + eps, or 1 without the std. A state that was met once has A^S = 0. Biased: means include the own value,
    the std weighs groups, G is discounted, and w counts the return twice. Its code by default takes A^E's mean and std
    over all steps, so that long rows count more; here as in the paper, over rows.
    Source: arXiv 2505.10978 eq. 3 to 8; langfengQ/verl-agent gigpo/core_gigpo.py.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      state_keys: int32 [B, C], on the tokens of each turn: equal within a group for equal states; -1 for none.
      group_size: G.
      step_coef: w.
      discount: gamma of G, per turn.
      use_std: False: F = 1 ("mean_norm" of its code).
      ddof: of the stds.
      eps: added to the stds.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, state_keys])
    returns = to_go(at.rewards, at, discount)
    ids = state_ids(at.group_ids, state_keys, at.ends)
    steps = spread(normed(moments(returns, at.ends, ids, at.number, ddof=ddof), eps, use_std), at)
    whole = row_relative(at, ddof=ddof, eps=eps, use_std=use_std)
    return whole + step_coef * jnp.where(at.company, steps, 0.0)


def state_return_loo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    state_keys: chex.Array,
    group_size: int,
    discount: float = 1.0,
) -> chex.Array:
    """The unbiased relative of GiGPO: G_ij minus the mean return of the *other* rows from the same state.

    Where no other row met the state: `turn_return_loo`'s baseline. Both read the state of turn ij and other rows, not
    what row i did there. Arguments as in `gigpo`; discount 1. Source: ours.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, state_keys])
    returns = to_go(at.rewards, at, discount)
    rows = jnp.broadcast_to(jnp.arange(turns.shape[0])[:, None], turns.shape)
    all_visits = moments(returns, at.ends, state_ids(at.group_ids, state_keys, at.ends), at.number)
    own_visits = sums(at, all_visits.shifted, state_ids(rows, state_keys, at.ends))
    others = all_visits.count - own_visits.count
    by_state = all_visits.shifted - (all_visits.total - own_visits.total) / jnp.maximum(others, 1.0)
    of_turn = moments(returns, at.ends, at.turn_ids, at.number)
    rest = (of_turn.total - of_turn.shifted) / jnp.maximum(of_turn.count - 1.0, 1.0)
    by_turn = jnp.where(of_turn.count > 1, of_turn.shifted - rest, returns)
    return spread(jnp.where(at.company, jnp.where(others > 0, by_state, by_turn), 0.0), at)


def semi_online(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    turn_patched: chex.Array,
    group_size: int,
    episode_coef: float = 1.0,
    step_coef: float = 1.0,
    discount: float = 0.5,
    use_std: bool = False,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """UI-S1: A_ij = w_e (R_i - mean_g) + w_s (S_ij - mean over the group's rows at turn j).

        S_ij = r_ij + gamma S_i,j+1, the sum up to the next patched turn (whose action did not match the expert's) and
        without it;  S_ij = r_ij where turn j itself was patched

    Biased: the mean of turn j is over the rows alive, own included, S is cut and discounted, and the two terms count
    the return twice. Source: arXiv 2509.11543, X-PLUG/MobileAgent UI-S1/uis1/core_uis1.py (weights 1 and 1, gamma .5,
    torch.std; whether it divides by the std is its `mode`, and its example run does). There the mean of the first term
    is over all turns of the group's rows, here over the rows.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      turn_patched: float [B, C], above 0 on the last token of turns whose action was replaced by the expert's.
      group_size: G.
      episode_coef: w_e.
      step_coef: w_s.
      discount: gamma, per turn.
      use_std: divides each term by its std + eps.
      ddof: of the stds.
      eps: added to the stds.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    chex.assert_equal_shape([turns, turn_patched])
    patched = turn_patched > 0
    returns = to_go(jnp.where(patched, 0.0, at.rewards), at, jnp.where(patched, 0.0, discount))
    returns = returns + jnp.where(patched, at.rewards, 0.0)
    steps = spread(normed(moments(returns, at.ends, at.turn_ids, at.number, ddof=ddof), eps, use_std), at)
    whole = row_relative(at, ddof=ddof, eps=eps, use_std=use_std)
    return episode_coef * whole + step_coef * jnp.where(at.company, steps, 0.0)


def transitions(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    use_std: bool = True,
    ddof: int = 1,
    eps: float = 1e-6,
) -> chex.Array:
    """Agent Lightning: each call of the model is a sample of its own with the reward of its whole episode.

        A_ij = (R_i - mean) / (std + eps) over all turns of all rows of the group

    So an episode counts as often in the mean as it has turns. Biased by that, by the own value in the mean and by the
    std. The paper's calls are rows of their own, aggregated so; here they share a row.
    Source: arXiv 2508.03680 section 3.2 (credit: every call gets the final reward).

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C].
      group_size: G.
      use_std: False: the mean only.
      ddof: of the std.
      eps: added to the std.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    whole = jnp.broadcast_to(jnp.sum(at.rewards, axis=1, keepdims=True), turns.shape)
    found = moments(whole, at.ends, at.group_ids, at.number, ddof=ddof)
    return jnp.where(at.company, spread(normed(found, eps, use_std), at), 0.0)


def igpo(
    rewards: chex.Array,
    *,
    turns: chex.Array,
    turn_rewards: chex.Array,
    group_size: int,
    separate: bool = False,
    discount: float = 1.0,
    eps: float = 1e-6,
) -> chex.Array:
    """IGPO: rewards of turns normed within the group, then summed to go.

        A_ij = sum_{k >= j} gamma^(k - j) (r_ik - mean) / (std + eps)

    Mean and std over all turns of the group's rows, the last turns' outcomes among them, or over outcomes and others
    each on their own. The turns' rewards are the gains of `turn_shaping.information_gain`, or an environment's own.
    Biased as `turn_grpo` is: a longer row adds more centred terms. Its code leaves turns with a gain of exactly 0 out
    of the statistics, since it finds turns by their rewards; here they count.
    Source: arXiv 2510.14967; GuoqingWang1/IGPO core_algos.py (std with ddof 0, gamma 1, "joint"); its version of 2025
    had returns less their mean at the same token instead.

    Args:
      rewards: float [B].
      turns: int32 [B, C].
      turn_rewards: float [B, C]; the last turn's is the outcome.
      group_size: G.
      separate: norms outcomes and gains apart.
      discount: gamma, per turn.
      eps: added to the std.
    """
    at = episodes(rewards, turns, turn_rewards, group_size)
    return igpo_of(at, at.rewards, separate=separate, discount=discount, eps=eps)


def igpo_of(at: Episodes, x: chex.Array, *, separate: bool, discount: float, eps: float) -> chex.Array:
    """`igpo` of any values x on the last tokens of turns."""
    ids = 2 * at.group_ids + (at.last_turn if separate else 0)
    found = moments(x, at.ends, ids, 2 * at.number, ddof=0)  # a single value is 0, which its code divides by 1
    return jnp.where(at.company, to_go(normed(found, eps), at, discount), 0.0)
