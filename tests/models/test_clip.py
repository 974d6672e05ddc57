"""models/clip.py and hf/clip_folder.py against `transformers` on tiny random weights; what is written, and refused."""

import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl_jax.core.vectors import unit
from rl_jax.losses.contrastive import matching
from rl_jax.models import clip
from rl_jax.models.hf import clip_folder

QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_multi_thread_eigen": False}
TEXT = dict(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    max_position_embeddings=10, eos_token_id=39, bos_token_id=38, pad_token_id=39,
)  # fmt: skip
VISION = dict(
    hidden_size=24, intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, image_size=12, patch_size=4
)
# The end token before its place is up, padding after it; in the third row a higher id is before it.
TOKENS = np.array([[38, 3, 4, 5, 39, 39, 39], [38, 7, 39, 1, 2, 39, 0], [38, 8, 9, 10, 11, 12, 39]], np.int32)


@pytest.fixture(scope="module", params=[dict(), dict(hidden_act="gelu", layer_norm_eps=0.1, eos_token_id=2)], ids=str)
def theirs(request, tmp_path_factory):
    """A folder of transformers' CLIPModel, what it makes of three images and texts, and its loss."""
    import torch
    import transformers

    torch.manual_seed(0)
    shared = {name: value for name, value in request.param.items() if name != "eos_token_id"}
    raw = transformers.CLIPConfig(text_config=TEXT | request.param, vision_config=VISION | shared, projection_dim=20)
    model = transformers.CLIPModel(raw).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # no bias is 0, and no scale 1
            if parameter.ndim < 2 and name != "logit_scale":
                parameter.add_(0.3 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("theirs")
    model.save_pretrained(folder)
    images = np.random.default_rng(0).uniform(size=(3, 12, 12, 3)).astype(np.float32)
    mean, std = (np.asarray(clip.ClipConfig._field_defaults[name], np.float32) for name in ("mean", "std"))
    pixels = torch.from_numpy(((images - mean) / std).transpose(0, 3, 1, 2))
    with torch.no_grad():
        found = model(
            input_ids=torch.from_numpy(TOKENS).long(), pixel_values=pixels, return_loss=True, output_hidden_states=True
        )
    return types.SimpleNamespace(folder=folder, images=images, model=model, found=found)


def test_features_and_loss_are_theirs(theirs):
    config, params = clip_folder.load(theirs.folder)

    def ours(params, images, tokens):
        seen, read = clip.encode_images(params, images, config), clip.encode_texts(params, tokens, config)
        scores = jnp.exp(params["logit_scale"]) * unit(seen, 1e-16) @ unit(read, 1e-16).T
        right = jnp.eye(len(images), dtype=bool)
        loss = 0.5 * jnp.mean(matching(scores, right) + matching(scores.T, right))
        return unit(seen, 1e-16), unit(read, 1e-16), loss, clip.activations(params, images, config, first_layer=1)

    seen, read, loss, inside = jax.jit(ours, compiler_options=QUICK)(params, theirs.images, TOKENS)
    np.testing.assert_allclose(seen, theirs.found.image_embeds.numpy(), atol=2e-6)
    np.testing.assert_allclose(read, theirs.found.text_embeds.numpy(), atol=2e-6)
    np.testing.assert_allclose(loss, theirs.found.loss.item(), rtol=1e-5)
    layers = theirs.found.vision_model_output.hidden_states[2:4]  # the first is of no layer
    expected = np.concatenate([layer.numpy().reshape(3, -1) for layer in layers], axis=1)
    np.testing.assert_allclose(inside, expected, atol=2e-5)


def test_what_is_written_is_read_by_both(theirs, tmp_path):
    import transformers

    config, params = clip_folder.load(theirs.folder)
    clip_folder.save(tmp_path / "own", config, params)
    again, same = clip_folder.load(tmp_path / "own")
    assert again == config
    jax.tree.map(np.testing.assert_array_equal, same, params)
    model = transformers.CLIPModel.from_pretrained(tmp_path / "own")
    for name, tensor in theirs.model.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], tensor, err_msg=name)
    with pytest.raises(FileExistsError, match="has a model: give a new folder"):
        clip_folder.save(tmp_path / "own", config, params)
    with pytest.raises(ValueError, match="the params do not fit the config"):
        clip_folder.save(tmp_path / "other", config._replace(size=8), params)


def test_images_are_prepared_as_their_processor_does(tmp_path):
    import transformers

    image = np.random.default_rng(1).integers(0, 256, (12, 12, 3), np.uint8)
    values = dict(image_mean=[0.1, 0.2, 0.3], image_std=[0.5, 0.6, 0.7])
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 12}, crop_size=12, **values)
    expected = np.asarray(processor(image, return_tensors="np")["pixel_values"])
    config = small_config()._replace(mean=tuple(values["image_mean"]), std=tuple(values["image_std"]))
    found = clip.prepared(jnp.asarray(image[None] / np.float32(255.0)), config)
    np.testing.assert_allclose(np.moveaxis(np.asarray(found), 3, 1), expected, atol=1e-6)
    flat = clip.prepared(jnp.full((1, 30, 30, 3), 0.4), config)  # another size is resized
    assert flat.shape == (1, 12, 12, 3)
    np.testing.assert_allclose(flat, np.broadcast_to((0.4 - np.array(config.mean)) / config.std, flat.shape), atol=1e-5)


def small_config():
    tower = clip.Tower(width=8, mlp_width=8, layers=1, heads=2)
    return clip.ClipConfig(tower, tower, vocab_size=6, context=4, end_id=5, image_size=12, patch_size=6, size=4)


@pytest.fixture
def folder(tmp_path):
    """A folder of ours with random weights."""
    config = small_config()
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(leaf.dtype), clip_folder.param_shapes(config)
    )
    clip_folder.save(tmp_path / "clip", config, params)
    return tmp_path / "clip"


def edit(folder, **changes):
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    for name, value in changes.items():
        group, _, field = name.partition("__")
        raw[group] = value if not field else raw.get(group, {}) | {field: value}
    path.write_text(json.dumps(raw))


def test_old_folders_are_read(folder):
    """Integer buffers among the weights, *_config_dict that wins, fields of generation, no preprocessor."""
    before = clip_folder.load(folder)[1]
    weights = load_file(folder / "model.safetensors")
    buffers = {f"{side}_model.embeddings.position_ids": np.arange(4)[None] for side in ("text", "vision")}
    save_file(weights | buffers, folder / "model.safetensors")
    edit(folder, text_config__hidden_size=999, text_config_dict=dict(hidden_size=8), text_config__num_beams=1)
    edit(folder, vision_config_dict=None, text_config__projection_dim=77)
    (folder / "preprocessor_config.json").unlink()
    config, params = clip_folder.load(folder)
    assert config == small_config()
    jax.tree.map(np.testing.assert_array_equal, params, before)


def test_the_published_sizes_are_the_defaults(tmp_path):
    """config.json of a group without fields is that of openai/clip-vit-base-patch32: 151,277,313 weights."""
    import transformers

    for raw in (dict(model_type="clip"), transformers.CLIPConfig().to_dict()):
        (tmp_path / "config.json").write_text(json.dumps(raw))
        config = clip_folder.read_config(tmp_path)
        assert sum(np.prod(leaf.shape, dtype=int) for leaf in jax.tree.leaves(clip_folder.param_shapes(config))) == (
            151_277_313
        )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(model_type="siglip"), "field 'model_type': 'siglip' is no CLIP"),
        (dict(vision_config__hidden_act="relu"), "field 'hidden_act': 'relu' is not supported, only quick_gelu, gelu"),
        (dict(vision_config__num_channels=4), "field 'num_channels': 4 is not supported"),
        (dict(vision_config__patch_size=5), "field 'patch_size': 5 does not divide image_size=12"),
        (dict(text_config__num_attention_heads=3), "3 heads do not divide hidden_size=8"),
        (dict(text_config__rope_theta=1.0), "unknown fields: rope_theta=1.0"),
        (dict(text_config="small"), "field 'text_config': expected an object"),
        (dict(text_config__vocab_size=7), r"token_embedding.weight' is \[6, 8\], but config.json requires \[7, 8\]"),
    ],
)
def test_refusals(folder, changes, said):
    edit(folder, **changes)
    with pytest.raises(ValueError, match=said):
        clip_folder.load(folder)


def test_weights_that_are_missing_or_not_finite_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    weights["visual_projection.weight"][0, 0] = np.nan
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match="'visual_projection.weight' has 1 of 32 values that are nan or inf"):
        clip_folder.load(folder)
    del weights["logit_scale"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(ValueError, match="missing tensor 'logit_scale'"):
        clip_folder.load(folder)
    (folder / "preprocessor_config.json").write_text('{"image_std": [1, 2]}')
    with pytest.raises(ValueError, match="field 'image_std': .1, 2. are not three numbers"):
        clip_folder.load(folder)


def test_a_layer_that_is_not_there():
    with pytest.raises(ValueError, match="first_layer=1: the encoder has 1 layers"):
        clip.activations({}, jnp.zeros((1, 12, 12, 3)), small_config(), first_layer=1)
