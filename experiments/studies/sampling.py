"""The origin of pairs: the same loss on the same number of pairs from different sources."""

from collections.abc import Mapping, Sequence

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
from rl_jax.losses.reward_model import bradley_terry as reward_loss
from rl_jax.selection import pair_selection


def _draw(key: chex.PRNGKey, log_probs: chex.Array, rewards: chex.Array, pairs: int) -> chex.Array:
    """Pairs of a policy's actions, the chosen one first: int [pairs, 2]. log_probs, rewards: float [A]."""
    key_1, key_2, key_label = jax.random.split(key, 3)
    return bradley_terry(key_label, rewards, *(sample_actions(k, log_probs, (pairs,)) for k in (key_1, key_2)))


def online_offline(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    slots: Mapping,
    actions: int,
    features: int,
    reward_scale: float,
    pairs_per_step: int,
    steps: int,
    learning_rate: float,
    budgets: Sequence[float],
) -> Outcome:
    """A bandit of ordered actions whose best ones are rare in the reference; the reward reached per KL spent.

    Both arms have one fresh Bradley-Terry label per pair, the same updates and the same reference. The reference is a
    normal around action 20 mixed with 1 % of the uniform distribution over all actions. The reward of action a is
    scale exp(-((a - peak) / 20)^2), peak in [60, 80]. The policy adds bumps along the actions to the reference's
    logits. Metrics: reward_kl_B, E_pi[r] when KL(pi || ref) first reaches B; max_kl, the largest KL. The arm `optimum`
    is the frontier itself, ref exp(r / beta) / Z over all beta. Source: arXiv 2405.08448, 2404.14367.

    Args:
      seeds: of the bandits.
      arms: name -> who samples the pairs, "reference" (offline) or "policy" (online).
      slots: of rl_jax.dpo.Objective.
      actions: number of actions.
      features: number of bumps.
      reward_scale: the largest reward.
      pairs_per_step: pairs per update.
      steps: of the training.
      learning_rate: of the optimizer.
      budgets: the KLs B.
    """
    objective, place = make_objective(slots), jnp.arange(actions, dtype=jnp.float32)
    centers = jnp.linspace(0.0, actions - 1.0, features)
    bumps = jnp.exp(-0.5 * jnp.square((place[:, None] - centers[None]) * features / actions))
    normal = jax.nn.softmax(-0.5 * jnp.square((place - 20.0) / 10.0))
    ref, adam = jnp.log(0.99 * normal + 0.01 / actions), optax.adam(learning_rate)

    def rewards_of(key):
        return reward_scale * jnp.exp(-jnp.square((place - jax.random.uniform(key, minval=60.0, maxval=80.0)) / 20.0))

    def at_budgets(rewards, log_probs):
        spent, gained = kl(log_probs, jnp.broadcast_to(ref, log_probs.shape)), jnp.exp(log_probs) @ rewards
        so_far = jax.lax.cummax(spent)  # if the path turns back: where it first reached this KL
        result = {f"reward_kl_{budget:g}": jnp.interp(budget, so_far, gained) for budget in budgets}
        return result | {"max_kl": so_far[-1]}

    def train(key, drawn_by):
        key_world, key_run = jax.random.split(key)
        rewards = rewards_of(key_world)

        def update(carry, key):
            theta, state = carry
            policy = jax.nn.log_softmax(ref + bumps @ theta)
            source = policy if drawn_by == "policy" else ref
            pairs = _draw(key, source, rewards, pairs_per_step)

            def loss(theta):
                return preference_loss(jax.nn.log_softmax(ref + bumps @ theta)[pairs], ref[pairs], objective)

            updates, state = adam.update(jax.grad(loss)(theta), state)
            return (optax.apply_updates(theta, updates), state), policy

        theta = jnp.zeros(features)
        _, path = jax.lax.scan(update, (theta, adam.init(theta)), jax.random.split(key_run, steps))
        return at_budgets(rewards, path)

    def frontier(key):
        rewards = rewards_of(jax.random.split(key)[0])
        strengths = jnp.concatenate([jnp.zeros(1), jnp.logspace(-3.0, 2.0, 400)])
        return at_budgets(rewards, jax.nn.log_softmax(ref[None] + strengths[:, None] * rewards[None]))

    values = {
        arm: per_seed(jax.jit(jax.vmap(lambda key, d=drawn_by: train(key, d)))(seed_keys(seeds)))
        for arm, drawn_by in arms.items()
    }
    return Outcome(values | {"optimum": per_seed(jax.vmap(frontier)(seed_keys(seeds)))})


def pair_origin(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    slots: Mapping,
    actions: int,
    features: int,
    policy_features: int,
    pairs: int,
    candidates: int,
    accepted: int,
    beta: float,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """RSO's comparison: the same loss on offline pairs, on pairs of the SFT policy and on rejection-sampled ones.

    All arms have the same number of pairs. Those of sft and rso are labelled by a ranker, linear in the features of the
    true reward and fitted to the human pairs. All labels are Bradley-Terry samples, from the ranker's rewards or the
    true ones. Metrics: kl = KL(pi || pi*), pi* = ref exp(r / beta) / Z; reward = E_pi[r]; value = reward - beta KL(pi
    || ref). Source: arXiv 2309.06657.

    Args:
      seeds: of the bandits.
      arms: name -> "offline": the human pairs, sampled from another policy; "sft": sampled from the SFT policy, which
        is the reference; "rso": `accepted` of `candidates` samples from it, accepted as if from ref exp(r / beta).
      slots: of rl_jax.dpo.Objective.
      actions: number of actions.
      features: of the true reward.
      policy_features: the policy adds a linear function of the first of these features to the reference's logits; 0
        makes it a table.
      pairs: per arm.
      candidates: samples of rejection sampling.
      accepted: of the candidates.
      beta: coefficient of the KL.
      learning_rate: of the optimizer.
      steps: of the training.
    """
    objective = make_objective(slots)

    def world(key):
        keys = jax.random.split(key, 5)
        phi = jax.random.normal(keys[0], (actions, features)) / jnp.sqrt(features)
        rewards = phi @ jax.random.normal(keys[1], (features,))
        ref, other = (jax.nn.log_softmax(jax.random.normal(k, (actions,))) for k in keys[2:4])
        human = _draw(keys[4], other, rewards, pairs)
        present = jnp.ones(human.shape, bool)

        def loss(weights):  # with a small ridge penalty, so that few pairs give finite weights
            terms = reward_loss((phi @ weights)[human], present)
            return jnp.mean(terms.loss) + 1e-3 * jnp.sum(jnp.square(weights))

        ranker = phi @ descend(loss, jnp.zeros(features), optax.adam(0.05), 500)
        seen = phi[:, :policy_features] if policy_features else jnp.eye(actions)
        return rewards, ref, ranker, human, seen

    def pairs_of(origin, key, rewards, ref, ranker, human):
        if origin == "offline":
            return human
        if origin == "sft":
            return _draw(key, ref, ranker, pairs)
        rounds = 2 * pairs // accepted
        key_draw, key_accept, key_label = jax.random.split(key, 3)
        drawn = sample_actions(key_draw, ref, (rounds, candidates))
        kept = pair_selection.rejection_sample(ranker[drawn], key_accept, num_samples=accepted, beta=beta)
        # In order of acceptance the first ones are the best, so pairs are made across the halves, not of neighbours.
        first, second = jnp.split(jnp.take_along_axis(drawn, kept, axis=1), 2, axis=1)
        return bradley_terry(key_label, ranker, first.ravel(), second.ravel())

    def train(origin, key, rewards, ref, ranker, human, seen):
        chosen_first = pairs_of(origin, jax.random.fold_in(key, 1), rewards, ref, ranker, human)
        chex.assert_shape(chosen_first, (pairs, 2))

        def loss(theta):
            return preference_loss(jax.nn.log_softmax(ref + seen @ theta)[chosen_first], ref[chosen_first], objective)

        theta = descend(loss, jnp.zeros(seen.shape[1]), optax.adam(learning_rate), steps)
        policy = jax.nn.log_softmax(ref + seen @ theta)
        reward = jnp.sum(jnp.exp(policy) * rewards)
        return {
            "kl": kl(policy, jax.nn.log_softmax(ref + rewards / beta)),
            "reward": reward,
            "value": reward - beta * kl(policy, ref),
        }

    keys = seed_keys(seeds)
    worlds = jax.jit(jax.vmap(world))(keys)
    return Outcome(
        {
            arm: per_seed(jax.jit(jax.vmap(lambda *x, o=origin: train(o, *x)))(keys, *worlds))
            for arm, origin in arms.items()
        }
    )


def power_law(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, str],
    slots: Mapping,
    actions: int,
    pairs: int,
    beta: float,
    learning_rate: float,
    steps: int,
) -> Outcome:
    """Chosen responses from one policy, rejected ones from another: for which other is DPO's optimum the target?

    Chosen responses come from a random policy p_w. Metric: kl = KL(pi || pi*), pi* = ref exp(r / beta) / Z.
    Source: arXiv 2505.23761.

    Args:
      seeds: of the bandits.
      arms: name -> source of the rejected responses: "power_law", p_w (ref / pi*)^beta, for which it is; "reference";
        or "uniform".
      slots: of rl_jax.dpo.Objective.
      actions: number of actions.
      pairs: number of pairs.
      beta: coefficient of the KL.
      learning_rate: of the optimizer.
      steps: of the training.
    """
    objective = make_objective(slots)

    def train(rejected, key):
        key_w, key_ref, key_r, key_1, key_2 = jax.random.split(key, 5)
        winners, ref = (jax.nn.log_softmax(0.5 * jax.random.normal(k, (actions,))) for k in (key_w, key_ref))
        target = jax.nn.log_softmax(ref + jax.random.normal(key_r, (actions,)) / beta)
        losers = {
            "power_law": jax.nn.log_softmax(winners + beta * (ref - target)),
            "reference": ref,
            "uniform": jnp.full((actions,), -np.log(actions), jnp.float32),
        }[rejected]
        drawn = jnp.stack([sample_actions(key_1, winners, (pairs,)), sample_actions(key_2, losers, (pairs,))], axis=1)

        def loss(logits):
            return preference_loss(jax.nn.log_softmax(logits)[drawn], ref[drawn], objective)

        policy = jax.nn.log_softmax(descend(loss, ref, optax.adam(learning_rate), steps))
        return {"kl": kl(policy, target)}

    return Outcome(
        {
            arm: per_seed(jax.jit(jax.vmap(lambda key, r=rejected: train(r, key)))(seed_keys(seeds)))
            for arm, rejected in arms.items()
        }
    )
