"""A small problem that a preference method must solve: several prompts, eight answers to each, half of them good.

A policy is a table of logits [S, A]: S prompts, each with rewards of its own, so that one run is S runs. An answer is
one to three tokens that share its log-prob. A method gets what its config asks for: pairs with noisy labels, labelled
answers, rankings, or samples of the policy by way of experiments.online_dpo.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import dpo as program
from experiments import online_dpo
from experiments.parts.sample_candidates import DATA, POLICY, REFERENCE, Candidates
from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch, Scores, TokenBatch

PROMPTS, ACTIONS, LENGTH, ROWS = 4, 8, 3, 64
LENGTHS = jnp.asarray(1 + np.arange(ACTIONS) % LENGTH)
# Each prompt has its own order of the answers; the good half of them is 4 to 7 here.
ORDER = np.stack([np.random.default_rng(prompt).permutation(ACTIONS) for prompt in range(PROMPTS)])
REWARDS = np.linspace(-2.0, 2.0, ACTIONS)[ORDER]


class Rows(NamedTuple):
    """A batch, and which answer to which prompt each of its rows is. prompts: int [N]; actions: int [N, K]."""

    batch: PreferenceBatch
    prompts: np.ndarray
    actions: np.ndarray


def start() -> jax.Array:
    """Logits a little off the uniform policy: also the reference."""
    return jnp.asarray(np.random.default_rng(1).normal(0, 0.3, (PROMPTS, ACTIONS)), jnp.float32)


def good(logits) -> np.ndarray:
    """The probability of a good answer, by prompt: float [S]."""
    return np.asarray(jnp.sum(jax.nn.softmax(logits) * (REWARDS > 0), axis=1))


def log_probs(logits, prompts, actions) -> jax.Array:
    """float [N, K, C]: of the tokens, nan behind each answer's own."""
    found = jax.nn.log_softmax(logits)[prompts[:, None], actions] / LENGTHS[actions]
    return jnp.where(mask_of(actions), found[:, :, None], jnp.nan)


def mask_of(actions) -> np.ndarray:
    """bool [N, K, C]."""
    return jnp.arange(LENGTH)[None, None] < LENGTHS[actions][:, :, None]


def draw(rng, logits, prompts, count: int) -> np.ndarray:
    """int [N, count]: samples of the policy."""
    noise = rng.gumbel(size=(len(prompts), count, ACTIONS))
    return np.argmax(np.asarray(jax.nn.log_softmax(logits))[prompts][:, None] + noise, axis=2)


def given(config, rng) -> Rows:
    """Answers of the reference, labelled by Bradley-Terry: pairs, single ones, or rankings without ties."""
    responses, prompts = config.algorithm.responses, np.arange(ROWS) % PROMPTS
    actions = np.stack([rng.permutation(ACTIONS)[: max(responses, 2)] for _ in prompts])
    rewards = REWARDS[prompts[:, None], actions]
    if responses == 1:
        actions, rewards = actions[:, :1], rewards[:, :1]
        graded = (rng.random(rewards.shape) < 1 / (1 + np.exp(-2 * rewards))).astype(float)
    elif responses == 2:
        actions, graded = pairs(rng, prompts)
    else:
        order = np.argsort(-rewards, axis=1)
        actions = np.take_along_axis(actions, order, axis=1)
        graded = (np.take_along_axis(rewards, order, axis=1) + 2) / 4
    return Rows(_batch(actions, graded), prompts, actions)


def pairs(rng, prompts) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of answers in the order that Bradley-Terry gives them, int [N, 2], and rewards of 1 and 0."""
    actions = np.stack([rng.permutation(ACTIONS)[:2] for _ in prompts])
    lead = -np.diff(REWARDS[prompts[:, None], actions], axis=1)
    actions = np.where(rng.random(lead.shape) < 1 / (1 + np.exp(-lead)), actions, actions[:, ::-1])
    return actions, np.tile([1.0, 0.0], (len(prompts), 1))


def _batch(actions, rewards) -> PreferenceBatch:
    tokens = actions[:, :, None].astype(np.int32)
    rewards = np.asarray(rewards, np.float32)
    mask, present = np.asarray(mask_of(actions)), np.ones(actions.shape, bool)
    return PreferenceBatch(TokenBatch(tokens, tokens, tokens), mask, present, rewards)


def sampled(config, rng, logits) -> Rows:
    """The choice of experiments.online_dpo from candidates of policy, reference and data."""
    settings, prompts = config.sample, np.arange(ROWS) % PROMPTS
    actions = draw(rng, start() if settings.share else logits, prompts, settings.group_size)
    origin = np.full(actions.shape, REFERENCE if settings.share == 1.0 else POLICY, np.int32)
    opponents = np.zeros((ROWS, 0), np.float32)
    if others := settings.opponents.samples:
        share = settings.opponents.share
        drawn = draw(rng, (1 - share) * logits + share * start(), prompts, others)
        opponents = REWARDS[prompts[:, None], drawn].astype(np.float32)
        if settings.opponents.candidates:
            actions = np.concatenate([actions, drawn], axis=1)
            origin = np.concatenate([origin, np.full(drawn.shape, REFERENCE)], axis=1)
    if settings.data:
        demonstrated = draw(rng, jnp.where(REWARDS > 0, 0.0, -5.0), prompts, 1)
        added = pairs(rng, prompts)[0] if settings.data == "pairs" else demonstrated
        actions = np.concatenate([actions, added], axis=1)
        origin = np.concatenate([origin, np.full(added.shape, DATA)], axis=1)
    batch = _batch(actions, REWARDS[prompts[:, None], actions])
    candidates = Candidates(batch.batch, batch.completion_mask, batch.rewards, origin, opponents)
    key = jax.random.key(int(rng.integers(1 << 30)))
    batch = online_dpo.choose(config, candidates, key, program.make_objective(config).needs())
    chosen = np.asarray(batch.batch.tokens[:, :, 0])
    return Rows(batch, np.repeat(prompts, len(chosen) // ROWS), chosen)


def complete(config, rows: Rows, logits, tracker=None, poison: bool = True) -> tuple[Rows, tuple]:
    """The rows with log-probs to compare with and what the slots ask for; the coupler's state. logits: before the
    update."""
    objective, coupler = program.make_objective(config), program.make_coupler(config)
    needed, batch = objective.needs(), rows.batch
    shape = batch.present.shape
    references = [log_probs(table, rows.prompts, rows.actions) for table in (start(), logits)]
    ref, prev = (x if poison else jnp.nan_to_num(x) for x in references)
    extras = {
        "mean_tokens": jnp.full(shape[:1], batch.completion_mask[:, 0].sum() / shape[0], jnp.float32),
        "label_probs": jnp.full(shape[:1], 0.9, jnp.float32),
        "token_rewards": jnp.where(
            jnp.asarray(mask_of(rows.actions)),
            np.sign(REWARDS[rows.prompts[:, None], rows.actions])[:, :, None] * 0.3,
            jnp.nan,
        ),
        "other_rewards": jnp.asarray(-0.01 * batch.completion_mask.sum(axis=2), jnp.float32),
    }
    extras = {name: x for name, x in extras.items() if name in needed}
    batch = batch._replace(ref_log_probs=ref, prev_log_probs=prev, extras=batch.extras | extras)
    before = program.measure(scores_of(logits, rows), batch, objective)
    before = before._replace(
        mismatched_log_ratios=jnp.roll(before.sequence_scores[:, 0], 1),
        mismatched_present=jnp.roll(before.present[:, 0], 1),
    )
    tracker = coupler.init() if tracker is None else tracker
    tracker, coupled = coupler.update(tracker, before, jax.random.key(0))
    return rows._replace(batch=batch._replace(extras=batch.extras | coupled)), tracker


def scores_of(logits, rows: Rows) -> Scores:
    """What a forward returns."""
    found = log_probs(logits, rows.prompts, rows.actions).reshape(-1, LENGTH)
    return Scores(found, jnp.zeros_like(found))


def vocabulary(logits, rows: Rows) -> dict[str, jax.Array]:
    """What only a forward with the whole vocabulary knows."""
    log_pi, log_ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(start())
    kl = jnp.sum(jnp.exp(log_ref) * (log_ref - log_pi), axis=1)[rows.prompts]
    squares = jax.nn.logsumexp(2 * log_pi, axis=1)[rows.prompts][:, None]
    aligned = jnp.exp(log_pi[rows.prompts[:, None], rows.actions] - squares)
    return {"sequence_kl": jnp.broadcast_to(kl[:, None], rows.actions.shape), "response_weights": aligned}


def train(config, *, steps: int = 40, objective=None, lead: float = 0.0) -> np.ndarray:
    """What the method adds to the probability of a good answer, by prompt: float [S].

    objective: in place of the config's. lead: of the good answers' logits over the reference's, at the first step.
    """
    objective = objective or program.make_objective(config)
    rng, optimizer = np.random.default_rng(0), optax.adam(0.07)
    first = logits = start() + lead * (REWARDS > 0)
    state, tracker = optimizer.init(logits), None

    @jax.jit
    def update(logits, state, batch, prompts, actions):
        rows = Rows(batch, prompts, actions)

        def loss(logits):
            more = vocabulary(logits, rows)
            return dpo.loss(scores_of(logits, rows), batch, objective, more)[0].value()

        updates, state = optimizer.update(jax.grad(loss)(logits), state)
        return optax.apply_updates(logits, updates), state

    for _ in range(steps):
        rows = sampled(config, rng, logits) if "sample" in config else given(config, rng)
        rows, tracker = complete(config, rows, logits, tracker)
        logits, state = update(logits, state, rows.batch, rows.prompts, rows.actions)
    return good(logits) - good(first)
