"""models/transformer.py against Hugging Face's Llama, and what it must not notice: padding, packing, remat, scan."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.models.transformer import Block, RMSNorm, TransformerConfig, attention_mask, make_transformer
from rl_jax.types import TokenBatch
from tests.tiny import CONFIG, max_difference, random_params, token_batch


def _from_hugging_face(state, config):
    """A LlamaForCausalLM state dict (or its gradients by name) in our layout: kernels [in, out], layers on L."""
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj"}
    names |= {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
    norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}

    def stack(name):
        return np.stack([state[f"model.layers.{i}.{name}.weight"] for i in range(config.num_layers)])

    params = {
        "embed": {"embedding": state["model.embed_tokens.weight"]},
        "layers": {ours: {"kernel": stack(theirs).swapaxes(1, 2)} for ours, theirs in names.items()}
        | {ours: {"scale": stack(theirs)} for ours, theirs in norms.items()},
        "final_norm": {"scale": state["model.norm.weight"]},
    }
    if not config.tied_head:
        params["head"] = {"kernel": state["lm_head.weight"].T}
    return params


def _hugging_face(config):
    """A LlamaForCausalLM of `config`'s sizes with weights large enough for attention to matter."""
    import torch
    import transformers

    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.embed_dim,
            intermediate_size=config.mlp_dim,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=config.tied_head,
            attn_implementation="eager",
        )
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1.0 + 0.3 * noise if "norm" in name else 0.2 * noise)
    return model.eval()


def _loss(model, params, batch):
    """Mean next-token NLL over pairs of real tokens."""
    log_probs = jax.nn.log_softmax(model.unembed(params, model.apply(params, batch))[:, :-1])
    picked = jnp.take_along_axis(log_probs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    segments = batch.segment_ids
    live = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return -jnp.sum(jnp.where(live, picked, 0.0)) / jnp.sum(live)


@functools.cache
def _value_and_gradient(config):
    return jax.jit(jax.value_and_grad(functools.partial(_loss, make_transformer(config))))


@functools.cache
def _logits(config):
    model = make_transformer(config)
    return jax.jit(lambda params, batch: model.unembed(params, model.apply(params, batch)))


@pytest.mark.parametrize("tied, kv_heads", [(True, 2), (False, 1)], ids=["tied", "untied"])
def test_equals_hugging_face_llama(tied, kv_heads):
    import torch

    config = dataclasses.replace(CONFIG, num_kv_heads=kv_heads, tied_head=tied, rope_theta=500.0, norm_eps=1e-4)
    theirs = _hugging_face(config)
    batch = token_batch([12, 7, 3], 12)
    real = np.asarray(batch.segment_ids) > 0
    tokens, positions = (torch.tensor(np.asarray(x), dtype=torch.long) for x in batch[:2])
    logits = theirs(tokens, attention_mask=torch.tensor(real).long(), position_ids=positions).logits
    live = torch.tensor(real[:, 1:] & real[:, :-1])
    picked = torch.log_softmax(logits[:, :-1], dim=-1).gather(-1, tokens[:, 1:, None])[..., 0]
    (-picked[live].mean()).backward()
    params = _from_hugging_face({k: p.detach().numpy() for k, p in theirs.named_parameters()}, config)
    expected = _from_hugging_face({k: p.grad.numpy() for k, p in theirs.named_parameters()}, config)
    params = jax.tree.map(jnp.array, params)
    ours = np.asarray(_logits(config)(params, batch))
    np.testing.assert_allclose(ours[real], logits.detach().numpy()[real], atol=1e-5, rtol=1e-5)
    gradient = _value_and_gradient(config)(params, batch)[1]
    assert max_difference(gradient, expected) < 1e-5
    assert all(np.max(np.abs(leaf)) > 1e-3 for leaf in jax.tree.leaves(expected)), "a gradient too small to compare"


def test_width_of_the_left_padding_changes_nothing():
    params, lengths = random_params(), [8, 5, 1]
    narrow, wide = token_batch(lengths, 8), token_batch(lengths, 13)
    real = np.asarray(narrow.segment_ids) > 0
    logits = np.asarray(_logits(CONFIG)(params, narrow))
    padded = np.asarray(_logits(CONFIG)(params, wide))[:, -8:]
    np.testing.assert_allclose(padded[real], logits[real], atol=1e-5)
    left, right = (_value_and_gradient(CONFIG)(params, b) for b in (narrow, wide))
    assert max_difference(left, right) < 1e-5


def test_padding_on_the_right_equals_padding_on_the_left():
    params, lengths = random_params(), [8, 5, 2]
    left, right = token_batch(lengths, 8), token_batch(lengths, 8, left=False)
    logits = [np.asarray(_logits(CONFIG)(params, b))[np.asarray(b.segment_ids) > 0] for b in (left, right)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


def test_contents_of_the_padding_change_nothing():
    """Other tokens, other positions, an embedding a million times larger: none of it is seen, and none is trained."""
    params, batch = random_params(), token_batch([8, 5, 1], 8)
    real = np.asarray(batch.segment_ids) > 0
    untied = dataclasses.replace(CONFIG, tied_head=False)
    params["head"] = {"kernel": params["embed"]["embedding"].T}
    params["embed"]["embedding"] = params["embed"]["embedding"].at[2].multiply(1e6)
    junk = batch._replace(
        tokens=jnp.where(real, batch.tokens, 2), positions=jnp.where(real, batch.positions, 77)
    )
    before, after = (np.asarray(_logits(untied)(params, b))[real] for b in (batch, junk))
    np.testing.assert_array_equal(before, after)
    (_, clean), (_, gradient) = (_value_and_gradient(untied)(params, b) for b in (batch, junk))
    assert not np.any(gradient["embed"]["embedding"][2])
    assert max_difference(clean, gradient) < 1e-6


def test_packed_rows_equal_separate_rows():
    """Two sequences in one row, segments 1 and 2 with positions that start again, then padding."""
    params = random_params()
    apart = token_batch([7, 5], 7, left=False)
    tokens = jnp.concatenate([apart.tokens[0], apart.tokens[1, :5], jnp.zeros(2, jnp.int32)])[None]
    positions = jnp.concatenate([jnp.arange(7), jnp.arange(5), jnp.zeros(2, jnp.int32)])[None].astype(jnp.int32)
    segments = jnp.array([[1] * 7 + [2] * 5 + [0] * 2], jnp.int32)
    packed = TokenBatch(tokens, positions, segments)
    separate = np.asarray(_logits(CONFIG)(params, apart))
    together = np.asarray(_logits(CONFIG)(params, packed))[0]
    np.testing.assert_allclose(together[:7], separate[0], atol=1e-5)
    np.testing.assert_allclose(together[7:12], separate[1, :5], atol=1e-5)
    left, right = (_value_and_gradient(CONFIG)(params, b) for b in (apart, packed))
    assert max_difference(left, right) < 1e-5


def test_no_position_sees_a_later_one():
    """The logits of the first t tokens do not change when those behind them do."""
    params, batch = random_params(), token_batch([8, 8], 8)
    logits = np.asarray(_logits(CONFIG)(params, batch))
    for t in (1, 4, 7):
        later = batch._replace(tokens=batch.tokens.at[:, t:].set(9))
        changed = np.asarray(_logits(CONFIG)(params, later))
        np.testing.assert_array_equal(changed[:, :t], logits[:, :t])
        assert np.max(np.abs(changed[:, t:] - logits[:, t:])) > 0.1


def test_attention_mask_by_hand():
    segments = jnp.array([[0, 1, 1, 2]])
    expected = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    np.testing.assert_array_equal(attention_mask(segments, segments)[0, 0], np.array(expected, bool))


@pytest.mark.parametrize("policy", ["full", "dots"])
def test_rematerialisation_changes_nothing(policy):
    params, batch = random_params(), token_batch([8, 5], 8)
    plain = _value_and_gradient(CONFIG)(params, batch)
    config = dataclasses.replace(CONFIG, remat=policy)
    assert max_difference(_value_and_gradient(config)(params, batch), plain) < 1e-6
    jaxpr = str(jax.make_jaxpr(jax.grad(functools.partial(_loss, make_transformer(config))))(params, batch))
    assert "remat" in jaxpr or "checkpoint" in jaxpr, "the policy is not applied"


def test_the_scan_equals_a_loop_over_the_layers():
    params, batch = random_params(), token_batch([8, 5], 8)
    mask = attention_mask(batch.segment_ids, batch.segment_ids)
    x = params["embed"]["embedding"][batch.tokens]
    for i in range(CONFIG.num_layers):
        layer = jax.tree.map(lambda p, i=i: p[i], params["layers"])
        x, _ = Block(CONFIG).apply(
            {"params": layer}, x, batch.positions,
            lambda q, k, v: (jax.nn.dot_product_attention(q, k, v, mask=mask), None),
        )
    x = RMSNorm(CONFIG.norm_eps, "float32").apply({"params": params["final_norm"]}, x)
    np.testing.assert_allclose(make_transformer(CONFIG).apply(params, batch), x, atol=1e-5)


def test_bfloat16_computes_in_bfloat16_and_gives_float32_logits():
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    model, params, batch = make_transformer(config), random_params(), token_batch([8, 5], 8)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    assert jax.eval_shape(model.apply, params, batch).dtype == jnp.bfloat16
    logits = _logits(config)(params, batch)
    assert logits.dtype == jnp.float32
    real = np.asarray(batch.segment_ids) > 0
    wide = np.asarray(_logits(CONFIG)(params, batch))[real]
    assert 1e-4 < np.max(np.abs(np.asarray(logits)[real] - wide)) < 0.3
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert np.mean(np.asarray(logits != rounded)) > 0.5, "the logits were rounded to bfloat16 on their way"
    value, gradient = _value_and_gradient(config)(params, batch)
    assert value.dtype == jnp.float32
    assert all(g.dtype == jnp.float32 and np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    stored = dataclasses.replace(config, param_dtype="bfloat16")
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(make_transformer(stored).init(jax.random.key(0))))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=4"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"remat": "half"}, "remat='half' is none of none, full, dots"),
    ],
)
def test_errors_of_the_config(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**dataclasses.asdict(CONFIG) | fields)


def test_shapes_that_do_not_agree_are_refused():
    batch = token_batch([4], 4)
    with pytest.raises(AssertionError):
        make_transformer(CONFIG).apply(random_params(), batch._replace(positions=batch.positions[:, :3]))
