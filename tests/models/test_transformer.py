"""models/transformer.py: what it must not notice (padding, packing, remat, the scan), masks, windows, rotary angles.

That its numbers are those of `transformers` is in test_families.py.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl_jax.core.types import TokenBatch
from rl_jax.models.transformer import model as model_module
from rl_jax.models.transformer.attention import attention_mask, layer_kinds, rope_frequencies, rotation
from rl_jax.models.transformer.blocks import Block, RMSNorm
from rl_jax.models.transformer.config import UNROLLED_LAYERS, UNROLLED_WIDTH
from rl_jax.models.transformer.model import TransformerConfig, _layers_per_turn, make_transformer
from tests.tiny import CONFIG, max_difference, random_params, token_batch


def _loss_and_logits(model, params, batch):
    """(mean next-token NLL over pairs of real tokens, the logits)."""
    logits = model.unembed(params, model.apply(params, batch))
    log_probs = jax.nn.log_softmax(logits[:, :-1])
    picked = jnp.take_along_axis(log_probs, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    segments = batch.segment_ids
    live = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
    return -jnp.sum(jnp.where(live, picked, 0.0)) / jnp.sum(live), logits


@functools.cache
def _compiled(config):
    return jax.jit(jax.value_and_grad(functools.partial(_loss_and_logits, make_transformer(config)), has_aux=True))


def _step(config, params, batch):
    """(logits, (loss, gradient)), of one program: logits alone would be another one to compile."""
    (value, logits), gradient = _compiled(config)(params, batch)
    return np.asarray(logits), (value, gradient)


@functools.cache
def _logits(config):
    model = make_transformer(config)
    return jax.jit(lambda params, batch: model.unembed(params, model.apply(params, batch)))


@pytest.mark.slow
def test_width_of_the_left_padding_changes_nothing():
    params, lengths = random_params(), [8, 5, 1]
    narrow, wide = token_batch(lengths, 8), token_batch(lengths, 13)
    real = np.asarray(narrow.segment_ids) > 0
    (logits, left), (padded, right) = (_step(CONFIG, params, b) for b in (narrow, wide))
    np.testing.assert_allclose(padded[:, -8:][real], logits[real], atol=1e-5)
    assert max_difference(left, right) < 1e-5


def test_padding_on_the_right_equals_padding_on_the_left():
    params, lengths = random_params(), [8, 5, 2]
    left, right = token_batch(lengths, 8), token_batch(lengths, 8, left=False)
    logits = [np.asarray(_logits(CONFIG)(params, b))[np.asarray(b.segment_ids) > 0] for b in (left, right)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)


@pytest.mark.slow
def test_contents_of_the_padding_change_nothing():
    """Other tokens, other positions, an embedding a million times larger: none of it is seen, and none is trained."""
    params, batch = random_params(), token_batch([8, 5, 1], 8)
    real = np.asarray(batch.segment_ids) > 0
    untied = dataclasses.replace(CONFIG, tied_head=False)
    params["head"] = {"kernel": params["embed"]["embedding"].T}
    params["embed"]["embedding"] = params["embed"]["embedding"].at[2].multiply(1e6)
    junk = batch._replace(tokens=jnp.where(real, batch.tokens, 2), positions=jnp.where(real, batch.positions, 77))
    (before, (_, clean)), (after, (_, gradient)) = (_step(untied, params, b) for b in (batch, junk))
    np.testing.assert_array_equal(before[real], after[real])
    assert not np.any(gradient["embed"]["embedding"][2])
    assert max_difference(clean, gradient) < 1e-6


@pytest.mark.slow
def test_packed_rows_equal_separate_rows():
    """Two sequences in one row, segments 1 and 2 with positions that start again, then padding."""
    params = random_params()
    apart = token_batch([7, 5], 7, left=False)
    tokens = jnp.concatenate([apart.tokens[0], apart.tokens[1, :5], jnp.zeros(2, jnp.int32)])[None]
    positions = jnp.concatenate([jnp.arange(7), jnp.arange(5), jnp.zeros(2, jnp.int32)])[None].astype(jnp.int32)
    segments = jnp.array([[1] * 7 + [2] * 5 + [0] * 2], jnp.int32)
    packed = TokenBatch(tokens, positions, segments)
    (separate, left), ((together,), right) = (_step(CONFIG, params, b) for b in (apart, packed))
    np.testing.assert_allclose(together[:7], separate[0], atol=1e-5)
    np.testing.assert_allclose(together[7:12], separate[1, :5], atol=1e-5)
    assert max_difference(left, right) < 1e-5


@pytest.mark.slow
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
    batch = TokenBatch(segments, segments, segments)
    expected = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], bool)
    np.testing.assert_array_equal(attention_mask(batch)[0, 0], expected)
    np.testing.assert_array_equal(attention_mask(batch._replace(prefix_ids=jnp.zeros_like(segments)))[0, 0], expected)
    expected[3, 1:3] = True
    shared = batch._replace(prefix_ids=jnp.array([[0, 0, 0, 1]]))
    np.testing.assert_array_equal(attention_mask(shared)[0, 0], expected)


def test_windows_go_by_positions():
    """Two completions of 2 behind a prompt of 3, window 3: the prompt is as near to the second as to the first."""
    segments, prefixes = jnp.array([[1, 1, 1, 2, 2, 3, 3]]), jnp.array([[0, 0, 0, 1, 1, 1, 1]])
    batch = TokenBatch(segments, jnp.array([[0, 1, 2, 3, 4, 3, 4]]), segments, prefixes)
    expected = [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1, 1],
    ]
    np.testing.assert_array_equal(attention_mask(batch, 3)[0, 0], np.array(expected, bool))


def test_layers_of_one_kind_are_one_kind():
    kinds, of_layer = layer_kinds(dataclasses.replace(CONFIG, num_layers=4, windows=(4, 0, 4, 4), local_rope_theta=9.0))
    assert of_layer == (0, 1, 0, 0) and [kind.window for kind in kinds] == [4, 0]
    assert kinds[0].frequencies[1:] != kinds[1].frequencies[1:]
    assert layer_kinds(CONFIG)[1] == (0, 0)
    assert layer_kinds(dataclasses.replace(CONFIG, learned_positions=5))[0][0].frequencies == ()


@pytest.mark.parametrize(
    "fields, parameters",
    [
        ({"rope_theta": 1e6}, {"rope_type": "default", "rope_theta": 1e6}),
        ({"rope_scaling": "linear", "rope_factor": 8.0}, {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}),
        ({"rope_theta": 5e5, "rope_scaling": "llama3", "rope_factor": 32.0, "rope_original_length": 8192},
         {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}),
    ],
    ids=["default", "linear", "llama3"],
)  # fmt: skip
def test_rope_frequencies_equal_those_of_transformers(fields, parameters):
    """To the last bits: an error of 1e-6 turns a key at position 100,000 by a tenth."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = dict(hidden_size=256, num_attention_heads=2, max_position_embeddings=131072)
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=parameters)).inv_freq.numpy()
    ours = np.array(rope_frequencies(dataclasses.replace(CONFIG, head_dim=128, **fields)), np.float32)
    np.testing.assert_allclose(ours, theirs, rtol=3e-7)


@pytest.mark.slow
def test_a_position_past_the_learned_table_gives_nan():
    config = dataclasses.replace(CONFIG, learned_positions=4)
    model, batch = make_transformer(config), token_batch([5, 4], 5, left=False)
    hidden = model.apply(model.init(jax.random.key(0)), batch)
    assert np.all(np.isnan(hidden[0, 4])) and np.all(np.isfinite(hidden[1]))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "dots", "offload"])
def test_rematerialisation_changes_nothing(policy):
    params, batch = random_params(), token_batch([8, 5], 8)
    _, plain = _step(CONFIG, params, batch)
    config = dataclasses.replace(CONFIG, remat=policy)
    assert max_difference(_step(config, params, batch)[1], plain) < 1e-6
    jaxpr = str(_compiled(config).trace(params, batch).jaxpr)
    assert "remat" in jaxpr or "checkpoint" in jaxpr, "the policy is not applied"
    assert ("<host>" in jaxpr) == (policy == "offload")


@pytest.mark.slow
def test_the_scan_equals_a_loop_over_the_layers():
    params, batch = random_params(), token_batch([8, 5], 8)
    mask = attention_mask(batch)
    x = params["embed"]["embedding"][batch.tokens]
    for i in range(CONFIG.num_layers):
        layer = jax.tree.map(lambda p, i=i: p[i], params["layers"])
        x, _, _ = Block(CONFIG).apply(
            {"params": layer},
            x,
            rotation(layer_kinds(CONFIG)[0][0], batch.positions),
            lambda q, k, v: (jax.nn.dot_product_attention(q, k, v, mask=mask), None),
        )
    x = RMSNorm(CONFIG.norm_eps, "float32").apply({"params": params["final_norm"]}, x)
    np.testing.assert_allclose(make_transformer(CONFIG).apply(params, batch), x, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        dict(),
        dict(windows=(3, 0, 2), local_rope_theta=100.0),
        dict(num_experts=4, experts_per_token=2, remat="full"),
    ],
    ids=["alike", "windows", "experts"],
)
def test_unrolled_layers_equal_a_loop_over_them(fields):
    """Three layers: all in one turn, and two in a turn with one behind it, against one a turn."""
    config = dataclasses.replace(CONFIG, num_layers=3, **fields)
    params, batch = make_transformer(config).init(jax.random.key(0)), token_batch([8, 5], 8)
    turns = [_step(dataclasses.replace(config, unroll=count), params, batch) for count in (1, 2, 3)]
    for logits, gradient in turns[1:]:
        real = np.asarray(batch.segment_ids) > 0
        np.testing.assert_allclose(logits[real], turns[0][0][real], atol=1e-5)
        assert max_difference(gradient, turns[0][1]) < 1e-5


def test_a_few_layers_are_unrolled_on_a_cpu(monkeypatch):
    wide = dataclasses.replace(CONFIG, embed_dim=UNROLLED_WIDTH)
    few, many = (dataclasses.replace(wide, num_layers=UNROLLED_LAYERS + more) for more in (0, 1))
    assert [_layers_per_turn(config) for config in (few, many, CONFIG)] == [UNROLLED_LAYERS, 1, 1]
    assert _layers_per_turn(dataclasses.replace(few, remat="dots")) == 1, "a loop keeps what is recomputed apart"
    assert _layers_per_turn(dataclasses.replace(many, unroll=3)) == 3
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert _layers_per_turn(few) == 1
    with pytest.raises(ValueError, match="unroll=3 is not in 0..num_layers=2"):
        dataclasses.replace(CONFIG, unroll=3)


@pytest.mark.slow
def test_bfloat16_computes_in_bfloat16_and_gives_float32_logits():
    config = dataclasses.replace(CONFIG, dtype="bfloat16")
    model, params, batch = make_transformer(config), random_params(), token_batch([8, 5], 8)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(model.init(jax.random.key(0))))
    assert jax.eval_shape(model.apply, params, batch).dtype == jnp.bfloat16
    logits, (value, gradient) = _step(config, params, batch)
    assert logits.dtype == jnp.float32
    real = np.asarray(batch.segment_ids) > 0
    wide = _step(CONFIG, params, batch)[0][real]
    assert 1e-4 < np.max(np.abs(logits[real] - wide)) < 0.3
    rounded = logits.astype(jnp.bfloat16).astype(jnp.float32)
    assert np.mean(logits != rounded) > 0.5, "the logits were rounded to bfloat16 on their way"
    assert value.dtype == jnp.float32
    assert all(g.dtype == jnp.float32 and np.all(np.isfinite(g)) for g in jax.tree.leaves(gradient))
    stored = dataclasses.replace(config, param_dtype="bfloat16")
    assert all(x.dtype == jnp.bfloat16 for x in jax.tree.leaves(make_transformer(stored).init(jax.random.key(0))))


@pytest.mark.slow
@pytest.mark.parametrize("experts", [0, 4])
def test_rounding_the_matrices_of_a_layer_changes_nothing(experts, monkeypatch):
    """A cast alone is moved out of the loop over layers on a TPU, and all of them are kept in both dtypes."""
    few = dict(num_experts=experts, experts_per_token=2) if experts else {}
    config = dataclasses.replace(CONFIG, dtype="bfloat16", **few)
    params, batch = make_transformer(config).init(jax.random.key(0)), token_batch([8, 5], 8)

    def value_of(config):
        model = make_transformer(config)
        return lambda params: jnp.sum(jnp.square(model.unembed(params, model.apply(params, batch))))

    def count(config):
        return str(jax.make_jaxpr(value_of(config))(params)).count("reduce_precision")

    matrices = sum(leaf.ndim > 2 for leaf in jax.tree.leaves(params["layers"]))  # L is one dimension
    assert count(config) == matrices == (8 if experts else 7)
    # Rounded to float16, numbers below its least normal one would be 0; a cast keeps some of them.
    assert (
        count(dataclasses.replace(config, dtype="float16")) == count(dataclasses.replace(config, dtype="float32")) == 0
    )
    ours = jax.jit(jax.value_and_grad(value_of(config)))(params)
    monkeypatch.setattr(model_module, "_rounded", lambda params, dtype: params)
    assert count(config) == 0
    plain = jax.jit(jax.value_and_grad(value_of(config)))(params)
    jax.tree.map(np.testing.assert_array_equal, ours, plain)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_kv_heads": 3}, "num_kv_heads=3 does not divide num_heads=4"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"remat": "half"}, "remat='half' is none of none, full, dots"),
        ({"activation": "relu"}, "activation='relu' is none of silu, gelu_tanh"),
        ({"norm": "batch"}, "norm='batch' is none of rms, layer"),
        ({"rope_scaling": "yarn"}, "rope_scaling='yarn' is none of none, linear, llama3"),
        ({"rope_scaling": "llama3"}, "rope_scaling='llama3' needs rope_original_length"),
        ({"norm": "layer", "norm_offset": 1.0}, "norm_offset is for norm='rms' only"),
        ({"windows": (4,)}, "windows=.4,. must hold 2 lengths of at least 0"),
        ({"windows": (4, -1)}, "windows=.4, -1. must hold 2 lengths of at least 0"),
        ({"num_experts": 4}, "experts_per_token=0 is not in 1..num_experts=4"),
        ({"num_experts": 4, "experts_per_token": 1, "gated_mlp": False}, "experts are gated and have no biases"),
    ],
)
def test_errors_of_the_config(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(**dataclasses.asdict(CONFIG) | fields)


def test_windows_of_a_json_file_are_a_tuple_and_no_windows_are_none():
    assert dataclasses.replace(CONFIG, windows=[4, 0]).windows == (4, 0)
    assert dataclasses.replace(CONFIG, windows=[0, 0]) == CONFIG


def test_shapes_that_do_not_agree_are_refused():
    batch = token_batch([4], 4)
    with pytest.raises(AssertionError):
        make_transformer(CONFIG).apply(random_params(), batch._replace(positions=batch.positions[:, :3]))
