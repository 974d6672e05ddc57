"""Missing actions and rewards of a dataset, hidden and filled in again as config.labels says."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from experiments.parts import image_encoders, picture_judges
from rl_jax import reward_model
from rl_jax.control import reward_learning, segments
from rl_jax.control.offline import data as datasets
from rl_jax.control.offline import labelling, transported
from rl_jax.core.types import StepInputs
from rl_jax.models.agents.offline_networks import OfflineNetworks, make_networks
from rl_jax.models.agents.reward_network import make_reward_network


def nothing(data: datasets.OfflineData, key: jax.Array):
    """The data as they are, and no metrics."""
    return data, {}


def make_labels(config, networks: OfflineNetworks, env, collected: Callable | None = None) -> Callable:
    """Makes (data, key) -> (data as the method reads them, metrics float32 [] by name) of config.labels.

    Args:
      config: of the run; without a group `labels` nothing is hidden.
      networks: of the method, for its actions.
      env: for its spaces.
      collected: offline_data.collected, for the source task of labels.missing="preferences".

    Raises:
      ValueError: if labels.missing is unknown, the shares are out of order, or labels.segments or starts are too small.
    """
    if "labels" not in config or not config.labels.missing:
        return nothing
    makers = {
        "actions": _actions,
        "rewards": _rewards,
        "preferences": lambda *args: _preferences(*args, collected),
        "images": _images,
    }
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


def _images(config, networks: OfflineNetworks, env) -> Callable:
    """Rewards of pictures, learned from pairs that a CLIP or a server labels by a text of the goal (2411.05273)."""
    fields = config.labels
    if not fields.goal.strip() or not fields.margin >= 0.0:
        raise ValueError(f"labels.goal={fields.goal!r} must be a text, and labels.margin={fields.margin} 0 or more")
    if config.dataset.normalize_observations:
        raise ValueError("labels.missing='images' draws observations: set dataset.normalize_observations=False")
    eyes = image_encoders.make_encoder(fields.encoder, fields.picture.to_dict())
    judge = picture_judges.make_judge(fields, eyes)
    size = len(eyes.texts((fields.goal,))[0])
    network = make_reward_network(size, action_size=1, members=fields.members, hidden=(32,))
    objective = reward_model.Objective(members=fields.members)

    def learn(data: datasets.OfflineData, key: jax.Array):
        pair_key, held_key, fit_key = jax.random.split(key, 3)
        seen = data.steps.next_observations.reshape(len(data.time), -1)
        codes = eyes.images(seen)
        no_action = jnp.zeros((len(codes), 1))  # the reward is of the picture alone
        steps, mask = StepInputs(codes[:, None], no_action[:, None]), jnp.ones((len(codes), 1), bool)

        def asked(key: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
            pairs = segments.labelled_pairs(key, jnp.zeros(len(codes)), count=count, beta=0.0)  # at random
            return labelling.kept_pairs(pairs, judge(seen[pairs], codes[pairs]))

        (pairs, sure), (held, _) = asked(pair_key, fields.num_pairs), asked(held_key, fields.num_held)
        pairs = picture_judges.refuse_unsure(pairs, sure)
        reward, metrics = reward_learning.learn_reward(
            network,
            fit_key,
            segments.SegmentPairs(steps, mask, pairs),
            segments.SegmentPairs(steps, mask, held),
            objective,
            optax.adam(fields.learning_rate),
            to_env=lambda actions: actions,
            center=fields.center,
            updates=fields.updates,
            batch_size=64,
        )
        true = data.steps.rewards[pairs]  # hidden from the method, for the metric alone
        rewards = reward_learning.learned(network.apply, reward, codes, no_action)
        found = {"labels/sure": sure, "labels/right": jnp.mean((true[:, 0] > true[:, 1]).astype(jnp.float32))}
        return labelling.with_rewards(data, rewards, discount=config.dataset.discount), metrics | found

    return learn


def _preferences(config, networks: OfflineNetworks, env, collected: Callable | None) -> Callable:
    """Labels of a source task, moved to this one by a coupling of both tasks' segments."""
    fields, size = config.labels, math.prod(env.observation_space.shape)
    if fields.segments < 2 or min(fields.starts, fields.steps) < 1:
        sizes = f"labels.starts={fields.starts} and labels.steps={fields.steps} 1 or more"
        raise ValueError(f"labels.segments={fields.segments} must be 2 or more, {sizes}")
    other = config.copy_and_resolve_references()
    with other.unlocked():
        other.env.update(fields.source.to_dict())
    gather, discount = collected(other), config.dataset.discount
    network = make_reward_network(size, action_size=networks.size, members=2, hidden=(32,))
    cut = dict(length=fields.length, count=fields.segments)
    fit = dict(updates=fields.updates, learning_rate=fields.learning_rate)
    fit |= dict(sample_coef=fields.sample_coef, entropy_coef=fields.entropy_coef, floor=fields.floor)

    def mean(params, observations: jax.Array, actions: jax.Array) -> jax.Array:
        return transported.gaussian_of(network.apply(params, observations, actions))[0][:, None]

    def learn(data: datasets.OfflineData, key: jax.Array):
        source_key, *set_keys, start_key, fit_key = jax.random.split(key, 5)
        steps, _ = gather(source_key)
        steps = steps._replace(actions=networks.stored(steps.actions))
        # As the target's were: distances are compared across the tasks.
        steps, _ = datasets.in_own_units(steps, normalize=config.dataset.normalize_observations)
        known = datasets.make_data(steps, discount=discount)
        source, target = (
            transported.segment_set(d, networks.encode, k, **cut) for d, k in zip((known, data), set_keys, strict=True)
        )
        plan, cost = transported.gromov_wasserstein(
            start_key, source.distances(), target.distances(), starts=fields.starts, steps=fields.steps
        )
        labels = transported.transported_labels(plan, transported.all_labels(source.sums, beta=fields.beta))
        right = (labels > 0.5) == (target.sums[:, None] > target.sums[None])
        decided = target.sums[:, None] != target.sums[None]
        params, deviation = transported.learn_gaussian_reward(network, fit_key, target, labels, **fit)
        observations = data.steps.observations.reshape(len(data.time), -1)
        seen = observations, networks.encode(data.steps.actions)
        every = jnp.ones(len(observations), bool)
        reward = reward_learning.standardized_by(mean, params, *seen, every, center=fields.center)
        rewards = reward_learning.learned(mean, reward, *seen)
        return labelling.with_rewards(data, rewards, discount=discount), {
            "labels/right": jnp.sum(right & decided) / jnp.sum(decided),
            "labels/coupling": cost,
            "reward/deviation": deviation,
        }

    return learn
