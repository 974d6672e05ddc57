"""The value of a response among others: functions (rewards [N, G], opponents [N, M]) -> float32 [N, G].

`rewards` are those of a prompt's G candidates, `opponents` those of M further responses to it; M may be 0. A judge that
compares pairs instead of scoring single responses passes its own preferences to win_rates.
"""

import chex
import jax
import jax.numpy as jnp


def reward(rewards: chex.Array, opponents: chex.Array) -> chex.Array:
    """The judge's reward itself."""
    chex.assert_rank([rewards, opponents], 2)
    return rewards


def win_rate(
    rewards: chex.Array, opponents: chex.Array, *, temperature: float = 1.0, with_self: bool = True
) -> chex.Array:
    """P_i = mean_j P(i beats j) over the prompt's own candidates, P by Bradley-Terry (see `preferences`).

    Args:
      rewards: float32 [N, G].
      opponents: unused.
      temperature: of Bradley-Terry, in the reward's units.
      with_self: True: j = i counts as 1/2 (SPPO, arXiv 2405.00675). False: j = i is left out (SPO, arXiv 2401.04056).
    """
    chex.assert_rank([rewards, opponents], 2)
    return win_rates(preferences(rewards, rewards, temperature=temperature), with_self=with_self)


def win_rate_against(rewards: chex.Array, opponents: chex.Array, *, temperature: float = 1.0) -> chex.Array:
    """mean_j P(i beats opponent j): P(y > pi_mix) of Nash-MD (arXiv 2312.00886), of EGPO (arXiv 2503.08942).

    Raises:
      ValueError: if there is no opponent.
    """
    chex.assert_rank([rewards, opponents], 2)
    if not opponents.shape[1]:
        raise ValueError("win_rate_against needs opponents: set sample.opponents.samples")
    return jnp.mean(preferences(rewards, opponents, temperature=temperature), axis=2)


def preferences(rewards: chex.Array, opponents: chex.Array, *, temperature: float = 1.0) -> chex.Array:
    """P(i beats j) = sigma((r_i - r_j) / temperature): preferences over pairs from rewards of single responses.

    Args:
      rewards: float32 [N, G].
      opponents: float32 [N, M].
      temperature: in the reward's units.

    Returns:
      float32 [N, G, M].
    """
    chex.assert_rank([rewards, opponents], 2)
    return jax.nn.sigmoid((rewards[:, :, None] - opponents[:, None, :]) / temperature)


def win_rates(preferences: chex.Array, *, with_self: bool = True) -> chex.Array:
    """P_i = mean_j P(i beats j).

    Args:
      preferences: float32 [N, G, G], 1/2 on the diagonal.
      with_self: whether j = i counts.

    Returns:
      float32 [N, G].

    Raises:
      ValueError: if with_self is False and G is 1.
    """
    chex.assert_rank(preferences, 3)
    count = preferences.shape[1]
    chex.assert_axis_dimension(preferences, 2, count)
    total = jnp.sum(preferences, axis=2)
    if with_self:
        return total / count
    if count == 1:
        raise ValueError("a win rate needs two or more candidates per prompt, or with_self=True")
    return (total - jnp.diagonal(preferences, axis1=1, axis2=2)) / (count - 1)
