"""core/split_head.py: on every mesh the split head's scores and gradients are those of the whole one."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from rl_jax.core.split_head import make_split_scores, split_head
from rl_jax.core.types import TokenScores
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, max_difference, random_params, token_batch

ROWS, WIDTH, DIM, VOCABULARY = 8, 3, 4, 24
MESHES = ["fsdp:8", "tensor:8", "context:8", "data:2,fsdp:2,tensor:2", "expert:2,fsdp:2,context:2", "data:4,tensor:2"]


def mesh_of(text):
    return sharding.make_mesh(sharding.parse_mesh(text))


def logits_of(weights, hidden):
    return 5.0 * jnp.tanh(hidden @ weights / 5.0)


@functools.cache
def head_case():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ROWS, WIDTH, DIM)).astype(np.float32)
    weights = (3.0 * rng.normal(size=(DIM, VOCABULARY))).astype(np.float32)
    cotangents = rng.normal(size=(3, ROWS, WIDTH)).astype(np.float32)
    return weights, hidden, rng.integers(0, VOCABULARY, (ROWS, WIDTH)).astype(np.int32), cotangents


def total(scores, cotangents):
    return sum(jnp.sum(x * c) for x, c in zip(scores, cotangents, strict=True)), scores


@functools.cache
def whole():
    weights, hidden, tokens, cotangents = head_case()

    def of(weights, hidden):
        log_probs = jax.nn.log_softmax(logits_of(weights, hidden) / 0.7)
        picked = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        entropy, squares = -jnp.sum(jnp.exp(log_probs) * log_probs, -1), jnp.sum(jnp.exp(2 * log_probs), -1)
        return total(TokenScores(picked, entropy, squares), cotangents)

    return jax.jit(jax.value_and_grad(of, argnums=(0, 1), has_aux=True))(weights, hidden)


@pytest.mark.parametrize("text", MESHES)
def test_values_and_gradients_are_those_of_the_whole_head(text):
    weights, hidden, tokens, cotangents = head_case()
    mesh = mesh_of(text)

    def of(weights, hidden, tokens):
        split = split_head(lambda: weights, VOCABULARY, logits_of)
        assert split.takes(ROWS) and set(split.axes) <= set(re.findall("[a-z]+", text))
        head = make_split_scores(split, temperature=0.7, sum_pi_squared=True)
        return total(head(split.weights, hidden, tokens), cotangents)

    rows = sharding.batch_sharding(mesh)
    placed = jax.device_put((hidden, tokens), rows)
    found = jax.jit(jax.value_and_grad(sharding.on_mesh(of, mesh), argnums=(0, 1), has_aux=True))(weights, *placed)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(whole()), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


def test_where_nothing_can_be_split_there_is_no_split_head():
    weights = jnp.zeros((DIM, VOCABULARY))
    seen = {}

    def make(weights):
        return split_head(lambda: weights, weights.shape[1], logits_of)

    def look(weights, name):
        seen[name] = make(weights)
        return weights

    for name, text, size in [
        ("one", "", 24),
        ("rows", "data:8", 24),
        ("odd", "fsdp:8", 23),
        ("part", "fsdp:4,tensor:2", 12),
    ]:
        fn = sharding.on_mesh(functools.partial(look, name=name), mesh_of(text))
        jax.eval_shape(jax.jit(fn), weights[:, :size])
    assert (seen["one"], seen["rows"], seen["odd"], seen["part"]) == (None,) * 4
    assert make(weights) is None  # without a mesh
    jax.eval_shape(sharding.on_mesh(functools.partial(look, name="tensor"), mesh_of("tensor:8,data:1")), weights)
    assert seen["tensor"].axes == ("tensor",)
    mesh = mesh_of("data:2,fsdp:4")
    inside = jax.shard_map(
        functools.partial(look, name="inside"), mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec()
    )
    jax.eval_shape(jax.jit(inside), weights)
    assert seen["inside"] is None
    jax.eval_shape(sharding.on_mesh(functools.partial(look, name="rows of two"), mesh), weights)
    assert seen["rows of two"].takes(16) and not seen["rows of two"].takes(12)
    assert seen["rows of two"].weights.shape == (2, DIM, VOCABULARY)


# 512 tokens: the head [16, 512] is larger than any other array of the model.
WIDE = dataclasses.replace(CONFIG, vocab_size=512)


def score_of(model, **keywords):
    score = make_score(model, completion_length=24, chunk=7, **{"sampling": Sampling(temperature=0.7)} | keywords)

    def loss(params, batch):
        scores = score(params, batch)
        weights = jnp.cos(jnp.arange(scores[0].size, dtype=jnp.float32)).reshape(scores[0].shape)
        return jnp.sum(weights * scores.log_probs) + 0.3 * jnp.sum(weights[::-1] * scores.entropy), scores

    return jax.value_and_grad(loss, has_aux=True)


def test_on_one_device_the_program_is_that_of_the_whole_head():
    """And so it is where tokens are cut off."""
    params, batch = jax.eval_shape(make_transformer(WIDE).init, jax.random.key(0)), token_batch([40] * 4, 40)

    def text(mesh, *, split, **keywords):
        model = make_transformer(WIDE)
        model = sharding.model_on_mesh(model if split else model._replace(split_head=None), mesh_of(mesh))
        return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(score_of(model, **keywords))(params, batch)))

    assert text("", split=True) == text("", split=False)
    cut = Sampling(top_p=0.9)
    assert text("fsdp:4", split=True, sampling=cut) == text("fsdp:4", split=False, sampling=cut)
    assert text("fsdp:4", split=True) != text("fsdp:4", split=False)


@pytest.mark.slow
def test_a_score_on_a_mesh_equals_that_of_one_device_and_never_gathers_the_head():
    params, batch = random_params(WIDE), token_batch([40, 31, 38, 33, 40, 20, 26, 37], 40, vocab_size=512)
    (expected, scores), gradient = jax.jit(score_of(make_transformer(WIDE)))(params, batch)
    mesh = mesh_of("data:2,fsdp:2,tensor:2")
    model = sharding.model_on_mesh(make_transformer(WIDE), mesh)
    placed = jax.device_put(params, sharding.tree_shardings(params, mesh))
    compiled = jax.jit(score_of(model)).lower(placed, jax.device_put(batch, sharding.batch_sharding(mesh))).compile()
    (value, found), ours = compiled(placed, jax.device_put(batch, sharding.batch_sharding(mesh)))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(found.log_probs, scores.log_probs, atol=2e-5)
    np.testing.assert_allclose(found.entropy, scores.entropy, atol=2e-5)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(gradient))
    assert max_difference(jax.device_get(ours), gradient) < 2e-5 * largest
    assert not re.search(r"all-gather\S* = f32\[(16,512|512,16)\]|f32\[\d+,\d+,512\]", compiled.as_text())
