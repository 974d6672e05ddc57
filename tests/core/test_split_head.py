"""core/split_head.py: on every mesh the split head's scores and gradients are those of the whole one."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from experiments.plan import hlo
from rl_jax.core.split_head import SplitHead, make_split_scores, split_head
from rl_jax.core.types import TokenScores
from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.sampling import Sampling
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, max_difference, random_params, token_batch

ROWS, WIDTH, DIM, VOCABULARY = 8, 3, 4, 24
ODD = 19  # of eight devices one has two columns without a token, and one nothing else
MESHES = [
    ("fsdp:8", 1),
    ("fsdp:8", 4),
    ("fsdp:8", 8),
    ("tensor:8", 1),
    ("context:8", 1),
    ("data:2,fsdp:2,tensor:2", 2),
    ("fsdp:4,context:2", 2),
    ("expert:2,fsdp:2,context:2", 2),
    ("data:4,tensor:2", 1),
]


def mesh_of(text):
    return sharding.make_mesh(sharding.parse_mesh(text))


def cap(logits):
    return 5.0 * jnp.tanh(logits / 5.0)


def logits_of(weights, hidden):
    return cap(hidden @ weights)


@functools.cache
def head_case(size=VOCABULARY):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ROWS, WIDTH, DIM)).astype(np.float32)
    weights = (3.0 * rng.normal(size=(DIM, size))).astype(np.float32)
    cotangents = rng.normal(size=(3, ROWS, WIDTH)).astype(np.float32)
    return weights, hidden, rng.integers(0, size, (ROWS, WIDTH)).astype(np.int32), cotangents


def total(scores, cotangents):
    return sum(jnp.sum(x * c) for x, c in zip(scores, cotangents, strict=True)), scores


@functools.cache
def whole(size):
    weights, hidden, tokens, cotangents = head_case(size)

    def of(weights, hidden):
        log_probs = jax.nn.log_softmax(logits_of(weights, hidden) / 0.7)
        picked = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        entropy, squares = -jnp.sum(jnp.exp(log_probs) * log_probs, -1), jnp.sum(jnp.exp(2 * log_probs), -1)
        return total(TokenScores(picked, entropy, squares), cotangents)

    return jax.jit(jax.value_and_grad(of, argnums=(0, 1), has_aux=True))(weights, hidden)


@pytest.mark.parametrize("size", [VOCABULARY, ODD])
@pytest.mark.parametrize(("text", "ring"), MESHES)
def test_values_and_gradients_are_those_of_the_whole_head(text, ring, size):
    weights, hidden, tokens, cotangents = head_case(size)
    mesh = mesh_of(text)

    def of(weights, hidden, tokens):
        split = split_head(lambda: weights, size, lambda weights, hidden: hidden @ weights, cap)
        assert split.takes(ROWS) and set(split.axes) <= set(re.findall("[a-z]+", text))
        head = make_split_scores(split, ring, temperature=0.7, sum_pi_squared=True)
        return total(head(split.parts(ring), hidden, tokens), cotangents)

    rows = sharding.batch_sharding(mesh)
    placed = jax.device_put((hidden, tokens), rows)
    found = jax.jit(jax.value_and_grad(sharding.on_mesh(of, mesh), argnums=(0, 1), has_aux=True))(weights, *placed)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(whole(size)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


def rings_of_four(weights):
    """(the head on eight devices in two rings, the weights that it takes)."""
    split = split_head(lambda: weights, weights.shape[1], lambda weights, hidden: hidden @ weights, cap)
    return make_split_scores(split, 4, temperature=0.7, sum_pi_squared=True), split.parts(4)


@pytest.mark.parametrize("size", [VOCABULARY, ODD])
@pytest.mark.parametrize("which", [(0,), (1, 2)])
def test_a_gradient_of_some_of_the_scores_is_that_of_the_whole_head(which, size):
    weights, hidden, tokens, cotangents = head_case(size)

    def expected(weights, hidden, tokens):
        log_probs = jax.nn.log_softmax(logits_of(weights, hidden) / 0.7)
        p = jnp.exp(log_probs)
        picked = jnp.take_along_axis(log_probs, tokens[..., None], axis=-1)[..., 0]
        scores = (picked, -jnp.sum(p * log_probs, -1), jnp.sum(p * p, -1))
        return sum(jnp.sum(scores[i] * cotangents[i]) for i in which)

    def found(weights, hidden, tokens):
        head, parts = rings_of_four(weights)
        scores = head(parts, hidden, tokens)
        return sum(jnp.sum(scores[i] * cotangents[i]) for i in which)

    mesh = mesh_of("fsdp:8")
    placed = jax.device_put((hidden, tokens), sharding.batch_sharding(mesh))
    ours = jax.jit(jax.grad(sharding.on_mesh(found, mesh), argnums=(0, 1)))(weights, *placed)
    for one, other in zip(ours, jax.jit(jax.grad(expected, argnums=(0, 1)))(weights, hidden, tokens), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)


def test_a_slice_is_sent_to_near_devices_only_and_its_gradient_too():
    """A v5e waits for what is gathered or summed over all. What goes to a near chip goes while it multiplies."""
    weights, hidden, tokens, _ = head_case()
    mesh = mesh_of("fsdp:8")

    def sent(which):
        head, parts = rings_of_four(weights)

        def loss(parts, hidden):
            scores = head(parts, hidden, tokens)
            return sum(jnp.sum(scores[i]) for i in which)

        text = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(parts, hidden))
        assert not re.search("all_gather|psum|all_to_all|reduce_scatter|pmax", text)
        steps = set(re.findall(r"perm=(\(\(.*?\)\))", text, re.DOTALL))
        return steps, re.findall(r"(\w+\[[\d,]+\])\S* = ppermute", text)

    with jax.set_mesh(mesh):
        (steps,), sizes = sent((0,))
        of_all = sent((0, 1, 2))[1]
    pairs = [[int(n) for n in pair] for pair in re.findall(r"(\d+), *(\d+)", steps)]
    assert sorted(to for _, to in pairs) == list(range(8)) and max(abs(a - b) for a, b in pairs) == 2
    # Around a ring of four, three times each: hidden states and their gradient, five sums forward, and back as many
    # numbers as the gradient needs.
    assert sizes.count(f"f32[1,{WIDTH},{DIM}]") == of_all.count(f"f32[1,{WIDTH},{DIM}]") == 6
    assert sizes.count(f"f32[5,1,{WIDTH}]") == sizes.count(f"f32[3,1,{WIDTH}]") == 3
    assert of_all.count(f"f32[5,1,{WIDTH}]") == 6


@pytest.mark.parametrize(("ring", "columns"), [(8, 1), (8, 31), (4, 125), (2, 500), (1, 1000)])
def test_a_ring_has_no_more_tokens_of_a_slice_than_of_the_vocabulary(ring, columns):
    split = SplitHead(jnp.zeros((1, 2000)), 2000, None, None, ("fsdp",), mesh_of("data:1,fsdp:8").abstract_mesh)
    assert split.ring(8, columns) == ring and ring**2 * columns <= 2000


def test_where_nothing_can_be_split_there_is_no_split_head():
    weights = jnp.zeros((DIM, VOCABULARY))
    seen = {}

    def make(weights):
        return split_head(lambda: weights, weights.shape[1], lambda weights, hidden: hidden @ weights)

    def look(weights, name):
        seen[name] = make(weights)
        return weights

    for name, text in [("one", ""), ("rows", "data:8")]:
        jax.eval_shape(jax.jit(sharding.on_mesh(functools.partial(look, name=name), mesh_of(text))), weights)
    assert seen["one"] is seen["rows"] is None
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
    assert seen["rows of two"].takes(16) and not seen["rows of two"].takes(12) and seen["tensor"].takes(7)
    assert [seen["rows of two"].ring(16, columns) for columns in (1, 3, 4)] == [2, 2, 1]


# 512 tokens: the head [16, 512] is larger than any other array of the model.
WIDE = dataclasses.replace(CONFIG, vocab_size=512)


def score_of(model, *, chunk=7, **keywords):
    score = make_score(model, completion_length=24, chunk=chunk, **{"sampling": Sampling(temperature=0.7)} | keywords)

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
@pytest.mark.parametrize("size", [512, 510, 509])  # of them 510 is split over `tensor` where it rests
def test_a_score_on_a_mesh_equals_that_of_one_device_and_never_gathers_the_head(size):
    wide = dataclasses.replace(WIDE, vocab_size=size)
    params, batch = random_params(wide), token_batch([40, 31, 38, 33, 40, 20, 26, 37], 40, vocab_size=size)
    (expected, scores), gradient = jax.jit(score_of(make_transformer(wide)))(params, batch)
    mesh = mesh_of("data:2,fsdp:2,tensor:2")
    model = sharding.model_on_mesh(make_transformer(wide), mesh)
    placed = jax.device_put(params, sharding.tree_shardings(params, mesh))
    compiled = jax.jit(score_of(model)).lower(placed, jax.device_put(batch, sharding.batch_sharding(mesh))).compile()
    (value, found), ours = compiled(placed, jax.device_put(batch, sharding.batch_sharding(mesh)))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(found.log_probs, scores.log_probs, atol=2e-5)
    np.testing.assert_allclose(found.entropy, scores.entropy, atol=2e-5)
    largest = max(float(np.max(np.abs(leaf))) for leaf in jax.tree.leaves(gradient))
    assert max_difference(jax.device_get(ours), gradient) < 2e-5 * largest
    # A device's part of D, 16 of 32, has all of V where columns are added or taken away; the whole head never exists.
    whole, part = f"({size}|512)", 16 if size == 512 else 32
    gathered = rf"all-gather\S* = f32\[({part},{whole}|{whole},{part})\]"
    assert not re.search(rf"{gathered}|f32\[\d+,\d+,{whole}\]", compiled.as_text())


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "ring"), [(96, 2), (192, 1)])
def test_of_many_rows_the_head_is_sent_once_and_not_for_every_slice(rows, ring):
    """A slice with more tokens than the vocabulary: its hidden states would be more than the head."""
    params, batch = random_params(WIDE), token_batch([40, 31, 38, 33] * (rows // 4), 40, vocab_size=512)
    mesh = mesh_of("fsdp:8")
    score = functools.partial(score_of, chunk=8)
    model = sharding.model_on_mesh(make_transformer(WIDE), mesh)
    placed = jax.device_put(params, sharding.tree_shardings(params, mesh))
    rest = jax.device_put(batch, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        split = split_head(lambda: jnp.zeros((16, 512)), 512, None)
    assert split.ring(rows, 8) == ring
    compiled = jax.jit(score(model)).lower(placed, rest).compile()
    (value, _), _ = compiled(placed, rest)
    np.testing.assert_allclose(value, jax.jit(score(make_transformer(WIDE)))(params, batch)[0][0], rtol=1e-4)
    # Two layers, three slices.
    found = hlo.collectives(compiled.as_text(), dict(mesh.shape))
    sums = [one for one in found if one.times > 2 and one.kind in ("all-gather", "all-reduce", "reduce-scatter")]
    assert not [one for one in sums if one.bytes / one.times > 16 * 512 * 4 / 8], sums
