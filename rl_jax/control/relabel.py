"""Other rewards for the steps that were collected, in place of the environment's: what Algorithm.relabel takes.

    r_t = sum_k (r_k(o_t, a_t) - mean_k) / std_k / M         by_reward: a reward that was learned
    r_T = mean_j P(episode > j), 0 before its last step T    by_self_play: SPO (2401.04056), j the last episodes

All T B steps are relabelled at once, behind the loop that has collected them. The update sees nothing but rewards, so
each of its methods works with each of these; the metrics of the episodes keep the environment's own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.advantages.recursion import backward_sums
from rl_jax.credit import ensembles
from rl_jax.rollout.envs.steps import Transitions


class Relabel(NamedTuple):
    """init: () -> state, a pytree of arrays. apply: (state, Transitions [B, T]) -> (state, the same with rewards)."""

    init: Callable
    apply: Callable


class LearnedReward(NamedTuple):
    """params: of the network. means, stds: float32 [M], what is taken from each member's reward, and its unit."""

    params: Any
    means: chex.Array
    stds: chex.Array


def standardized_by(
    apply: Callable, params: Any, observations: chex.Array, actions: chex.Array, mask: chex.Array, *, center: bool
) -> LearnedReward:
    """The reward in units of its spread over the steps on the mask.

    apply: (params, observations [N, ...], actions [N, ...]) -> float [N, M]. mask: bool [N].
    center: whether their mean is taken off, too. Preferences do not say what a constant is worth; where episodes may
    end, it decides whether a long one is good (arXiv 1706.03741 has no such episodes, and centers).
    """
    rewards = apply(params, observations, actions)
    weights = jnp.broadcast_to(mask[:, None], rewards.shape).astype(rewards.dtype)
    count = jnp.sum(weights, axis=0)
    means = jnp.sum(rewards * weights, axis=0) / count
    squares = jnp.square(rewards - jnp.broadcast_to(means, rewards.shape))
    stds = jnp.sqrt(jnp.sum(squares * weights, axis=0) / count)
    return LearnedReward(params, means if center else jnp.zeros_like(means), stds)


def learned(
    apply: Callable, reward: LearnedReward, observations: chex.Array, actions: chex.Array
) -> chex.Array:
    """1/M sum_k (r_k - mean_k) / std_k, float32 [N]. Arguments as of `standardized_by`."""
    rewards = apply(reward.params, observations, actions)
    return ensembles.mean(ensembles.standardized(rewards, reward.means, reward.stds))


def by_reward(apply: Callable, to_env: Callable, init: Callable) -> Relabel:
    """The rewards that a network has learned, which is the state: it stays as it is.

    apply: (params, observations [N, ...], actions [N, ...]) -> float [N, M]. to_env: from the policy's actions to
    those that the environment takes, and the network. init: () -> LearnedReward.
    """

    def relabel(state: LearnedReward, rows: Transitions) -> tuple[LearnedReward, Transitions]:
        flat = (x.reshape(-1, *x.shape[2:]) for x in (rows.observations, to_env(rows.actions)))
        rewards = learned(apply, state, *flat).reshape(rows.rewards.shape)
        return state, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    return Relabel(init, relabel)


class Contest(NamedTuple):
    """What self-play remembers.

    returns: float32 [B], of the episodes under way.
    queue: float32 [Q], outcomes of the last episodes, the newest last. size: int32 [], how many have come so far.
    """

    returns: chex.Array
    queue: chex.Array
    size: chex.Array


def by_self_play(
    num_envs: int, *, preference: Callable, queue_size: int = 64, horizon: float | None = None, axis_name=None
) -> Relabel:
    """SPO: an episode's reward is the share of the last episodes that it is preferred to, R_i = 1/Q sum_j P(i > j).

    An episode counts when it ends, with its undiscounted return as the outcome, in whichever rollout it has begun; its
    own rollout's episodes are among the last Q, itself with P = 1/2 (atlas: 1/(G - 1) sum_{j != i}, an affine map).
    preference: one of control.duels. queue_size: Q; the batch where as many episodes end in one.
    horizon: None pays R at the episode's last step. A number H pays R / H at each of its steps in this rollout, as the
    paper does with episodes of H steps: they should begin and end in one rollout.
    What is paid at an end is worth more the sooner it comes: the advantage's discount should be 1.
    num_envs: B. axis_name: a mapped axis over which the worlds are spread; the queue is that of all.
    Source: arXiv 2401.04056 algorithm 2, not compared with official code (none was found); there an episode is compared
    with the queue before it joins it.
    """

    def init() -> Contest:
        return Contest(jnp.zeros(num_envs), jnp.zeros(queue_size), jnp.int32(0))

    def relabel(state: Contest, rows: Transitions) -> tuple[Contest, Transitions]:
        done = rows.terminated | rows.truncated
        last, outcomes = running_returns(state.returns, rows.rewards, done)
        ended = (outcomes.T, done.T)  # by time, so that the newest stand last
        if axis_name is not None:
            ended = jax.lax.all_gather(ended, axis_name, axis=1, tiled=True)
        queue, size = pushed(state.queue, state.size, *(x.reshape(-1) for x in ended))
        there = jnp.arange(queue_size) >= queue_size - size
        probs = preference(outcomes.reshape(-1), queue)
        wins = jnp.sum(jnp.where(jnp.broadcast_to(there, probs.shape), probs, 0.0), axis=1)
        rates = jnp.where(done, (wins / jnp.maximum(size, 1)).reshape(done.shape), 0.0)
        if horizon is not None:
            rates = backward_sums(rates, jnp.where(done, 0.0, 1.0)) / horizon
        # All that an episode is worth has been paid: no value follows it, also where it was cut off.
        settled = rows._replace(rewards=rates, terminated=done, truncated=jnp.zeros_like(done))
        return Contest(last, queue, size), settled

    return Relabel(init, relabel)


def running_returns(
    before: chex.Array, rewards: chex.Array, done: chex.Array
) -> tuple[chex.Array, chex.Array]:
    """(what stands at the end of the rows [B], sum of the episode's rewards up to each step [B, T]), undiscounted.

    before: float [B], of the episodes that the rows go on with. rewards: float [B, T]. done: bool [B, T].
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
    """A queue whose last `size` places are taken, and the live values behind them; the oldest fall out.

    queue: float [Q]. size: int []. values: float [N]. live: bool [N]. -> (float [Q], int32 []).
    """
    chex.assert_rank([queue, size, values, live], [1, 0, 1, 1])
    chex.assert_equal_shape([values, live])
    length = len(queue)
    taken = jnp.concatenate([jnp.arange(length) >= length - size, live])
    order = jnp.argsort(taken, stable=True)  # what is not there goes to the front
    found = jnp.concatenate([queue, values])[order][-length:]
    return found, jnp.minimum(size + jnp.sum(live), length).astype(jnp.int32)
