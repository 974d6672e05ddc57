"""The task of the learning probe: to copy the prompt, for a policy that is a table of logits.

Its samples, its judge and its exact accuracy; rl_jax.testing.probes trains on it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Rollout, TokenBatch, TokenScores

ANSWERS = ((0,), (2, 1), (1, 0), (2, 2, 1))  # the tokens of each prompt's answer
EOS = 3
VOCAB = 4
LENGTH = 5  # tokens a completion may have: one more than the longest answer with its EOS
WARM = 1.5  # logits of the right tokens above the others'
SAMPLER_NOISE = 0.1  # standard deviation of the sampler's logits about the trainer's
GROUPS = 8
GROUP_SIZE = 8
PROMPTS = np.arange(GROUPS) % len(ANSWERS)


def answers() -> tuple[np.ndarray, np.ndarray]:
    """(tokens int [prompts, LENGTH], mask bool [prompts, LENGTH]) of the right completions, the EOS included."""
    tokens = np.full((len(ANSWERS), LENGTH), EOS)
    mask = np.zeros(tokens.shape, bool)
    for i, answer in enumerate(ANSWERS):
        tokens[i, : len(answer)] = answer
        mask[i, : len(answer) + 1] = True
    return tokens, mask


def start() -> jax.Array:
    """The logits float32 [prompts, LENGTH, VOCAB] that training begins with."""
    tokens, mask = answers()
    return jnp.asarray(WARM * mask[:, :, None] * np.eye(VOCAB, dtype=np.float32)[tokens])


def accuracy(logits: jax.Array) -> jax.Array:
    """The exact probability of a right answer, mean over the prompts. -> float []."""
    tokens, mask = answers()
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, :, None], axis=2)[:, :, 0]
    return jnp.mean(jnp.exp(jnp.sum(jnp.where(mask, chosen, 0.0), axis=1)))


def score(logits: jax.Array, batch: TokenBatch) -> TokenScores:
    """The trainer's forward: log-probs and entropies [B, LENGTH]; the prompt is column 0 of the tokens."""
    prompts, tokens = batch.tokens[:, 0], batch.tokens[:, 1:]
    all_log_probs = jax.nn.log_softmax(logits)[prompts]
    log_probs = jnp.take_along_axis(all_log_probs, tokens[:, :, None], axis=2)[:, :, 0]
    return TokenScores(log_probs, -jnp.sum(jnp.exp(all_log_probs) * all_log_probs, axis=2))


def ragged(prompts, tokens, log_probs) -> Rollout:
    """The Rollout of sampled tokens [B, LENGTH]: each row ends with its first EOS, or is cut off."""
    ended = jnp.cumsum(tokens == EOS, axis=1)
    mask = ended - (tokens == EOS) == 0
    finished = ended[:, -1] > 0
    columns = jnp.concatenate([prompts[:, None], tokens], axis=1)
    blank = jnp.zeros_like(columns)
    # Garbage behind the mask, for the loss not to look at.
    sampled = jnp.where(mask, log_probs, jnp.nan)
    return Rollout(TokenBatch(columns, blank, blank), mask, sampled, sampled, finished, ~finished)


def judge(rollout: Rollout) -> tuple[jax.Array, jax.Array]:
    """(rewards float [B], components float [B, 2]): 1 where the completion is the answer; the other part is the EOS."""
    right, mask = (jnp.asarray(x) for x in answers())
    prompts, tokens = rollout.batch.tokens[:, 0], rollout.batch.tokens[:, 1:]
    correct = jnp.all((tokens == right[prompts]) | ~mask[prompts], axis=1).astype(jnp.float32)
    return correct, jnp.stack([correct, rollout.finished.astype(jnp.float32)], axis=1)


class Drawn(NamedTuple):
    """The random numbers of one batch of samples."""

    noise: jax.Array  # float32 [prompts, LENGTH, VOCAB]: of the sampler's logits, standard normal
    gumbel: jax.Array  # float32 [B, LENGTH, VOCAB]: of the tokens


def draw(key: jax.Array) -> Drawn:
    """What one batch of samples is drawn with."""
    noise_key, token_key = jax.random.split(key)
    shape = (LENGTH, VOCAB)
    noise = jax.random.normal(noise_key, (len(ANSWERS), *shape))
    return Drawn(noise, jax.random.gumbel(token_key, (GROUPS * GROUP_SIZE, *shape)))


def sample(logits: jax.Array, key: jax.Array) -> Rollout:
    """GROUP_SIZE samples of each prompt, neighbours, from the sampler's logits."""
    return _sample(logits, draw(key))


def _sample(logits: jax.Array, drawn: Drawn) -> Rollout:
    prompts = jnp.repeat(jnp.asarray(PROMPTS), GROUP_SIZE)
    sampler = jax.nn.log_softmax(logits + SAMPLER_NOISE * drawn.noise)[prompts]
    tokens = jnp.argmax(sampler + drawn.gumbel, axis=2)
    log_probs = jnp.take_along_axis(sampler, tokens[:, :, None], axis=2)[:, :, 0]
    return ragged(prompts, tokens, log_probs)


def collect(logits: jax.Array, key: jax.Array, *, dynamic: bool) -> Rollout:
    """A step's rollouts. dynamic: two batches are drawn, and the groups whose rewards are all the same go last."""
    return collect_drawn(logits, draw_batches(key, dynamic))


def draw_batches(key: jax.Array, dynamic: bool) -> list[Drawn]:
    """The random numbers of the batches that a step draws: two of them if dynamic, as in `collect`."""
    return [draw(k) for k in jax.random.split(key)] if dynamic else [draw(key)]


def collect_drawn(logits: jax.Array, batches: list[Drawn]) -> Rollout:
    """`collect`, with random numbers that were drawn before."""
    halves = [_sample(logits, drawn) for drawn in batches]
    if len(halves) == 1:
        return halves[0]
    both = jax.tree.map(lambda *xs: jnp.concatenate(xs), *halves)
    idle = jnp.ptp(judge(both)[0].reshape(-1, GROUP_SIZE), axis=1) == 0
    kept = jnp.argsort(idle)[:GROUPS]
    rows = (kept[:, None] * GROUP_SIZE + jnp.arange(GROUP_SIZE)[None, :]).reshape(-1)
    return jax.tree.map(lambda x: x[rows], both)


def greedy_rewards(logits: jax.Array, prompts: jax.Array) -> jax.Array:
    """float [B]: what the likeliest completion of each row's prompt earns. prompts: int [B]."""
    tokens = jnp.argmax(logits, axis=2)[prompts]
    return judge(ragged(prompts, tokens, jnp.zeros(tokens.shape)))[0]
