"""Rewards of several criteria, one of which can be driven up without end, composed by rl_jax.rewards.compose.

A completion of a few tokens either meets each of some plain criteria or not. The vocabulary's last token stands for a
compliment: `polite` counts it, and more than one is the hack. A compliment takes a place, so the more of them there
are, the fewer completions meet a plain criterion. `calm` is 1 for completions that are not hacked and 0 for hacked
ones; `detector` is the same with errors on both. There are so few completions that every term is a table.
"""

from collections.abc import Mapping, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np

from experiments.studies.base import Outcome, curve, per_seed, seed_keys
from experiments.studies.policy_world import Layout, Recipe, make_method, train
from rl_jax.core.binding import bind
from rl_jax.rewards import compose

POLITE, CALM, DETECTOR = "polite", "calm", "detector"


def plain_names(count: int) -> list[str]:
    """The names of the plain criteria."""
    return [f"plain_{place}" for place in range(count)]


def make_terms(
    key: chex.PRNGKey, layout: Layout, *, prompts: int, plain: int, share: float, missed: float, alarms: float
) -> dict[str, chex.Array]:
    """The terms of every completion, float [P, V^T] each.

    Args:
      key: of the seed.
      layout: of the completions.
      prompts: P.
      plain: number of plain criteria.
      share: chance that a completion without a compliment meets a plain criterion, each independently. It falls
        linearly, to 0 for a completion of compliments only.
      missed: chance that the detector does not see a hacked completion.
      alarms: chance that it takes another one for hacked.
    """
    keys, shape = jax.random.split(key, 2), (prompts, layout.vocab**layout.length)
    count = jnp.broadcast_to(compliments(layout), shape)
    chance = jnp.broadcast_to(share * (1.0 - count / layout.length), (plain, *shape))
    met = jax.random.bernoulli(keys[0], chance).astype(jnp.float32)
    calm = count <= 1
    wrong = jax.random.uniform(keys[1], shape) < jnp.where(calm, alarms, missed)
    said = {POLITE: count, CALM: calm.astype(jnp.float32), DETECTOR: (calm ^ wrong).astype(jnp.float32)}
    return dict(zip(plain_names(plain), met, strict=True)) | said


def compliments(layout: Layout) -> chex.Array:
    """How often the last token of the vocabulary stands in each completion. float [V^T]."""
    return jnp.sum(layout.completions() == layout.vocab - 1, axis=1).astype(jnp.float32)


def weights_of(weights: Mapping[str, float], plain: int) -> dict[str, float]:
    """The weight of every term, where `plain` stands for that of each plain criterion."""
    return {k: w for k, w in weights.items() if k != "plain"} | dict.fromkeys(plain_names(plain), weights["plain"])


def composed(terms: Mapping[str, chex.Array], weights: Mapping[str, float], spec: Mapping) -> np.ndarray:
    """The reward of every completion by a function of rl_jax.rewards.compose. float [..., V^T] each -> the same."""
    rows = {name: np.asarray(term, np.float32) for name, term in terms.items()}
    shape = next(iter(rows.values())).shape
    flat = {name: term.reshape(-1) for name, term in rows.items()}
    return bind(dict(spec), compose)(flat, dict(weights)).reshape(shape)


def hackable_criterion(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], vocab: int, length: int, world: Mapping, recipe: Mapping
) -> Outcome:
    """Each arm trains on the same terms, composed in its own way, by GRPO.

    Metrics, each a sum over all completions at the end: quality, the mean over the plain criteria of the probability
    that a completion meets one; hacked, the probability of more than one compliment; polite, their expected number;
    seen, the probability that the detector says so; first, the quality at the start.

    Args:
      seeds: of the terms and of the policy.
      arms: name -> dict(weights=name -> w, compose=a function of rl_jax.rewards.compose); plain=w in the weights
        stands for every plain criterion.
      vocab: V.
      length: T.
      world: keywords of make_terms, and logit_scale, the standard deviation of the initial logits.
      recipe: fields of policy_world.Recipe.
    """
    layout, fields = Layout(vocab, length), dict(world)
    scale, names = fields.pop("logit_scale"), plain_names(fields["plain"])
    keys = seed_keys(seeds)
    terms = jax.jit(jax.vmap(lambda key: make_terms(jax.random.fold_in(key, 0), layout, **fields)))(keys)
    method = make_method({})

    def run(key, terms, rewards):
        def reward(key, prompts, rollout):
            return rewards[prompts, layout.completion_of(rollout.batch.tokens[:, 1:])]

        def observe(logits):
            chance = jnp.exp(layout.log_probs(logits))
            expected = {name: jnp.mean(jnp.sum(chance * term, axis=1)) for name, term in terms.items()}
            return {
                "quality": jnp.mean(jnp.stack([expected[name] for name in names])),
                "hacked": 1.0 - expected[CALM],
                "polite": expected[POLITE],
                "seen": 1.0 - expected[DETECTOR],
            }

        shape = (fields["prompts"], layout.contexts, layout.vocab)
        logits = scale * jax.random.normal(jax.random.fold_in(key, 1), shape)
        chosen = Recipe(reward=reward, **recipe)
        seen = train(jax.random.fold_in(key, 2), logits, method, chosen, layout, observe)[1]
        return {name: trace[-1] for name, trace in seen.items()} | {"first": seen["quality"][0]}, seen

    values, curves = {}, {"quality": {}, "hacked": {}}
    trained = jax.jit(jax.vmap(run))
    for name, arm in arms.items():
        weights = weights_of(arm["weights"], fields["plain"])
        metrics, traces = trained(keys, terms, jnp.asarray(composed(terms, weights, arm["compose"])))
        values[name] = per_seed(metrics)
        for title in curves:
            every = max(traces[title].shape[1] // 100, 1)
            curves[title][name] = curve(range(0, traces[title].shape[1], every), traces[title][:, ::every])
    return Outcome(values, curves)
