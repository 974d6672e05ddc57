"""A small policy that writes SQL and is paid for the right rows alone, or for partial scores, too.

A question asks for a column under at most two conditions; a completion is a sequence of pieces of SQL. Every sampled
query runs in sqlite and is scored by rl_jax.rewards.sql. The policy is trained by rl_jax.grpo.loss, and measured on
questions that it never trains on.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.studies.base import Outcome, add_bias, curve, per_seed, seed_keys
from rl_jax import grpo
from rl_jax.advantages import group_relative
from rl_jax.core.types import Rollout, TokenBatch, TokenScores
from rl_jax.credit import rule
from rl_jax.rewards import sql
from rl_jax.tasks.toy_kinds import SCRIPT

COLUMNS, TABLES = ("name", "age", "owner", "kind", "city"), ("pet", "town")
KINDS, AGES = tuple(f"kind = '{x}'" for x in ("dog", "cat", "bird")), tuple(f"age > {x}" for x in (2, 4, 6))
CITIES = tuple(f"city = '{x}'" for x in ("Rome", "Oslo"))
PIECES = ("", "SELECT", "FROM", "WHERE", "AND", *COLUMNS, *TABLES, *KINDS, *AGES, *CITIES)  # "" is the end
SLOTS = (COLUMNS, KINDS, AGES, CITIES)
LENGTH = 9  # pieces of a completion: eight of the longest query, and its end


class Recipe(NamedTuple):
    """How a policy is trained.

    Attributes:
      groups: questions per step.
      group_size: G.
      steps: of the training.
      learning_rate: of Adam.
      width: of the policy's hidden layer.
    """

    groups: int
    group_size: int
    steps: int
    learning_rate: float
    width: int = 32


class Question(NamedTuple):
    """What is asked.

    Attributes:
      features: float [F], one of each slot's values or none of them.
      pieces: of a right query, without the end.
    """

    features: np.ndarray
    pieces: tuple[str, ...]

    @property
    def query(self) -> str:
        """A right query."""
        return " ".join(self.pieces)


def all_questions() -> list[Question]:
    """Every question whose query gives rows: of pets by kind and age, of towns by city."""
    found = []
    for asked in itertools.product(COLUMNS, *(("", *slot) for slot in SLOTS[1:])):
        column, kind, age, city = asked
        of_town = bool(city) or column == "city"
        if of_town and (kind or age or column not in ("owner", "city")):
            continue
        conditions = [text for text in (kind, age, city) if text]
        where = [piece for text in conditions for piece in ("AND", text)]
        pieces = ("SELECT", column, "FROM", "town" if of_town else "pet", *["WHERE"][: len(where)], *where[1:])
        features = [float(value == said) for slot, said in zip(SLOTS, asked, strict=True) for value in slot]
        question = Question(np.asarray(features, np.float32), pieces)
        if sql.run(sql.open_database("", SCRIPT), question.query, max_steps=100_000):
            found.append(question)
    return found


@functools.lru_cache(maxsize=200_000)
def scores_of(query: str, truth: str) -> tuple[float, ...]:
    """The scores of sql.score, in the order of sql.WEIGHTS."""
    scores = sql.score("", query, {"script": SCRIPT, "query": truth}, max_steps=100_000)
    return tuple(scores[name] for name in sql.WEIGHTS)


def score_rows(tokens: np.ndarray, questions: Sequence[Question]) -> np.ndarray:
    """The scores of sampled completions, one question per row. int [B, T] -> float32 [B, K]."""
    rows = []
    for ids, question in zip(tokens, questions, strict=True):
        end = int(np.argmax(ids == 0)) if (ids == 0).any() else len(ids)
        rows.append(scores_of(" ".join(PIECES[i] for i in ids[:end]), question.query))
    return np.asarray(rows, np.float32)


def demonstration(rng: np.random.Generator, question: Question, wrong: float) -> np.ndarray:
    """The pieces of an answer to imitate, int32 [T]; with probability `wrong` one piece is lost or is another one."""
    ids = [PIECES.index(piece) for piece in question.pieces]
    if rng.random() < wrong:
        place = int(rng.integers(len(ids)))
        families = (COLUMNS, TABLES, (*KINDS, *AGES, *CITIES))
        family = next((family for family in families if PIECES[ids[place]] in family), ())
        if family and rng.random() < 0.75:
            others = [PIECES.index(piece) for piece in family if piece != PIECES[ids[place]]]
            ids[place] = int(rng.choice(others))
        else:
            del ids[place]
    return np.asarray(ids + [0] * (LENGTH - len(ids)), np.int32)


def init_policy(key: chex.PRNGKey, features: int, width: int) -> dict[str, chex.Array]:
    """A network of one hidden layer over question, place, piece before and pieces so far."""
    inputs = features + LENGTH + 2 * len(PIECES)
    keys = jax.random.split(key)
    return {
        "hidden": jax.random.normal(keys[0], (inputs, width)) / np.sqrt(8.0),
        "bias": jnp.zeros(width),
        "last": jax.random.normal(keys[1], (width, len(PIECES))) * 0.1,
        "last_bias": jnp.zeros(len(PIECES)),
    }


def log_probs_of(params: Mapping[str, chex.Array], features: chex.Array, tokens: chex.Array) -> chex.Array:
    """log pi of every piece at every place. float [B, F], int [B, T] -> float [B, T, V]."""
    pieces = jax.nn.one_hot(tokens, len(PIECES))
    before = jnp.pad(pieces, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    so_far = jnp.cumsum(before, axis=1)
    batch, length = tokens.shape
    asked = jnp.broadcast_to(features[:, None], (batch, length, features.shape[1]))
    place = jnp.broadcast_to(jnp.eye(LENGTH)[None, :length], (batch, length, LENGTH))
    inputs = jnp.concatenate([asked, place, before, so_far], axis=-1)
    hidden = jnp.tanh(add_bias(inputs @ params["hidden"], params["bias"]))
    return jax.nn.log_softmax(add_bias(hidden @ params["last"], params["last_bias"]))


def token_scores(params: Mapping[str, chex.Array], features: chex.Array, tokens: chex.Array) -> TokenScores:
    """Log-probs and entropies of sampled pieces, [B, T] each."""
    table = log_probs_of(params, features, tokens)
    log_probs = jnp.take_along_axis(table, tokens[..., None], axis=-1)[..., 0]
    return TokenScores(log_probs, -jnp.sum(jnp.exp(table) * table, axis=-1))


def mask_of(tokens: chex.Array) -> chex.Array:
    """The pieces up to and including the end. int [B, T] -> bool [B, T]."""
    return jnp.cumsum(tokens == 0, axis=1) - (tokens == 0) == 0


def sample(key: chex.PRNGKey, params: Mapping[str, chex.Array], features: chex.Array) -> chex.Array:
    """One completion per row. float [B, F] -> int32 [B, T]."""

    def draw(tokens, place_and_key):
        place, key = place_and_key
        table = log_probs_of(params, features, tokens)[:, place]
        return tokens.at[:, place].set(jax.random.categorical(key, table).astype(jnp.int32)), None

    blank = jnp.zeros((features.shape[0], LENGTH), jnp.int32)
    return jax.lax.scan(draw, blank, (jnp.arange(LENGTH), jax.random.split(key, LENGTH)))[0]


def imitate(params, features: chex.Array, tokens: chex.Array, learning_rate: float):
    """Supervised steps, one per batch. float [S, B, F], int [S, B, T] -> params."""
    tx = optax.adam(learning_rate)

    def step(carry, batch):
        params, state = carry

        def loss(params):
            mask = mask_of(batch[1])
            return -jnp.sum(token_scores(params, *batch).log_probs * mask) / jnp.sum(mask)

        updates, state = tx.update(jax.grad(loss)(params), state)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, tx.init(params)), (features, tokens))[0][0]


def make_update(recipe: Recipe, tx: optax.GradientTransformation):
    """Makes update(params, state, key, features [B, F], tokens [B, T], rewards [B]) -> (params, state)."""
    choices, objective = rule.CreditRule(advantage=group_relative), grpo.Objective(kl_coef=0.0)

    def update(params, state, key, features, tokens, rewards):
        before, mask = token_scores(params, features, tokens).log_probs, mask_of(tokens)
        done = jnp.any(tokens == 0, axis=1)
        rollout = Rollout(TokenBatch(tokens, tokens, tokens), mask, before, before, done, ~done)
        batch = rule.assign(choices, rollout, rewards, group_size=recipe.group_size, key=key)
        batch = batch._replace(old_log_probs=before)

        def loss(params):
            return grpo.loss(token_scores(params, features, tokens), batch, objective)[0].value()

        updates, state = tx.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    return update


class Seed(NamedTuple):
    """What a seed asks, and when.

    Attributes:
      train: numbers of the questions it trains on.
      test: of those it is measured on, each once per sample.
      rng: chooses questions and faults.
    """

    train: np.ndarray
    test: np.ndarray
    rng: np.random.Generator


def make_seed(seed: int, count: int, held_out: float, samples: int) -> Seed:
    """The split of `count` questions, and the generator, of one seed."""
    order, tests = np.random.default_rng(seed).permutation(count), round(held_out * count)
    return Seed(order[tests:], np.repeat(order[:tests], samples), np.random.default_rng([seed, 1]))


def features_of(rows: Sequence[np.ndarray], questions: Sequence[Question]) -> np.ndarray:
    """The features of numbered questions. S times int [...] -> float [S, ..., F]."""
    table = np.stack([question.features for question in questions])
    return np.stack([table[row] for row in rows])


def lessons(
    seeds: Sequence[Seed], questions: Sequence[Question], steps: int, *, wrong: float, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """What each seed imitates: features float [S, steps, B, F] and pieces int [S, steps, B, T]."""
    shown = [seed.rng.choice(seed.train, (steps, batch_size)) for seed in seeds]
    said = [
        [[demonstration(seed.rng, questions[i], wrong) for i in batch] for batch in rows]
        for seed, rows in zip(seeds, shown, strict=True)
    ]
    return features_of(shown, questions), np.asarray(said)


def partial_rewards(
    seeds: Sequence[int],
    *,
    arms: Mapping[str, Mapping],
    held_out: float,
    samples: int,
    warm_start: Mapping[str, float],
    recipe: Mapping,
) -> Outcome:
    """Each arm trains on as many samples of the same questions; its weights say which scores pay.

    Metrics, of samples for held-out questions: execution, the share that gives the right rows at the end; learning,
    its mean over the training; start, before it; syntax, the share that runs, at the end.

    Args:
      seeds: of the split of the questions, the demonstrations and the training.
      arms: name -> weights (of sql.score; what is left out has 0) and warm_steps (of imitation before).
      held_out: the share of the questions that are only for measuring.
      samples: per held-out question, at each measuring.
      warm_start: wrong (share of the demonstrations with a fault), batch_size, learning_rate.
      recipe: fields of Recipe.
    """
    chosen, questions, keys = Recipe(**recipe), all_questions(), seed_keys(seeds)
    tx, every, warm = optax.adam(chosen.learning_rate), max(chosen.steps // 20, 1), dict(warm_start)
    fold = jax.jit(jax.vmap(jax.random.fold_in, in_axes=(0, None)))
    draw, update = jax.jit(jax.vmap(sample)), jax.jit(jax.vmap(make_update(chosen, tx)))
    rate = warm.pop("learning_rate")
    teach = jax.jit(jax.vmap(lambda params, asked, said: imitate(params, asked, said, rate)))
    values, curves = {}, {"execution": {}, "syntax": {}}

    def graded(tokens, rows):  # float [S, B, K]
        asked = [[questions[i] for i in row] for row in rows]
        return np.stack([score_rows(ids, row) for ids, row in zip(np.asarray(tokens), asked, strict=True)])

    for name, arm in arms.items():
        weights = np.asarray([arm["weights"].get(score, 0.0) for score in sql.WEIGHTS], np.float32)
        own = [make_seed(seed, len(questions), held_out, samples) for seed in seeds]
        params = jax.vmap(lambda key: init_policy(key, len(questions[0].features), chosen.width))(fold(keys, 0))
        params = teach(params, *lessons(own, questions, arm["warm_steps"], **warm))
        state, seen, tests = jax.vmap(tx.init)(params), [], [seed.test for seed in own]
        for number in range(chosen.steps + 1):
            if number % every == 0 or number == chosen.steps:
                tokens = draw(fold(keys, 2 * number + 1), params, features_of(tests, questions))
                seen.append(graded(tokens, tests).mean(axis=1))
            if number < chosen.steps:
                asked = [seed.rng.choice(seed.train, chosen.groups, replace=False) for seed in own]
                rows = [np.repeat(row, chosen.group_size) for row in asked]
                features, key = features_of(rows, questions), fold(keys, 2 * number + 2)
                tokens = draw(key, params, features)
                params, state = update(params, state, key, features, tokens, graded(tokens, rows) @ weights)
        traces = np.stack(seen, axis=1)  # [S, points, K]
        right, runs = (traces[..., list(sql.WEIGHTS).index(score)] for score in ("execution", "syntax"))
        values[name] = per_seed(
            dict(execution=right[:, -1], learning=right.mean(axis=1), start=right[:, 0], syntax=runs[:, -1])
        )
        points = [min(place * every, chosen.steps) for place in range(traces.shape[1])]
        for title, trace in (("execution", right), ("syntax", runs)):
            curves[title][name] = curve(points, trace)
    return Outcome(values, curves)
