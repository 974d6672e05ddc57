"""SentencePiece's tokenizer.model. No jax; the package `sentencepiece` is an optional extra, imported when needed."""

import pathlib
import re
from collections.abc import Collection, Mapping, Sequence

from rl_jax.data import readers
from rl_jax.data.checks import utf8
from rl_jax.tokenizers.base import UNKNOWN, FolderTokenizer, Roles

# Protobuf merges concatenated messages. This ModelProto sets only
# normalizer_spec.add_dummy_prefix = false and remove_extra_whitespaces = false.
_NO_PREFIX = b"\x1a\x04\x18\x00\x20\x00"


class SentencePieceTokenizer(FolderTokenizer):
    """A tokenizer.model with the protocol of rl_jax.tokenizers.base.

    Special tokens spelled out in a text become one id each, which sentencepiece alone does not do. As in
    `transformers`, with `legacy` (Llama 2) the text after each of them gets a space in front; without it (Llama's
    "legacy": false) only the beginning of a text does. Decoding is that of HFTokenizer.
    """

    def __init__(
        self,
        model: bytes,
        *,
        added: Mapping[str, int],
        ordinary: Collection[str] = (),
        legacy: bool,
        path: str | pathlib.Path,
    ):
        """Loads the model.

        Args:
          model: the bytes of the file.
          added: further tokens, text -> id.
          ordinary: those of them that are part of a decoded text, as <tool_call> may be.
          legacy: see the class.
          path: for error messages.
        """
        self.path, self._legacy = str(path), legacy
        self._whole, self._after = _load(model, self.path), _load(model + _NO_PREFIX, self.path)
        size = self._whole.vocab_size()
        control = {self._whole.id_to_piece(i): i for i in range(size) if self._whole.is_control(i)}
        self._special = control | dict(added)
        self._texts = {token: text for text, token in self._special.items()}
        self._unwritten = frozenset(token for token, text in self._texts.items() if text not in ordinary)
        self.added_ids = frozenset(self._texts)
        self.vocab_size = max([size - 1, *self._special.values()]) + 1
        longest_first = sorted(self._special, key=len, reverse=True)
        self._splitter = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def token_to_id(self, text: str) -> int | None:
        """The id of a token; None if there is none."""
        if text in self._special:
            return self._special[text]
        token = self._whole.piece_to_id(text)
        return None if token == self._whole.unk_id() and text != self._whole.id_to_piece(token) else token

    def with_roles(self, roles: Roles) -> "SentencePieceTokenizer":
        """Sets the tokens that begin, end and pad a text, and returns this tokenizer."""
        self.take_roles(roles)
        return self

    def decode(self, ids: Sequence[int], *, keep_special: bool = False) -> str:
        """Text of `ids`; an id without a token (padded embeddings) becomes U+FFFD.

        Args:
          ids: token ids.
          keep_special: whether to keep special tokens.

        Raises:
          ValueError: if an id is negative.
        """
        ids, processor = self._to_decode(ids)
        if not keep_special:
            roles = (self.pad_id, self.bos_id, *self.eos_ids)
            ids = [token for token in ids if token not in self._unwritten and token not in roles]
        parts, run = [], []
        for token in [*ids, None]:
            if token is not None and token < self._whole.vocab_size() and token not in self._texts:
                run.append(token)
                continue
            if run:
                parts.append(processor.decode(run))
                processor, run = self._after, []
            if token is not None:
                parts.append(self._texts.get(token, UNKNOWN))
        return "".join(parts)

    def token_text(self, token: int) -> str:
        """The token in readable form; a byte that is not a full character is shown as <0xNN>."""
        token = int(token)
        if token in self._texts:
            return self._texts[token]
        if not 0 <= token < self._whole.vocab_size():
            return f"<id {token}>"
        text = self._after.decode([token])
        return self._whole.id_to_piece(token) if UNKNOWN in text else text

    def _encode(self, text: str, first) -> tuple[list[int], list[tuple[int, int]]]:
        text = utf8(text)
        ids, offsets, start, processor = [], [], 0, first
        for match in [*self._splitter.finditer(text), None]:
            end = match.start() if match else len(text)
            if end > start:
                piece = processor.encode_as_offset_mapping(text[start:end])
                ids += piece["ids"]
                offsets += [(begin + start, stop + start) for begin, stop in piece["offsets"]]
            if match:
                ids.append(self._special[match.group()])
                offsets.append(match.span())
                start, processor = match.end(), self._whole if self._legacy else self._after
        return ids, offsets


def _load(model: bytes, path: str):
    try:
        import sentencepiece
    except ImportError as error:
        raise readers.DataError(
            f"{path} needs the package sentencepiece: pip install -e '.[sentencepiece]', or save "
            "a tokenizer.json beside it (transformers' save_pretrained writes it)"
        ) from error
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise readers.DataError(f"{path}: not a sentencepiece model, or cut: {error}") from error
    if not processor.vocab_size():
        raise readers.DataError(f"{path}: has no pieces: fetch the file again")
    return processor
