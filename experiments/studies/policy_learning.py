"""Policies that learn answers with the losses of rl_jax.grpo: clips, ratios, weights and the choice of prompts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, curve, per_seed, seed_keys
from experiments.studies.policy_world import Layout, Recipe, make_method, make_tracker, train


class Answers(NamedTuple):
    """The prompts and right answers of a seed.

    Attributes:
      logits: the initial policy, float [P, N, V].
      rates: probability of reward 1 per completion, float [P, V^T].
    """

    logits: chex.Array
    rates: chex.Array


def make_answers(
    key: chex.PRNGKey,
    layout: Layout,
    *,
    prompts: int,
    logit_scale: float,
    right: tuple[float, float],
    sure: bool = True,
    at_least_one: bool = False,
    fork: Mapping[str, float] | None = None,
) -> Answers:
    """Makes a random initial policy and random right answers; any completion may be right, or none, see at_least_one.

    Args:
      key: of the seed.
      layout: of the completions.
      prompts: number of prompts, P.
      logit_scale: standard deviation of the logits.
      right: range of the fraction of right answers, log-uniform over the prompts.
      sure: whether each completion is always right or always wrong. Otherwise the fraction is the probability of each.
      at_least_one: makes one completion right, drawn uniformly, where `sure` would leave a prompt without any.
      fork: for a rare first token: its probability, and `right`, the fraction of right answers after it.
    """
    keys = jax.random.split(key, 3)
    logits = logit_scale * jax.random.normal(keys[0], (prompts, layout.contexts, layout.vocab))
    low, high = (float(np.log(share)) for share in right)
    shares = jnp.exp(jax.random.uniform(keys[1], (prompts, 1), minval=low, maxval=high))
    shares = jnp.broadcast_to(shares, (prompts, layout.vocab**layout.length))
    if fork is not None:
        odds = float(np.log(fork["probability"] / (1.0 - fork["probability"])))
        logits = logits.at[:, 0, -1].set(odds + jax.nn.logsumexp(logits[:, 0, :-1], axis=-1))
        shares = shares.at[:, -(layout.vocab ** (layout.length - 1)) :].set(fork["right"])
    rates = jax.random.bernoulli(keys[2], shares).astype(logits.dtype) if sure else shares
    if at_least_one:
        drawn = jax.random.randint(jax.random.fold_in(key, 3), (prompts,), 0, rates.shape[1])  # 0 to 2 are `keys`
        rescued = jax.nn.one_hot(drawn, rates.shape[1], dtype=rates.dtype)
        rates = jnp.where(jnp.any(rates > 0, axis=1, keepdims=True), rates, rescued)
    return Answers(logits, rates)


def noise_of(key: chex.PRNGKey, shape: tuple[int, ...]) -> chex.Array:
    """The noisy sampler's noise of a seed, standard normal. fold_in(key, 2) drew the seed's right answers."""
    return jax.random.normal(jax.random.fold_in(key, 4), shape)


def answers_by_policy_gradient(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    vocab: int,
    length: int,
    world: Mapping,
    recipe: Mapping,
    sampler_noise: float = 0.0,
    ks: Sequence[int] = (),
) -> Outcome:
    """Each arm learns the same answers with the same seeds.

    Metrics: reward, the probability of a right answer at the end, and learning, its mean over the training; entropy,
    nats per token at the end, and mean_entropy, over the training; fork, the probability of the vocabulary's last token
    as the first token. These are sums over all completions. reward_at_budget, the reward after as many samples as the
    steps take without dynamic sampling; clip_low and clip_high, fractions of tokens over all updates. pass_k, for each
    of `ks`: the chance that one of k completions is right, at the end, and start_pass_k, before. worst: the mean reward
    of the quarter of the prompts that began with the least.

    Args:
      seeds: of the answers.
      arms: name -> slots (that replace GRPO's, see make_method), recipe (fields that replace the common ones), sampler
        ("exact", or "noisy": logits with normal noise of scale sampler_noise, sampled once). recipe.tracker: a
        function of rl_jax.core.trackers, or an import path, and its keywords.
      vocab: V of a completion.
      length: T of a completion.
      world: keywords of make_answers.
      recipe: fields of policy_world.Recipe.
      sampler_noise: standard deviation of the noisy sampler's noise.
      ks: of pass_k.
    """
    layout = Layout(vocab, length)
    keys = seed_keys(seeds)
    worlds = jax.jit(jax.vmap(lambda key: make_answers(key, layout, **world)))(keys)

    def run(arm: Mapping[str, Any], key, answers: Answers):
        fields = {**recipe, **arm.get("recipe", {})}
        if arm.get("sampler", "exact") == "noisy":
            noise = sampler_noise * noise_of(key, answers.logits.shape)
            fields["sampler"] = lambda logits: logits + noise

        memory = dict(num_prompts=world["prompts"], group_size=fields["group_size"])
        fields["tracker"] = make_tracker(fields.get("tracker"), **memory)

        def reward(key, prompts, rollout):
            rates = answers.rates[prompts, layout.completion_of(rollout.batch.tokens[:, 1:])]
            return jax.random.bernoulli(key, rates).astype(rates.dtype)

        def observe(logits):
            log_probs = layout.log_probs(logits)
            probabilities = jnp.exp(log_probs)
            fork = jnp.mean(jax.nn.softmax(logits[:, 0])[:, -1])
            passed = jnp.sum(probabilities * answers.rates, axis=1)
            return passed, -jnp.mean(jnp.sum(probabilities * log_probs, axis=1)) / length, fork

        chosen = Recipe(reward=reward, **fields)
        method = make_method(arm.get("slots", {}))
        _, (each, entropy, fork), steps = train(  # only keys come of this one, and the shares were drawn with it
            jax.random.fold_in(key, 1), answers.logits, method, chosen, layout, observe
        )
        passed, hardest = jnp.mean(each, axis=1), jnp.argsort(each[0])[: max(each.shape[1] // 4, 1)]
        budget = chosen.steps * chosen.groups * chosen.group_size
        drawn = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps.drawn)])
        metrics = {
            "reward": passed[-1],
            "learning": jnp.mean(passed),
            "entropy": entropy[-1],
            "mean_entropy": jnp.mean(entropy),
            "fork": fork[-1],
            "reward_at_budget": jnp.interp(budget, drawn, passed),
            "clip_low": jnp.mean(steps.clip_low),
            "clip_high": jnp.mean(steps.clip_high),
            "worst": jnp.mean(each[-1, hardest]),
        }
        for k in ks:
            found = 1.0 - jnp.mean(jnp.power(1.0 - each[jnp.array([0, -1])], k), axis=1)
            metrics |= {f"start_pass_{k}": found[0], f"pass_{k}": found[1]}
        return metrics, {"reward": passed, "entropy": entropy, "fork": fork}

    values, curves = {}, {"reward": {}, "entropy": {}, "fork": {}}
    for name, arm in arms.items():
        metrics, traces = jax.jit(jax.vmap(lambda key, made, a=arm: run(a, key, made)))(keys, worlds)
        values[name] = per_seed(metrics)
        for title, trace in traces.items():
            every = max(trace.shape[1] // 100, 1)
            curves[title][name] = curve(range(0, trace.shape[1], every), trace[:, ::every])
    return Outcome(values, curves)
