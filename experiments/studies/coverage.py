"""Data that cover some answers only, and what preference losses do to the others; scored answers of another policy."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import (
    Outcome,
    bradley_terry,
    descend,
    kl,
    make_objective,
    per_seed,
    preference_loss,
    sample_actions,
    seed_keys,
)


class Bandit(NamedTuple):
    """A bandit whose pairs cover the first actions only.

    Attributes:
      phi: features of the actions, float [A, F].
      rewards: true, linear in the features, float [A].
      ref: log-probs of the reference, float [A].
      pairs: the chosen one first, int [N, 2].
    """

    phi: chex.Array
    rewards: chex.Array
    ref: chex.Array
    pairs: chex.Array


def make_bandit(key: chex.PRNGKey, *, actions: int, covered: int, features: int, pairs: int) -> Bandit:
    """Makes a bandit with Bradley-Terry labels of uniform pairs of the covered actions.

    Args:
      key: of the seed.
      actions: A.
      covered: the number of actions that the data cover.
      features: F, of the policy and of the true reward, whose deviation over the actions is near 1.
      pairs: N.
    """
    key_phi, key_w, key_ref, key_1, key_2, key_label = jax.random.split(key, 6)
    phi = jax.random.normal(key_phi, (actions, features)) / np.sqrt(features)
    rewards = phi @ jax.random.normal(key_w, (features,))
    ref = jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (actions,)))
    first, second = (jax.random.randint(k, (pairs,), 0, covered) for k in (key_1, key_2))
    second = jnp.where(first == second, (second + 1) % covered, second)
    return Bandit(phi, rewards, ref, bradley_terry(key_label, rewards, first, second))


def partial_coverage(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    actions: int,
    covered: int,
    features: int,
    pairs: int,
    beta: float,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """DPO and its relatives on few pairs of a part of the actions; the policy generalises to the others.

    The policy adds a linear function of the features to the reference's logits; with fewer pairs than would fix it,
    it also moves what no pair has shown. Each update sees all pairs and, for losses that ask for it, a new sample of
    the policy for each. Metrics: kl = KL(pi || ref); reward = E_pi[r] - E_ref[r]; value = reward - beta kl; chosen, the
    mean growth of log pi of the chosen responses; covered, the growth of the probability of the covered actions.

    Args:
      seeds: of the bandits and the samples.
      arms: name -> slots of rl_jax.dpo.Objective.
      actions: number of actions.
      covered: of them in the pairs.
      features: of the policy and of the reward.
      pairs: number of labelled pairs.
      beta: coefficient of the KL.
      learning_rate: of Adam.
      steps: of the training.
    """
    adam = optax.adam(learning_rate)

    def train(objective, key):
        bandit = make_bandit(key, actions=actions, covered=covered, features=features, pairs=pairs)
        sampled = jnp.broadcast_to(jnp.arange(3) == 2, (pairs, 3))

        def policy(theta):
            return jax.nn.log_softmax(bandit.ref + bandit.phi @ theta)

        def update(carry, key):
            theta, state = carry
            own = sample_actions(key, policy(theta), (pairs, 1))
            rows = jnp.concatenate([bandit.pairs, own], axis=1)

            def loss(theta):
                return preference_loss(policy(theta)[rows], bandit.ref[rows], objective, extras={"sampled": sampled})

            updates, state = adam.update(jax.grad(loss)(theta), state)
            return (optax.apply_updates(theta, updates), state), None

        theta = jnp.zeros(features)
        keys = jax.random.split(jax.random.fold_in(key, 6), steps)  # 0 to 5 made the bandit
        found = policy(jax.lax.scan(update, (theta, adam.init(theta)), keys)[0][0])
        reward = jnp.sum((jnp.exp(found) - jnp.exp(bandit.ref)) * bandit.rewards)
        return {
            "kl": kl(found, bandit.ref),
            "reward": reward,
            "value": reward - beta * kl(found, bandit.ref),
            "chosen": jnp.mean((found - bandit.ref)[bandit.pairs[:, 0]]),
            "covered": jnp.sum(jnp.exp(found[:covered]) - jnp.exp(bandit.ref[:covered])),
        }

    values = {}
    for arm, slots in arms.items():
        objective = make_objective({"beta": beta, "compare": "first_pair", **slots})
        values[arm] = per_seed(jax.jit(jax.vmap(lambda key, o=objective: train(o, key)))(seed_keys(seeds)))
    return Outcome(values)


def off_policy_rewards(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    actions: int,
    pairs: int,
    skew: float,
    beta: float,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """Scored answers of another policy: which loss finds the optimum of E[R] - beta KL(pi || ref) from them.

    Pairs are drawn from a policy whose logits are N(0, skew^2), independent of reference and rewards; the better one
    comes first, and losses that read rewards get both. Full-batch Adam. Metrics: kl = KL(pi || pi*), pi* = ref
    exp(R / beta) / Z; regret, of E[R] - beta KL against pi*. Source: arXiv 2406.19185.

    Args:
      seeds: of the bandits.
      arms: name -> slots of rl_jax.dpo.Objective, and offset, added to the rewards that this loss reads.
      actions: number of actions.
      pairs: number of pairs.
      skew: of the policy that sampled.
      beta: coefficient of the KL.
      learning_rate: of Adam.
      steps: of the training.
    """

    def train(objective, offset, key):
        key_r, key_ref, key_other, key_draw = jax.random.split(key, 4)
        rewards = jax.random.normal(key_r, (actions,))
        ref = jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (actions,)))
        other = jax.nn.log_softmax(skew * jax.random.normal(key_other, (actions,)))
        drawn = sample_actions(key_draw, other, (pairs, 2))
        better = rewards[drawn[:, :1]] >= rewards[drawn[:, 1:]]
        drawn = jnp.where(better, drawn, drawn[:, ::-1])
        optimum = jax.nn.log_softmax(ref + rewards / beta)

        def loss(logits):
            read = rewards[drawn] + offset
            return preference_loss(jax.nn.log_softmax(logits)[drawn], ref[drawn], objective, rewards=read)

        found = jax.nn.log_softmax(descend(loss, ref, optax.adam(learning_rate), steps))

        def value(log_probs):
            return jnp.sum(jnp.exp(log_probs) * rewards) - beta * kl(log_probs, ref)

        return {"kl": kl(found, optimum), "regret": value(optimum) - value(found)}

    values = {}
    for arm, spec in arms.items():
        slots = {name: choice for name, choice in spec.items() if name != "offset"}
        run = functools.partial(train, make_objective({"beta": beta, **slots}), spec.get("offset", 0.0))
        values[arm] = per_seed(jax.jit(jax.vmap(run))(seed_keys(seeds)))
    return Outcome(values)
