"""Preference optimization in iterations, each with pairs of the policy as it is then."""

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
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
from rl_jax.core.binding import bind
from rl_jax.selection import reference_policy


def preference_iterations(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    slots: Mapping,
    actions: int,
    pairs: int,
    iterations: int,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """A bandit: in each iteration the policy's own pairs are labelled by Bradley-Terry, and train it from where it is.

    Rewards are N(0, 1), the first reference is a random softmax policy. The schedule then moves reference and policy.
    Metrics: regret_i, the best reward minus E_pi[r] after i iterations; kl, from the first reference, at the end.
    Source: arXiv 2410.06293.

    Args:
      seeds: of the bandits and pairs.
      arms: name -> schedule, of rl_jax.selection.reference_policy, and slots that replace the common ones.
      slots: of rl_jax.dpo.Objective.
      actions: number of actions.
      pairs: labelled in an iteration.
      iterations: number of them.
      learning_rate: of Adam, which begins anew in each.
      steps: updates of an iteration.
    """

    def train(objective, schedule, key):
        key_r, key_ref, key = jax.random.split(key, 3)
        rewards = jax.random.normal(key_r, (actions,))
        logits = first = jax.nn.log_softmax(0.5 * jax.random.normal(key_ref, (actions,)))
        references, regrets = reference_policy.start(schedule, logits), []
        for number in range(1, iterations + 1):
            key_1, key_2, key_label = jax.random.split(jax.random.fold_in(key, number), 3)
            policy, ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(references.ref)
            drawn = bradley_terry(key_label, rewards, *(sample_actions(k, policy, (pairs,)) for k in (key_1, key_2)))

            def loss(logits, ref=ref, drawn=drawn):
                return preference_loss(jax.nn.log_softmax(logits)[drawn], ref[drawn], objective)

            logits = descend(loss, logits, optax.adam(learning_rate), steps)
            references, logits = schedule(references, logits, number)
            regrets.append(jnp.max(rewards) - jnp.sum(jax.nn.softmax(logits) * rewards))
        metrics = {f"regret_{i}": regret for i, regret in enumerate(regrets, start=1)}
        return metrics | {"kl": kl(jax.nn.log_softmax(logits), first)}

    values, regrets = {}, {}
    for arm, spec in arms.items():
        objective = make_objective({**slots, **spec.get("slots", {})})
        run = functools.partial(train, objective, bind(spec["schedule"], reference_policy))
        values[arm] = per_seed(jax.jit(jax.vmap(run))(seed_keys(seeds)))
        numbers = range(1, iterations + 1)
        regrets[arm] = curve(numbers, jnp.stack([values[arm][f"regret_{i}"] for i in numbers], axis=1))
    return Outcome(values, {"regret": regrets})
