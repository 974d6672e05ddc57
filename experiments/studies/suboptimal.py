"""Which loss finds a good action that the reference hardly takes: maximum likelihood, or what also pushes down."""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import optax

from experiments.studies.base import Outcome, kl, make_objective, per_seed, preference_loss, sample_actions, seed_keys
from rl_jax import dpo

OFFLINE = ("sft", "rwr", "dpo")
ON_POLICY = ("best_of_n", "on_policy_rwr", "reinforce", "ppo", "on_policy_dpo")


def arm_loss(
    method: str,
    log_probs: chex.Array,
    ref: chex.Array,
    old: chex.Array,
    drawn: chex.Array,
    rewards: chex.Array,
    *,
    beta: float,
    temperature: float,
    clip: float,
    objective: dpo.Objective,
) -> chex.Array:
    """The loss of one arm on N groups of K actions.

        sft, best_of_n        -log pi(best of the group)
        rwr, on_policy_rwr    -softmax over the batch of R / temperature, times log pi
        dpo, on_policy_dpo    DPO of the best and the worst of the group
        reinforce             -(R' - mean) log pi
        ppo                   max(-A r, -A clip(r)),   A = R' - mean, r = pi / old;   R' = R - beta log(old / ref)

    Args:
      method: one of OFFLINE and ON_POLICY.
      log_probs: float [A] of the policy, differentiated.
      ref: float [A], log-probs of the reference.
      old: float [A], log-probs of the policy that sampled.
      drawn: int [N, K], actions.
      rewards: float [N, K].
      beta: of the KL, and of DPO.
      temperature: of the reward weights.
      clip: of PPO.
      objective: DPO's.

    Raises:
      ValueError: if the method is unknown.
    """
    chosen, places = log_probs[drawn], jnp.argsort(-rewards, axis=1, stable=True)
    if method in ("sft", "best_of_n"):
        return -jnp.mean(jnp.take_along_axis(chosen, places[:, :1], axis=1))
    if method in ("rwr", "on_policy_rwr"):
        return -jnp.sum(jax.nn.softmax(rewards.ravel() / temperature) * chosen.ravel())
    if method in ("dpo", "on_policy_dpo"):
        pairs = jnp.take_along_axis(drawn, places[:, jnp.array([0, -1])], axis=1)
        return preference_loss(log_probs[pairs], ref[pairs], objective)
    penalised = rewards - beta * (old[drawn] - ref[drawn])
    advantages = penalised - jnp.mean(penalised)
    if method == "reinforce":
        return -jnp.mean(advantages * chosen)
    if method == "ppo":
        ratio = jnp.exp(chosen - old[drawn])
        bounded = jnp.clip(ratio, 1 - clip, 1 + clip)
        return jnp.mean(jnp.maximum(-advantages * ratio, -advantages * bounded))
    raise ValueError(f"method={method!r} is none of {', '.join((*OFFLINE, *ON_POLICY))}")


def suboptimal_data(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    actions: int,
    peak: int,
    width: float,
    reference: int,
    groups: int,
    group_size: int,
    rounds: int,
    reuse: int,
    learning_rate: float,
    beta: float,
    temperature: float,
    clip: float,
) -> Outcome:
    """A bandit of ordered actions, reward exp(-((a - peak) / width)^2); the reference is a normal around `reference`.

    Offline arms are given actions of the reference in every round, the others sample from the policy. Every arm sees as
    many samples, and gets `reuse` updates per round. Metrics: reward, E_pi[R] at the end; kl, KL(pi || ref).
    Source: arXiv 2404.14367 (bandit_experiment of Asap7772/understanding-rlhf: 100 actions,
    peak 70, width 10).

    Args:
      seeds: of the samples.
      arms: name -> dict(method=..., reuse=...); reuse is the study's if an arm has none.
      actions: number of actions.
      peak: the best one.
      width: of the reward.
      reference: mean of the reference, whose standard deviation is 10, mixed with 1 % of the uniform distribution.
      groups: N per round.
      group_size: K.
      rounds: of sampling.
      reuse: updates per round; the learning rate is the same.
      learning_rate: of Adam.
      beta: of the KL in the reward, and of DPO.
      temperature: of the reward weights.
      clip: of PPO.
    """
    place, adam = jnp.arange(actions, dtype=jnp.float32), optax.adam(learning_rate)
    all_rewards = jnp.exp(-jnp.square((place - peak) / width))
    ref = jnp.log(0.99 * jax.nn.softmax(-0.5 * jnp.square((place - reference) / 10.0)) + 0.01 / actions)
    given = dict(beta=beta, temperature=temperature, clip=clip, objective=make_objective(dict(beta=beta)))

    def train(key, method, updates):
        def one_round(carry, key):
            logits, state = carry
            old = jax.lax.stop_gradient(jax.nn.log_softmax(logits))
            drawn = sample_actions(key, ref if method in OFFLINE else old, (groups, group_size))

            def update(carry, _):
                logits, state = carry

                def loss(logits):
                    now = jax.nn.log_softmax(logits)
                    return arm_loss(method, now, ref, old, drawn, all_rewards[drawn], **given)

                step, state = adam.update(jax.grad(loss)(logits), state)
                return (optax.apply_updates(logits, step), state), None

            return jax.lax.scan(update, (logits, state), None, length=updates)[0], None

        (logits, _), _ = jax.lax.scan(one_round, (ref, adam.init(ref)), jax.random.split(key, rounds))
        policy = jax.nn.log_softmax(logits)
        return {"reward": jnp.exp(policy) @ all_rewards, "kl": kl(policy, ref)}

    values = {}
    for name, arm in arms.items():
        method, updates = arm["method"], arm.get("reuse", reuse)
        values[name] = per_seed(jax.jit(jax.vmap(lambda key, m=method, n=updates: train(key, m, n)))(seed_keys(seeds)))
    return Outcome(values)
