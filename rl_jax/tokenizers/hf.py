"""Tokenizers of Hugging Face's `tokenizers` package: byte-pair, WordPiece and unigram models. No jax."""

import json
import pathlib
from collections.abc import Mapping, Sequence

from rl_jax.data import plain_files, readers
from rl_jax.data.checks import utf8
from rl_jax.tokenizers import hf_limits, hf_patterns
from rl_jax.tokenizers.base import UNKNOWN, FolderTokenizer, Roles

GPT2_CLASSES = (None, "GPT2Tokenizer", "GPT2TokenizerFast")  # classes with GPT-2's pre-tokenizer


class HFTokenizer(FolderTokenizer):
    """A tokenizer.json with the protocol of rl_jax.tokenizers.base.

    Many of them insert a space before a text (Llama 2, Mistral). A text that follows a prompt gets none: a second
    tokenizer, made from the same description without that step, encodes it. Likewise `decode` drops that space only
    after a BOS, so that prompt + decode(completion ids) is the whole text. (WordPiece does not record whether a word
    followed a space.)
    """

    def __init__(
        self, description: Mapping, roles: Roles, *, path: str | pathlib.Path, split_special_tokens: bool = False
    ):
        """Builds the two tokenizers.

        Args:
          description: the content of tokenizer.json.
          roles: the tokens that begin, end and pad a text.
          path: for error messages.
          split_special_tokens: whether special tokens that a text spells out stay text, as in transformers.
        """
        self.path = str(path)
        # The post-processor adds special tokens, which we do by name, and trims spaces from the offsets, which then
        # miss characters. Truncation and padding are up to the caller.
        whole = {**description, "post_processor": None, "truncation": None, "padding": None}
        self._whole = _build(whole, self.path)
        after = without_prefix_space(whole)
        self._after = self._whole if after == whole else _build(after, self.path)
        for tokenizer in (self._whole, self._after):
            tokenizer.encode_special_tokens = split_special_tokens
        vocabulary = self._whole.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocabulary.values()) + 1
        self.take_roles(roles)
        self.added_ids = frozenset(self._whole.get_added_tokens_decoder())

    def _encode(self, text: str, tokenizer) -> tuple[list[int], list[tuple[int, int]]]:
        text = utf8(text)
        with hf_limits.panics(self.path, f"encoding {text!r:.60}"):
            encoding = tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of `ids`; an id without a token (padded embeddings) becomes U+FFFD.

        Args:
          ids: token ids.
          keep_special: whether to keep special tokens.

        Raises:
          ValueError: if an id is negative.
        """
        ids, tokenizer = self._to_decode(ids)
        if not keep_special:
            ids = [token for token in ids if token not in (self.pad_id, self.bos_id, *self.eos_ids)]
        runs: list[list[int]] = [[]]
        for token in ids:
            if self._whole.id_to_token(token) is None:
                runs.append([])
            else:
                runs[-1].append(token)
        texts = [
            (tokenizer if i == 0 else self._after).decode(run, skip_special_tokens=not keep_special)
            for i, run in enumerate(runs)
        ]
        return UNKNOWN.join(texts)

    def token_text(self, token: int) -> str:
        """The token in readable form; one that is not a full character is shown as in the vocabulary."""
        token = int(token)
        raw = self._whole.id_to_token(token)
        if raw is None:
            return f"<id {token}>"
        text = self._after.decode([token], skip_special_tokens=False)
        return raw if UNKNOWN in text else text


def without_prefix_space(description: Mapping) -> dict:
    """The description of a tokenizer that neither inserts a space before a text nor removes it in decoding."""

    def edit(part, inside_decoder):
        if not isinstance(part, Mapping):
            return part
        part, kind = dict(part), part.get("type")
        for name in ("normalizers", "pretokenizers", "decoders"):
            if name in part:
                kept = (edit(step, inside_decoder) for step in part[name])
                part[name] = [step for step in kept if step is not None]
        if kind == "Metaspace":
            part.pop("add_prefix_space", None)
            part["prepend_scheme"] = "never"
        elif kind == "ByteLevel":
            part["add_prefix_space"] = False
        elif kind == "Prepend" or (inside_decoder and kind == "Strip" and part.get("content") == " "):
            return None
        return part

    changed = {name: edit(description.get(name), False) for name in ("normalizer", "pre_tokenizer")}
    return {**description, **changed, "decoder": edit(description.get("decoder"), True)}


def first_token(description: Mapping, path: str | pathlib.Path) -> str | None:
    """The special token that a tokenizer.json's post-processor puts before a text; None if it puts none there.

    Args:
      description: the content of tokenizer.json.
      path: for error messages.

    Raises:
      readers.DataError: if the post-processor is not as the tokenizers package writes it.
    """

    def of(processor):
        if processor is None or processor["type"] == "ByteLevel":
            return None
        if processor["type"] == "Sequence":
            return next(filter(None, map(of, processor["processors"])), None)
        if processor["type"] == "TemplateProcessing":
            return processor["single"][0].get("SpecialToken", {}).get("id")
        return processor["cls"][0]  # BERT's and RoBERTa's

    try:
        return of(description.get("post_processor"))
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise readers.DataError(f"{path}: has no post_processor as the tokenizers package writes it") from error


def gpt2_description(vocab: pathlib.Path, merges: pathlib.Path, tokenizer_class: str | None) -> dict:
    """The tokenizer.json equivalent of GPT-2's vocab.json and merges.txt: byte-level pairs, no space in front.

    Raises:
      readers.DataError: for another tokenizer class, whose pre-tokenizer is in neither file.
    """
    import tokenizers

    if tokenizer_class not in GPT2_CLASSES:
        raise readers.DataError(
            f"{vocab.parent}/tokenizer_config.json: vocab.json and merges.txt of a {tokenizer_class} do not define how "
            "text is split before the merges: save a tokenizer.json there (transformers' save_pretrained writes it)"
        )
    try:
        for file in (vocab, merges):
            plain_files.check_regular(file)
        model = tokenizers.models.BPE.from_file(str(vocab), str(merges))
    except Exception as error:  # the package raises bare Exceptions
        raise readers.DataError(f"{vocab}, {merges.name}: not a vocabulary with its merges: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    end = "<|endoftext|>"
    if tokenizer.token_to_id(end) is not None:
        tokenizer.add_special_tokens([end])
    return json.loads(tokenizer.to_str())


def _build(description: Mapping, path: str):
    import tokenizers  # imported here so that worker processes that only need characters do without it

    hf_limits.check(description, path)
    hf_patterns.check(description, path)
    try:
        with hf_limits.panics(path, "reading it"):
            tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    except readers.DataError:
        raise
    except Exception as error:  # the package raises bare Exceptions
        raise readers.DataError(
            f"{path}: the tokenizers package {tokenizers.__version__} cannot read it: {error}. "
            "Is the file whole, and not of a newer version?"
        ) from error
    for token in description.get("added_tokens") or []:
        actual_id = tokenizer.token_to_id(token["content"])
        if actual_id != token["id"]:  # the package numbers added tokens consecutively by itself
            raise readers.DataError(
                f"{path}: the added token {token['content']!r} should have id {token['id']} and would get {actual_id}: "
                "an added token before it is missing"
            )
    return tokenizer
