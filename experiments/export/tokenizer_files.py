"""The tokenizer files of a model that was not loaded from a folder: bytes or characters, as the package tokenizers has
them. The ids of every text are those of training, also of one that spells out "<eos>"."""

import json
import pathlib

from rl_jax.tokenizers import ByteTokenizer, CharTokenizer, of_texts

NAMES = ("<pad>", "<bos>", "<eos>")
_BOS = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
# Every text begins with BOS, as in training.
_BEGINS = {
    "type": "TemplateProcessing",
    "single": [_BOS, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [_BOS, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<bos>": {"id": "<bos>", "ids": [NAMES.index("<bos>")], "tokens": ["<bos>"]}},
}
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}


def write(tokenizer, folder: pathlib.Path) -> list[str]:
    """Writes tokenizer.json and tokenizer_config.json. Returns what is lacking, in words."""
    tokenizer = of_texts(tokenizer)
    if isinstance(tokenizer, ByteTokenizer):
        letters, splits, joins = byte_letters(), _BYTES, _BYTES
    elif isinstance(tokenizer, CharTokenizer):
        letters, splits, joins = tokenizer.alphabet, None, {"type": "Fuse"}
    else:
        return [f"a tokenizer: {type(tokenizer).__name__} has no form as tokenizer.json"]
    vocab = {name: index for index, name in enumerate((*NAMES, *letters))}
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": name, **special} for index, name in enumerate(NAMES)],
        "normalizer": None,
        "pre_tokenizer": splits,
        "post_processor": _BEGINS,
        "decoder": joins,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [],
        },
    }  # fmt: skip
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"split_special_tokens": True}  # "<eos>" in a text is five characters, as in training
    config |= dict(zip(("pad_token", "bos_token", "eos_token"), NAMES, strict=True))
    for name, content in (("tokenizer.json", description), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return []


def byte_letters() -> str:
    """The character by which the package tokenizers writes each of the 256 bytes: GPT-2's table."""
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # visible in Latin-1
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in own else next(others)) for byte in range(256))
