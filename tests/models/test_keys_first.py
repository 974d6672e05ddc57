"""keys_first.py against numpy and jax's own attention; hidden states of chosen places against those of whole rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.packed_rows import hidden_at, pick
from rl_jax.models.transformer.attention import attend
from rl_jax.models.transformer.keys_first import attend_keys_first
from rl_jax.models.transformer.model import make_transformer
from tests.tiny import CONFIG, max_difference, random_params, token_batch

BATCH, LENGTH, KEYS, WIDTH = 2, 5, 7, 3


def _inputs(heads, kv_heads, seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    q = jax.random.normal(keys[0], (BATCH, LENGTH, heads, WIDTH))
    k, v = (jax.random.normal(key, (BATCH, KEYS, kv_heads, WIDTH)) for key in keys[1:3])
    mask = jax.random.bernoulli(keys[3], 0.6, (BATCH, 1, LENGTH, KEYS)).at[:, :, :, 2].set(True)
    return (4.0 * q, k, v), mask, jax.random.normal(keys[4], q.shape)


@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (6, 2), (3, 1)])
def test_attention_equals_loops_of_numpy(heads, kv_heads):
    (q, k, v), mask, _ = _inputs(heads, kv_heads)
    expected = np.zeros(q.shape)
    for b, t, h in np.ndindex(*q.shape[:3]):
        seen, own = np.flatnonzero(mask[b, 0, t]), h // (heads // kv_heads)
        weights = np.exp(0.5 * np.asarray(k, np.float64)[b, seen, own] @ np.asarray(q, np.float64)[b, t, h])
        expected[b, t, h] = weights @ np.asarray(v, np.float64)[b, seen, own] / weights.sum()
    np.testing.assert_allclose(attend_keys_first(q, k, v, mask, 0.5), expected, atol=1e-5)


@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (6, 2)])
def test_gradients_equal_those_of_jax(heads, kv_heads):
    (q, k, v), mask, weights = _inputs(heads, kv_heads, seed=1)

    def gradient(fn):
        return jax.grad(lambda *parts: jnp.sum(fn(*parts) * weights), argnums=(0, 1, 2))(q, k, v)

    ours = gradient(lambda *parts: attend_keys_first(*parts, mask, 0.5))
    theirs = gradient(lambda *parts: jax.nn.dot_product_attention(*parts, mask=mask, scale=0.5))
    assert max_difference(ours, theirs) < 1e-5
    assert min(float(jnp.abs(x).max()) for x in theirs) > 0.1, "nothing was compared"


def test_large_scores_and_rows_that_see_nothing_stay_finite():
    (q, k, v), mask, weights = _inputs(2, 1)
    mask = mask.at[0, :, 1].set(False)
    value, gradient = jax.value_and_grad(lambda *parts: jnp.sum(attend_keys_first(*parts, mask, 1e4) * weights))(
        q, k, v
    )
    assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("dtype, own", [("float32", True), ("bfloat16", False)])
def test_a_cpu_takes_it_for_float32(dtype, own):
    """Others keep jax's: its scores are float32 whatever the dtype of the queries."""
    (q, k, v), mask, _ = jax.tree.map(lambda x: x.astype(dtype) if x.dtype != bool else x, _inputs(2, 1))
    program = str(jax.make_jaxpr(lambda *parts: attend(*parts, scale=0.5))(q, k, v, mask))
    assert ("attend_keys_first" in program) == own


@pytest.mark.parametrize("fields", [{}, {"unroll": 2}, {"unroll": 2, "remat": "full"}, {"num_layers": 1}], ids=str)
@pytest.mark.parametrize("picked", ["the last columns", "a gather"])
def test_hidden_states_of_some_places_are_those_of_whole_rows(fields, picked):
    """Values and gradients, where layers are a loop and where the last one is apart."""
    config = dataclasses.replace(CONFIG, **fields)
    model, params, batch = make_transformer(config), random_params(config), token_batch([8, 5], 8, left=False)
    indices = jnp.array([[1, 4, 4], [0, 4, 2]], jnp.int32)
    places = (lambda x: x[:, -5:-1]) if picked == "the last columns" else lambda x: pick(x, indices)

    def total(read):
        def loss(params):
            hidden = read(params)
            return jnp.sum(jnp.sin(3.0 * hidden)), hidden

        (_, hidden), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
        return hidden, gradient

    (found, left), (expected, right) = (
        total(read)
        for read in (
            lambda params: hidden_at(model.apply, params, batch, places),
            lambda params: places(model.apply(params, batch)),
        )
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert max_difference(left, right) < 1e-4


def test_the_last_layers_mlp_runs_on_the_chosen_places_alone():
    """By the compiler's count: two of eight columns leave out three quarters of what follows the last attention."""
    config = dataclasses.replace(CONFIG, unroll=CONFIG.num_layers)
    batch, per_token = token_batch([8, 8], 8), 2 * config.embed_dim * (3 * config.mlp_dim + 4 * config.head_dim)

    def flops(apply):
        program = jax.jit(lambda params: hidden_at(apply, params, batch, lambda x: x[:, -2:]))
        return program.lower(random_params(config)).compile().cost_analysis()["flops"]

    apply = make_transformer(config).apply
    saved = flops(lambda params, batch: apply(params, batch)) - flops(apply)
    assert saved == pytest.approx(12 * per_token, rel=0.1), "12 of 16 places are left out"
