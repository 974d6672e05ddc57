"""Estimates of the policy gradient compared with the exact one: baselines, and the KL in the loss or in the reward."""

from collections.abc import Callable, Mapping, Sequence

import chex
import jax
import jax.numpy as jnp

from experiments.studies.base import Outcome, curve, kl, per_seed, seed_keys
from experiments.studies.policy_world import (
    Layout,
    Recipe,
    greedy_rewards,
    loss_of,
    make_method,
    rows_of,
    sample,
    score,
    train,
)
from rl_jax import grpo
from rl_jax.advantages import no_baseline
from rl_jax.core.types import PolicyBatch, Rollout
from rl_jax.credit import rule


def expected_gradient(logits: chex.Array, batch: PolicyBatch, objective: grpo.Objective, layout: Layout) -> chex.Array:
    """The mean gradient of the loss of a single row, which is row i of `batch` with probability pi_i.

    Args:
      logits: float [1, N, V].
      batch: all completions of the one prompt, each once.
      objective: the loss.
      layout: of the completions.

    Returns:
      float [1, N, V].
    """
    probabilities = jnp.exp(layout.log_probs(logits))[0]

    def mean_loss(logits):
        rows = jax.tree.map(lambda x: x[:, None], batch)
        losses = jax.vmap(lambda row: loss_of(logits, row, objective, layout)[0])(rows)
        return jnp.sum(jax.lax.stop_gradient(probabilities) * losses)

    return jax.grad(mean_loss)(logits)


def moments_of(estimate: Callable, exact: chex.Array, keys: chex.Array) -> dict[str, chex.Array]:
    """How estimates of a gradient are distributed around the exact one.

    Args:
      estimate: key -> float [M].
      exact: float [M].
      keys: [S], one per estimate.

    Returns:
      The metrics of gradient_noise except for its gain.
    """
    samples = keys.shape[0]

    def add(carry, key):
        result = estimate(key)
        norms = jnp.linalg.norm(result) * jnp.linalg.norm(exact)
        aligned = jnp.where(norms > 0, result @ exact / jnp.where(norms > 0, norms, 1.0), 0.0)
        total, squares, cosines = carry
        return (total + result, squares + jnp.sum(jnp.square(result)), cosines + aligned), None

    start = jnp.zeros_like(exact), jnp.zeros(()), jnp.zeros(())
    (total, squares, cosines), _ = jax.lax.scan(add, start, keys)
    mean = total / samples
    variance = (squares - samples * jnp.sum(jnp.square(mean))) / (samples - 1)
    size, exact_size = jnp.linalg.norm(mean), jnp.linalg.norm(exact)
    return {
        "alignment": cosines / samples,
        "cosine": mean @ exact / (size * exact_size),
        # |mean|^2 exceeds |E g|^2 by the variance of the mean.
        "noise": variance / jnp.maximum(jnp.square(size) - variance / samples, 1e-30),
        "bias": jnp.linalg.norm(mean - exact) / exact_size,
        "bias_squared": (jnp.sum(jnp.square(mean - exact)) - variance / samples) / jnp.square(exact_size),
    }


def gradient_noise(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    vocab: int,
    length: int,
    logit_scale: float,
    offset: float,
    group_size: int,
    samples: int,
    learning: Mapping,
) -> Outcome:
    """The gradient of one group of samples, on policy, compared with the exact gradient of the expected reward.

    A seed is a policy with logits N(0, logit_scale^2) and rewards N(0, 1) per completion, plus `offset` for all, like a
    reward model's. Metrics: alignment, the mean cosine of one estimate with the exact gradient; cosine, that of the
    mean estimate; noise, tr Cov / |E g|^2; bias, |E g - exact| / |exact|, of a finite mean, which adds sqrt(noise /
    samples) to it; bias_squared, its square without what the finite mean adds, so that its expectation is that of E g
    and it may be negative; gain, the growth of the expected reward, in standard deviations of a completion's.

    Args:
      seeds: of the policies and rewards.
      arms: name -> slots (see make_method).
      vocab: V of a completion.
      length: T of a completion.
      logit_scale: standard deviation of the logits.
      offset: added to every reward.
      group_size: samples per estimate.
      samples: groups over which the moments are taken.
      learning: prompts, and the fields of Recipe with which each arm is trained as well.
    """
    layout, keys = Layout(vocab, length), seed_keys(seeds)

    def world(key, prompts):
        key_logits, key_rewards = jax.random.split(key)
        logits = logit_scale * jax.random.normal(key_logits, (prompts, layout.contexts, layout.vocab))
        return logits, offset + jax.random.normal(key_rewards, (prompts, layout.vocab**layout.length))

    def value(logits, rewards):
        return jnp.mean(jnp.sum(jnp.exp(layout.log_probs(logits)) * rewards, axis=1))

    def judge(rewards):
        return lambda key, prompts, rollout: rewards[prompts, layout.completion_of(rollout.batch.tokens[:, 1:])]

    def moments(method, key):
        choices, objective = method
        logits, rewards = world(key, 1)
        prompts = jnp.zeros(group_size, jnp.int32)
        named = greedy_rewards(judge(rewards), layout)(key, logits, prompts)

        def estimate(key):
            rollout = sample(key, logits, prompts, layout)
            earned = judge(rewards)(key, prompts, rollout)
            batch = rule.assign(choices, rollout, earned, group_size=group_size, key=key, **named)
            return -jax.grad(lambda x: loss_of(x, batch, objective, layout)[0])(logits).ravel()

        exact = jax.grad(value)(logits, rewards).ravel()
        return moments_of(estimate, exact, jax.random.split(jax.random.fold_in(key, 1), samples))

    def learn(method, key):
        logits, rewards = world(key, learning["prompts"])
        fields = {name: x for name, x in learning.items() if name != "prompts"}
        recipe = Recipe(reward=judge(rewards), named=greedy_rewards(judge(rewards), layout), **fields)
        return train(jax.random.fold_in(key, 1), logits, method, recipe, layout, lambda x: value(x, rewards))[1]

    values, curves = {}, {}
    for name, slots in arms.items():
        method = make_method(slots)
        metrics = per_seed(jax.jit(jax.vmap(lambda key, m=method: moments(m, key)))(keys))
        rewards = jax.jit(jax.vmap(lambda key, m=method: learn(m, key)))(keys)
        values[name] = metrics | per_seed({"gain": rewards[:, -1] - rewards[:, 0]})
        curves[name] = curve(range(rewards.shape[1]), rewards)
    return Outcome(values, {"reward": curves})


def kl_placement(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    slots: Mapping,
    vocab: int,
    length: int,
    logit_scale: float,
    beta: float,
    recipe: Mapping,
) -> Outcome:
    """Maximises E[R] - beta KL(pi || ref) with the KL in the loss or in the reward, and measures how close that comes.

    Rewards are N(0, 1) per completion; the reference is the initial policy. The coefficient is beta in both places.
    Metrics: kl_to_optimum, KL(pi || pi*) at the end, pi* = ref exp(R / beta) / Z; kl, KL(pi || ref) at the end; pull
    and cosine, at pi*: <g, exact> / |exact|^2 and the cosine of g, the expected gradient of the KL term alone, with the
    exact gradient of KL(pi || ref). Both are sums over all completions, and 0 if g is.

    Args:
      seeds: of the policies and rewards.
      arms: name -> reward_kl_coef, for a KL in the reward, or slots for one in the loss, added to the common ones (see
        make_method).
      slots: common to all arms.
      vocab: V of a completion.
      length: T of a completion.
      logit_scale: standard deviation of the logits.
      beta: coefficient of the KL.
      recipe: fields of Recipe.
    """
    layout = Layout(vocab, length)

    def run(arm, key):
        key_ref, key_rewards, key_run = jax.random.split(key, 3)
        ref = logit_scale * jax.random.normal(key_ref, (1, layout.contexts, layout.vocab))
        rewards = jax.random.normal(key_rewards, (1, layout.vocab**layout.length))
        ref_log_probs = layout.log_probs(ref)
        optimum = jax.nn.log_softmax(ref_log_probs + rewards / beta)

        def observe(logits):
            log_probs = layout.log_probs(logits)
            return kl(log_probs, optimum)[0], kl(log_probs, ref_log_probs)[0]

        def judge(key, prompts, rollout):
            return rewards[prompts, layout.completion_of(rollout.batch.tokens[:, 1:])]

        method = make_method({**slots, **arm.get("slots", {})})
        chosen = Recipe(reward=judge, ref=ref, reward_kl_coef=arm.get("reward_kl_coef", 0.0), **recipe)
        _, (to_optimum, to_ref), _ = train(key_run, ref, method, chosen, layout, observe)
        at = _table_of(optimum, layout)
        bare = _gradient_of_kl(at, ref, method, chosen.reward_kl_coef > 0, layout)
        exact = jax.grad(lambda x: kl(layout.log_probs(x), ref_log_probs)[0])(at)
        dot, square = jnp.sum(bare * exact), jnp.sum(jnp.square(exact))
        norm = jnp.sqrt(jnp.sum(jnp.square(bare)))
        metrics = {
            "kl_to_optimum": to_optimum[-1],
            "kl": to_ref[-1],
            "pull": dot / square,
            "cosine": dot / jnp.sqrt(square) / jnp.where(norm > 1e-6, norm, jnp.inf),
        }
        return metrics, to_optimum

    values, curves = {}, {}
    for name, arm in arms.items():
        metrics, trace = jax.jit(jax.vmap(lambda key, a=arm: run(a, key)))(seed_keys(seeds))
        values[name] = per_seed(metrics)
        every = max(trace.shape[1] // 100, 1)
        curves[name] = curve(range(0, trace.shape[1], every), trace[:, ::every])
    return Outcome(values, {"kl_to_optimum": curves})


def _gradient_of_kl(logits: chex.Array, ref: chex.Array, method: tuple, in_reward: bool, layout: Layout) -> chex.Array:
    """The method's expected gradient if all completions have reward 0, with a KL coefficient of 1."""
    choices, objective = method
    tokens = layout.completions()
    rows, mask = rows_of(jnp.zeros(tokens.shape[0], jnp.int32), tokens), layout.mask_of(tokens)
    log_probs = jax.lax.stop_gradient(score(logits, rows, layout).log_probs)
    batch = rule.assign(
        choices._replace(advantage=no_baseline),  # there are no groups, and a baseline does not change the expectation
        Rollout(rows, mask, log_probs, log_probs, mask[:, -1], ~mask[:, -1]),
        jnp.zeros(tokens.shape[0]),
        group_size=1,
        key=jax.random.key(0),
        ref_log_probs=score(ref, rows, layout).log_probs,
        log_probs=log_probs,
        reward_kl_coef=float(in_reward),
    )
    batch = batch._replace(old_log_probs=log_probs)
    return expected_gradient(logits, batch, objective._replace(kl_coef=float(not in_reward)), layout)


def _table_of(log_probs: chex.Array, layout: Layout) -> chex.Array:
    """The policy with these log-probs of completions. float [P, V^T] -> logits float [P, N, V]."""
    tables = []
    for t in range(layout.length):
        by_prefix = log_probs.reshape(log_probs.shape[0], layout.vocab ** (t + 1), -1)
        tables.append(jax.nn.logsumexp(by_prefix, axis=-1).reshape(log_probs.shape[0], -1, layout.vocab))
    return jax.nn.log_softmax(jnp.concatenate(tables, axis=1))
