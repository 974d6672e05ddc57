"""Hugging Face model folders: `load` reads config.json and safetensors, `save_hf` writes what `transformers` opens.

A stacked leaf is created empty on the devices and filled one tensor at a time: the host never holds more than one.
"""

import dataclasses
import functools
import itertools
import json
import math
import os
import pathlib
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_jax.core.types import Params, path_name
from rl_jax.models.hf import families
from rl_jax.models.hf.families import FAMILIES, Family
from rl_jax.models.hf.tensor_files import DTYPES, TensorFiles, read_json, save_tensors
from rl_jax.models.transformer.model import TransformerConfig, init_params

CONFIG = "config.json"
# Files copied from the folder a model was loaded from to the one it is saved in.
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATES = "additional_chat_templates"  # a folder of more of them, such as the one for tools
_BUFFERS = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # not weights; old versions saved them
_HEAD = "lm_head.weight"


class Piece(NamedTuple):
    """The place of one tensor, or a part of it, in the params.

    Attributes:
      tensor: its name.
      path: the leaf.
      index: position in the leaf: (), (layer,) or (layer, expert).
      transposed: [out, in] in the file and [in, out] here.
      part: (j, n), the j-th of n equal parts of the last axis in the file.
    """

    tensor: str
    path: str
    index: tuple[int, ...]
    transposed: bool
    part: tuple[int, int] = (0, 1)


def param_shapes(config: TransformerConfig) -> Params:
    """The params of a model as shapes and dtypes (jax.ShapeDtypeStruct), without creating them."""
    return jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))


def _pieces(family: Family, path: str, shape: tuple[int, ...]) -> list[Piece]:
    """The tensors that a leaf is made of."""
    if path == "head/kernel":
        return [Piece(_HEAD, path, (), True)]
    if not path.startswith("layers/"):
        return [Piece(family.top[path], path, (), False)]
    name = path.removeprefix("layers/")
    theirs = family.layer[name]
    counts = shape[: 2 if "{expert}" in theirs else 1]
    kernel = len(shape) - len(counts) == 2
    part = ("qkv".index(name[0]), 3) if family.conv1d and name[0] in "qkv" else (0, 1)
    return [
        Piece(
            f"{family.layer_prefix}{index[0]}.{theirs.format(expert=index[-1])}",
            path,
            index,
            kernel and not family.conv1d,
            part,
        )
        for index in itertools.product(*map(range, counts))
    ]


def _file_shape(piece: Piece, leaf) -> tuple[int, ...]:
    """The shape of a piece's whole tensor in the file."""
    shape = leaf.shape[len(piece.index) :]
    shape = shape[::-1] if piece.transposed else shape
    return (*shape[:-1], shape[-1] * piece.part[1])


def _stored_names(files: TensorFiles, family: Family) -> dict[str, str]:
    """Our name -> the name in the files, without buffers. GPT-2's published folders omit the prefix."""
    names = {name: name for name in files.shapes if not name.endswith(_BUFFERS)}
    prefix = family.layer_prefix.partition(".")[0] + "."
    if family.conv1d and not any(name.startswith(prefix) for name in names):
        names = {name if name == _HEAD else prefix + name: name for name in names}
    return names


def check_tensors(files: TensorFiles, stored: dict[str, str], expected: dict[str, tuple[int, ...]]) -> None:
    """Refuses tensors that are missing, unexpected, or of another shape than `expected`."""
    problems = [f"missing tensor {name!r}" for name in expected if name not in stored]
    problems += [f"unexpected tensor {name!r}" for name in stored if name not in expected]
    problems += [
        f"{name!r} is {list(files.shapes[stored[name]])}, but config.json requires {list(shape)}"
        for name, shape in expected.items()
        if name in stored and files.shapes[stored[name]] != shape
    ]
    if problems:
        more = f" (and {len(problems) - 8} more)" if len(problems) > 8 else ""
        raise ValueError(f"{files.folder}: the tensors do not fit config.json: {'; '.join(problems[:8])}{more}")


def _check_tied(files: TensorFiles, head: str, embedding: str, rows_at_once: int = 4096) -> None:
    """Some folders of tied models store the embedding twice; refuses a head that differs from it."""
    same = files.shapes[head] == files.shapes[embedding]
    num_rows = files.shapes[head][0] if same else 0
    for start in range(0, num_rows, rows_at_once):
        rows = (slice(start, min(start + rows_at_once, num_rows)), slice(None))
        same = same and np.array_equal(files.read(head, rows), files.read(embedding, rows))
    if not same:
        raise ValueError(f"{files.folder}: tie_word_embeddings is true, but {head!r} is not {embedding!r}")


@functools.cache
def _inserter(sharding) -> Callable:
    """(whole, part, index) -> whole with the part at the index, in place."""

    def insert(whole, part, index):
        part = part.reshape((1,) * len(index) + part.shape)
        return jax.lax.dynamic_update_slice(whole, part, (*index, *(0,) * (whole.ndim - len(index))))

    return jax.jit(insert, donate_argnums=0, out_shardings=sharding)


def check_finite(files: TensorFiles, name: str, part: np.ndarray) -> None:
    """Refuses weights that are nan or inf: every logit would be nan."""
    if not (finite := np.isfinite(part)).all():
        raise ValueError(
            f"{files.folder}: tensor {name!r} has {np.size(part) - np.count_nonzero(finite)} of {np.size(part)} values "
            f"that are nan or inf, as {part.dtype}: fetch the file again, or save the model again"
        )


def _read_leaf(files: TensorFiles, stored: dict[str, str], leaf, sharding, pieces: list[Piece]) -> jax.Array:
    """One leaf of the params on its devices; each device's host reads only its own shards."""

    def read(piece, shape, index):
        slices = [slice(*s.indices(size)) for s, size in zip(index, shape, strict=True)]
        slices = slices[::-1] if piece.transposed else slices
        offset = piece.part[0] * (shape[0] if piece.transposed else shape[-1])
        slices[-1] = slice(slices[-1].start + offset, slices[-1].stop + offset)
        part = files.read(stored[piece.tensor], tuple(slices))
        result = np.array(part.T if piece.transposed else part, dtype=leaf.dtype, order="C")
        check_finite(files, stored[piece.tensor], result)
        return result

    depth = len(pieces[0].index)
    shape, part_sharding = leaf.shape[depth:], sharding
    if depth and isinstance(sharding, jax.sharding.NamedSharding):
        spec = (*sharding.spec, *(None,) * (len(leaf.shape) - len(sharding.spec)))
        part_sharding = jax.sharding.NamedSharding(sharding.mesh, jax.sharding.PartitionSpec(*spec[depth:]))

    def place(piece):
        return jax.make_array_from_callback(shape, part_sharding, functools.partial(read, piece, shape))

    if not depth:
        return place(pieces[0])
    whole = jnp.zeros(leaf.shape, leaf.dtype, device=sharding)
    for piece in pieces:
        whole = _inserter(sharding)(whole, place(piece), piece.index)
    return whole


def read_config(folder: str | pathlib.Path, *, ignore: Collection[str] = ()) -> TransformerConfig:
    """The TransformerConfig of the folder's config.json. ignore and errors: as for `load`."""
    return _read_config(folder, ignore)[1]


def model_type(folder: str | pathlib.Path) -> str:
    """The family's name in the folder's config.json, a key of families.FAMILIES. Raises ValueError if it is none."""
    path = pathlib.Path(folder) / CONFIG
    return families.check_model_type(read_json(path), path)


def _read_config(folder: str | pathlib.Path, ignore: Collection[str] = ()) -> tuple[str, TransformerConfig]:
    path = pathlib.Path(folder) / CONFIG
    raw = read_json(path)
    config = families.read_config(raw, path=path, ignore=ignore)  # refuses an unknown model_type
    return raw["model_type"], config


def load(
    folder: str | pathlib.Path,
    *,
    shardings: Callable[[Params], Params] | None = None,
    dtype: str = "float32",
    param_dtype: str = "float32",
    remat: str = "none",
    attention: str = "dot_product",
    ignore: Collection[str] = (),
) -> tuple[TransformerConfig, Params]:
    """The config and the params of a Hugging Face folder (config.json and *.safetensors, one file or shards).

    All names, shapes and headers are checked before the first tensor is read.

    Args:
      folder: of the model.
      shardings: the params' shapes -> their shardings (rl_jax.training.sharding.tree_shardings with its mesh bound);
        None puts all on the first device.
      dtype: of the TransformerConfig.
      param_dtype: of the TransformerConfig; tensors are cast as they are read.
      remat: of the TransformerConfig.
      attention: of the TransformerConfig.
      ignore: fields of config.json to skip, known to change nothing.

    Raises:
      ValueError: naming the file and the field or the tensor, if there is an unknown model_type or field, an
        unsupported value, a missing or unexpected tensor, a wrong shape, a missing shard, or a truncated file.
    """
    folder = pathlib.Path(folder)
    name, config = _read_config(folder, ignore)
    config = dataclasses.replace(config, dtype=dtype, param_dtype=param_dtype, remat=remat, attention=attention)
    family, files, shapes = FAMILIES[name], TensorFiles(folder), param_shapes(config)
    leaves, structure = jax.tree_util.tree_flatten_with_path(shapes)
    pieces = [_pieces(family, path_name(path), leaf.shape) for path, leaf in leaves]
    expected = {
        piece.tensor: _file_shape(piece, leaf)
        for group, (_, leaf) in zip(pieces, leaves, strict=True)
        for piece in group
    }
    stored = _stored_names(files, family)
    if config.tied_head and _HEAD in stored:
        _check_tied(files, stored.pop(_HEAD), stored.get(family.top["embed/embedding"], _HEAD))
    check_tensors(files, stored, expected)
    if shardings is None:
        places = [jax.sharding.SingleDeviceSharding(jax.devices()[0])] * len(leaves)
    else:
        places = structure.flatten_up_to(shardings(shapes))
    filled = (
        _read_leaf(files, stored, leaf, place, group)
        for (_, leaf), place, group in zip(leaves, places, pieces, strict=True)
    )
    return config, jax.tree.unflatten(structure, filled)


def _tensors(params: Params, groups: dict[str, list[Piece]], dtype) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors of a file, each created when it is requested."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    for name, group in groups.items():
        parts = [np.asarray(leaves[piece.path][piece.index]) for piece in group]
        parts = [part.T if piece.transposed else part for piece, part in zip(group, parts, strict=True)]
        whole = np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]
        if dtype == jnp.float16 and (largest := np.max(np.abs(whole))) > jnp.finfo(dtype).max:  # it would be inf
            raise ValueError(f"{name!r} has numbers that float16 has not, such as {largest:g}: save it as bfloat16")
        yield name, np.ascontiguousarray(whole, dtype=dtype)


def save_hf(
    folder: str | pathlib.Path,
    config: TransformerConfig,
    params: Params,
    *,
    like: str | pathlib.Path | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = 5 * 2**30,
) -> None:
    """Writes config.json and the weights as a folder that `transformers` opens: all of it, or nothing.

    Single process only.

    Args:
      folder: must not exist yet, or be empty.
      config: of the model.
      params: of the model.
      like: the folder that the model was loaded from; its config.json is kept, and its tokenizer and generation files
        are copied.
      dtype: of the tensors; None is that of the params.
      max_shard_bytes: larger weights are split into shards with an index; host memory is one shard.

    Raises:
      ValueError: if the params do not fit the config, no family describes it, or a weight is beyond float16.
      FileExistsError: if the folder exists and is not empty.
    """
    folder = pathlib.Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty: give a new folder, or remove this one first")
    raw = _config_to_write(config, like)
    shapes = jax.tree_util.tree_flatten_with_path(param_shapes(config))[0]
    expected = {path_name(path): leaf.shape for path, leaf in shapes}
    actual = {path_name(path): leaf.shape for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]}
    wrong = sorted(name for name in expected | actual if expected.get(name) != actual.get(name))
    if wrong:
        listed = "; ".join(f"{name} is {actual.get(name)} and not {expected.get(name)}" for name in wrong[:8])
        raise ValueError(f"the params do not fit the config: {listed}")
    dtype = dtype or str(params["embed"]["embedding"].dtype)
    if dtype not in DTYPES.values():
        raise ValueError(f"dtype={dtype!r} is none of {', '.join(DTYPES.values())}")
    groups, sizes = {}, {}
    for path, leaf in shapes:
        for piece in _pieces(FAMILIES[raw["model_type"]], path_name(path), leaf.shape):
            groups.setdefault(piece.tensor, []).append(piece)
            sizes[piece.tensor] = math.prod(_file_shape(piece, leaf)) * jnp.dtype(dtype).itemsize
    groups = {name: sorted(groups[name], key=lambda piece: piece.part) for name in sorted(groups)}
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex}.partial"
    partial.mkdir()
    try:
        # transformers 4 reads torch_dtype; a file of 5 that is kept has none.
        raw |= {"dtype": dtype} | ({"torch_dtype": dtype} if like is None or "torch_dtype" in raw else {})
        (partial / CONFIG).write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        tensors = _tensors(params, groups, jnp.dtype(dtype))
        save_tensors(partial, {name: sizes[name] for name in groups}, tensors, max_shard_bytes)
        for name in COMPANIONS if like else ():
            if (pathlib.Path(like) / name).exists():
                shutil.copyfile(pathlib.Path(like) / name, partial / name)
        for path in sorted((pathlib.Path(like) / TEMPLATES).glob("*.jinja")) if like else ():
            (partial / TEMPLATES).mkdir(exist_ok=True)
            shutil.copyfile(path, partial / TEMPLATES / path.name)
        os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _config_to_write(config: TransformerConfig, like: str | pathlib.Path | None) -> dict[str, Any]:
    """The content of config.json: that of `like`, if it describes the same model."""
    if like is None:
        return families.write_config(config)
    path = pathlib.Path(like) / CONFIG
    raw = read_json(path)
    unknown = set(raw)  # fields ignored when it was loaded are ignored here too
    if families.read_config(raw, path=path, ignore=unknown) != families.same_numbers(config):
        raise ValueError(f"like={path} is of another model than the one to save: leave `like` out")
    return raw
