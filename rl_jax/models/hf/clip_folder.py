"""Hugging Face folders of CLIP: config.json, preprocessor_config.json and safetensors, read and written."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rl_jax.core.types import Params, path_name
from rl_jax.models import clip
from rl_jax.models.clip import ClipConfig, Tower
from rl_jax.models.hf.hf_fields import Fields
from rl_jax.models.hf.loading import CONFIG, check_finite, check_tensors
from rl_jax.models.hf.tensor_files import TensorFiles, read_json, save_tensors

PREPROCESSOR = "preprocessor_config.json"
BUFFERS = ("position_ids",)  # int64 in published folders, and no weights
_PARTS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_LAYER = {name: f"self_attn.{name}_proj" for name in "qkv"} | {
    "o": "self_attn.out_proj",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_NAMES = {
    "logit_scale": "logit_scale",
    "text/tokens": "text_model.embeddings.token_embedding.weight",
    "text/positions": "text_model.embeddings.position_embedding.weight",
    "text/norm": "text_model.final_layer_norm",
    "text/projection": "text_projection.weight",
    "vision/class": "vision_model.embeddings.class_embedding",
    "vision/patches": "vision_model.embeddings.patch_embedding.weight",
    "vision/positions": "vision_model.embeddings.position_embedding.weight",
    "vision/first_norm": "vision_model.pre_layrnorm",  # sic
    "vision/norm": "vision_model.post_layernorm",
    "vision/projection": "visual_projection.weight",
}
# What transformers fills in if config.json does not say it.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "text": dict(
        hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8, vocab_size=49408,
        max_position_embeddings=77, eos_token_id=49407,
    ),
    "vision": dict(
        hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, image_size=224,
        patch_size=32, num_channels=3,
    ),
}  # fmt: skip
# Of text_config and vision_config: what says nothing of the forward of one image or one text.
_HARMLESS = frozenset(
    """add_cross_attention bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dropout early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id
    gradient_checkpointing initializer_factor is_decoder is_encoder_decoder length_penalty max_length min_length
    no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores prefix projection_dim
    pruned_heads remove_invalid_values repetition_penalty return_dict_in_generate sep_token_id suppress_tokens
    temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p torchscript
    typical_p use_bfloat16""".split()
)


def read_config(folder: str | pathlib.Path) -> ClipConfig:
    """The sizes in a folder's config.json, with mean and std of its preprocessor_config.json if there is one.

    Args:
      folder: of the model.

    Raises:
      ValueError: naming the file and the field, if it is no CLIP, or has a field or a value that is not supported.
    """
    path = pathlib.Path(folder) / CONFIG
    raw = read_json(path)
    if raw.get("model_type") != "clip":
        raise ValueError(f"{path}, field 'model_type': {raw.get('model_type')!r} is no CLIP: give a folder of one")
    text, vision = (_side(path, raw, name) for name in ("text", "vision"))
    vision.expect("num_channels", 3)
    patch, size = (vision.take(name, kind=int) for name in ("patch_size", "image_size"))
    if size % patch:
        raise vision.error("patch_size", f"{patch} does not divide image_size={size}")
    towers = {name: _tower(side) for name, side in (("text", text), ("vision", vision))}
    config = ClipConfig(
        **towers,
        vocab_size=text.take("vocab_size", kind=int),
        context=text.take("max_position_embeddings", kind=int),
        end_id=text.take("eos_token_id", kind=int),
        image_size=size,
        patch_size=patch,
        size=Fields(path, raw).take("projection_dim", 512, kind=int),
    )
    for side in (text, vision):
        side.finish()
    pixels = pathlib.Path(folder) / PREPROCESSOR
    given = read_json(pixels) if pixels.exists() else {}
    found = {key: given[name] for key, name in (("mean", "image_mean"), ("std", "image_std")) if name in given}
    for name, values in found.items():
        if not isinstance(values, list) or len(values) != 3 or not all(isinstance(x, (int, float)) for x in values):
            raise ValueError(f"{pixels}, field 'image_{name}': {values!r} are not three numbers")
    return config._replace(**{name: tuple(map(float, values)) for name, values in found.items()})


def _side(path: pathlib.Path, raw: Mapping[str, Any], name: str) -> Fields:
    """The fields of one tower. A group NAME_config_dict, of old folders, wins, as in transformers."""
    groups = [raw.get(f"{name}_config{ending}") or {} for ending in ("", "_dict")]
    if not all(isinstance(group, Mapping) for group in groups):
        raise ValueError(f"{path}, field '{name}_config': expected an object")
    merged = _DEFAULTS[name] | {key: value for group in groups for key, value in group.items() if value is not None}
    return Fields(path, merged, ignore=_HARMLESS)


def _tower(side: Fields) -> Tower:
    width, heads = (side.take(name, kind=int) for name in ("hidden_size", "num_attention_heads"))
    if width % heads:
        raise side.error("num_attention_heads", f"{heads} heads do not divide hidden_size={width}")
    activation = side.take("hidden_act", "quick_gelu")
    if activation not in clip.ACTIVATIONS:
        raise side.error("hidden_act", f"{activation!r} is not supported, only {', '.join(clip.ACTIVATIONS)}")
    return Tower(
        width=width,
        mlp_width=side.take("intermediate_size", kind=int),
        layers=side.take("num_hidden_layers", kind=int),
        heads=heads,
        activation=activation,
        eps=side.positive("layer_norm_eps", side.take("layer_norm_eps", 1e-5)),
    )


def param_shapes(config: ClipConfig) -> Params:
    """The params as shapes and dtypes (jax.ShapeDtypeStruct), without creating them."""
    return jax.eval_shape(lambda key: clip.init_params(config, key), jax.random.key(0))


def _tensor(path: str, layer: int | None = None) -> str:
    """The name in the files of a leaf, or of one layer of it."""
    if path in _NAMES:
        return _NAMES[path]
    where, _, last = path.rpartition("/")
    if where in _NAMES:
        return f"{_NAMES[where]}.{_PARTS[last]}"
    side, _, name = where.partition("/layers/")
    return f"{side}_model.encoder.layers.{layer}.{_LAYER[name]}.{_PARTS[last]}"


def _to_file(path: str, part: np.ndarray, config: ClipConfig) -> np.ndarray:
    """One leaf, or one layer of it, as the file has it: matrices are [out, in], patches a convolution."""
    if path == "vision/patches":
        size = config.patch_size
        return part.reshape(size, size, 3, -1).transpose(3, 2, 0, 1)
    return part.T if path.endswith(("kernel", "projection")) else part


def _from_file(path: str, tensor: np.ndarray) -> np.ndarray:
    """The inverse of `_to_file`."""
    if path == "vision/patches":
        return tensor.transpose(2, 3, 1, 0).reshape(-1, tensor.shape[0])
    return tensor.T if path.endswith(("kernel", "projection")) else tensor


def _parts(path: str, leaf) -> list[tuple[str, tuple]]:
    """(name in the files, index of the leaf) of what a leaf is made of."""
    if "/layers/" in path:
        return [(_tensor(path, layer), (layer,)) for layer in range(leaf.shape[0])]
    return [(_tensor(path), ())]


def load(folder: str | pathlib.Path) -> tuple[ClipConfig, Params]:
    """The config and the params of a folder, float32 numpy arrays.

    Args:
      folder: with config.json and *.safetensors, as transformers' CLIPModel writes it.

    Raises:
      ValueError: as for `read_config`, and for a tensor that is missing, unexpected, of another shape or not finite.
    """
    config, files = read_config(folder), TensorFiles(pathlib.Path(folder), skip=BUFFERS)
    leaves, structure = jax.tree_util.tree_flatten_with_path(param_shapes(config))
    named = [(path_name(path), leaf) for path, leaf in leaves]
    expected = {
        name: _to_file(path, np.empty(leaf.shape[len(index) :], np.bool_), config).shape
        for path, leaf in named
        for name, index in _parts(path, leaf)
    }
    check_tensors(files, {name: name for name in files.shapes}, expected)

    def read(path: str, name: str) -> np.ndarray:
        tensor = files.read(name, (slice(None),) * len(files.shapes[name]) or ...)
        result = _from_file(path, np.asarray(tensor, np.float32))
        check_finite(files, name, result)
        return np.array(result, order="C")

    def whole(path: str, leaf) -> np.ndarray:
        tensors = [read(path, name) for name, _ in _parts(path, leaf)]
        return np.stack(tensors) if "/layers/" in path else tensors[0]

    return config, jax.tree.unflatten(structure, [whole(path, leaf) for path, leaf in named])


def save(folder: str | pathlib.Path, config: ClipConfig, params: Params) -> None:
    """Writes config.json, preprocessor_config.json and model.safetensors, which transformers' CLIPModel opens.

    Args:
      folder: must not have a config.json yet.
      config: of the model.
      params: of the model, written as float32.

    Raises:
      ValueError: if the params do not fit the config.
      FileExistsError: if the folder has a model.
    """
    folder = pathlib.Path(folder)
    if (folder / CONFIG).exists():
        raise FileExistsError(f"{folder} has a model: give a new folder, or remove this one first")
    shapes = jax.tree.map(lambda leaf: leaf.shape, param_shapes(config))
    if jax.tree.map(np.shape, params) != shapes:
        raise ValueError("the params do not fit the config: pass those of init_params or load")
    tensors = {}
    for where, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        path, leaf = path_name(where), np.asarray(leaf, np.float32)
        for name, index in _parts(path, leaf):
            tensors[name] = np.array(_to_file(path, leaf[index], config), order="C")
    folder.mkdir(parents=True, exist_ok=True)
    pixels = {"image_mean": list(config.mean), "image_std": list(config.std)}
    pixels |= {"size": {"shortest_edge": config.image_size}, "crop_size": config.image_size}
    (folder / PREPROCESSOR).write_text(json.dumps(pixels, indent=2) + "\n", encoding="utf-8")
    sizes = {name: tensor.nbytes for name, tensor in tensors.items()}
    save_tensors(folder, sizes, tensors.items(), sum(sizes.values()))
    # Last: a folder that has it is whole.
    (folder / CONFIG).write_text(json.dumps(_raw(config), indent=2) + "\n", encoding="utf-8")


def _raw(config: ClipConfig) -> dict[str, Any]:
    """The content of config.json."""

    def tower(side: Tower) -> dict[str, Any]:
        return dict(
            hidden_size=side.width,
            intermediate_size=side.mlp_width,
            num_hidden_layers=side.layers,
            num_attention_heads=side.heads,
            hidden_act=side.activation,
            layer_norm_eps=side.eps,
            projection_dim=config.size,
        )

    text = dict(vocab_size=config.vocab_size, max_position_embeddings=config.context, eos_token_id=config.end_id)
    vision = dict(image_size=config.image_size, patch_size=config.patch_size, num_channels=3)
    return dict(
        model_type="clip",
        architectures=["CLIPModel"],
        projection_dim=config.size,
        text_config=tower(config.text) | text,
        vision_config=tower(config.vision) | vision,
    )
