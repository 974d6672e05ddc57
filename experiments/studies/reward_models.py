"""What a reward model's mistakes cost when it is maximised."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, bradley_terry, curve, descend, per_seed, seed_keys
from rl_jax.core.binding import bind
from rl_jax.credit import ensembles
from rl_jax.losses.policy import clipped_surrogate
from rl_jax.losses.reward_model import bradley_terry as reward_loss


class World(NamedTuple):
    """A seed's true reward and reward models: D dimensions, H hidden units of the truth, M models of F features.

    The true reward is relu(x W) h / sqrt(H) - mean.

    Attributes:
      weights: W, float [D, H].
      head: h, float [H].
      mean: float [].
      model_weights: float [M, D, F].
      model_heads: float [M, F].
      moments: mean and std of each model on held-out responses, [M] each.
    """

    weights: chex.Array
    head: chex.Array
    mean: chex.Array
    model_weights: chex.Array
    model_heads: chex.Array
    moments: tuple[chex.Array, chex.Array]

    def true_reward(self, x: chex.Array) -> chex.Array:
        """float [B, D] -> float [B]."""
        return _features(x, self.weights) @ self.head - self.mean

    def member_rewards(self, x: chex.Array) -> chex.Array:
        """The rewards of each model. float [B, D] -> float [B, M]."""
        return jax.vmap(lambda weights, head: _features(x, weights) @ head, out_axes=1)(
            self.model_weights, self.model_heads
        )

    def judge(self, choice: str | Mapping, count: int) -> Callable:
        """The first `count` models as one: float [B, D] -> float [B]. choice: a function of rl_jax.credit.ensembles."""
        combine = bind(choice, ensembles)
        return lambda x: combine(ensembles.standardized(self.member_rewards(x), *self.moments)[:, :count])


def _features(x, weights):
    return jax.nn.relu(x @ weights) / jnp.sqrt(weights.shape[1])


def make_world(
    key: chex.PRNGKey, *, members: int, dimensions: int, hidden: int, model_hidden: int, pairs: int, flip_rate: float
) -> World:
    """A true reward of unit variance, its noisy labels, and the models fitted to them.

    The true reward is a random network with one hidden ReLU layer over N(0, I). A model is linear in random ReLU
    features of its own.

    Args:
      key: of the seed.
      members: number of models, M.
      dimensions: D.
      hidden: units of the true reward, H.
      model_hidden: features of a model, F.
      pairs: number of Bradley-Terry labels.
      flip_rate: fraction of flipped labels.
    """
    keys = jax.random.split(key, 7)
    weights = jax.random.normal(keys[0], (dimensions, hidden)) / jnp.sqrt(dimensions)
    head, held_out = jax.random.normal(keys[1], (hidden,)), jax.random.normal(keys[2], (2048, dimensions))
    raw = _features(held_out, weights) @ head
    model_weights = jax.random.normal(keys[3], (members, dimensions, model_hidden)) / jnp.sqrt(dimensions)
    blank = jnp.zeros((members, model_hidden)), (jnp.zeros(members), jnp.ones(members))
    world = World(weights, head / jnp.std(raw), jnp.mean(raw) / jnp.std(raw), model_weights, *blank)
    x = jax.random.normal(keys[4], (2 * pairs, dimensions))
    chosen_first = bradley_terry(keys[5], world.true_reward(x), jnp.arange(pairs), pairs + jnp.arange(pairs))
    flipped = jax.random.bernoulli(keys[6], flip_rate, (pairs, 1))
    chosen_first = jnp.where(flipped, chosen_first[:, ::-1], chosen_first)

    def fit(weights):
        phi = _features(x, weights)[chosen_first]

        def loss(head):
            rewards = phi @ head
            return jnp.mean(reward_loss(rewards, jnp.ones(rewards.shape, bool)).loss) + 1e-3 * head @ head

        return descend(loss, jnp.zeros(model_hidden), optax.adam(0.05), 300)

    world = world._replace(model_heads=jax.vmap(fit)(model_weights))
    rewards = world.member_rewards(held_out)
    return world._replace(moments=(jnp.mean(rewards, axis=0), jnp.std(rewards, axis=0)))


def best_of_n(key: chex.PRNGKey, world: World, proxy: Callable, *, pool: int, prompts: int) -> chex.Array:
    """The true reward of the best response by `proxy` among 1, 2, 4 .. `pool`, mean over `prompts` samples."""
    counts = 2 ** np.arange(int(np.log2(pool)) + 1)

    def one(key):
        x = jax.random.normal(key, (pool, world.weights.shape[0]))
        proxies, gold = proxy(x), world.true_reward(x)
        return jnp.stack([gold[jnp.argmax(proxies[:n])] for n in counts])

    return jnp.mean(jax.lax.map(one, jax.random.split(key, prompts)), axis=0)


def _log_prob(mean, x):  # of N(mean, I) up to a constant, as sequences of one token
    return -0.5 * jnp.sum(jnp.square(x - mean[None]), axis=1)[:, None]


def ppo(
    key: chex.PRNGKey,
    world: World,
    proxy: Callable,
    *,
    kl_coef: float,
    kl_budget: float,
    batch_size: int,
    steps: int,
    epochs: int,
    learning_rate: float,
) -> dict[str, chex.Array]:
    """Moves the mean of a normal policy by the clipped surrogate, with kl_coef KL(pi || N(0, I)) in the reward.

    Args:
      key: of the training.
      world: of make_world.
      proxy: float [B, D] -> float [B], the reward that is maximised.
      kl_coef: of the KL in the reward.
      kl_budget: KL at which ppo_at_kl is measured.
      batch_size: samples per step.
      steps: of the training.
      epochs: updates per step.
      learning_rate: of the optimizer.

    Returns:
      ppo: the true reward of the last policy.
      ppo_kl: its KL.
      ppo_at_kl: the true reward of the first policy at kl_budget, nan if none reached it.
    """
    adam, dimensions = optax.adam(learning_rate), world.weights.shape[0]
    key_run, key_test = jax.random.split(key)
    noise = jax.random.normal(key_test, (1024, dimensions))

    def step(carry, key):
        mean, state = carry
        at_start = 0.5 * mean @ mean, jnp.mean(world.true_reward(mean[None] + noise))
        x = mean[None] + jax.random.normal(key, (batch_size, dimensions))
        old = _log_prob(mean, x)
        rewards = proxy(x)[:, None] - kl_coef * (old - _log_prob(jnp.zeros(dimensions), x))
        advantages = (rewards - jnp.mean(rewards)) / (jnp.std(rewards) + 1e-6)

        def loss(mean):
            return jnp.mean(clipped_surrogate(_log_prob(mean, x), old, advantages, jnp.ones(old.shape, bool)).loss)

        for _ in range(epochs):
            updates, state = adam.update(jax.grad(loss)(mean), state)
            mean = optax.apply_updates(mean, updates)
        return (mean, state), at_start

    mean = jnp.zeros(dimensions)
    _, (spent, gained) = jax.lax.scan(step, (mean, adam.init(mean)), jax.random.split(key_run, steps))
    farthest = jax.lax.cummax(spent)
    at_budget = jnp.where(farthest[-1] >= kl_budget, jnp.interp(kl_budget, farthest, gained), jnp.nan)
    return {"ppo": gained[-1], "ppo_kl": spent[-1], "ppo_at_kl": at_budget}


def ensemble_overoptimization(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], world: Mapping, best_of: Mapping, policy: Mapping
) -> Outcome:
    """Responses are vectors x ~ N(0, I); reward models fitted to few, partly wrong labels are maximised in two ways.

    Metrics: those of ppo, and best_of_n, the true reward of the best of all; in standard deviations over N(0, I). An
    ensemble's reward varies less than one model's, so the same KL coefficient stops it earlier: hence ppo_at_kl. Seeds
    whose policy never reaches kl_budget have no ppo_at_kl and are left out of comparisons. Source: arXiv 2310.02743.

    Args:
      seeds: of the worlds.
      arms: name -> members (1 or all), best_of_n and ppo: the function of rl_jax.credit.ensembles that combines their
        rewards, each standardized first.
      world: keywords of make_world.
      best_of: keywords of best_of_n.
      policy: keywords of ppo.
    """

    def run(arm, key, made):
        key_n, key_ppo = jax.random.split(jax.random.fold_in(key, 1))
        gold = best_of_n(key_n, made, made.judge(arm["best_of_n"], arm["members"]), **best_of)
        return {"best_of_n": gold[-1], **ppo(key_ppo, made, made.judge(arm["ppo"], arm["members"]), **policy)}, gold

    keys, values, curves = seed_keys(seeds), {}, {}
    worlds = jax.jit(jax.vmap(lambda key: make_world(key, **world)))(keys)
    for name, arm in arms.items():
        metrics, gold = jax.jit(jax.vmap(lambda key, made, a=arm: run(a, key, made)))(keys, worlds)
        values[name] = per_seed(metrics)
        curves[name] = curve(range(gold.shape[1]), gold)
    return Outcome(values, {"reward_of_best_of_2_to_the": curves})
