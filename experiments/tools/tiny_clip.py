"""Trains a tiny CLIP on pictures of an environment and their captions, and writes it as a Hugging Face folder.

    python -m experiments.tools.tiny_clip pointmass              # into ~/.cache/rl_jax/tiny/clip_pointmass; a minute
    python -m experiments.tools.tiny_clip pendulum --to=FOLDER --steps=3000 --seed=1

States are drawn at random, pictured (rl_jax.envs.pictures) and described by a sentence ("the dot is far right and at
the top"); every eighth caption says only what the environment is ("a dot in a square"), for a baseline text. The folder
has what a pretrained one has: config.json, preprocessor_config.json, model.safetensors and tokenizer.json, so that a
run takes either (configs/control/images.py). Nothing is downloaded. The last lines say how often the right caption of
all is the nearest one to a new picture.
"""

import argparse
import functools
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from configs.recipes import _start
from experiments.parts.image_encoders import EPS, tokens_of
from rl_jax.core.binding import bind
from rl_jax.core.types import Params
from rl_jax.core.vectors import unit
from rl_jax.envs import pictures
from rl_jax.losses.contrastive import matching
from rl_jax.models import clip
from rl_jax.models.clip import ClipConfig, Tower
from rl_jax.models.hf import clip_folder
from rl_jax.tokenizers import load_tokenizer

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
PLAIN_SHARE = 0.125
CPU_OPTIONS = {"xla_backend_optimization_level": 1, "xla_cpu_multi_thread_eigen": False}  # compiling takes longest


class World(NamedTuple):
    """What is pictured.

    Attributes:
      low: of the observations that are drawn.
      high: of them.
      observe: (uniform numbers [N, D]) -> observations float32 [N, D'].
      words: (observations) -> a list of captions.
      plain: the caption of any of them.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    observe: Callable
    words: Callable
    plain: str


def _binned(values: np.ndarray, edges: Sequence[float], words: Sequence[str]) -> list[str]:
    """The word of the bin of each value; one word more than edges."""
    return [words[i] for i in np.searchsorted(edges, values)]


_ACROSS = ("far left", "left", "in the middle", "right", "far right")
_ABOVE = ("at the bottom", "low", "halfway up", "high", "at the top")
_LEANS = ("upside down", "hanging to the {}", "level on the {}", "leaning to the {}", "upright")


def _dots(seen: np.ndarray) -> list[str]:
    edges = (-0.75, -0.25, 0.25, 0.75)
    sides = zip(_binned(seen[:, 0], edges, _ACROSS), _binned(seen[:, 1], edges, _ABOVE), strict=True)
    return [f"the dot is {across} and {above}" for across, above in sides]


def _lean(height: np.ndarray, left: np.ndarray) -> list[str]:
    """How a rod stands, from the cosine of its angle and whether it is to the left."""
    found = _binned(height, (-0.9, -0.3, 0.3, 0.9), _LEANS)
    return [text.format("left" if side else "right") for text, side in zip(found, left, strict=True)]


def _rods(seen: np.ndarray) -> list[str]:
    return [f"the rod is {text}" for text in _lean(seen[:, 0], seen[:, 1] > 0)]


def _poles(seen: np.ndarray) -> list[str]:
    tilt = _binned(seen[:, 2], (-0.15, -0.05, 0.05, 0.15), ("far left", "left", "upright", "right", "far right"))
    tilt = [text if text == "upright" else f"leaning {text}" for text in tilt]
    place = _binned(seen[:, 0], (-1.5, -0.5, 0.5, 1.5), _ACROSS)
    return [f"the pole is {one} and the cart is {two}" for one, two in zip(tilt, place, strict=True)]


def _cars(seen: np.ndarray) -> list[str]:
    words = (
        "on top of the left hill", "on the left slope", "at the bottom of the valley", "on the right slope",
        "high on the right slope", "at the flag on top of the right hill",
    )  # fmt: skip
    return [f"the car is {text}" for text in _binned(seen[:, 0], (-1.0, -0.7, -0.35, 0.0, 0.4), words)]


def _turned(drawn: np.ndarray) -> np.ndarray:
    """An angle and a speed -> (cosine, sine, speed)."""
    return np.stack([np.cos(drawn[:, 0]), np.sin(drawn[:, 0]), drawn[:, 1]], axis=1)


# name of the picture -> World
WORLDS = {
    "pointmass": World((-1.5,) * 2, (1.5,) * 2, lambda x: x, _dots, "a dot in a square"),
    "pendulum": World((-np.pi, -8.0), (np.pi, 8.0), _turned, _rods, "a rod"),
    "cartpole": World((-2.4, 0.0, -0.3, 0.0), (2.4, 0.0, 0.3, 0.0), lambda x: x, _poles, "a pole and a cart"),
    "mountain_car": World((-1.2, 0.0), (0.6, 0.0), lambda x: x, _cars, "a car in a valley"),
}


def compiled(fn: Callable) -> Callable:
    """jax.jit of a function, compiled quickly on a CPU."""
    return jax.jit(fn, compiler_options=CPU_OPTIONS if jax.default_backend() == "cpu" else None)


def drawn_states(world: World, rng: np.random.Generator, count: int) -> np.ndarray:
    """`count` observations, float32 [N, D]."""
    numbers = rng.uniform(world.low, world.high, (count, len(world.low)))
    return np.asarray(world.observe(numbers), np.float32)


def make_tokenizer(texts: Sequence[str]) -> tokenizers.Tokenizer:
    """A tokenizer of CLIP's form: lower case, byte-level pairs that end words with </w>, begin and end tokens.

    Args:
      texts: that it is trained on.
    """
    result = tokenizers.Tokenizer(models.BPE(unk_token=END, end_of_word_suffix="</w>"))
    result.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(tokenizers.Regex(r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), "removed", invert=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )  # fmt: skip
    result.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[BEGIN, END],
        initial_alphabet=alphabet,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    result.train_from_iterator(texts, trainer)
    ends = ((token, result.token_to_id(token)) for token in (END, BEGIN))
    result.post_processor = processors.RobertaProcessing(*ends, trim_offsets=False, add_prefix_space=False)
    return result


def write_tokenizer(folder: pathlib.Path, texts: Sequence[str]) -> None:
    """tokenizer.json and tokenizer_config.json of texts."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(texts).save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "CLIPTokenizer", "bos_token": BEGIN, "eos_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(named) + "\n", encoding="utf-8")


def sizes(tokenizer, context: int, images: np.ndarray, *, layers: int) -> ClipConfig:
    """The model that is trained: two towers of 32, with the mean and deviation of the pictures' pixels.

    Args:
      tokenizer: of the captions.
      context: of the texts.
      images: float [N, S, S, 3], some pictures.
      layers: of each tower.
    """
    tower, side = Tower(width=32, mlp_width=64, layers=layers, heads=4), images.shape[1]
    pixels = images.reshape(-1, 3)
    return ClipConfig(
        tower,
        tower,
        vocab_size=tokenizer.vocab_size,
        context=context,
        end_id=tokenizer.eos_id,
        image_size=side,
        patch_size=side // 4,
        size=32,
        mean=tuple(map(float, pixels.mean(0))),
        std=tuple(map(float, pixels.std(0))),
    )


def captions_of(world: World) -> list[str]:
    """All captions of a world, each once, as found among 20,000 states."""
    return sorted({*world.words(drawn_states(world, np.random.default_rng(0), 20_000)), world.plain})


def train(
    world: World, draw: Callable, tokenizer, config: ClipConfig, *, steps: int, batch_size: int, seed: int
) -> tuple[Params, float]:
    """A model of pictures and their captions, by CLIP's loss.

    Args:
      world: of WORLDS.
      draw: observations float [N, D] -> images [N, H, H, 3].
      tokenizer: of its captions.
      config: of the model.
      steps: of Adam, whose rate falls from 3e-3 to 0 along a cosine.
      batch_size: pictures per step.
      seed: of weights and states.

    Returns:
      (params, how often the nearest caption of all is the right one on 2,000 new pictures).
    """
    captions = captions_of(world)
    place = {text: i for i, text in enumerate(captions)}
    tokens = jnp.asarray(tokens_of(tuple(captions), tokenizer, config.context))
    rng, optimizer = np.random.default_rng(seed), optax.adam(optax.cosine_decay_schedule(3e-3, steps))

    def loss_fn(params: Params, seen: jax.Array, right: jax.Array) -> jax.Array:
        images = unit(clip.encode_images(params, draw(seen), config), EPS)
        texts = unit(clip.encode_texts(params, tokens, config), EPS)[right]
        scores = jnp.exp(jnp.minimum(params["logit_scale"], jnp.log(100.0))) * (images @ texts.T)
        same = right[:, None] == right[None]
        return 0.5 * jnp.mean(matching(scores, same) + matching(scores.T, same))

    @compiled
    def step(params, state, seen, right):
        grads = jax.grad(loss_fn)(params, seen, right)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def batch(count: int) -> tuple[np.ndarray, np.ndarray]:
        seen = drawn_states(world, rng, count)
        return seen, np.asarray([place[text] for text in world.words(seen)], np.int32)

    params = compiled(functools.partial(clip.init_params, config))(jax.random.key(seed))
    state = compiled(optimizer.init)(params)
    for _ in range(steps):
        seen, right = batch(batch_size)
        right = np.where(rng.uniform(size=batch_size) < PLAIN_SHARE, place[world.plain], right).astype(np.int32)
        params, state = step(params, state, seen, right)

    @compiled
    def nearest(params, seen):
        texts = unit(clip.encode_texts(params, tokens, config), EPS)
        scores = clip.encode_images(params, draw(seen), config) @ texts.T
        return jnp.argmax(scores.at[:, place[world.plain]].set(-jnp.inf), axis=1)

    seen, right = batch(2000)
    return params, float(np.mean(np.asarray(nearest(params, seen)) == right))


def write(
    name: str,
    folder: pathlib.Path,
    *,
    steps: int = 1000,
    batch_size: int = 64,
    size: int = 16,
    layers: int = 1,
    seed: int = 0,
) -> float:
    """Trains and writes the folder of a world.

    Args:
      name: of WORLDS.
      folder: must not have a model yet.
      steps: of training.
      batch_size: pictures per step.
      size: side of the pictures, a multiple of 4.
      layers: of each tower.
      seed: of weights and states.

    Returns:
      How often the nearest caption is the right one.

    Raises:
      ValueError: if the world is unknown, or the size not a multiple of 4.
      FileExistsError: if the folder has a model.
    """
    if name not in WORLDS:
        raise ValueError(f"unknown world {name!r}; the worlds are {', '.join(WORLDS)}")
    if size < 4 or size % 4:
        raise ValueError(f"size={size} must be a multiple of 4: there are 4 x 4 patches")
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} has a model: give another folder with --to, or remove this one first")
    world, draw = WORLDS[name], bind(dict(fn=name, size=size), pictures)
    write_tokenizer(folder, captions_of(world))
    tokenizer = load_tokenizer(folder)
    context = 2 + max(len(tokenizer.encode(text)) for text in captions_of(world))
    some = compiled(draw)(drawn_states(world, np.random.default_rng(seed), 256))
    config = sizes(tokenizer, max(context, 16), np.asarray(some), layers=layers)
    params, right = train(world, draw, tokenizer, config, steps=steps, batch_size=batch_size, seed=seed)
    clip_folder.save(folder, config, params)
    return right


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("world", choices=sorted(WORLDS), help="what is pictured")
    parser.add_argument("--to", type=pathlib.Path, help=f"folder; default: {_start.TINY}/clip_WORLD")
    parser.add_argument("--steps", type=int, default=1000, help="of training; default: 1000")
    parser.add_argument("--size", type=int, default=16, help="side of a picture in pixels; default: 16")
    parser.add_argument("--layers", type=int, default=1, help="of each tower; default: 1")
    parser.add_argument("--seed", type=int, default=0, help="of weights and states; default: 0")
    options = parser.parse_args(arguments)
    folder = options.to or pathlib.Path(_start.TINY).expanduser() / f"clip_{options.world}"
    try:
        right = write(
            options.world, folder, steps=options.steps, size=options.size, layers=options.layers, seed=options.seed
        )
    except (ValueError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    count = len(captions_of(WORLDS[options.world]))
    print(f"{folder}: the nearest of {count} captions is the right one for {right:.1%} of new pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
