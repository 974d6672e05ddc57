"""scoring.py: chunks change nothing but the memory; entropy and cuts against numpy; no [B, C, V] anywhere."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer import make_transformer
from rl_jax.rollout.sampling import Sampling
from rl_jax.scoring import make_score
from tests.tiny import CONFIG, max_difference, random_params, token_batch

MODEL = make_transformer(CONFIG)
COMPLETION = 10


@functools.cache
def _case():
    return random_params(), token_batch([14, 11, 12], 14)


def _plain(params, batch, temperature=1.0, completion_length=COMPLETION):
    """log_softmax, gather and entropy of all logits at once."""
    logits = MODEL.unembed(params, MODEL.apply(params, batch)) / temperature
    log_probs = jax.nn.log_softmax(logits, axis=-1)[:, -completion_length - 1 : -1]
    picked = jnp.take_along_axis(log_probs, batch.tokens[:, -completion_length:, None], axis=-1)[..., 0]
    return picked, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)


def _total(scores):
    """A scalar that reads every entry of both, each with a weight of its own."""
    log_probs, entropy = scores
    weights = jnp.cos(jnp.arange(log_probs.size, dtype=jnp.float32)).reshape(log_probs.shape)
    return jnp.sum(weights * log_probs) + 0.3 * jnp.sum(weights[::-1] * entropy)


@functools.cache
def _plain_at_temperature():
    params, batch = _case()

    def total(params):
        scores = _plain(params, batch, temperature=0.7)
        return _total(scores), scores

    gradient, scores = jax.jit(jax.grad(total, has_aux=True))(params)
    return scores, gradient


@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_chunks_change_nothing(chunk):
    params, batch = _case()
    score = make_score(MODEL, completion_length=COMPLETION, sampling=Sampling(temperature=0.7), chunk=chunk)
    expected, plain = _plain_at_temperature()

    def total(params):
        scores = score(params, batch)
        return _total(scores), scores

    ours, scores = jax.jit(jax.grad(total, has_aux=True))(params)
    np.testing.assert_allclose(scores.log_probs, expected[0], atol=1e-5)
    np.testing.assert_allclose(scores.entropy, expected[1], atol=1e-5)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(plain))
    assert max_difference(ours, plain) < 1e-5 * max(1.0, largest)


def test_temperature_and_entropy_against_numpy():
    params, batch = _case()
    rule = Sampling(temperature=0.5)
    scores = jax.jit(make_score(MODEL, completion_length=COMPLETION, sampling=rule, chunk=4))(params, batch)
    logits = np.asarray(MODEL.unembed(params, MODEL.apply(params, batch)), np.float64)[:, -COMPLETION - 1 : -1]
    exponent = np.exp(2 * (logits - logits.max(-1, keepdims=True)))
    probs = exponent / exponent.sum(-1, keepdims=True)
    tokens = np.asarray(batch.tokens)[:, -COMPLETION:]
    picked = np.log(np.take_along_axis(probs, tokens[..., None], -1))[..., 0]
    np.testing.assert_allclose(scores.log_probs, picked, atol=2e-5)
    np.testing.assert_allclose(scores.entropy, -(probs * np.log(probs)).sum(-1), atol=2e-5)


def test_a_token_that_is_cut_off_is_minus_infinity_and_leaves_the_gradient_finite():
    params, batch = _case()
    score = make_score(MODEL, completion_length=COMPLETION, sampling=Sampling(top_p=0.8), chunk=4)
    scores = jax.jit(score)(params, batch)
    cut = np.isneginf(scores.log_probs)
    assert 0 < cut.sum() < cut.size and not np.any(np.isnan(scores.log_probs))
    assert np.all(np.isfinite(scores.entropy)) and np.all(scores.entropy >= 0)
    plain = _plain(params, batch)[0]
    assert np.all(np.asarray(scores.log_probs)[~cut] > np.asarray(plain)[~cut])  # renormalised over fewer tokens

    def total(params):
        scores = score(params, batch)
        return jnp.sum(jnp.where(cut, 0.0, scores.log_probs)) + jnp.sum(scores.entropy)

    gradient = jax.jit(jax.grad(total))(params)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    assert any(np.any(g) for g in jax.tree.leaves(gradient))


def test_the_log_prob_of_a_token_is_read_one_column_before_it():
    """Changing the last token changes its own log-prob and no other score."""
    params, batch = _case()
    score = jax.jit(make_score(MODEL, completion_length=COMPLETION, chunk=4))
    changed = batch._replace(tokens=batch.tokens.at[:, -1].set(batch.tokens[:, -1] % 60 + 3))
    before, after = score(params, batch), score(params, changed)
    np.testing.assert_array_equal(before.log_probs[:, :-1], after.log_probs[:, :-1])
    np.testing.assert_array_equal(before.entropy, after.entropy)
    assert np.all(before.log_probs[:, -1] != after.log_probs[:, -1])


# 4 rows, 40 columns, 32 of them completion, 512 tokens: [B, C, V] is 65536 numbers and the parameters are fewer.
WIDE = dataclasses.replace(CONFIG, vocab_size=512)


def _compiled(function):
    params = jax.eval_shape(make_transformer(WIDE).init, jax.random.key(0))
    batch = token_batch([40] * 4, 40)
    return jax.jit(function).lower(params, batch).compile()


def _largest_array(compiled):
    shapes = re.findall(r"\b(?:f|bf|s|u|pred)\d*\[([\d,]*)\]", compiled.as_text())
    return max(math.prod(int(n) for n in shape.split(",") if n) for shape in shapes)


@pytest.mark.parametrize("differentiated", [False, True], ids=["forward", "gradient"])
def test_the_compiled_program_holds_no_logits_of_the_batch(differentiated):
    model = make_transformer(WIDE)

    def naive(params, batch):
        log_probs = jax.nn.log_softmax(model.unembed(params, model.apply(params, batch)[:, -33:-1]), axis=-1)
        picked = jnp.take_along_axis(log_probs, batch.tokens[:, -32:, None], axis=-1)[..., 0]
        return _total((picked, -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)))

    score = make_score(model, completion_length=32, chunk=4)
    functions = [naive, lambda params, batch: _total(score(params, batch))]
    plain, ours = (_compiled(jax.grad(f) if differentiated else f) for f in functions)
    logits = 4 * 32 * 512
    assert _largest_array(plain) >= logits, "the check itself sees nothing"
    assert _largest_array(ours) < logits
    assert ours.memory_analysis().temp_size_in_bytes < plain.memory_analysis().temp_size_in_bytes


def test_rows_without_a_prompt_are_refused():
    params, batch = _case()
    with pytest.raises(ValueError, match="rows of 14 tokens hold no prompt before 14 completion tokens"):
        make_score(MODEL, completion_length=14)(params, batch)
    with pytest.raises(ValueError, match="top_p=2.0"):
        make_score(MODEL, completion_length=4, sampling=Sampling(top_p=2.0))
