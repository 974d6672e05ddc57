"""One-token rollouts: what is drawn, the loss by hand, the exact expected gradient, chunks and seeds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.losses import one_token
from rl_jax.training.token_rollouts import make_token_rollouts

PROBS = jnp.array([0.5, 0.25, 0.125, 0.125])
EVERY = jnp.array([[0, 0, 0, 0, 1, 1, 2, 3]])  # each token as often as it is likely
TOKEN = jnp.array([1])


@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature):
    log_probs = jnp.log(jnp.stack([PROBS, PROBS[::-1]]))
    drawn = one_token.draw(log_probs, jax.random.split(jax.random.key(0), 2), samples=40_000, temperature=temperature)
    for row, expected in zip(drawn, jax.nn.softmax(log_probs / temperature), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=4) / 40_000, expected, atol=0.01)


def test_a_token_without_probability_is_never_drawn():
    log_probs = jnp.log(jnp.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    drawn = one_token.draw(log_probs, jax.random.split(jax.random.key(1), 2), samples=1000, temperature=1.3)
    np.testing.assert_array_equal(drawn, [[1] * 1000, [2] * 1000])


@pytest.mark.parametrize("wrong", [-0.1, 0.0, 0.3])
def test_the_expected_gradient_is_that_of_dynamic_fine_tuning(wrong):
    """(1 - wrong) p(token) d log p(token), over draws that have exactly the policy's distribution."""

    def ours(logits):
        return one_token.rewarded(jax.nn.log_softmax(logits)[None], TOKEN, EVERY, wrong=wrong).loss[0]

    def theirs(logits):
        log_prob = jax.nn.log_softmax(logits)[1]
        return -(1 - wrong) * jax.lax.stop_gradient(jnp.exp(log_prob)) * log_prob

    logits = jnp.log(PROBS)
    np.testing.assert_allclose(jax.grad(ours)(logits), jax.grad(theirs)(logits), atol=1e-6)


def test_the_loss_by_hand():
    """Right draws are pushed up, wrong ones down; with no hit only down."""
    drawn = jnp.array([[1, 3, 0, 1]])
    found = one_token.rewarded(jnp.log(PROBS)[None], TOKEN, drawn, wrong=-0.1)
    expected = -(2 * np.log(0.25) - 0.1 * np.log(0.125) - 0.1 * np.log(0.5)) / 4
    np.testing.assert_allclose([found.loss[0], found.hits[0]], [expected, 0.5], rtol=1e-6)
    gradient = jax.grad(lambda x: one_token.rewarded(x[None], TOKEN, drawn, wrong=-0.1).loss[0])(jnp.log(PROBS))
    np.testing.assert_allclose(gradient, [0.025, -0.5, 0.0, 0.025], atol=1e-7)


@pytest.mark.parametrize("bad", [dict(samples=0), dict(temperature=0.0)])
def test_what_cannot_be_drawn_is_refused(bad):
    with pytest.raises(ValueError, match="must be at least 1, and temperature="):
        one_token.one_token_rollout(jnp.log(PROBS)[None], TOKEN, jax.random.split(jax.random.key(0), 1), **bad)


def test_the_published_numbers_are_256_draws_at_temperature_1_3_and_minus_a_tenth():
    log_probs, keys = jnp.log(jnp.stack([PROBS, PROBS[::-1]])), jax.random.split(jax.random.key(2), 2)
    tokens = jnp.array([1, 0])
    found = jax.jit(one_token.one_token_rollout)(log_probs, tokens, keys)
    draw = jax.jit(functools.partial(one_token.draw, samples=256))
    drawn, warmer = (np.asarray(draw(log_probs, keys, temperature=x)) for x in (1.3, 1.4))
    assert (drawn != warmer).any(axis=1).all()
    right = drawn == np.asarray(tokens)[:, None]
    np.testing.assert_allclose(found.hits, right.mean(axis=1), rtol=1e-6)
    said = np.take_along_axis(np.asarray(log_probs), drawn, axis=1)
    np.testing.assert_allclose(found.loss, -np.mean(np.where(right, 1.0, -0.1) * said, axis=1), rtol=1e-5)


class Table:
    """A model whose hidden state is the token's own row of logits."""

    @staticmethod
    def apply(params, batch):
        return params[batch.tokens]

    @staticmethod
    def unembed(params, hidden):
        return hidden


def test_neither_chunks_nor_other_rows_change_what_is_drawn():
    params = jax.random.normal(jax.random.key(0), (5, 5))
    tokens = jax.random.randint(jax.random.key(1), (3, 8), 0, 5)
    batch, seeds = TokenBatch(tokens, tokens, tokens), jnp.array([4, 5, 4], jnp.uint32)
    fn = functools.partial(one_token.one_token_rollout, samples=6)

    def run(chunk, rows=slice(None)):
        score = make_token_rollouts(Table, fn, completion_length=5, chunk=chunk)
        part = jax.tree.map(lambda x: x[rows], batch)
        return jax.jit(score)(params, part, seeds[rows])

    whole, chunked, alone = run(5), run(2), run(5, slice(1, 2))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), whole, chunked)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1:2], b, rtol=1e-6), whole, alone)
    log_probs = jax.nn.log_softmax(params[tokens[:, 2:7]])
    np.testing.assert_allclose(whole[1], -(jnp.exp(log_probs) * log_probs).sum(axis=-1), rtol=1e-5)
    assert len(set(np.round(np.asarray(whole[0].hits).ravel() * 6).tolist())) > 1
