"""A small policy that learns to satisfy random formulas, with the levels of each step chosen by a source of prompts.

A formula is a matrix X [L, K] of 1, -1 and 0: which variable stands in which clause, and negated or not. The policy
passes messages between clauses and variables a few times and gives the log-odds of each variable; a completion is the K
sampled values. It is trained by rl_jax.grpo.loss; the sources are those of a run (rl_jax.experience.sources).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, curve, per_seed, seed_keys
from rl_jax import grpo
from rl_jax.advantages import group_relative
from rl_jax.core.binding import bind
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.experience import Feedback, PromptTable, sources
from rl_jax.tasks.sat import difficulty

SIZE = 3  # literals of a clause
HELD_OUT = 128  # formulas per level of the evaluation


class Recipe(NamedTuple):
    """How a policy is trained.

    Attributes:
      groups: formulas per step.
      group_size: G.
      steps: of the training.
      learning_rate: of Adam.
      width: of the messages.
      rounds: of messages.
    """

    groups: int
    group_size: int
    steps: int
    learning_rate: float
    width: int = 16
    rounds: int = 2


def make_formula(key: chex.PRNGKey, clauses: chex.Array, *, variables: int, longest: int) -> chex.Array:
    """A formula with a solution: X float [L, K], rows of 0 after the first `clauses`.

    An assignment is drawn first; of the 8 signs of a clause one of the 7 that it satisfies, uniformly.
    """
    keys = jax.random.split(key, 3)
    planted = jnp.where(jax.random.bernoulli(keys[0], shape=(variables,)), 1.0, -1.0)
    _, chosen = jax.lax.top_k(jax.random.uniform(keys[1], (longest, variables)), SIZE)
    agrees = jax.random.randint(keys[2], (longest, 1), 1, 2**SIZE) >> jnp.arange(SIZE)[None] & 1
    signs = jnp.where(agrees == 1, 1.0, -1.0) * planted[chosen]
    formula = jnp.sum(jax.nn.one_hot(chosen, variables) * signs[..., None], axis=1)
    return jnp.where(jnp.arange(longest)[:, None] < clauses, formula, 0.0)


def satisfied(formula: chex.Array, values: chex.Array) -> chex.Array:
    """Whether assignments satisfy a formula. float [L, K], float [N, K] of 1 and -1 -> bool [N]."""
    true = jnp.max(formula[None] * values[:, None], axis=-1) > 0
    unused = jnp.sum(jnp.abs(formula), axis=1) == 0
    return jnp.all(true | unused[None], axis=-1)


def init_policy(key: chex.PRNGKey, width: int) -> dict[str, chex.Array]:
    """Random messages; the last layer is 0, so that every assignment is equally likely at first."""
    shapes = {"clause": (width, width), "own": (width, width), "signed": (width, width), "plain": (width, width)}
    keys = jax.random.split(key, len(shapes) + 1)
    params = {n: jax.random.normal(k, s) / np.sqrt(width) for k, (n, s) in zip(keys[1:], shapes.items(), strict=True)}
    return params | {"first": jax.random.normal(keys[0], (2, width)), "last": jnp.zeros((width,))}


def log_odds(params: Mapping[str, chex.Array], formula: chex.Array, rounds: int) -> chex.Array:
    """The log-odds of each variable being 1. float [L, K] -> float [K]."""
    plain = jnp.abs(formula)
    count = 1.0 + jnp.sum(plain, axis=0)[:, None]
    inputs = jnp.concatenate([jnp.sum(formula, axis=0)[:, None] / jnp.sqrt(count), jnp.log(count)], axis=1)
    hidden = jnp.tanh(inputs @ params["first"])
    for _ in range(rounds):
        clauses = jnp.tanh(formula @ hidden @ params["clause"])
        messages = formula.T @ clauses @ params["signed"] + plain.T @ clauses @ params["plain"]
        hidden = jnp.tanh(hidden @ params["own"] + messages / jnp.sqrt(count))
    return hidden @ params["last"]


def scores_of(odds: chex.Array, tokens: chex.Array) -> TokenScores:
    """Log-probs and entropies of sampled values. float [B, K], int [B, K] of 0 and 1 -> [B, K]."""
    log_probs = jnp.where(tokens == 1, jax.nn.log_sigmoid(odds), jax.nn.log_sigmoid(-odds))
    chance = jax.nn.sigmoid(odds)
    return TokenScores(log_probs, -chance * jax.nn.log_sigmoid(odds) - (1 - chance) * jax.nn.log_sigmoid(-odds))


def make_step(recipe: Recipe, tx: optax.GradientTransformation, *, variables: int, longest: int):
    """Makes step(params, state, key, clauses int [groups]) -> (params, state, rewards float [groups, G])."""
    choices = rule.CreditRule(advantage=group_relative)
    objective = grpo.Objective(kl_coef=0.0)

    def step(params, state, key, clauses):
        key_formula, key_sample, key_credit = jax.random.split(key, 3)
        make = jax.vmap(lambda k, n: make_formula(k, n, variables=variables, longest=longest))
        formulas = make(jax.random.split(key_formula, recipe.groups), clauses)

        def odds_of(params):
            each = jax.vmap(lambda formula: log_odds(params, formula, recipe.rounds))(formulas)
            return jnp.repeat(each, recipe.group_size, axis=0)

        odds = odds_of(params)
        tokens = jax.random.bernoulli(key_sample, jax.nn.sigmoid(odds)).astype(jnp.int32)
        values = (2.0 * tokens - 1.0).reshape(recipe.groups, recipe.group_size, variables)
        rewards = jax.vmap(satisfied)(formulas, values).astype(jnp.float32)
        before, mask = scores_of(odds, tokens).log_probs, jnp.ones(tokens.shape, bool)
        done = jnp.ones(tokens.shape[:1], bool)
        rollout = Rollout(TokenBatch(tokens, tokens, tokens), mask, before, before, done, ~done)
        batch = rule.assign(choices, rollout, rewards.reshape(-1), group_size=recipe.group_size, key=key_credit)
        batch = batch._replace(old_log_probs=before)

        def loss(params):
            return grpo.loss(scores_of(odds_of(params), tokens), batch, objective)[0].value()

        updates, state = tx.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state, rewards

    return step


def pass_rates(params, key: chex.PRNGKey, rounds: int, clauses: chex.Array, *, variables: int, longest: int):
    """The exact probability of a satisfying sample, mean over held-out formulas, per level. int [M] -> float [M]."""
    codes = jnp.arange(2**variables)[:, None] >> jnp.arange(variables)[None] & 1
    values = 2.0 * codes - 1.0

    def of_formula(key, count):
        formula = make_formula(key, count, variables=variables, longest=longest)
        odds = log_odds(params, formula, rounds)
        chance = jnp.exp(jnp.sum(jax.nn.log_sigmoid(odds[None] * values), axis=1))
        return jnp.sum(chance * satisfied(formula, values))

    keys = jax.random.split(key, HELD_OUT)
    return jnp.mean(jax.vmap(lambda k: jax.vmap(lambda count: of_formula(k, count))(clauses))(keys), axis=0)


def sat_levels(
    seeds: Sequence[int], *, arms: Mapping[str, Mapping], variables: int, clauses: Sequence[int], recipe: Mapping
) -> Outcome:
    """Each arm trains on as many samples of formulas; its source of prompts chooses their levels.

    Metrics: hardest, the probability of a satisfying sample for held-out formulas of the last level, at the end; and
    all, its mean over the levels.

    Args:
      seeds: of the policy and of the formulas.
      arms: name -> a source of rl_jax.experience.sources, dict(fn=..., **keywords). A level is a prompt to it, with the
        columns level and difficulty (SATURN's).
      variables: K.
      clauses: of each level.
      recipe: fields of Recipe.
    """
    chosen, longest, sizes = Recipe(**recipe), max(clauses), np.asarray(clauses)
    tx, world = optax.adam(chosen.learning_rate), dict(variables=variables, longest=longest)
    step = jax.jit(jax.vmap(make_step(chosen, tx, **world)))
    rates = jax.jit(jax.vmap(lambda params, key: pass_rates(params, key, chosen.rounds, jnp.asarray(sizes), **world)))
    keys, every = seed_keys(seeds), max(chosen.steps // 20, 1)
    fold = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(0, None)))
    table = PromptTable([
        {"prompt": str(n), "info": dict(level=level, difficulty=difficulty(SIZE, variables, n))}
        for level, n in enumerate(clauses)
    ])  # fmt: skip
    values, curves = {}, {"hardest": {}, "all": {}}
    for name, spec in arms.items():
        choose = [bind(dict(spec), sources, seed=int(seed))(table) for seed in seeds]
        params = jax.vmap(lambda key: init_policy(key, chosen.width))(fold(keys, 0))
        state, seen = jax.vmap(tx.init)(params), [rates(params, fold(keys, 1))]
        for number in range(1, chosen.steps + 1):
            levels = np.stack([source.take(chosen.groups) for source in choose])
            params, state, rewards = step(params, state, fold(keys, 1 + number), sizes[levels])
            for source, level, reward in zip(choose, levels, np.asarray(rewards), strict=True):
                source.feedback(_feedback(level, reward))
            if number % every == 0 or number == chosen.steps:
                seen.append(rates(params, fold(keys, 1)))
        traces = np.stack([np.asarray(x) for x in seen], axis=1)  # [S, points, M]
        found = {"hardest": traces[:, :, -1], "all": traces.mean(axis=2)}
        values[name] = per_seed({metric: trace[:, -1] for metric, trace in found.items()})
        points = [min(place * every, chosen.steps) for place in range(traces.shape[1])]
        for title, trace in found.items():
            curves[title][name] = curve(points, trace)
    return Outcome(values, curves)


def _feedback(levels: np.ndarray, rewards: np.ndarray) -> Feedback:
    lengths = np.ones(rewards.shape, np.int64)
    return Feedback(levels, [str(level) for level in levels], rewards, rewards, lengths, [[]] * len(levels))
