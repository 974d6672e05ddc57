"""What a response is worth among others: functions (rewards [N, G], opponents [N, M]) -> float32 [N, G].

rewards: of a prompt's G candidates. opponents: of M further responses to it; M may be 0. A judge that compares pairs
instead of scoring single responses gives win_rates its own preferences.
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
    """P_i = mean_j P(i beats j) over the prompt's own candidates, P by Bradley-Terry (see preferences).

    with_self: j = i counts with 1/2 (SPPO, arXiv 2405.00675), or is left out (SPO, arXiv 2401.04056).
    """
    chex.assert_rank([rewards, opponents], 2)
    return win_rates(preferences(rewards, rewards, temperature=temperature), with_self=with_self)


def win_rate_against(rewards: chex.Array, opponents: chex.Array, *, temperature: float = 1.0) -> chex.Array:
    """mean_j P(i beats opponent j): P(y > pi_mix) of Nash-MD (arXiv 2312.00886), of EGPO (arXiv 2503.08942).

    Raises ValueError where there is no opponent.
    """
    chex.assert_rank([rewards, opponents], 2)
    if not opponents.shape[1]:
        raise ValueError("win_rate_against needs opponents: set sample.opponents.samples")
    return jnp.mean(preferences(rewards, opponents, temperature=temperature), axis=2)


def preferences(rewards: chex.Array, opponents: chex.Array, *, temperature: float = 1.0) -> chex.Array:
    """P(i beats j) = sigma((r_i - r_j) / temperature): what rewards of single responses say about pairs.

    rewards: float32 [N, G]. opponents: float32 [N, M]. -> float32 [N, G, M].
    """
    chex.assert_rank([rewards, opponents], 2)
    return jax.nn.sigmoid((rewards[:, :, None] - opponents[:, None, :]) / temperature)


def win_rates(preferences: chex.Array, *, with_self: bool = True) -> chex.Array:
    """P_i = mean_j P(i beats j). preferences: float32 [N, G, G], 1/2 on the diagonal. -> float32 [N, G].

    with_self: whether j = i counts. Raises ValueError where it does not and there is nobody else.
    """
    chex.assert_rank(preferences, 3)
    count = preferences.shape[1]
    chex.assert_axis_dimension(preferences, 2, count)
    total = jnp.sum(preferences, axis=2)
    if with_self:
        return total / count
    if count == 1:
        raise ValueError("a single candidate has nobody to win against; set with_self=True")
    return (total - jnp.diagonal(preferences, axis1=1, axis2=2)) / (count - 1)
