"""Values of tokens, learned from recorded episodes: ILQL (arXiv 2206.11871) and Monte Carlo returns, as in LMRL-Gym.

A token that the model said is an action a_t in the state s_t of all tokens before it; the next state of an episode is
that before its *next* token of the model, so what an environment says in between costs no discount.

    ilql   1/2 sum_k (Q_k(s_t, a_t) - sg[r_t + gamma V(s_t')])^2 + |tau - 1(d < 0)| d^2 / 2
           d = sg[min_k Q'_k(s_t, a_t)] - V(s_t)
    mc     1/2 sum_k (Q_k(s_t, a_t) - sg[G_t])^2,             G_t = r_t + gamma G_t'
    both   + w sum_k (log sum_a exp Q_k(s_t, a) - Q_k(s_t, a_t)), what CQL adds: the cross-entropy of the data's tokens

Q' is a slow copy of Q. What decodes with Q is rl_jax.models.perturbed. Source: arXiv 2311.18232, abdulhaim/LMRL-Gym
LLM_RL/algorithms/{ilql,mc_returns}/base_interface.py. Per-token losses; their mean is over all tokens of the batch.
"""

import chex
import jax
import jax.numpy as jnp

from rl_jax.losses import offline


def next_values(values: chex.Array, final: chex.Array, mask: chex.Array) -> chex.Array:
    """V of the state before the next token that the model said; `final` after its last one.

    Args:
      values: float [B, C], V(s_t).
      final: float [B], V of the state after the row; 0 where the episode ended.
      mask: bool [B, C], tokens that the model said.

    Returns:
      float [B, C]; columns that the model did not say have a value, too, that nothing reads.
    """
    chex.assert_rank([values, final, mask], [2, 1, 2])
    chex.assert_equal_shape([values, mask])
    length = values.shape[1]
    here = jnp.where(mask, jnp.arange(length)[None], length)
    first = jax.lax.cummin(here, axis=1, reverse=True)  # the first of the model's columns from each one on
    after = jnp.concatenate([first[:, 1:], jnp.full_like(first[:, :1], length)], axis=1)
    return jnp.take_along_axis(jnp.concatenate([values, final[:, None]], axis=1), after, axis=1)


def returns_to_go(rewards: chex.Array, mask: chex.Array, *, discount: float) -> chex.Array:
    """G_t = r_t + gamma G_t', t' the next token that the model said: each of them costs a discount, others none.

    Args:
      rewards: float [B, C], on the model's tokens; others do not count.
      mask: bool [B, C], tokens that the model said.
      discount: gamma, per token.

    Returns:
      float [B, C], 0 on other tokens.
    """
    chex.assert_rank([rewards, mask], 2)
    chex.assert_equal_shape([rewards, mask])

    def back(after, column):
        reward, own = column
        after = jnp.where(own, reward + discount * after, after)
        return after, after

    start = jnp.zeros(len(rewards), rewards.dtype)
    _, found = jax.lax.scan(back, start, (rewards.T, mask.T), reverse=True)
    return jnp.where(mask, found.T, 0.0)


def ilql(
    q: chex.Array,
    actions: chex.Array,
    values: chex.Array,
    following: chex.Array,
    target_q: chex.Array,
    rewards: chex.Array,
    mask: chex.Array,
    *,
    discount: float = 0.99,
    expectile: float = 0.95,
    conservative: float = 0.0,
) -> chex.Array:
    """ILQL's loss of each token (see the module). arXiv 2206.11871, 2311.18232.

        dl/dQ_k(a_t) = Q_k - (r + gamma V') + w (pi_Q_k(a_t) - 1);   dl/dV = -|tau - 1(d < 0)| d

    Args:
      q: float [K, B, C, V], Q_k(s_t, .) of all tokens, differentiated.
      actions: int32 [B, C], a_t.
      values: float [B, C], V(s_t), differentiated.
      following: float [B, C], V(s_t') of `next_values`; data.
      target_q: float [K, B, C], Q'_k(s_t, a_t); data.
      rewards: float [B, C], r_t.
      mask: bool [B, C], tokens that the model said.
      discount: gamma, per token of the model; .99 in LMRL-Gym.
      expectile: tau; .95 in LMRL-Gym.
      conservative: w; 0 in LMRL-Gym's maze.

    Returns:
      float [B, C], 0 outside the mask.
    """
    chex.assert_rank([q, actions, target_q], [4, 2, 3])
    chex.assert_shape([actions, values, following, rewards, mask], q.shape[1:3])
    chex.assert_shape(target_q, q.shape[:3])
    targets = jnp.where(mask, rewards + discount * following, 0.0)
    slow = jnp.where(mask, jnp.min(target_q, axis=0), 0.0)
    gap = offline.expectile(jnp.where(mask, values, 0.0).ravel(), slow.ravel(), expectile=expectile).reshape(mask.shape)
    return _of_q(q, actions, targets, mask, conservative) + 0.5 * gap


def monte_carlo(
    q: chex.Array, actions: chex.Array, returns: chex.Array, mask: chex.Array, *, conservative: float = 0.0
) -> chex.Array:
    """The loss of Q against the data's returns. arXiv 2311.18232 (MC Returns).

        dl/dQ_k(a_t) = Q_k - G_t + w (pi_Q_k(a_t) - 1)

    Args:
      q: float [K, B, C, V], as in `ilql`; LMRL-Gym has K = 1.
      actions: int32 [B, C], a_t.
      returns: float [B, C], G_t of `returns_to_go`; data.
      mask: bool [B, C], tokens that the model said.
      conservative: w.

    Returns:
      float [B, C], 0 outside the mask.
    """
    chex.assert_rank([q, actions], [4, 2])
    chex.assert_shape([actions, returns, mask], q.shape[1:3])
    return _of_q(q, actions, jnp.where(mask, returns, 0.0), mask, conservative)


def _of_q(q: chex.Array, actions: chex.Array, targets: chex.Array, mask: chex.Array, weight: float) -> chex.Array:
    """1/2 sum_k (Q_k(a) - y)^2 + w sum_k CE_k: float [K, B, C, V], [B, C] -> [B, C], 0 outside the mask."""
    critics, width = q.shape[0], q.shape[-1]
    q = jnp.where(mask[None, :, :, None], q, 0.0).reshape(critics, -1, width)
    said = jnp.take_along_axis(q, jnp.broadcast_to(actions.ravel()[None, :, None], (*q.shape[:2], 1)), axis=2)[..., 0]
    loss = 0.5 * offline.bellman(said, targets.ravel())
    if weight:
        loss = loss + weight * offline.conservative(said, q)
    return jnp.where(mask, loss.reshape(mask.shape), 0.0)
