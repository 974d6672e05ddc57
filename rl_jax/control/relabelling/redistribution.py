"""An episode's reward, spread over its steps by their importance, so that its sum stays.

    r'_t = w_t sum_u r_u,   w_t = exp(scale f_t) / sum_u exp(scale f_u),   u over the episode's steps in the rollout

A reward that comes at the end reaches every step at once, and what an episode earns in sum is what it was. Source:
ReviBranch, arXiv 2508.17452, an "importance-weighted reward redistribution mechanism that transforms sparse terminal
rewards into dense stepwise feedback". Its formula of the importance could not be read: f is a named term here.
"""

import functools
from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.algorithm import Relabel
from rl_jax.control.relabelling import terms
from rl_jax.control.relabelling.base import as_the_env
from rl_jax.core.binding import bind
from rl_jax.rollout.envs.steps import Transitions


def redistributed(
    rewards: chex.Array, importance: chex.Array, done: chex.Array, *, scale: float | chex.Array = 1.0
) -> chex.Array:
    """r'_t = softmax(scale f)_t sum_u r_u within each episode of a row; scale = 0 spreads evenly.

    The sum over the steps of an episode that are in the row is kept. An episode that begins before the row or ends
    after it is spread in the parts that the rows have.

    Source: arXiv 2508.17452, see the head of this file.

    Args:
      rewards: float [B, T].
      importance: float [B, T], f.
      done: bool [B, T], the last steps of episodes.
      scale: of f; negative where a small f is important.

    Returns:
      float [B, T].
    """
    chex.assert_rank(rewards, 2)
    chex.assert_equal_shape([rewards, importance, done])
    chex.assert_type(done, bool)
    episode = jnp.cumsum(done, axis=1) - done
    count = rewards.shape[1]
    largest = jax.vmap(functools.partial(jax.ops.segment_max, num_segments=count))
    total = jax.vmap(functools.partial(jax.ops.segment_sum, num_segments=count))

    def of_its_episode(sums: chex.Array) -> chex.Array:
        return jnp.take_along_axis(sums, episode, axis=1)

    logits = scale * importance
    weights = jnp.exp(logits - of_its_episode(largest(logits, episode)))
    weights = weights / of_its_episode(total(weights, episode))
    return weights * of_its_episode(total(rewards, episode))


def by_importance(*, distribution, importance: Mapping, scale: float = 1.0) -> Relabel:
    """Spreads each episode's reward over its steps of a rollout, by a named term of how important they were.

    Args:
      distribution: of the policy's actions.
      importance: a function of relabelling.terms, or "module:function", with its keywords: f.
      scale: of f; 0 spreads evenly.
    """
    term = bind(dict(importance), terms)

    def apply(state: tuple, rows: Transitions) -> tuple[tuple, Transitions]:
        found = term(as_the_env(rows, distribution))
        paid = redistributed(rows.rewards, found, rows.terminated | rows.truncated, scale=scale)
        return state, rows._replace(rewards=jax.lax.stop_gradient(paid))

    return Relabel(lambda: (), apply)
