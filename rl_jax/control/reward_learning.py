"""A reward learned from preferences between segments, and training on it.

    loss  = -log sigma( sum_t gamma^t r(s_t, a_t) |_w - |_l )          of each ensemble member     reward_loss
    r     = a network of observation and action                        1706.03741                  network_loss
            A*_r(s, a) of a table r [S, A] of a finite MDP             regret, 2206.02231          table_loss
    r_t   = sum_k (r_k(o_t, a_t) - mean_k) / std_k / M                 what PPO is then paid       by_reward

The loss is that of a language model's reward (rl_jax.reward_model.loss), with a step in the place of a token and a
segment in the place of a response.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from rl_jax import reward_model
from rl_jax.control import tabular
from rl_jax.control.algorithm import Relabel
from rl_jax.control.segments import SegmentPairs, make_fit, over_leading, pair_batch, segment_sums
from rl_jax.core.masked import Mean
from rl_jax.core.types import Metrics, Params, PreferenceBatch
from rl_jax.credit import ensembles
from rl_jax.rollout.envs.steps import Transitions
from rl_jax.training.step import init_state

BRADLEY_TERRY = reward_model.Objective()  # without a regularizer, as a table needs none


def reward_loss(
    rewards: chex.Array, batch: PreferenceBatch, objective: reward_model.Objective, *, discount: float = 1.0
) -> tuple[Mean, Metrics]:
    """Bradley-Terry on sums of rewards: -log sigma(sum_t gamma^t r_t |_w - |_l), separately for each ensemble member.

    Source: arXiv 1706.03741 section 2.2.3, 2206.02231 section 3.

    Args:
      rewards: float [n, 2, K, M] of M members, differentiated. For a regret model these are the optimal advantages
        (control.tabular).
      batch: of `pair_batch`.
      objective: of rl_jax.reward_model.
      discount: gamma.

    Returns:
      (loss, metrics), undivided.
    """
    chex.assert_rank(rewards, 4)
    by_member = jnp.swapaxes(rewards, 2, 3)
    mask = jnp.broadcast_to(batch.completion_mask[:, :, None], by_member.shape)
    return reward_model.loss(segment_sums(by_member, mask, discount=discount), batch, objective)


def network_loss(
    apply: Callable,
    params: Params,
    batch: PreferenceBatch,
    objective: reward_model.Objective,
    *,
    to_env: Callable,
    discount: float = 1.0,
) -> tuple[Mean, Metrics]:
    """`reward_loss` of a network's rewards.

    Args:
      apply: (params, observations [N, ...], actions [N, ...]) -> float [N, M].
      params: of the network, differentiated.
      batch: of `pair_batch`, with StepInputs [n, 2, K].
      objective: of rl_jax.reward_model.
      to_env: maps the policy's actions to those that the environment and the network take.
      discount: gamma.

    Returns:
      (loss, metrics), undivided.
    """
    steps = batch.batch

    def of_steps(observations: chex.Array, actions: chex.Array) -> chex.Array:
        return apply(params, observations, actions)

    rewards = over_leading(of_steps, 3, steps.observations, to_env(steps.actions))
    return reward_loss(rewards, batch, objective, discount=discount)


def table_loss(
    score_of: Callable,
    rewards: chex.Array,
    batch: PreferenceBatch,
    objective: reward_model.Objective = BRADLEY_TERRY,
    *,
    discount: float = 1.0,
) -> tuple[Mean, Metrics]:
    """`reward_loss` of a table of rewards of a finite MDP with known transition probabilities.

    Source: arXiv 2206.02231, whose transition probabilities are known, too. Rewards are in units of 1 / beta.

    Args:
      score_of: rewards [S, A] -> float [S, A], what a step adds to its segment's sum: tabular.advantages for the regret
        model, the identity for partial returns.
      rewards: float [S, A], differentiated.
      batch: of `pair_batch`, with StepInputs [n, 2, K]; observations are one-hot states, actions int.
      objective: of rl_jax.reward_model.
      discount: gamma.

    Returns:
      (loss, metrics), undivided.
    """
    steps = batch.batch
    taken = score_of(rewards)[tabular.states(steps.observations), steps.actions]
    return reward_loss(taken[..., None], batch, objective, discount=discount)


class LearnedReward(NamedTuple):
    """A reward network of M members, with the scale of each.

    Attributes:
      params: of the network.
      means: float32 [M]. Subtracted from each member's reward.
      stds: float32 [M]. Each member's reward is divided by these.
    """

    params: Any
    means: chex.Array
    stds: chex.Array


def blank_reward(network) -> LearnedReward:
    """A LearnedReward of zeros, in the shapes of one learned by `network` (see `learn_reward`)."""
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    members = jax.tree.leaves(shapes)[0].shape[0]
    return LearnedReward(jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), *jnp.zeros((2, members)))


def learn_reward(
    network,
    key: chex.PRNGKey,
    data: SegmentPairs,
    held_out: SegmentPairs,
    objective: reward_model.Objective,
    optimizer: optax.GradientTransformation,
    *,
    to_env: Callable,
    center: bool,
    updates: int,
    batch_size: int,
    max_grad_norm: float | None = None,
    discount: float = 1.0,
) -> tuple[LearnedReward, dict[str, chex.Array]]:
    """Fits a reward network to labelled segments, and scales it on their steps.

    Args:
      network: init (key) -> params, every leaf with M first; apply as in `network_loss`.
      key: for the first weights and the minibatches.
      data: StepInputs [N, K], their pairs to train on.
      held_out: the same, to test on.
      objective: of rl_jax.reward_model.
      optimizer: any optax transformation.
      to_env: as in `network_loss`.
      center: as in `standardized_by`.
      updates: number of minibatches.
      batch_size: pairs per update.
      max_grad_norm: gradient clipping.
      discount: gamma of the sums over a segment.

    Returns:
      (LearnedReward, reward/accuracy and reward/margin on the held-out pairs, float32 []).
    """

    def loss_fn(params: Params, batch: PreferenceBatch):
        return network_loss(network.apply, params, batch, objective, to_env=to_env, discount=discount)

    fit = make_fit(loss_fn, optimizer, batch_size=batch_size, max_grad_norm=max_grad_norm)
    init_key, fit_key = jax.random.split(key)
    state, _ = fit(init_state(network.init(init_key), optimizer, fit_key), data, updates)
    _, metrics = loss_fn(state.params, pair_batch(held_out, jnp.arange(len(held_out.pairs))))
    steps = (x.reshape(-1, *x.shape[2:]) for x in (data.steps.observations, to_env(data.steps.actions)))
    reward = standardized_by(network.apply, state.params, *steps, data.mask.reshape(-1), center=center)
    return reward, {name: metrics[name].value() for name in ("reward/accuracy", "reward/margin")}


def standardized_by(
    apply: Callable, params: Any, observations: chex.Array, actions: chex.Array, mask: chex.Array, *, center: bool
) -> LearnedReward:
    """The reward in units of its standard deviation over the steps under the mask.

    Args:
      apply: (params, observations [N, ...], actions [N, ...]) -> float [N, M].
      params: of the network.
      observations: [N, ...].
      actions: [N, ...].
      mask: bool [N].
      center: whether to subtract the mean, too. Preferences do not determine the value of a constant reward. If
        episodes may end, that constant decides whether long episodes are good (arXiv 1706.03741 has no such episodes,
        and centers).

    Returns:
      LearnedReward.
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
    """1/M sum_k (r_k - mean_k) / std_k, float32 [N]. Arguments as for `standardized_by`."""
    rewards = apply(reward.params, observations, actions)
    return ensembles.mean(ensembles.standardized(rewards, reward.means, reward.stds))


def by_reward(apply: Callable, to_env: Callable, init: Callable) -> Relabel:
    """Replaces rewards by those of a learned network. The network is the state, which does not change.

    Args:
      apply: (params, observations [N, ...], actions [N, ...]) -> float [N, M].
      to_env: maps the policy's actions to those that the environment and the network take.
      init: () -> LearnedReward.

    Returns:
      Relabel.
    """

    def relabel(state: LearnedReward, rows: Transitions) -> tuple[LearnedReward, Transitions]:
        flat = (x.reshape(-1, *x.shape[2:]) for x in (rows.observations, to_env(rows.actions)))
        rewards = learned(apply, state, *flat).reshape(rows.rewards.shape)
        return state, rows._replace(rewards=jax.lax.stop_gradient(rewards))

    return Relabel(init, relabel)
