"""Self-play: an episode is paid for beating other episodes, by a preference between two (control.duels).

    r_T = mean_j P(episode > j), 0 before its last step T, j the last Q episodes          SPO, arXiv 2401.04056
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums
from rl_jax.control.algorithm import Relabel
from rl_jax.rollout.envs.steps import Transitions


class Contest(NamedTuple):
    """State of self-play.

    Attributes:
      returns: float32 [B]. Returns so far of the running episodes.
      queue: float32 [Q]. Outcomes of the last episodes, newest last.
      size: int32 []. Number of outcomes in the queue.
    """

    returns: chex.Array
    queue: chex.Array
    size: chex.Array


def by_self_play(
    num_envs: int, *, preference: Callable, queue_size: int = 64, horizon: float | None = None, axis_name=None
) -> Relabel:
    """SPO: an episode's reward is the fraction of the last episodes it is preferred to, R_i = 1/Q sum_j P(i > j).

    An episode counts when it ends, with its undiscounted return as the outcome, even if it began in an earlier rollout.
    The episodes of its own rollout are among the last Q, itself with P = 1/2 (atlas: 1/(G - 1) sum_{j != i}, an affine
    map). Discounting a reward at the end would favour short episodes, so the advantage's discount should be 1.

    Source: arXiv 2401.04056 algorithm 2, not compared with official code (none was found). There an episode is compared
    with the queue before it joins it.

    Args:
      num_envs: B.
      preference: one of control.duels.
      queue_size: Q. If as many episodes end per rollout, the queue is the batch.
      horizon: None pays R at the episode's last step. A number H pays R / H at each of its steps in this rollout, as
        the paper does with episodes of H steps; they should begin and end in one rollout.
      axis_name: mapped axis over which the environments are spread; the queue is shared by all of them.

    Returns:
      Relabel.
    """

    def init() -> Contest:
        return Contest(jnp.zeros(num_envs), jnp.zeros(queue_size), jnp.int32(0))

    def relabel(state: Contest, rows: Transitions) -> tuple[Contest, Transitions]:
        done = rows.terminated | rows.truncated
        last, outcomes = running_returns(state.returns, rows.rewards, done)
        ended = (outcomes.T, done.T)  # by time, so that the newest are last
        if axis_name is not None:
            ended = jax.lax.all_gather(ended, axis_name, axis=1, tiled=True)
        queue, size = pushed(state.queue, state.size, *(x.reshape(-1) for x in ended))
        filled = jnp.arange(queue_size) >= queue_size - size
        probs = preference(outcomes.reshape(-1), queue)
        wins = jnp.sum(jnp.where(jnp.broadcast_to(filled, probs.shape), probs, 0.0), axis=1)
        rates = jnp.where(done, (wins / jnp.maximum(size, 1)).reshape(done.shape), 0.0)
        if horizon is not None:
            rates = backward_sums(rates, jnp.where(done, 0.0, 1.0)) / horizon
        # The episode's whole worth has been paid, so no value follows it, even if it was cut off.
        settled = rows._replace(rewards=rates, terminated=done, truncated=jnp.zeros_like(done))
        return Contest(last, queue, size), settled

    return Relabel(init, relabel)


def running_returns(
    before: chex.Array, rewards: chex.Array, done: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Undiscounted returns of episodes that continue over several rollouts.

    Args:
      before: float [B]. Returns so far of the episodes that the rows continue.
      rewards: float [B, T].
      done: bool [B, T].

    Returns:
      (returns so far after the rows [B], sum of the episode's rewards up to each step [B, T]).
    """
    chex.assert_rank([before, rewards, done], [1, 2, 2])
    chex.assert_equal_shape([rewards, done])

    def step(total: chex.Array, now):
        reward, over = now
        total = total + reward
        return jnp.where(over, 0.0, total), total

    last, totals = jax.lax.scan(step, before, (rewards.T, done.T))
    return last, totals.T


def pushed(
    queue: chex.Array, size: chex.Array, values: chex.Array, live: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """Appends the live values to a queue of which the last `size` places are taken; the oldest are dropped.

    Args:
      queue: float [Q].
      size: int [].
      values: float [N].
      live: bool [N]. Which values to append.

    Returns:
      (queue float [Q], size int32 []).
    """
    chex.assert_rank([queue, size, values, live], [1, 0, 1, 1])
    chex.assert_equal_shape([values, live])
    length = len(queue)
    taken = jnp.concatenate([jnp.arange(length) >= length - size, live])
    order = jnp.argsort(taken, stable=True)  # empty places go to the front
    result = jnp.concatenate([queue, values])[order][-length:]
    return result, jnp.minimum(size + jnp.sum(live), length).astype(jnp.int32)
