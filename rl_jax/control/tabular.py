"""Exact solutions of finite MDPs as differentiable arrays. Regret needs them: the values of the best policy.

    Q(s, a) = r(s, a) + gamma sum_s' P(s' | s, a) V(s')
    V(s)    = tau log sum_a exp(Q(s, a) / tau),  max_a Q(s, a) for tau = 0

A row of P may sum to less than 1: the rest is the probability that the episode ends, with no value after it. tau > 0
gives the soft optimum with policy exp((Q - V) / tau). Then A = tau log pi, which is the identity that CPL rests on.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp


def solve(
    rewards: chex.Array,
    transition_probs: chex.Array,
    *,
    discount: float = 0.99,
    temperature: float = 0.0,
    iterations: int = 100,
) -> tuple[chex.Array, chex.Array]:
    """Value iteration, differentiable in the rewards.

    Args:
      rewards: float [S, A].
      transition_probs: float [S, A, S]. P.
      discount: gamma.
      temperature: tau, in units of reward.
      iterations: starting from V = 0; the remaining error is at most discount^iterations of the initial one.

    Returns:
      (Q* float [S, A], V* float [S]).
    """
    chex.assert_rank([rewards, transition_probs], [2, 3])
    chex.assert_shape(transition_probs, (*rewards.shape, rewards.shape[0]))

    def best(q: chex.Array) -> chex.Array:
        return temperature * jax.nn.logsumexp(q / temperature, axis=1) if temperature > 0 else jnp.max(q, axis=1)

    def sweep(q: chex.Array, _):
        return rewards + discount * jnp.einsum("sat,t->sa", transition_probs, best(q)), None

    q, _ = jax.lax.scan(sweep, rewards, None, iterations)
    return q, best(q)


def advantages(
    rewards: chex.Array,
    transition_probs: chex.Array,
    *,
    discount: float = 0.99,
    temperature: float = 0.0,
    iterations: int = 100,
) -> chex.Array:
    """A*(s, a) = Q*(s, a) - V*(s) <= 0, float [S, A]: minus the regret of each action. Arguments as for `solve`.

    The regret model of preferences (arXiv 2206.02231 eq. 5) sums these over a segment (segments.segment_sums). With the
    true reward it labels segments; through it a reward is learned from labels (reward_learning.table_loss).
    """
    q, v = solve(rewards, transition_probs, discount=discount, temperature=temperature, iterations=iterations)
    return q - jnp.broadcast_to(v[:, None], q.shape)


def states(observations: chex.Array) -> chex.Array:
    """The states that one-hot observations show. float [..., S] -> int32 [...]."""
    return jnp.argmax(observations, axis=-1)


def q_policy(rewards: chex.Array, transition_probs: chex.Array, **options) -> Callable:
    """The policy of Q*: one-hot observations [N, S] -> Q*(s, .) float [N, A], of which the mode is the best action.

    options: keywords of `solve`.
    """
    q, _ = solve(rewards, transition_probs, **options)
    return lambda observations: q[states(observations)]
