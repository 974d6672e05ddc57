"""Wrong labels, and labels that are never wrong."""

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import (
    Outcome,
    bradley_terry,
    curve,
    descend,
    kl,
    make_objective,
    per_seed,
    preference_loss,
    sample_actions,
    seed_keys,
)


def label_noise(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    actions: int,
    pairs: int,
    flip_rate: float,
    beta: float,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """A bandit whose Bradley-Terry labels are flipped with probability flip_rate; the policy that each loss learns.

    Pairs are sampled from the reference, a random softmax policy. Training is full-batch Adam to convergence. Metrics:
    kl = KL(pi || pi*), where pi* = ref exp(r / beta) / Z is DPO's solution without noise; reward = E_pi[r].
    Source: arXiv 2403.00409.

    Args:
      seeds: of the bandits.
      arms: name -> slots of rl_jax.dpo.Objective.
      actions: number of actions.
      pairs: number of labelled pairs.
      flip_rate: probability of a wrong label.
      beta: coefficient of the KL.
      learning_rate: of Adam.
      steps: of the training.
    """

    def world(key):
        key_r, key_ref, key_1, key_2, key_label, key_flip = jax.random.split(key, 6)
        rewards = jax.random.normal(key_r, (actions,))
        ref = jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (actions,)))
        drawn = (sample_actions(k, ref, (pairs,)) for k in (key_1, key_2))
        chosen_first = bradley_terry(key_label, rewards, *drawn)
        flipped = jax.random.bernoulli(key_flip, flip_rate, (pairs, 1))
        return rewards, ref, jnp.where(flipped, chosen_first[:, ::-1], chosen_first)

    def train(objective, rewards, ref, drawn):
        def loss(logits):
            return preference_loss(jax.nn.log_softmax(logits)[drawn], ref[drawn], objective)

        log_probs = jax.nn.log_softmax(descend(loss, ref, optax.adam(learning_rate), steps))
        optimum = jax.nn.log_softmax(ref + rewards / beta)
        return {"kl": kl(log_probs, optimum), "reward": jnp.sum(jnp.exp(log_probs) * rewards)}

    worlds = jax.vmap(world)(seed_keys(seeds))
    values = {}
    for arm, slots in arms.items():
        objective = make_objective({"beta": beta, **slots})
        values[arm] = per_seed(jax.jit(jax.vmap(lambda *w, o=objective: train(o, *w)))(*worlds))
    return Outcome(values)


def deterministic_preferences(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    pairs: int,
    actions: int,
    features: int,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """Each prompt has one pair that is always ordered the same way; the policy is linear in random features.

    There are more features than pairs, so every margin can take any value. Full-batch gradient descent from the
    reference. Metrics: margin, the mean of h = the chosen response's log-ratio minus the rejected one's at the end;
    growth, its growth in the last nine tenths of the steps; kl = KL(pi || ref). Source: arXiv 2310.12036.

    Args:
      seeds: of the features.
      arms: name -> slots of rl_jax.dpo.Objective.
      pairs: number of prompts.
      actions: per prompt.
      features: of the policy.
      learning_rate: of the descent.
      steps: of the training.
    """
    every = max(steps // 100, 1)

    def train(objective, key):
        key_phi, key_ref = jax.random.split(key)
        phi = jax.random.normal(key_phi, (pairs, actions, features)) / jnp.sqrt(features)
        theta = jax.random.normal(key_ref, (features,))

        def policy(theta):
            return jax.nn.log_softmax(jnp.einsum("qaf,f->qa", phi, theta))

        ref = policy(theta)
        trace = descend(
            lambda theta: preference_loss(policy(theta)[:, :2], ref[:, :2], objective),
            theta,
            optax.sgd(learning_rate),
            steps,
            every=every,
        )[1]
        ratios = jax.vmap(policy)(trace) - ref[None]
        margins = jnp.mean(ratios[..., 0] - ratios[..., 1], axis=1)
        metrics = {
            "margin": margins[-1],
            "growth": margins[-1] - margins[len(trace) // 10 - 1],
            "kl": jnp.mean(kl(ratios[-1] + ref, ref)),
        }
        return metrics, margins

    values, margins = {}, {}
    for arm, slots in arms.items():
        objective = make_objective(slots)
        metrics, trace = jax.jit(jax.vmap(lambda key, o=objective: train(o, key)))(seed_keys(seeds))
        values[arm] = per_seed(metrics)
        margins[arm] = curve(every * (1 + np.arange(trace.shape[1])), trace)
    return Outcome(values, {"margin": margins})
