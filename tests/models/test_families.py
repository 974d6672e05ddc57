"""Every family against `transformers` on tiny random weights, and what no family may notice: padding, packing, caching.

Everything about one family is one fixture: its batches have one shape, so that a family compiles one forward with its
gradient, and one decoding step.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl_jax import models
from rl_jax.core.types import TokenBatch, path_name
from rl_jax.models.transformer.model import make_transformer
from rl_jax.training.sharding import make_mesh, parse_mesh, tree_shardings
from tests.tiny import max_difference, token_batch

pytestmark = pytest.mark.slow

LENGTH = 12
SIZES = dict(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=8,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip
THETA = {"rope_type": "default", "rope_theta": 500.0}
LINEAR = {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0}
# Windows shorter than the rows and softcaps of the logits' size: else they would change nothing.
FAMILIES = {
    "llama": ("Llama", dict(rope_parameters=LLAMA3, rms_norm_eps=1e-4)),
    "llama_biases": ("Llama", dict(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, num_key_value_heads=1,
    )),
    "mistral": ("Mistral", dict(sliding_window=4, rope_parameters=THETA)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True, head_dim=None, rope_parameters=THETA)),
    "qwen3": ("Qwen3", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "gemma2": ("Gemma2", dict(
        sliding_window=4, query_pre_attn_scalar=16, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
    )),
    "gemma3": ("Gemma3", dict(
        sliding_window=4, query_pre_attn_scalar=16, num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": LINEAR, "sliding_attention": THETA},
    )),
    "gpt2": ("GPT2", dict(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=20)),
    "qwen3_moe": ("Qwen3Moe", dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True, rope_parameters=THETA,
    )),
}  # fmt: skip


def hugging_face(name):
    """A tiny random model of the family, with weights large enough for every part of it to matter."""
    import torch
    import transformers

    kind, fields = FAMILIES[name]
    sizes = {} if kind == "GPT2" else SIZES
    config_class = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    fields = {key: value for key, value in {**sizes, **fields}.items() if value is not None}
    model_class = getattr(transformers, "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")
    model = model_class(config_class(**fields, attn_implementation="eager"))
    generator = torch.Generator().manual_seed(0)
    scale_at = 0.0 if kind.startswith("Gemma") else 1.0
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            is_scale = ("norm" in key or "ln_" in key) and key.endswith("weight")
            weight.copy_(scale_at + 0.3 * noise if is_scale else 0.2 * noise)
    return model.eval()


def reference(model, batch):
    """(logits, gradients) by torch; the gradients take the weights' place in the model."""
    import torch

    real = np.asarray(batch.segment_ids) > 0
    tokens, positions = (torch.tensor(np.asarray(x), dtype=torch.long) for x in batch[:2])
    logits = model(tokens, attention_mask=torch.tensor(real).long(), position_ids=positions).logits
    live = torch.tensor(real[:, 1:] & real[:, :-1])
    picked = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]
    (-picked[live].mean()).backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.grad)
    return logits.detach().numpy()


def with_prefixes(batch):
    """The same batch with prefix ids, so that every batch is one structure for jit."""
    return batch._replace(prefix_ids=jnp.zeros_like(batch.tokens))


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """One family: its folder by transformers, our config and params from it, logits and gradients of both."""
    folder = tmp_path_factory.mktemp(request.param)
    theirs = hugging_face(request.param)
    theirs.save_pretrained(folder / "theirs")
    config, params = models.load(folder / "theirs")
    model = make_transformer(config)

    def loss(params, batch):
        logits = model.unembed(params, model.apply(params, batch))
        log_probs = jax.nn.log_softmax(logits[:, :-1])
        picked = jnp.take_along_axis(log_probs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
        segments = batch.segment_ids
        live = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        return -jnp.sum(jnp.where(live, picked, 0.0)) / jnp.sum(live), logits

    batch = with_prefixes(token_batch([LENGTH, 7, 3], LENGTH))
    logits = reference(theirs, batch)
    theirs.save_pretrained(folder / "gradients")
    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (_, ours), gradients = run(params, batch)
    return types.SimpleNamespace(
        name=request.param, folder=folder, config=config, params=params, model=model, batch=batch, logits=logits,
        run=run, ours=np.asarray(ours), gradients=gradients, real=np.asarray(batch.segment_ids) > 0,
    )  # fmt: skip


def logits_and_gradients(case, batch):
    (_, logits), gradients = case.run(case.params, with_prefixes(batch) if batch.prefix_ids is None else batch)
    return np.asarray(logits), gradients


def test_logits_and_gradients_equal_those_of_transformers(case):
    assert np.std(case.logits[case.real]) > 0.3
    np.testing.assert_allclose(case.ours[case.real], case.logits[case.real], atol=1e-5, rtol=1e-5)
    models.save_hf(case.folder / "ours_gradients", case.config, case.gradients, like=case.folder / "theirs")
    ours, theirs = (load_file(case.folder / n / "model.safetensors") for n in ("ours_gradients", "gradients"))
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        assert np.max(np.abs(gradient)) > 1e-4 or name.endswith("k_proj.bias"), f"{name} is too small to compare"
        np.testing.assert_allclose(ours[name], gradient, atol=1e-5, rtol=1e-5, err_msg=name)
    print("parity", case.name, f"{np.max(np.abs(case.ours - case.logits)[case.real]):.1e}",
          f"{max(np.max(np.abs(ours[n] - theirs[n])) for n in ours):.1e}")  # fmt: skip


@pytest.mark.parametrize("like", [True, False], ids=["kept_config", "written_config"])
def test_the_round_trip_is_byte_equal_and_transformers_opens_it(case, like):
    import torch
    import transformers

    saved = case.folder / f"saved_{like}"
    models.save_hf(saved, case.config, case.params, like=case.folder / "theirs" if like else None)
    assert (saved / "model.safetensors").read_bytes() == (case.folder / "theirs" / "model.safetensors").read_bytes()
    assert models.load(saved)[0] == case.config
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        saved, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    tokens, positions = (torch.tensor(np.asarray(x), dtype=torch.long) for x in case.batch[:2])
    with torch.no_grad():
        logits = model(tokens, attention_mask=torch.tensor(case.real).long(), position_ids=positions).logits.numpy()
    np.testing.assert_allclose(logits[case.real], case.logits[case.real], atol=1e-6)


def test_the_side_and_the_contents_of_the_padding_change_nothing(case):
    right = token_batch([LENGTH, 7, 3], LENGTH, left=False)
    logits, gradients = logits_and_gradients(case, right)
    np.testing.assert_allclose(logits[np.asarray(right.segment_ids) > 0], case.ours[case.real], atol=1e-5)
    assert max_difference(gradients, case.gradients) < 1e-5
    batch = case.batch
    junk = batch._replace(
        tokens=jnp.where(case.real, batch.tokens, 2), positions=jnp.where(case.real, batch.positions, 9)
    )
    logits, _ = logits_and_gradients(case, junk)
    np.testing.assert_array_equal(logits[case.real], case.ours[case.real])


def test_only_learned_positions_notice_where_a_row_begins(case):
    logits, _ = logits_and_gradients(case, case.batch._replace(positions=case.batch.positions + 8))
    difference = np.max(np.abs(logits - case.ours)[case.real])
    assert difference > 0.1 if case.config.learned_positions else difference < 1e-4


def test_packed_rows_equal_separate_rows(case):
    apart = token_batch([7, 5, 4], LENGTH, left=False)
    tokens, positions, segments = (np.zeros((3, LENGTH), np.int32) for _ in range(3))
    for segment, (row, length, start) in enumerate([(0, 7, 0), (1, 5, 7)], start=1):
        columns = slice(start, start + length)
        tokens[0, columns], positions[0, columns] = apart.tokens[row, :length], np.arange(length)
        segments[0, columns] = segment
    tokens[2, :4], positions[2, :4], segments[2, :4] = apart.tokens[2, :4], np.arange(4), 1
    packed = TokenBatch(*map(jnp.array, (tokens, positions, segments)))
    left, right = logits_and_gradients(case, apart), logits_and_gradients(case, packed)
    together = np.concatenate([left[0][0, :7], left[0][1, :5]])
    np.testing.assert_allclose(right[0][0], together, atol=1e-5)
    assert max_difference(left[1], right[1]) < 1e-5


def test_completions_that_share_a_prompt_equal_separate_rows(case):
    """With windows of 4, the second completion would lose the prompt if windows went by columns."""
    prompt, first, second = (np.random.default_rng(i).integers(3, 64, n) for i, n in enumerate((4, 5, 3)))
    tokens, positions, segments, prefixes = (np.zeros((3, LENGTH), np.int32) for _ in range(4))
    tokens[0], positions[0] = np.concatenate([prompt, first, second]), [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6]
    segments[0], prefixes[0] = [1] * 4 + [2] * 5 + [3] * 3, [0] * 4 + [1] * 8
    for row, completion in [(1, first), (2, second)]:
        length = 4 + completion.size
        tokens[row, :length], positions[row, :length] = np.concatenate([prompt, completion]), np.arange(length)
        segments[row, :length] = 1
    logits, _ = logits_and_gradients(case, TokenBatch(*map(jnp.array, (tokens, positions, segments, prefixes))))
    np.testing.assert_allclose(logits[0, 4:9], logits[1, 4:9], atol=1e-5)
    np.testing.assert_allclose(logits[0, 9:], logits[2, 4:7], atol=1e-5)


def test_cached_decoding_equals_the_full_forward(case):
    model, batch = case.model, case.batch

    @jax.jit
    def step(params, cache, column):
        visible = (batch.segment_ids > 0) & (jnp.arange(LENGTH) <= column)[None]
        tokens, positions = batch.tokens[:, column], batch.positions[:, column]
        hidden, cache = model.decode(params, tokens, positions, cache, column, visible)
        return model.unembed(params, hidden), cache

    cache, logits = model.init_cache(3, LENGTH), []
    for column in range(LENGTH):
        one, cache = step(case.params, cache, jnp.int32(column))
        logits.append(np.asarray(one))
    np.testing.assert_allclose(np.stack(logits, axis=1)[case.real], case.ours[case.real], atol=1e-5)


def test_bfloat16_stays_bfloat16_up_to_the_logits(case):
    """By shapes alone: nothing in a layer widens the residual stream, the cache or the params."""
    model = make_transformer(dataclasses.replace(case.config, dtype="bfloat16", param_dtype="bfloat16"))
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.structure(params) == jax.tree.structure(case.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
    hidden, cache = jax.eval_shape(model.prefill, params, case.batch)
    assert {x.dtype for x in jax.tree.leaves((hidden, cache))} == {jnp.dtype("bfloat16")}
    assert jax.eval_shape(model.unembed, params, hidden).dtype == jnp.float32
    column = jnp.int32(0)
    arguments = (case.batch.tokens[:, 0], case.batch.positions[:, 0], cache, column, case.batch.segment_ids > 0)
    hidden, after = jax.eval_shape(model.decode, params, *arguments)
    assert {x.dtype for x in jax.tree.leaves((hidden, after))} == {jnp.dtype("bfloat16")}
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, cache)


def test_params_on_a_mesh_follow_the_rules(case):
    """No matrix is left whole on every device: each family's names have a rule (norms and row biases are small)."""
    mesh = make_mesh(parse_mesh("fsdp:2,tensor:2"))
    _, params = models.load(case.folder / "theirs", shardings=functools.partial(tree_shardings, mesh=mesh))
    assert max_difference(params, case.params) == 0.0
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = path_name(path)
        stacked = name.startswith("layers/")
        is_matrix = leaf.ndim - stacked >= 2
        assert is_matrix != leaf.sharding.is_fully_replicated or name.endswith("bias"), name
