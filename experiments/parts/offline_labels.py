"""Missing actions and rewards of a dataset, hidden and filled in again as config.labels says."""

import math
from collections.abc import Callable

import jax
import optax

from rl_jax import reward_model
from rl_jax.control import reward_learning
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import labelling
from rl_jax.models.agents.offline_networks import OfflineNetworks, make_networks
from rl_jax.models.agents.reward_network import make_reward_network


def nothing(data: datasets.OfflineData, key: jax.Array):
    """The data as they are, and no metrics."""
    return data, {}


def make_labels(config, networks: OfflineNetworks, env) -> Callable:
    """Makes (data, key) -> (data as the method reads them, metrics float32 [] by name) of config.labels.

    Args:
      config: of the run; without a group `labels` nothing is hidden.
      networks: of the method, for its actions.
      env: for its spaces.

    Raises:
      ValueError: if labels.missing is unknown, or the shares are out of order.
    """
    if "labels" not in config or not config.labels.missing:
        return nothing
    makers = {"actions": _actions, "rewards": _rewards}
    if config.labels.missing not in makers:
        raise ValueError(f"labels.missing={config.labels.missing!r} is none of '', {', '.join(map(repr, makers))}")
    return makers[config.labels.missing](config, networks, env)


def _actions(config, networks: OfflineNetworks, env) -> Callable:
    fields = config.labels
    if not 0.0 < fields.share <= fields.lowest <= 1.0:
        raise ValueError(f"labels.share={fields.share} must be above 0 and at most labels.lowest={fields.lowest}, 1")
    if not fields.fill:
        return lambda data, key: (labelling.hide_actions(data, key, share=fields.share, lowest=fields.lowest), {})
    size = math.prod(env.observation_space.shape)
    kind = dict(num_actions=networks.num_actions)
    if not networks.num_actions:
        kind = dict(low=env.action_space.low, high=env.action_space.high)
    inverse = make_networks((2 * size,), **kind, **config.network.to_dict())
    fit = dict(updates=fields.updates, batch_size=config.train.batch_size, learning_rate=fields.learning_rate)

    def fill(data: datasets.OfflineData, key: jax.Array):
        hide_key, fill_key = jax.random.split(key)
        hidden = labelling.hide_actions(data, hide_key, share=fields.share, lowest=fields.lowest)
        filled, log_prob = labelling.fill_actions(inverse, hidden, fill_key, **fit)
        return filled, {"labels/log_prob": log_prob, "labels/known": hidden.labelled.mean()}

    return fill


def _rewards(config, networks: OfflineNetworks, env) -> Callable:
    fields, size = config.labels, math.prod(env.observation_space.shape)
    network = make_reward_network(size, action_size=networks.size, members=fields.members, hidden=(32,))
    objective = reward_model.Objective(members=fields.members)
    cut = dict(length=fields.length, beta=fields.beta)

    def learn(data: datasets.OfflineData, key: jax.Array):
        pair_key, held_key, fit_key = jax.random.split(key, 3)
        pairs = labelling.segment_pairs(data, networks.encode, pair_key, count=fields.num_pairs, **cut)
        held_out = labelling.segment_pairs(data, networks.encode, held_key, count=200, **cut)
        reward, metrics = reward_learning.learn_reward(
            network,
            fit_key,
            pairs,
            held_out,
            objective,
            optax.adam(fields.learning_rate),
            to_env=lambda actions: actions,
            center=fields.center,
            updates=fields.updates,
            batch_size=64,
        )
        observations = data.steps.observations.reshape(len(data.time), -1)
        rewards = reward_learning.learned(network.apply, reward, observations, networks.encode(data.steps.actions))
        return labelling.with_rewards(data, rewards, discount=config.dataset.discount), metrics

    return learn
