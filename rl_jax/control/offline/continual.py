"""Offline experience replay: tasks one after the other, of each of which a few steps are kept when it ends.

    mu, Q    learn the newest task by TD3+BC, from its own data only
    pi       acts in all tasks, a head for each; cloned from mu and from what is kept (losses.continual.dual_cloning)
    model    s' of the newest task, for the choice of what is kept (`select_by_model`)

Source: arXiv 2305.13804. Its equations were read in the public code of its first author, not in the paper. There the
model is an ensemble, and a rollout goes on along the data instead where the ensemble disagrees; here it is one network.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from rl_jax.control.offline import data as datasets
from rl_jax.control.offline.actor_critic import td3_bc
from rl_jax.control.offline.recipe import Batch, Recipe, mean
from rl_jax.core.masked import Mean
from rl_jax.losses import continual as losses


class Kept(NamedTuple):
    """What is kept of K tasks.

    Attributes:
      observations: float32 [K, M, *shape].
      actions: float32 [K, M, A], mu's.
    """

    observations: chex.Array
    actions: chex.Array


class Tasks(NamedTuple):
    """What a fit reads of all tasks; or, sampled, a batch of it.

    Attributes:
      data: OfflineData [K, N] of the tasks; sampled: [n] of the newest one.
      kept: Kept [K, M]; sampled: [K, n].
      task: int32 [], the newest one's number.
    """

    data: datasets.OfflineData
    kept: Kept
    task: chex.Array


def sample_tasks(tasks: Tasks, key: chex.PRNGKey, size: int) -> Tasks:
    """`size` steps of the newest task's data, and as many of what is kept of each task."""
    new_key, old_key = jax.random.split(key)
    own = jax.tree.map(lambda x: x[tasks.task], tasks.data)
    index = jax.random.randint(old_key, (size,), 0, tasks.kept.actions.shape[1])
    return Tasks(datasets.sample(own, new_key, size), jax.tree.map(lambda x: x[:, index], tasks.kept), tasks.task)


def nearest(points: chex.Array, table: chex.Array) -> chex.Array:
    """argmin_i |x - y_i|: of each point the number of the table's nearest row.

    Args:
      points: float [S, D].
      table: float [N, D].

    Returns:
      int32 [S].
    """
    chex.assert_equal(points.shape[1], table.shape[1])
    # |x|^2 is the same for every row of the table.
    squares = jnp.sum(jnp.square(table), axis=-1)[None] - 2.0 * points @ table.T
    return jnp.argmin(squares, axis=1).astype(jnp.int32)


def select_by_model(
    policy: Callable, model: Callable, observations: chex.Array, starts: chex.Array, *, horizon: int
) -> chex.Array:
    """Steps of the data that the policy would meet: i_0 = start, i_{h+1} = nearest(model(s_{i_h}, pi(s_{i_h}))).

    From each start the model predicts where the policy's action leads, the data's nearest state takes the prediction's
    place, and the rollout goes on from it: so the model's errors do not add up, and what is chosen was really seen.
    A state may be chosen more than once; it then counts as often. Source: arXiv 2305.13804 (model-based experience
    selection), read in the code of its first author (generate_replay_data_trajectory).

    Args:
      policy: observations [S, *shape] -> actions [S, A].
      model: (observations, actions) -> the next observations.
      observations: float32 [N, *shape], of the data.
      starts: int [S], steps that begin an episode.
      horizon: H, states of a rollout, the first included.

    Returns:
      int32 [H, S].
    """
    table = observations.reshape(len(observations), -1)

    def ahead(index: chex.Array, _):
        states = observations[index]
        predicted = model(states, policy(states))
        return nearest(predicted.reshape(len(index), -1), table), index

    return jax.lax.scan(ahead, starts.astype(jnp.int32), None, horizon)[1]


def episode_starts(data: datasets.OfflineData, key: chex.PRNGKey, count: int) -> chex.Array:
    """`count` of the steps that begin an episode, with replacement: int32 [count]."""
    return jax.random.categorical(key, jnp.where(data.time == 0, 0.0, -jnp.inf), shape=(count,)).astype(jnp.int32)


def oer(
    nets,
    *,
    replay_coef: float = 1.0,
    select: bool = True,
    alpha: float = 2.5,
    discount: float = 0.99,
    noise: float = 0.2,
    noise_clip: float = 0.5,
    delay: int = 2,
    target_rate: float = 0.005,
) -> Recipe:
    """OER: TD3+BC on the newest task, and a policy of all tasks that is cloned twice. Source: arXiv 2305.13804.

    Args:
      nets: models.agents.continual_networks.ContinualNetworks.
      replay_coef: of losses.continual.dual_cloning.
      select: what the model's rollouts choose is kept; False: random steps (read by the program).
      alpha: of `actor_critic.td3_bc`, and so are the others.
      discount: gamma.
      noise: see `td3_bc`.
      noise_clip: see `td3_bc`.
      delay: see `td3_bc`.
      target_rate: see `td3_bc`.

    Raises:
      ValueError: for discrete actions.
    """
    own = td3_bc(
        nets.single,
        alpha=alpha,
        discount=discount,
        noise=noise,
        noise_clip=noise_clip,
        delay=delay,
        target_rate=target_rate,
    )
    mode = nets.single.distribution.mode

    def loss(params, batch: Batch):
        tasks = batch.data
        steps, seen = tasks.data.steps, jnp.arange(nets.tasks) < tasks.task
        first, metrics = own.loss(params, batch._replace(data=tasks.data))
        wanted = mode(nets.single.policy(params, steps.observations))
        actions = mode(nets.clone(params, steps.observations, tasks.task))
        replayed = jnp.stack([mode(nets.clone(params, tasks.kept.observations[k], k)) for k in range(nets.tasks)])
        cloned = losses.dual_cloning(actions, wanted, replayed, tasks.kept.actions, seen, coef=replay_coef)
        missed = nets.model(params, steps.observations, steps.actions) - steps.next_observations
        model_loss = jnp.mean(jnp.square(missed).reshape(len(cloned), -1), axis=-1)
        whole = Mean(first.total + jnp.sum(cloned + model_loss), first.count)
        return whole, metrics | {"loss/clone": mean(cloned), "loss/model": mean(model_loss)}

    uses = ("policy", "q", "clone", "model")
    return Recipe(loss, uses, own.targets, own.delayed, own.delay, own.target_rate)
