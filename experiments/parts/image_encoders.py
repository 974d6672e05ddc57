"""A CLIP of a Hugging Face folder that looks at pictures of an environment: what rewards by images see with.

    --config.algorithm.relabel.encoder=FOLDER            # config.json, *.safetensors, tokenizer.json
    python -m experiments.tools.tiny_clip pointmass      # a small one of one's own, trained here

The weights are constants of the compiled program: one copy for all runs, in no checkpoint.
"""

import functools
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import numpy as np

from rl_jax.core.binding import bind
from rl_jax.core.types import Params
from rl_jax.core.vectors import unit
from rl_jax.envs import pictures
from rl_jax.models import clip
from rl_jax.models.hf import clip_folder
from rl_jax.tokenizers import check_vocabulary, load_tokenizer

EPS = 1e-16  # of lengths
CHUNK = 256  # images at once: activations of more would not fit beside a real encoder


class ImageEncoder(NamedTuple):
    """What relabelling.images asks for; see there.

    Attributes:
      draw: (observations float [..., D]) -> images float [..., H, H, 3] in [0, 1].
      images: (observations float [N, D]) -> float [N, E], of length 1.
      activations: (observations float [N, D], first_layer) -> float [N, F].
      texts: (tuple of texts) -> float numpy [K, E], of length 1.
      shown: `activations` of numpy observations as numpy, computed at once, also while a program is being traced.
    """

    draw: Callable
    images: Callable
    activations: Callable
    texts: Callable
    shown: Callable


class Folder(NamedTuple):
    """A folder that was read. config: ClipConfig. params: numpy arrays. tokenizer: of its texts."""

    config: clip.ClipConfig
    params: Params
    tokenizer: object


@functools.lru_cache(maxsize=2)
def read(folder: str) -> Folder:
    """The model and the tokenizer of a folder; the last two are kept.

    Raises:
      ValueError: if the folder is missing, is no CLIP with a tokenizer, or they end texts with different tokens.
    """
    path = pathlib.Path(folder).expanduser()
    if not folder or not path.is_dir():
        raise ValueError(
            f"encoder={folder!r}: there is no such folder. Give one of a CLIP (config.json, *.safetensors, "
            "tokenizer.json), or make a small one: python -m experiments.tools.tiny_clip pointmass"
        )
    config, params = clip_folder.load(path)
    tokenizer = load_tokenizer(path)
    check_vocabulary(tokenizer, config.vocab_size, path)
    if config.end_id not in (clip.LEGACY_END, tokenizer.eos_id):
        raise ValueError(
            f"encoder={folder!r}: eos_token_id of text_config is {config.end_id}, but the tokenizer ends texts with "
            f"{tokenizer.eos_id}: the files belong to different models"
        )
    return Folder(config, params, tokenizer)


def now(fn: Callable, *arrays) -> np.ndarray:
    """fn(*arrays) as numpy, computed at once, also while a program is being traced."""
    with jax.ensure_compile_time_eval():
        return np.asarray(jax.jit(fn)(*arrays))


def tokens_of(texts: tuple[str, ...], tokenizer, context: int) -> np.ndarray:
    """Token ids int32 [K, T] of texts with their begin and end; longer ones are cut, their end stays.

    Args:
      texts: K texts.
      tokenizer: of rl_jax.tokenizers.
      context: the most tokens of a text.

    Raises:
      ValueError: if a text has a letter without a token (a small vocabulary), or spells the end token.
    """
    for text in texts:
        ids, spans = tokenizer.encode_with_offsets(text)
        if tokenizer.eos_id in ids:  # what CLIP's tokenizers give for what they do not know: the model stops reading
            begin, end = spans[ids.index(tokenizer.eos_id)]
            raise ValueError(
                f"the text {text!r}: the encoder's tokenizer has no token for {text[begin:end]!r} at letter "
                f"{begin + 1}, and would end the text there. Write it in other words, or take another encoder"
            )
    rows = [tokenizer.encode(text, bos=True) for text in texts]
    rows = [[*row[: context - 1], tokenizer.eos_id] for row in rows]
    width = max(map(len, rows))
    return np.asarray([row + [tokenizer.eos_id] * (width - len(row)) for row in rows], np.int32)


@functools.lru_cache(maxsize=64)
def embedded(folder: str, texts: tuple[str, ...]) -> np.ndarray:
    """The vectors of texts, float32 [K, E], of length 1."""
    config, params, tokenizer = read(folder)
    tokens = tokens_of(texts, tokenizer, config.context)
    return now(lambda tokens: unit(clip.encode_texts(params, tokens, config), EPS), tokens)


def make_encoder(folder: str, picture: Mapping | str) -> ImageEncoder:
    """The encoder of a folder before a picture.

    Args:
      folder: of a CLIP.
      picture: a function of envs.pictures, or "module:function", with its keywords.

    Raises:
      ValueError: as for `read`, or if the picture is unknown.
    """
    return _made(folder, json.dumps(picture if isinstance(picture, str) else dict(picture), sort_keys=True))


@functools.lru_cache(maxsize=4)  # a program is traced several times, and demonstrations are looked at in each
def _made(folder: str, picture: str) -> ImageEncoder:
    config, params, _ = read(folder)
    draw = bind(json.loads(picture), pictures)

    def in_chunks(fn: Callable, observations):
        """fn of the pictures of the observations, CHUNK at a time."""
        return jax.lax.map(lambda one: fn(draw(one[None]))[0], observations, batch_size=CHUNK)

    def images(observations):
        return in_chunks(lambda seen: unit(clip.encode_images(params, seen, config), EPS), observations)

    def activations(observations, first_layer: int):
        return in_chunks(lambda seen: clip.activations(params, seen, config, first_layer=first_layer), observations)

    @functools.lru_cache(maxsize=4)
    def at_once(first_layer: int) -> Callable:
        return jax.jit(lambda observations: activations(observations, first_layer))

    def shown(observations: np.ndarray, first_layer: int) -> np.ndarray:
        return now(at_once(first_layer), observations)

    return ImageEncoder(draw, images, activations, functools.partial(embedded, folder), shown)
