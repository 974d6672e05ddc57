"""Writes a tiny random model of a family as a Hugging Face folder, for the recipes' smoke sizes (configs/recipes).

    python -m experiments.tools.tiny_model qwen2                # into ~/.cache/rl_jax/tiny/qwen2
    python -m experiments.tools.tiny_model llama --to=FOLDER

One layer of 32 with the parts of the family (Qwen2's biases, Qwen3's norms of queries and keys), a tokenizer of bytes
and a chat template of the family's form. Nothing is downloaded.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import uuid
from collections.abc import Sequence

import jax
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from configs.recipes import _start
from rl_jax.core.types import Params, path_name
from rl_jax.models.hf import families, loading
from rl_jax.runs.run_record import read_json

SIZES = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=True,
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_HEADERS = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + "
    "message.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
_QWEN = (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "<|im_end|>", _CHATML)
_LLAMA = (("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>", _HEADERS)
# family -> (fields of config.json, (special tokens, the padding first; what ends a turn; chat template))
FAMILIES = {
    "qwen2": (dict(architectures=["Qwen2ForCausalLM"], rope_theta=1_000_000.0), _QWEN),
    "qwen3": (dict(architectures=["Qwen3ForCausalLM"], head_dim=16, rope_theta=1_000_000.0), _QWEN),
    "llama": (dict(architectures=["LlamaForCausalLM"], head_dim=16, rope_theta=500_000.0), _LLAMA),
}


def write(family: str, folder: pathlib.Path, *, seed: int = 0) -> pathlib.Path:
    """Writes the folder, all of it or nothing. An existing one is kept as it is.

    Args:
      family: of FAMILIES.
      folder: of the model.
      seed: of the weights.

    Returns:
      The folder.

    Raises:
      ValueError: if the family is unknown, or the folder has a model of another one.
    """
    if family not in FAMILIES:
        raise ValueError(f"unknown family {family!r}; the families are {', '.join(FAMILIES)}")
    if (folder / "config.json").exists():
        if (found := read_json(folder / "config.json").get("model_type")) != family:
            raise ValueError(f"{folder} has a model of type {found}, not {family}: name another folder, or remove it")
        return folder
    more, (special, end, template) = FAMILIES[family]
    tokenizer = _bytes(special)
    ids = {"eos_token_id": tokenizer.token_to_id(end), "pad_token_id": 0}
    fields = SIZES | more | {"model_type": family, "vocab_size": tokenizer.get_vocab_size()} | ids
    config = families.read_config(fields)
    partial = folder.parent / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        loading.save_hf(partial, config, _random(loading.param_shapes(config), seed))
        written = json.loads((partial / "config.json").read_text(encoding="utf-8"))
        (partial / "config.json").write_text(json.dumps(written | ids, indent=2) + "\n", encoding="utf-8")
        tokenizer.save(str(partial / "tokenizer.json"))
        texts = {"eos_token": end, "pad_token": special[0], "bos_token": None, "chat_template": template}
        (partial / "tokenizer_config.json").write_text(json.dumps(texts) + "\n", encoding="utf-8")
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _random(shapes: Params, seed: int) -> Params:
    """Weights of 0 mean and deviation .05, scales of 1. With numpy: nothing is compiled for a folder this small."""
    rng = np.random.default_rng(seed)

    def leaf(path, like):
        made = np.ones(like.shape) if "norm" in path_name(path) else 0.05 * rng.standard_normal(like.shape)
        return made.astype(like.dtype)

    return jax.tree_util.tree_map_with_path(leaf, shapes)


def _bytes(special: Sequence[str]) -> tokenizers.Tokenizer:
    """A byte-level tokenizer without merges; the special tokens have the first ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    result = tokenizers.Tokenizer(models.BPE(vocab={t: i for i, t in enumerate([*special, *alphabet])}, merges=[]))
    result.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    result.decoder, result.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=True)
    result.add_special_tokens(list(special))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=sorted(FAMILIES), help="of the model")
    parser.add_argument("--to", type=pathlib.Path, help=f"folder of the model; default: {_start.TINY}/FAMILY")
    options = parser.parse_args(arguments)
    try:
        print(write(options.family, options.to or pathlib.Path(_start.TINY).expanduser() / options.family))
    except (ValueError, OSError) as error:
        print(f"experiments.tools.tiny_model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
