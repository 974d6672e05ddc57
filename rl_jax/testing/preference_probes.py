"""A small problem that a preference method must solve: several prompts, eight answers to each, half of them good.

    learns_preferences(dpo.Objective(link=my_link))

A policy is a table of logits [S, A]: S prompts, each with rewards of its own, so that one run is S runs. An answer is
one to three tokens that share its log-prob. A method gets pairs with noisy labels, labelled answers, rankings, or
samples of the policy that a function of its own chooses from.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_jax import dpo
from rl_jax.core.types import PreferenceBatch, TokenBatch, TokenScores

PROMPTS, ACTIONS, LENGTH, ROWS = 4, 8, 3, 64
LENGTHS = 1 + np.arange(ACTIONS) % LENGTH
GAIN = 0.1  # in the probability of a good answer, which starts at a half
# Each prompt has its own order of the answers; the good half of them is 4 to 7 here.
ORDER = np.stack([np.random.default_rng(prompt).permutation(ACTIONS) for prompt in range(PROMPTS)])
REWARDS = np.linspace(-2.0, 2.0, ACTIONS)[ORDER]
OPTIMIZER = optax.adam(0.07)


class ProbeBatch(NamedTuple):
    """A batch, and which answer to which prompt each of its rows is. prompts: int [N]; actions: int [N, K]."""

    batch: PreferenceBatch
    prompts: np.ndarray
    actions: np.ndarray


class Probe(NamedTuple):
    """What is trained, and on what: the parts that a program builds from its config."""

    objective: dpo.Objective = dpo.Objective()
    responses: int = 2  # per prompt, of the given answers: 2 is a pair, 1 a labelled answer, more a ranking
    sample: Callable | None = None  # (rng, logits) -> ProbeBatch, samples of the policy; None: given answers
    init: Callable = tuple  # () -> state of `batch_stats`
    # (state, TokenScores before the update, batch) -> (state, {name: array}): statistics of the batch; None: no need
    batch_stats: Callable | None = None


def start() -> jax.Array:
    """Logits a little off the uniform policy: also the reference."""
    return jnp.asarray(np.random.default_rng(1).normal(0, 0.3, (PROMPTS, ACTIONS)), jnp.float32)


def good(logits) -> np.ndarray:
    """The probability of a good answer, by prompt: float [S]."""
    return np.asarray(jnp.sum(jax.nn.softmax(logits) * (REWARDS > 0), axis=1))


@jax.jit  # op by op, the steps of a probe take longer than its compilation
def log_probs(logits, prompts, actions) -> jax.Array:
    """float [N, K, C]: of the tokens, nan behind each answer's own."""
    result = jax.nn.log_softmax(logits)[prompts[:, None], actions] / jnp.asarray(LENGTHS)[actions]
    return jnp.where(mask_of(actions), result[:, :, None], jnp.nan)


@jax.jit
def mask_of(actions) -> jax.Array:
    """bool [N, K, C]."""
    return jnp.arange(LENGTH)[None, None] < jnp.asarray(LENGTHS)[actions][:, :, None]


def draw(rng, logits, prompts, count: int) -> np.ndarray:
    """int [N, count]: samples of the policy."""
    noise = rng.gumbel(size=(len(prompts), count, ACTIONS))
    return np.argmax(np.asarray(jax.nn.log_softmax(logits))[prompts][:, None] + noise, axis=2)


def given(rng, responses: int = 2) -> ProbeBatch:
    """Answers of the reference, labelled by Bradley-Terry: pairs, single ones, or rankings without ties."""
    prompts = np.arange(ROWS) % PROMPTS
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
    return ProbeBatch(batch_of(actions, graded), prompts, actions)


def pairs(rng, prompts) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of answers in the order that Bradley-Terry gives them, int [N, 2], and rewards of 1 and 0."""
    actions = np.stack([rng.permutation(ACTIONS)[:2] for _ in prompts])
    lead = -np.diff(REWARDS[prompts[:, None], actions], axis=1)
    actions = np.where(rng.random(lead.shape) < 1 / (1 + np.exp(-lead)), actions, actions[:, ::-1])
    return actions, np.tile([1.0, 0.0], (len(prompts), 1))


def batch_of(actions, rewards) -> PreferenceBatch:
    """The answers int [N, K] as rows of tokens, with their rewards float [N, K]."""
    tokens = actions[:, :, None].astype(np.int32)
    rewards = np.asarray(rewards, np.float32)
    mask, present = np.asarray(mask_of(actions)), np.ones(actions.shape, bool)
    return PreferenceBatch(TokenBatch(tokens, tokens, tokens), mask, present, rewards)


def complete(probe: Probe, rows: ProbeBatch, logits, state, poison: bool = True) -> tuple[ProbeBatch, tuple]:
    """The rows with log-probs to compare with and what the slots ask for; the state of `batch_stats`.

    Args:
      probe: whose objective asks.
      rows: as they were given or sampled.
      logits: of the policy before the update.
      state: of `batch_stats`, before.
      poison: whether there is nan behind the masks.
    """
    needed, batch = probe.objective.needs(), rows.batch
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
    if probe.batch_stats is not None:
        state, coupled = probe.batch_stats(state, scores_of(logits, rows), batch)
        batch = batch._replace(extras=batch.extras | coupled)
    return rows._replace(batch=batch), state


def scores_of(logits, rows: ProbeBatch) -> TokenScores:
    """What a forward returns."""
    result = log_probs(logits, rows.prompts, rows.actions).reshape(-1, LENGTH)
    return TokenScores(result, jnp.zeros_like(result))


def vocabulary(logits, rows: ProbeBatch) -> dict[str, jax.Array]:
    """What only a forward with the whole vocabulary knows."""
    log_pi, log_ref = jax.nn.log_softmax(logits), jax.nn.log_softmax(start())
    kl = jnp.sum(jnp.exp(log_ref) * (log_ref - log_pi), axis=1)[rows.prompts]
    squares = jax.nn.logsumexp(2 * log_pi, axis=1)[rows.prompts][:, None]
    aligned = jnp.exp(log_pi[rows.prompts[:, None], rows.actions] - squares)
    return {"sequence_kl": jnp.broadcast_to(kl[:, None], rows.actions.shape), "response_weights": aligned}


@jax.jit
def forward(logits, prompts, actions) -> tuple[jax.Array, dict[str, jax.Array]]:
    """All that the losses differentiate: (log_probs, vocabulary) of the answers."""
    rows = ProbeBatch(None, prompts, actions)
    return log_probs(logits, prompts, actions), vocabulary(logits, rows)


def make_gradient(objective: dpo.Objective) -> Callable:
    """Makes gradient(table, more, batch) -> (total, count, gradients of the total by table and more).

    table and more are what `forward` returns. Compiled, and all of a probe that is its objective's own: sampling, the
    forward, its transpose and the optimizer are the same programs for every objective.
    """

    @jax.jit
    def gradient(table, more, batch):
        def total(table, more):
            scores = table.reshape(-1, LENGTH)
            mean = dpo.loss(TokenScores(scores, jnp.zeros_like(scores)), batch, objective, more)[0]
            return mean.total, mean.count

        (value, count), gradients = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(table, more)
        return value, count, gradients

    return gradient


@jax.jit
def _update(logits, state, prompts, actions, count, gradients):
    """One step of Adam along the gradients of a total, by what `forward` returns."""
    means = jax.tree.map(lambda g: jnp.where(count == 0, 0.0, g / jnp.maximum(count, 1.0)), gradients)
    (by_logits,) = jax.vjp(lambda x: forward(x, prompts, actions), logits)[1](means)
    updates, state = OPTIMIZER.update(by_logits, state)
    return optax.apply_updates(logits, updates), state


def train(probe: Probe, *, steps: int = 40, lead: float = 0.0, gradient: Callable | None = None) -> np.ndarray:
    """What the method adds to the probability of a good answer, by prompt: float [S].

    Args:
      probe: what is trained.
      steps: updates, each on ROWS prompts.
      lead: of the good answers' logits over the reference's, at the first step.
      gradient: of the probe's objective, by make_gradient, if it was compiled before.
    """
    rng, gradient = np.random.default_rng(0), gradient or make_gradient(probe.objective)
    first = logits = start() + lead * (REWARDS > 0)
    state, coupled = OPTIMIZER.init(logits), probe.init()
    for _ in range(steps):
        rows = given(rng, probe.responses) if probe.sample is None else probe.sample(rng, logits)
        rows, coupled = complete(probe, rows, logits, coupled)
        table, more = forward(logits, rows.prompts, rows.actions)
        _, count, gradients = gradient(table, more, rows.batch)
        logits, state = _update(logits, state, rows.prompts, rows.actions, count, gradients)
    return good(logits) - good(first)


def learns_preferences(
    objective: dpo.Objective | Probe, *, responses: int = 2, gain: float = GAIN, lead: float = 0.0
) -> np.ndarray:
    """Trains the probe, and asserts that the probability of a good answer rises for every prompt.

    Args:
      objective: a dpo.Objective, or a whole Probe.
      responses: answers per prompt: 2 is a pair, 1 a labelled answer, more a ranking; unused for a Probe.
      gain: what each prompt must gain.
      lead: of the good answers' logits over the reference's, at the first step.
    Returns:
      float [S]: what each prompt has gained.
    Raises:
      AssertionError: if a prompt gains less; it says what each has gained.
    """
    probe = objective if isinstance(objective, Probe) else Probe(objective, responses)
    gains = train(probe, lead=lead)
    if not np.all(gains > gain):
        reached = ", ".join(f"{x:+.2f}" for x in gains)
        raise AssertionError(
            f"the objective does not learn: the probability of a good answer, a half at first, changes by {reached} "
            f"(by prompt); each must gain more than {gain}"
        )
    return gains
