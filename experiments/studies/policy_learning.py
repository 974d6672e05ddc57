"""Policies that learn answers by the losses of rl_jax.grpo: clips, ratios, weights and the choice of prompts."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, curve, per_seed, seed_keys
from experiments.studies.policy_world import Layout, Recipe, make_method, train


class Answers(NamedTuple):
    """A seed's world. logits: float [P, N, V], the policy at the start. rates: float [P, V^T], chances of reward 1."""

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
    fork: Mapping[str, float] | None = None,
) -> Answers:
    """The policy starts as a random one; any completion may be a right answer.

    logit_scale: their standard deviation. right: the share of right answers, log-uniform between the two over the
    prompts. sure: a completion is always right or always wrong; else the share is the chance of each completion.
    fork: probability and right of a rare token that may come first: how rare, and the share of right answers behind it.
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
    return Answers(logits, rates)


def answers_by_policy_gradient(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    vocab: int,
    length: int,
    world: Mapping,
    recipe: Mapping,
    sampler_noise: float = 0.0,
) -> Outcome:
    """Each arm learns the same answers with the same seeds.

    arms: name -> slots (what the method has in place of GRPO's, see make_method), recipe (fields in place of those all
    have), sampler ("exact", or "noisy": logits with normal noise of sampler_noise that is drawn once). vocab, length:
    of a completion. world: keywords of make_answers. recipe: fields of policy_world.Recipe.
    Metrics: reward, the chance of a right answer at the end, and learning, its mean over the training; entropy, nats a
    token at the end, and mean_entropy, over the training; fork, the probability of the vocabulary's last token at the
    first place; these are sums over all completions. reward_at_budget, the reward after as many samples as steps
    without dynamic sampling take; clip_low, clip_high, shares of tokens over all updates.
    """
    layout = Layout(vocab, length)
    keys = seed_keys(seeds)
    worlds = jax.jit(jax.vmap(lambda key: make_answers(key, layout, **world)))(keys)

    def run(arm: Mapping[str, Any], key, answers: Answers):
        fields = {**recipe, **arm.get("recipe", {})}
        if arm.get("sampler", "exact") == "noisy":
            noise = sampler_noise * jax.random.normal(jax.random.fold_in(key, 2), answers.logits.shape)
            fields["sampler"] = lambda logits: logits + noise

        def reward(key, prompts, rollout):
            rates = answers.rates[prompts, layout.completion_of(rollout.batch.tokens[:, 1:])]
            return jax.random.bernoulli(key, rates).astype(rates.dtype)

        def observe(logits):
            log_probs = layout.log_probs(logits)
            probabilities = jnp.exp(log_probs)
            fork = jnp.mean(jax.nn.softmax(logits[:, 0])[:, -1])
            passed = jnp.mean(jnp.sum(probabilities * answers.rates, axis=1))
            return passed, -jnp.mean(jnp.sum(probabilities * log_probs, axis=1)) / length, fork

        chosen = Recipe(reward=reward, **fields)
        method = make_method(arm.get("slots", {}))
        _, (passed, entropy, fork), steps = train(
            jax.random.fold_in(key, 1), answers.logits, method, chosen, layout, observe
        )
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
        }
        return metrics, {"reward": passed, "entropy": entropy, "fork": fork}

    values, curves = {}, {"reward": {}, "entropy": {}, "fork": {}}
    for name, arm in arms.items():
        metrics, traces = jax.jit(jax.vmap(lambda key, made, a=arm: run(a, key, made)))(keys, worlds)
        values[name] = per_seed(metrics)
        for title, trace in traces.items():
            every = max(trace.shape[1] // 100, 1)
            curves[title][name] = curve(range(0, trace.shape[1], every), trace[:, ::every])
    return Outcome(values, curves)
