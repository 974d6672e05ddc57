"""The tokenizer files of a model that was not loaded from a folder: characters, as the package tokenizers has them."""

import json
import pathlib

from rl_jax.tokenizers import CharTokenizer

NAMES = ("<pad>", "<bos>", "<eos>")
_BOS = {"SpecialToken": {"id": "<bos>", "type_id": 0}}
# Every text begins with BOS, as in training.
_BEGINS = {
    "type": "TemplateProcessing",
    "single": [_BOS, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [_BOS, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<bos>": {"id": "<bos>", "ids": [NAMES.index("<bos>")], "tokens": ["<bos>"]}},
}


def write(tokenizer, folder: pathlib.Path) -> list[str]:
    """Writes tokenizer.json and tokenizer_config.json. Returns what is lacking, in words."""
    if not isinstance(tokenizer, CharTokenizer):
        return [f"a tokenizer: {type(tokenizer).__name__} has no form as tokenizer.json"]
    vocab = {name: index for index, name in enumerate((*NAMES, *tokenizer.alphabet))}
    special = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    description = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": name, **special} for index, name in enumerate(NAMES)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": _BEGINS,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [],
        },
    }  # fmt: skip
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= dict(zip(("pad_token", "bos_token", "eos_token"), NAMES, strict=True))
    for name, content in (("tokenizer.json", description), ("tokenizer_config.json", config)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return []
