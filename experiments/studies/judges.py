"""A judge that is trained during the run on what the policy writes, beside one that stays as it was.

Responses are vectors x ~ N(0, I), the policy is N(mean, I), and the judge is a network of one hidden layer, fitted to
labels of the reference's responses. The true reward is a sum of waves: it looks like a slope near the reference and
turns back farther out, where the judge has no label. A judge in training does what config.judge.NAME.retrain_every does
(experiments.parts.judges.learning): every so many steps, after the policy's update, one step of Adam on the best and
the worst row of each prompt of the step, by the true reward, with gradients clipped to norm 1.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, add_bias, curve, descend, per_seed, seed_keys
from rl_jax.advantages import group_relative
from rl_jax.losses.policy import clipped_surrogate
from rl_jax.losses.reward_model import bradley_terry as reward_loss

HELD_OUT = 512  # samples that measure a policy


class World(NamedTuple):
    """The true reward of a seed: sqrt(2 / H) sum_h a_h cos(w_h x / scale + b_h), in deviations over N(0, I), centred.

    Attributes:
      weights: w / scale, float [D, H].
      shifts: b, float [H].
      head: a sqrt(2 / H) / std, float [H].
      mean: float [].
    """

    weights: chex.Array
    shifts: chex.Array
    head: chex.Array
    mean: chex.Array

    def true_reward(self, x: chex.Array) -> chex.Array:
        """float [..., D] -> float [...]."""
        return jnp.cos(add_bias(x @ self.weights, self.shifts)) @ self.head - self.mean


class Recipe(NamedTuple):
    """How a policy and its judge are trained.

    Attributes:
      prompts: groups per step.
      group_size: G.
      steps: of the policy.
      epochs: its updates per step.
      learning_rate: of the policy, Adam's.
      kl_coef: of KL(pi || N(0, I)) in the reward, in deviations of the judge's first rewards.
      judge_learning_rate: of the judge, Adam's.
    """

    prompts: int
    group_size: int
    steps: int
    epochs: int
    learning_rate: float
    kl_coef: float
    judge_learning_rate: float


def make_world(key: chex.PRNGKey, *, dimensions: int, waves: int, scale: float) -> World:
    """A random true reward.

    Args:
      key: of the seed.
      dimensions: D.
      waves: H.
      scale: the distance over which the reward changes, in deviations of a response's number.
    """
    keys = jax.random.split(key, 4)
    weights = jax.random.normal(keys[0], (dimensions, waves)) / scale
    shifts = jax.random.uniform(keys[1], (waves,), maxval=2 * jnp.pi)
    head, held_out = jax.random.normal(keys[2], (waves,)), jax.random.normal(keys[3], (4096, dimensions))
    raw = World(weights, shifts, head, jnp.zeros(())).true_reward(held_out)
    return World(weights, shifts, head / jnp.std(raw), jnp.mean(raw) / jnp.std(raw))


def read(params: Mapping[str, chex.Array], x: chex.Array) -> chex.Array:
    """The judge's rewards. float [..., D] -> float [...]."""
    return jax.nn.relu(add_bias(x @ params["weights"], params["bias"])) @ params["head"]


def pair_loss(params: Mapping[str, chex.Array], pairs: chex.Array) -> chex.Array:
    """Bradley-Terry, the mean over pairs [N, 2, D], the better one first."""
    rewards = read(params, pairs)
    return jnp.mean(reward_loss(rewards, jnp.ones(rewards.shape, bool)).loss)


def best_and_worst(x: chex.Array, gold: chex.Array) -> chex.Array:
    """The best and the worst row of each prompt by `gold`. float [P, G, D], float [P, G] -> float [P, 2, D]."""
    places = jnp.stack([jnp.argmax(gold, axis=1), jnp.argmin(gold, axis=1)], axis=1)
    return jnp.take_along_axis(x, places[..., None], axis=1)


def fit_judge(
    key: chex.PRNGKey,
    world: World,
    *,
    pairs: int,
    flip_rate: float,
    more: int,
    group_size: int,
    hidden: int,
    steps: int,
) -> dict[str, chex.Array]:
    """A judge of the reference's responses.

    Args:
      key: of the labels and the network.
      world: that labels.
      pairs: of two responses, ordered by their true reward.
      flip_rate: share of these that is ordered the wrong way round.
      more: groups whose best and worst response are labels, too, without a flip.
      group_size: responses of a group.
      hidden: units of the network.
      steps: of Adam.
    """
    keys = jax.random.split(key, 5)
    dimensions = world.weights.shape[0]
    x = jax.random.normal(keys[0], (pairs, 2, dimensions))
    data = best_and_worst(x, world.true_reward(x))
    data = jnp.where(jax.random.bernoulli(keys[1], flip_rate, (pairs, 1, 1)), data[:, ::-1], data)
    if more:
        x = jax.random.normal(keys[2], (more, group_size, dimensions))
        data = jnp.concatenate([data, best_and_worst(x, world.true_reward(x))])
    start = {
        "weights": jax.random.normal(keys[3], (dimensions, hidden)) / jnp.sqrt(dimensions),
        "bias": jnp.zeros(hidden),
        "head": jax.random.normal(keys[4], (hidden,)) / jnp.sqrt(hidden),
    }

    def loss(params):
        return pair_loss(params, data) + 1e-3 * sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(params))

    return descend(loss, start, optax.adam(0.01), steps)


def run_arm(key: chex.PRNGKey, world: World, judge: Mapping[str, chex.Array], every: int, recipe: Recipe) -> tuple:
    """Trains a policy on a judge that learns every `every` steps; 0: never.

    Returns:
      (true reward, KL to the reference, accuracy of the judge on the policy's pairs) before each step and at the end,
      [steps + 1] each.
    """
    policy_tx = optax.adam(recipe.learning_rate)
    judge_tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(recipe.judge_learning_rate))
    dimensions, batch = world.weights.shape[0], recipe.prompts * recipe.group_size
    key_run, key_test, key_scale = jax.random.split(key, 3)
    noise = jax.random.normal(key_test, (HELD_OUT, dimensions))
    unit = jnp.std(read(judge, jax.random.normal(key_scale, (HELD_OUT, dimensions))))

    def log_prob(mean, x):  # of N(mean, I) up to a constant, as sequences of one token
        return -0.5 * jnp.sum(jnp.square(x - mean[None]), axis=1)[:, None]

    def observe(mean, params):
        x = mean[None] + noise
        gold = world.true_reward(x)
        pairs = read(params, best_and_worst(x.reshape(-1, 2, dimensions), gold.reshape(-1, 2)))
        return jnp.mean(gold), 0.5 * mean @ mean, jnp.mean(pairs[:, 0] > pairs[:, 1])

    def step(carry, number_and_key):
        (mean, state, params, judge_state), (number, key) = carry, number_and_key
        seen = observe(mean, params)
        x = mean[None] + jax.random.normal(key, (batch, dimensions))
        old = log_prob(mean, x)
        penalty = recipe.kl_coef * unit * (old - log_prob(jnp.zeros(dimensions), x))[:, 0]
        mask = jnp.ones(old.shape, bool)
        advantages = group_relative(read(params, x) - penalty, group_size=recipe.group_size)[:, None]

        def loss(mean):
            return jnp.mean(clipped_surrogate(log_prob(mean, x), old, advantages, mask).loss)

        for _ in range(recipe.epochs):
            updates, state = policy_tx.update(jax.grad(loss)(mean), state)
            mean = optax.apply_updates(mean, updates)
        if every:
            groups = x.reshape(recipe.prompts, recipe.group_size, dimensions)
            pairs = best_and_worst(groups, world.true_reward(groups))
            updates, newer = judge_tx.update(jax.grad(pair_loss)(params, pairs), judge_state)
            due = (number + 1) % every == 0
            both = (optax.apply_updates(params, updates), newer)
            params, judge_state = jax.tree.map(lambda a, b: jnp.where(due, a, b), both, (params, judge_state))
        return (mean, state, params, judge_state), seen

    mean = jnp.zeros(dimensions)
    start = (mean, policy_tx.init(mean), dict(judge), judge_tx.init(dict(judge)))
    steps = (jnp.arange(recipe.steps), jax.random.split(key_run, recipe.steps))
    (mean, _, params, _), seen = jax.lax.scan(step, start, steps)
    return jax.tree.map(lambda x, end: jnp.append(x, end), seen, observe(mean, params))


def judge_cotraining(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], world: Mapping, judge: Mapping, recipe: Mapping
) -> Outcome:
    """Policies that maximise a judge, which learns from their samples or does not.

    Metrics: gold, the true reward of the last policy, in deviations over the reference's responses; best, the highest
    one of the training; lost, best - gold; kl, of the last policy; accuracy, of the judge on the last policy's pairs.

    Args:
      seeds: of the worlds, the labels and the training.
      arms: name -> retrain_every (0: never) and more, the groups of the reference that the judge also sees before the
        training; "labels" takes as many as a judge with retrain_every=1 sees during it.
      world: keywords of make_world.
      judge: keywords of fit_judge, without more and group_size.
      recipe: fields of Recipe.
    """
    chosen, keys, values = Recipe(**recipe), seed_keys(seeds), {}
    curves = {"gold": {}, "kl": {}, "accuracy": {}}
    every = max(chosen.steps // 50, 1)

    def run(arm, key):
        key_world, key_judge, key_run = jax.random.split(key, 3)
        made = make_world(key_world, **world)
        more = chosen.steps * chosen.prompts if arm["more"] == "labels" else arm["more"]
        fitted = fit_judge(key_judge, made, more=more, group_size=chosen.group_size, **judge)
        return run_arm(key_run, made, fitted, arm["retrain_every"], chosen)

    for name, arm in arms.items():
        traces = [np.asarray(trace) for trace in jax.jit(jax.vmap(lambda key, a=arm: run(a, key)))(keys)]
        gold, kl, accuracy = traces
        best = gold.max(axis=1)
        last = dict(gold=gold[:, -1], best=best, lost=best - gold[:, -1], kl=kl[:, -1], accuracy=accuracy[:, -1])
        values[name] = per_seed(last)
        for title, trace in zip(curves, traces, strict=True):
            curves[title][name] = curve(range(0, chosen.steps + 1, every), trace[:, ::every])
    return Outcome(values, curves)
