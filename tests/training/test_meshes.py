"""What a mesh may not change: tokens, losses and gradients of one program on eight devices, whatever their shape."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer.model import make_transformer
from rl_jax.rollout.lm.engine import make_generate
from rl_jax.training import sharding
from rl_jax.training.scoring import make_score
from tests.tiny import CONFIG, max_difference, prompts, random_params, token_batch

MODELS = {
    "dense": dataclasses.replace(CONFIG, num_layers=1),
    "experts": dataclasses.replace(CONFIG, num_layers=1, num_experts=4, experts_per_token=2, mlp_dim=40, qk_norm=True),
}
# Each axis with others, and one alone; data:2,fsdp:2,tensor:2 is in test_packing.py, test_train.py and
# rollout/test_continuous.py.
SHAPES = [
    ("dense", "fsdp:8"),
    ("dense", "context:2,fsdp:4"),
    ("dense", "data:2,context:2,tensor:2"),
    ("experts", "expert:2,fsdp:4"),
    ("experts", "expert:4,tensor:2"),
    ("experts", "data:2,expert:2,context:2"),
]
ROWS, PROMPT, COMPLETION = 8, 8, 8
TOKENS = ROWS * 2 * (PROMPT + COMPLETION)  # of a whole batch of two samples a prompt
# The machine code may be slow: it runs once. What the partitioner does comes before it.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@functools.cache
def params_of(name):
    """Random params of unit-sized logits."""
    return random_params(MODELS[name]) if name == "dense" else make_transformer(MODELS[name]).init(jax.random.key(0))


@functools.cache
def run(name, text):
    """(rollout, loss, gradients) of a policy-gradient step that samples its own rows, on the host; the compiled
    program's text; the shapes of the params' shards."""
    mesh = sharding.make_mesh(sharding.parse_mesh(text))
    model = sharding.model_on_mesh(make_transformer(MODELS[name]), mesh)
    generate = make_generate(model, completion_length=COMPLETION, group_size=2, eos_ids=(1,))
    score = make_score(model, completion_length=COMPLETION, chunk=4)

    def loss(params, rollout):
        scores, mask = score(params, rollout.batch), rollout.completion_mask
        advantages = jnp.broadcast_to(jnp.sin(jnp.arange(1.0, 1 + len(mask)))[:, None], mask.shape)
        return jnp.sum(jnp.where(mask, scores.log_probs * advantages + 0.1 * scores.entropy, 0.0)) / len(mask)

    def step(params, tokens, mask, key):
        rollout = generate(params, tokens, mask, key)
        return rollout, *jax.value_and_grad(loss)(params, rollout)

    shardings = sharding.tree_shardings(params_of(name), mesh)
    rows, everywhere = sharding.batch_sharding(mesh), sharding.replicated(mesh)
    placed = (shardings, rows, rows, everywhere)
    arguments = (params_of(name), *prompts([8, 5, 3, 8, 7, 6, 2, 4], PROMPT), jax.random.key(3))
    jitted = jax.jit(step, in_shardings=placed, out_shardings=(rows, everywhere, shardings))
    compiled = jitted.lower(*arguments).compile(QUICK)
    arguments = jax.device_put(arguments, placed)
    shards = jax.tree.map(lambda x: x.addressable_shards[0].data.shape, arguments[0])
    return jax.device_get(compiled(*arguments)), compiled.as_text(), shards


@pytest.mark.slow
@pytest.mark.parametrize("name, text", SHAPES)
def test_tokens_losses_and_gradients_agree(name, text):
    (rollout, loss, gradients), *_ = run(name, text)
    (expected, expected_loss, expected_gradients), *_ = run(name, "")
    np.testing.assert_array_equal(rollout.batch.tokens, expected.batch.tokens)
    np.testing.assert_allclose(rollout.sampled_log_probs, expected.sampled_log_probs, atol=1e-5)
    assert abs(loss - expected_loss) < 1e-5 and len(np.unique(expected.batch.tokens)) > 20
    assert max_difference(gradients, expected_gradients) < 1e-5
    assert min(np.abs(x).max() for x in jax.tree.leaves(expected_gradients)) > 1e-3, "nothing was compared"


def sizes_with(program, *dims):
    """The sizes of all arrays in the text of a compiled program that have these dimensions among theirs."""
    shapes = {tuple(map(int, found.split(","))) for found in re.findall(r"f32\[([\d,]+)\]", program)}
    return [math.prod(shape) for shape in shapes if set(dims) <= set(shape)]


@pytest.mark.parametrize("text", ["fsdp:8", "context:2,fsdp:4"])
def test_each_device_computes_its_own_rows_and_tokens_only(text):
    """No array of an MLP's width holds more tokens than an eighth of the batch's (but a kernel, of 32 x 48).

    On one device it runs on completions alone: there is no other layer.
    """
    width = MODELS["dense"].mlp_dim
    own = [size for size in sizes_with(run("dense", text)[1], width) if size != width * MODELS["dense"].embed_dim]
    assert max(own, default=width * TOKENS // 8) <= width * TOKENS // 8
    assert max(sizes_with(run("dense", "")[1], width)) == width * TOKENS // 2


@pytest.mark.parametrize("text, share", [("expert:2,fsdp:4", 2), ("expert:4,tensor:2", 4)])
def test_each_device_holds_its_own_experts_only(text, share):
    """Stored they are a share, and no array of the program, gathered or a gradient, is larger than that share."""
    config = MODELS["experts"]
    _, program, shards = run("experts", text)
    inner = config.mlp_dim // sharding.parse_mesh(text)["tensor"]
    embed = config.embed_dim // sharding.parse_mesh(text)["fsdp"]
    assert shards["layers"]["experts"]["gate"] == (1, 4 // share, embed, inner)
    assert shards["layers"]["experts"]["down"] == (1, 4 // share, inner, embed)
    kernels = [size for size in sizes_with(program, config.embed_dim, inner) if size % (config.embed_dim * inner) == 0]
    assert max(kernels) == 4 // share * config.embed_dim * inner
    alone = sizes_with(run("experts", "")[1], config.embed_dim, config.mlp_dim)
    assert max(alone) == 4 * config.embed_dim * config.mlp_dim


def test_rows_that_a_context_axis_does_not_divide_are_named():
    mesh = sharding.make_mesh(sharding.parse_mesh("context:8"))
    model = sharding.model_on_mesh(make_transformer(CONFIG), mesh)
    with pytest.raises(ValueError, match="rows of 12 tokens do not divide over the mesh's context=8"):
        jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), token_batch([12, 9], 12))
