"""CLIP: images and texts become vectors of one space, whose cosine says how well they match. arXiv 2103.00020.

    image   [class; patches] + positions -> LayerNorm -> layers -> the class token -> LayerNorm -> projection
    text    tokens + positions -> causal layers -> LayerNorm -> the end token -> projection
    layer   x <- x + attention(LN x),  x <- x + MLP(LN x)

The numbers are those of Hugging Face's CLIPModel; models.hf.clip_folder reads and writes its folders.
"""

from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Params

ACTIVATIONS: dict[str, Callable] = {
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
}
LEGACY_END = 2  # eos_token_id of folders before 2023: the end token is the one with the largest id


class Tower(NamedTuple):
    """The layers of one side.

    Attributes:
      width: of the residual stream.
      mlp_width: of the layer inside the MLP.
      layers: L.
      heads: of the attention.
      activation: of the MLP, a key of ACTIVATIONS.
      eps: of the LayerNorms.
    """

    width: int
    mlp_width: int
    layers: int
    heads: int
    activation: str = "quick_gelu"
    eps: float = 1e-5


class ClipConfig(NamedTuple):
    """Sizes of a model.

    Attributes:
      text: its tower.
      vision: its tower.
      vocab_size: of the tokenizer.
      context: longest text, in tokens, with its begin and end.
      end_id: the token whose vector is the text's; LEGACY_END is that of the largest id.
      image_size: side of an image that the tower reads, in pixels.
      patch_size: side of a patch.
      size: E, of the common space.
      mean: of the pixels' channels, subtracted.
      std: of the pixels' channels, divided by.
    """

    text: Tower
    vision: Tower
    vocab_size: int
    context: int
    end_id: int
    image_size: int
    patch_size: int
    size: int
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2


def init_params(config: ClipConfig, key: chex.PRNGKey) -> Params:
    """Random params: matrices of deviation 1 / sqrt(inputs), tokens of .02, scales of 1, biases of 0.

    Positions and the class token have the deviation 1 / sqrt(width), as in OpenAI's code for the images.

    Args:
      config: of the model.
      key: for the weights.

    Returns:
      {"text", "vision", "logit_scale"}; every leaf of "layers" has L first.
    """
    keys = iter(jax.random.split(key, 32))

    def normal(*shape: int, std: float) -> chex.Array:
        return std * jax.random.normal(next(keys), shape)

    def norm(*shape: int) -> Params:
        return {"scale": jnp.ones(shape), "bias": jnp.zeros(shape)}

    def layers(tower: Tower) -> Params:
        count, width, wide = tower.layers, tower.width, tower.mlp_width
        sizes = dict.fromkeys("qkvo", (width, width)) | {"up": (width, wide), "down": (wide, width)}
        return {
            name: {"kernel": normal(count, *size, std=size[0] ** -0.5), "bias": jnp.zeros((count, size[1]))}
            for name, size in sizes.items()
        } | {"norm1": norm(count, width), "norm2": norm(count, width)}

    text, vision, inputs = config.text, config.vision, 3 * config.patch_size**2
    return {
        "text": {
            "tokens": normal(config.vocab_size, text.width, std=0.02),
            "positions": normal(config.context, text.width, std=text.width**-0.5),
            "layers": layers(text),
            "norm": norm(text.width),
            "projection": normal(text.width, config.size, std=text.width**-0.5),
        },
        "vision": {
            "class": normal(vision.width, std=vision.width**-0.5),
            "patches": normal(inputs, vision.width, std=inputs**-0.5),
            "positions": normal(1 + config.patches, vision.width, std=vision.width**-0.5),
            "first_norm": norm(vision.width),
            "layers": layers(vision),
            "norm": norm(vision.width),
            "projection": normal(vision.width, config.size, std=vision.width**-0.5),
        },
        "logit_scale": jnp.float32(np.log(1 / 0.07)),
    }


def _norm(x: chex.Array, params: Params, eps: float) -> chex.Array:
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    scaled = centered * jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + eps)
    return scaled * _row(params["scale"], x) + _row(params["bias"], x)


def _row(vector: chex.Array, x: chex.Array) -> chex.Array:
    """A vector with the rank of x: ranks are not promoted."""
    return jnp.reshape(vector, (1,) * (x.ndim - 1) + (-1,))


def _linear(x: chex.Array, params: Params) -> chex.Array:
    y = x @ params["kernel"]
    return y + _row(params["bias"], y)


def run_tower(layers: Params, x: chex.Array, tower: Tower, *, causal: bool) -> tuple[chex.Array, chex.Array]:
    """All layers of one side.

    Args:
      layers: stacked params, L first.
      x: float [N, T, W].
      tower: its sizes.
      causal: whether a place sees only those before it.

    Returns:
      (float [N, T, W] after the last layer, float [L, N, T, W] after each layer).
    """
    chex.assert_rank(x, 3)
    act = ACTIVATIONS[tower.activation]

    def layer(x: chex.Array, params: Params):
        seen = _norm(x, params["norm1"], tower.eps)
        q, k, v = (_linear(seen, params[name]).reshape(*x.shape[:2], tower.heads, -1) for name in "qkv")
        read = jax.nn.dot_product_attention(q, k, v, is_causal=causal).reshape(x.shape)
        x = x + _linear(read, params["o"])
        x = x + _linear(act(_linear(_norm(x, params["norm2"], tower.eps), params["up"])), params["down"])
        return x, x

    return jax.lax.scan(layer, x, layers)


def prepared(images: chex.Array, config: ClipConfig) -> chex.Array:
    """Images as the tower reads them: resized by cubic interpolation, then (x - mean) / std.

    Args:
      images: float [N, H, H, 3] in [0, 1]. Square, so that nothing is cropped.
      config: of the model.

    Returns:
      float [N, S, S, 3].
    """
    chex.assert_rank(images, 4)
    chex.assert_axis_dimension(images, 3, 3)
    chex.assert_equal(images.shape[1], images.shape[2])
    size = config.image_size
    if images.shape[1] != size:
        images = jnp.clip(jax.image.resize(images, (len(images), size, size, 3), "cubic"), 0.0, 1.0)
    mean, std = (jnp.asarray(x, images.dtype).reshape(1, 1, 1, 3) for x in (config.mean, config.std))
    return (images - mean) / std


def _look(params: Params, images: chex.Array, config: ClipConfig) -> tuple[chex.Array, chex.Array]:
    vision, side, size = params["vision"], config.image_size // config.patch_size, config.patch_size
    pixels = prepared(images, config).reshape(len(images), side, size, side, size, 3)
    patches = jnp.swapaxes(pixels, 2, 3).reshape(len(images), side * side, -1) @ vision["patches"]
    first = jnp.broadcast_to(vision["class"].reshape(1, 1, -1), (len(images), 1, config.vision.width))
    x = jnp.concatenate([first, patches], axis=1) + vision["positions"][None]
    return run_tower(vision["layers"], _norm(x, vision["first_norm"], config.vision.eps), config.vision, causal=False)


def encode_images(params: Params, images: chex.Array, config: ClipConfig) -> chex.Array:
    """The vectors of images in the common space, float [N, E], not normalised.

    Args:
      params: of the model.
      images: float [N, H, H, 3] in [0, 1].
      config: of the model.
    """
    x = _norm(_look(params, images, config)[0][:, 0], params["vision"]["norm"], config.vision.eps)
    return x @ params["vision"]["projection"]


def activations(params: Params, images: chex.Array, config: ClipConfig, *, first_layer: int = 0) -> chex.Array:
    """What the tower makes of images on its way: all tokens after each layer from `first_layer` on, float [N, F].

    Args:
      params: of the model.
      images: float [N, H, H, 3] in [0, 1].
      config: of the model.
      first_layer: from 0 to L - 1; negative counts from the last.

    Raises:
      ValueError: if there is no such layer.
    """
    count = config.vision.layers
    if not -count <= first_layer < count:
        raise ValueError(f"first_layer={first_layer}: the encoder has {count} layers")
    after = _look(params, images, config)[1][first_layer:]
    return jnp.moveaxis(after, 1, 0).reshape(len(images), -1)


def encode_texts(params: Params, tokens: chex.Array, config: ClipConfig) -> chex.Array:
    """The vectors of texts in the common space, float [N, E], not normalised.

    Args:
      params: of the model.
      tokens: int [N, T], T at most the context. What follows the first end token is not read.
      config: of the model.
    """
    chex.assert_rank(tokens, 2)
    chex.assert_type(tokens, int)
    text = params["text"]
    x = jnp.asarray(text["tokens"])[tokens] + text["positions"][None, : tokens.shape[1]]
    x = _norm(run_tower(text["layers"], x, config.text, causal=True)[0], text["norm"], config.text.eps)
    ends = tokens if config.end_id == LEGACY_END else (tokens == config.end_id).astype(jnp.int32)
    return x[jnp.arange(len(tokens)), jnp.argmax(ends, axis=1)] @ text["projection"]
