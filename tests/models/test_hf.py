"""models/hf.py: what a folder may look like, how it is read and written, and what is refused with which words."""

import dataclasses
import functools
import json
import math
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_jax import models
from rl_jax.models.hf import families, loading
from rl_jax.models.hf.tensor_files import TensorFiles
from rl_jax.models.transformer.model import TransformerConfig
from rl_jax.training.sharding import make_mesh, parse_mesh, tree_shardings
from tests.models.published import PUBLISHED
from tests.tiny import CONFIG, max_difference

LLAMA3 = dict(
    rope_type="llama3", factor=2.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GPT2 = TransformerConfig(
    vocab_size=64, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=4, head_dim=8, mlp_dim=64, norm="layer",
    gated_mlp=False, qkv_bias=True, o_bias=True, mlp_bias=True, activation="gelu_tanh", learned_positions=20,
)  # fmt: skip


@functools.cache
def params_of(config):
    """Random params as numpy arrays, without compiling an init."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), loading.param_shapes(config))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny Llama folder of ours; tests copy it before they touch it."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    models.save_hf(folder, CONFIG, params_of(CONFIG))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "llama")


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_of_published_models(name):
    """Known parameter counts; and what `transformers` makes of an old config.json, in the new form, reads the same."""
    import transformers

    count, raw = PUBLISHED[name]
    config = families.read_config(raw)
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(loading.param_shapes(config))) == count
    normalised = transformers.AutoConfig.for_model(**raw).to_dict()
    kept = set(raw) | {"layer_types", "rope_parameters", "num_local_experts", "head_dim", "tie_word_embeddings"}
    assert families.read_config({key: normalised[key] for key in kept & set(normalised)}) == config
    written = families.write_config(config)
    assert written["model_type"] == raw["model_type"] and families.read_config(written) == config
    old = {"num_experts", "rope_theta", "rope_scaling", "rope_local_base_freq"}  # what transformers 4 reads instead
    for form in (old, {"num_local_experts", "rope_parameters"}):
        assert families.read_config({key: value for key, value in written.items() if key not in form}) == config


@pytest.mark.parametrize(
    "name, changes",
    [
        ("gemma-3-1b-it", {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window_pattern": 3}),
        ("Llama-3.2-1B", {"rope_scaling": {"factor": 2.0, "type": "linear"}, "head_dim": None}),
        ("Qwen2.5-0.5B", {"use_sliding_window": True, "max_window_layers": 20}),
        ("Mistral-7B-v0.1", {"sliding_window": None}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_old_forms_mean_what_transformers_makes_of_them(name, changes):
    import transformers

    raw = PUBLISHED[name][1] | changes
    config, plain = families.read_config(raw), families.read_config(PUBLISHED[name][1])
    assert config != plain
    written = families.write_config(config)
    assert families.read_config({key: written[key] for key in set(written) - {"rope_parameters"}}) == config
    normalised = transformers.AutoConfig.for_model(**raw).to_dict()
    new = set(normalised) & (set(raw) | {"layer_types", "rope_parameters"}) - {"sliding_window_pattern", "rope_scaling"}
    assert families.read_config({key: normalised[key] for key in new}) == config


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_field_that_is_missing_is_what_transformers_takes_it_for(name):
    """Each in turn, of the family's default config.json; or it is refused."""
    import transformers

    raw = transformers.CONFIG_MAPPING[name]().to_dict()
    whole, refused = families.read_config(raw), []
    for field in raw:
        try:
            found = families.read_config({key: value for key, value in raw.items() if key != field})
        except ValueError as error:
            assert f"'{field}': missing" in str(error) or field == "model_type"
            refused.append(field)
        else:
            assert found == whole, field
    assert len(refused) < 10 < len(raw)


def test_our_own_default_model_is_a_llama():
    assert families.write_config(CONFIG)["model_type"] == "llama"
    # A policy, as remat is.
    assert families.write_config(dataclasses.replace(CONFIG, unroll=1))["model_type"] == "llama"
    with pytest.raises(ValueError, match="no family of llama, .* this model: qwen3 does not support logit_softcap=3.0"):
        families.write_config(dataclasses.replace(CONFIG, qk_norm=True, logit_softcap=3.0))


def test_loads_what_was_saved(saved):
    config, params = models.load(saved, dtype="bfloat16", remat="full")
    assert config == dataclasses.replace(CONFIG, dtype="bfloat16", remat="full")
    raw = json.loads((saved / "config.json").read_text())
    assert raw["dtype"] == raw["torch_dtype"] == "float32", "as transformers 5 and 4 call it"
    assert max_difference(params, params_of(CONFIG)) == 0.0


@pytest.mark.slow
def test_bfloat16_folders_come_back_byte_for_byte(tmp_path):
    stored = dataclasses.replace(CONFIG, param_dtype="bfloat16", tied_head=False)
    params = params_of(stored)
    models.save_hf(tmp_path / "a", stored, params)
    assert json.loads((tmp_path / "a" / "config.json").read_text())["dtype"] == "bfloat16"
    config, wide = models.load(tmp_path / "a")
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(wide))
    assert max_difference(wide, params) == 0.0
    models.save_hf(tmp_path / "b", config, wide, dtype="bfloat16")
    config, narrow = models.load(tmp_path / "b", param_dtype="bfloat16")
    assert config == stored and all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(narrow))
    models.save_hf(tmp_path / "c", config, narrow)
    contents = [(tmp_path / name / WEIGHTS).read_bytes() for name in "abc"]
    assert contents[0] == contents[1] == contents[2]


def test_shards_are_read_and_written(tmp_path):
    import transformers

    models.save_hf(tmp_path / "ours", CONFIG, params_of(CONFIG), max_shard_bytes=20_000)
    files = sorted(path.name for path in (tmp_path / "ours").glob("*.safetensors"))
    assert len(files) > 2 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert all((tmp_path / "ours" / name).stat().st_size < 22_000 for name in files)
    assert max_difference(models.load(tmp_path / "ours")[1], params_of(CONFIG)) == 0.0
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / INDEX).exists()
    config, params = models.load(tmp_path / "theirs")
    assert config == CONFIG and max_difference(params, params_of(CONFIG)) == 0.0


def test_onto_a_mesh_only_the_shards_are_read(saved, monkeypatch):
    sizes, read = [], TensorFiles.read

    def spy(self, name, index):
        sizes.append((name, read(self, name, index).size))
        return read(self, name, index)

    monkeypatch.setattr(TensorFiles, "read", spy)
    mesh = make_mesh(parse_mesh("data:2,fsdp:2,tensor:2"))
    place = functools.partial(tree_shardings, mesh=mesh)
    _, params = models.load(saved, shardings=place)
    assert jax.tree.map(lambda x: x.sharding, params) == place(params_of(CONFIG))
    assert max_difference(params, params_of(CONFIG)) == 0.0
    assert {size for name, size in sizes if "q_proj" in name} == {32 * 32 // 4}
    assert {size for name, size in sizes if "embed" in name} == {64 * 32 // 4}


def test_the_host_holds_one_tensor_at_a_time(tmp_path):
    """24 layers of 64 KiB kernels, stacked leaves of 1.5 MiB: numpy never holds a stacked one."""
    config = dataclasses.replace(CONFIG, num_layers=24, embed_dim=64, mlp_dim=256)
    params = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), loading.param_shapes(config))
    models.save_hf(tmp_path / "deep", config, params)
    models.load(tmp_path / "deep")  # what jax and Python allocate once
    tracemalloc.start()
    loaded = models.load(tmp_path / "deep")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(loaded[1]))
    assert total > 5e6 and peak < 1e6, (total, peak)


def test_gpt2_folders_without_the_prefix(tmp_path):
    """As the published ones: no "transformer." before the names, and the causal mask among the tensors."""
    models.save_hf(tmp_path / "new", GPT2, params_of(GPT2))
    old = {name.removeprefix("transformer."): x for name, x in load_file(tmp_path / "new" / WEIGHTS).items()}
    assert "h.0.attn.c_attn.weight" in old
    shutil.copytree(tmp_path / "new", tmp_path / "old")
    save_file(old | {"h.0.attn.bias": np.ones((1, 1, 20, 20), np.float32)}, tmp_path / "old" / WEIGHTS)
    config, params = models.load(tmp_path / "old")
    assert config == GPT2 and max_difference(params, params_of(GPT2)) == 0.0


def edit_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "REMOVE"}))


def edit_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


def shard(folder):
    """The folder's file as two shards."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in parts.items() for name in part}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "mamba"}, "unknown model_type 'mamba'; supported are llama, mistral, qwen2"),
        ({"model_type": "gemma3"}, "'gemma3' is multimodal: save its text model alone, as 'gemma3_text'"),
        ({"model_type": "REMOVE"}, "unknown model_type None"),
        ({"hidden_act": "relu"}, "field 'hidden_act': 'relu' is not supported, only silu, gelu"),
        ({"quantization_config": {"bits": 4}}, "unknown fields: quantization_config={'bits': 4}. They may change"),
        ({"use_new_trick": True}, r"unknown fields: use_new_trick=True.*ignore=\('use_new_trick',\)"),
        ({"use_new_trick": True}, r"in a run --config.model.ignore_fields=\"\('use_new_trick',\)\""),
        ({"rope_interleaved": True}, "field 'rope_interleaved': True is not supported, only False"),
        ({"hidden_size": "REMOVE"}, "field 'hidden_size': missing"),
        ({"hidden_size": "32"}, "field 'hidden_size': '32' is not a positive integer"),
        ({"num_key_value_heads": 3}, "config.json: num_kv_heads=3 does not divide num_heads=4"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear' needs 'factor'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "unknown parameters of RoPE: partial_rotary_factor"),
        ({"model_type": "qwen3", "layer_types": ["chunked_attention"] * 2}, "field 'layer_types': .* are not 2 of"),
        ({"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2}, "sliding_window gives no length"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": 8, "use_bidirectional_attention": True},
         "field 'use_bidirectional_attention': True is not supported, only None or False"),
        ({"rope_scaling": "linear"}, "field 'rope_scaling': 'linear' is not an object"),
        ({"rope_parameters": []}, r"field 'rope_parameters': \[\] is not an object"),
        ({"model_type": "gemma3_text", "rope_parameters": {"full_attention": 3}},
         "field 'rope_parameters.full_attention': 3 is not an object"),
        ({"rope_theta": "1e4"}, "field 'rope_theta': '1e4' is not a number above 0"),
        ({"rope_scaling": LLAMA3 | {"original_max_position_embeddings": "8192"}},
         "field 'rope_scaling.original_max_position_embeddings': '8192' is not a positive integer"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}},
         "field 'rope_scaling.high_freq_factor': 1 is not above low_freq_factor=1"),
        ({"tie_word_embeddings": "false"}, "field 'tie_word_embeddings': 'false' is not true or false"),
        ({"attention_bias": "no"}, "field 'attention_bias': 'no' is not true or false"),
        ({"hidden_act": ["silu"]}, r"field 'hidden_act': \['silu'\] is not a text"),
        ({"model_type": ["llama"]}, r"unknown model_type \['llama'\]"),
        ({"model_type": "mistral", "sliding_window": "4096"}, "field 'sliding_window': '4096' is not 0 or more"),
        ({"model_type": "qwen3", "use_sliding_window": "yes"}, "'use_sliding_window': 'yes' is not true or false"),
        ({"model_type": "qwen3", "max_window_layers": -1}, "field 'max_window_layers': -1 is not 0 or more"),
        ({"model_type": "qwen3", "layer_types": "full_attention"}, "'layer_types': 'full_attention' is not a list"),
        ({"model_type": "qwen3", "layer_types": [[], []]}, "field 'layer_types': .* are not 2 of"),
        ({"model_type": "gemma2", "sliding_window_pattern": 0}, "field 'sliding_window_pattern': 0 is not a positive"),
        ({"model_type": "gemma2", "final_logit_softcapping": "30"}, "'final_logit_softcapping': '30' is not a"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 8},
         "field 'num_experts': 4 contradicts num_local_experts=8"),
        ({"num_hidden_layers": 3}, "missing tensor 'model.layers.2"),
        ({"num_hidden_layers": 1}, "unexpected tensor 'model.layers.1"),
        ({"intermediate_size": 47}, r"gate_proj.weight' is \[48, 32\], but config.json requires \[47, 32\]"),
        ({"tie_word_embeddings": False}, "missing tensor 'lm_head.weight'"),
        ({"attention_bias": True}, "missing tensor 'model.layers.0.self_attn.k_proj.bias'"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_config_json_may_not_say(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(ValueError, match=message) as error:
        models.load(folder)
    assert str(folder) in str(error.value)


def test_fields_that_the_caller_vouches_for(folder):
    edit_config(folder, use_new_trick=True, null_is_nothing=None)
    assert models.load(folder, ignore=("use_new_trick",))[0] == CONFIG
    assert loading.model_type(folder) == "llama"
    edit_config(folder, use_new_trick=None, unsloth_fixed=True, is_encoder_decoder=False)
    assert models.load(folder)[0] == CONFIG


def truncate(folder, keep=-100):
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])


def lose_a_shard(folder):
    shard(folder)
    (folder / "b.safetensors").unlink()


def cut_a_shard(folder):
    shard(folder)
    (folder / "b.safetensors").write_bytes((folder / "b.safetensors").read_bytes()[:-8])


def mix_up_the_index(folder):
    weight_map = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {"model.norm.weight": "a.safetensors"}}))


def climb_out(folder):
    weight_map = shard(folder)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | {"model.norm.weight": "../b.safetensors"}}))


def pickle_only(folder):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "config.json").unlink(), "config.json: cannot be read .* give a Hugging Face model folder"),
        (lambda f: (f / "config.json").write_text("{"), "config.json: not valid JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "expected a JSON object, found list"),
        (pickle_only, "has neither model.safetensors nor model.safetensors.index.json"),
        (truncate, "model.safetensors: truncated or not a safetensors file"),
        (functools.partial(truncate, keep=20), "model.safetensors: truncated or not a safetensors file"),
        (functools.partial(truncate, keep=0), "model.safetensors: truncated or not a safetensors file"),
        (lose_a_shard, "index.json: the shard 'b.safetensors' is not in the folder"),
        (cut_a_shard, "b.safetensors: truncated or not a safetensors file"),
        (mix_up_the_index, "'model.norm.weight' should be in a.safetensors, but is in b.safetensors"),
        (climb_out, "the shard '../b.safetensors' is not in the folder"),
        (lambda f: edit_tensors(f, lambda t: t.pop("model.norm.weight")), "missing tensor 'model.norm.weight'"),
        (lambda f: edit_tensors(f, lambda t: t.update(score=np.ones(3, np.float32))), "unexpected tensor 'score'"),
        (lambda f: edit_tensors(f, lambda t: t.update(x=np.ones(3, np.int8))), "'x' is I8, only F32, F16, BF16 are"),
        (lambda f: edit_tensors(f, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1})),
         "tie_word_embeddings is true, but 'lm_head.weight' is not 'model.embed_tokens.weight'"),
    ],
    ids=range(15),
)  # fmt: skip
def test_damaged_folders_are_refused_before_a_tensor_is_read(folder, damage, message, monkeypatch):
    damage(folder)
    monkeypatch.setattr(loading, "_read_leaf", lambda *args: pytest.fail("a tensor was loaded"))
    with pytest.raises(ValueError, match=message) as error:
        models.load(folder)
    assert str(folder) in str(error.value)


def test_a_tied_head_that_is_there_twice(folder):
    edit_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}))
    assert models.load(folder)[0] == CONFIG


def test_shards_of_another_writer(folder):
    shard(folder)
    assert max_difference(models.load(folder)[1], params_of(CONFIG)) == 0.0


def test_saving_is_all_or_nothing(tmp_path, monkeypatch):
    def fails_half_way(folder, *args):
        (folder / WEIGHTS).write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(loading, "save_tensors", fails_half_way)
    with pytest.raises(OSError, match="disk full"):
        models.save_hf(tmp_path / "out", CONFIG, params_of(CONFIG))
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_saved(folder, tmp_path):
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        models.save_hf(folder, CONFIG, params_of(CONFIG))
    params = params_of(CONFIG)
    with pytest.raises(ValueError, match="head/kernel is None and not .64, 32.|head/kernel is None and not .32, 64."):
        models.save_hf(tmp_path / "out", dataclasses.replace(CONFIG, tied_head=False), params)
    with pytest.raises(ValueError, match="value_head is .3,. and not None"):
        models.save_hf(tmp_path / "out", CONFIG, params | {"value_head": np.zeros(3)})
    with pytest.raises(ValueError, match="is of another model than the one to save"):
        models.save_hf(tmp_path / "out", dataclasses.replace(CONFIG, norm_eps=1e-3), params, like=folder)
    with pytest.raises(ValueError, match="dtype='int8' is none of float32, float16, bfloat16"):
        models.save_hf(tmp_path / "out", CONFIG, params, dtype="int8")
    large = params | {"final_norm": {"scale": np.full_like(params["final_norm"]["scale"], 1e5)}}
    with pytest.raises(ValueError, match="'model.norm.weight' has numbers that float16 has not, such as 100000"):
        models.save_hf(tmp_path / "out", CONFIG, large, dtype="float16")
    assert not (tmp_path / "out").exists()


def test_the_companions_of_a_folder_travel_along(folder, tmp_path):
    (folder / "tokenizer.json").write_text("{}")
    (folder / "training_args.bin").write_text("not ours")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("of tools")
    edit_config(folder, eos_token_id=7)
    models.save_hf(tmp_path / "deep" / "out", CONFIG, params_of(CONFIG), like=folder)
    names = {path.name for path in (tmp_path / "deep" / "out").rglob("*") if path.is_file()}
    assert names == {"config.json", WEIGHTS, "tokenizer.json", "tool_use.jinja"}
    assert json.loads((tmp_path / "deep" / "out" / "config.json").read_text())["eos_token_id"] == 7


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_a_gemma_without_windows_is_one_that_transformers_can_run(tmp_path, family):
    """It makes the mask of a window even if no layer has one, and refuses a config without a length for it."""
    import torch
    import transformers

    of_gemma2 = dict(attention_softcap=50.0, logit_softcap=30.0)
    own = of_gemma2 if family == "gemma2" else dict(qk_norm=True, local_rope_theta=1e4)
    parts = dict(norm_offset=1.0, post_norms=True, embed_scale=24**0.5, activation="gelu_tanh")
    sizes = dict(vocab_size=37, embed_dim=24, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32)
    config = TransformerConfig(**sizes, **parts, query_pre_attn_scalar=16.0, **own)
    models.save_hf(tmp_path, config, params_of(config))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"].startswith(family)
    assert models.load(tmp_path)[0] == config
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model(torch.ones((1, 3), dtype=torch.long)).logits.shape == (1, 3, 37)
