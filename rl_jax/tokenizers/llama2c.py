"""The llama2.c byte-pair vocabulary. Plain Python, no jax."""

import functools
import pathlib
import re
import struct
from collections.abc import Sequence

from rl_jax.data import readers
from rl_jax.tokenizers.base import checked


class Llama2cTokenizer:
    """The llama2.c byte-pair tokenizer (github.com/karpathy/llama2.c, run.c `encode` and `decode`).

    Encoding inserts a space before the text, then repeatedly merges the neighbouring pair whose piece has the highest
    score until no pair is a piece. Characters outside the vocabulary become byte tokens. Ids: 0 unknown (never
    produced, hence the pad), 1 BOS, 2 EOS. The published tiny stories models were trained on stories delimited by BOS
    and never EOS, so both end a text and `eos_id` is BOS. That is the one departure from run.c, whose `encode(eos=1)`
    appends 2.
    """

    pad_id, bos_id, eos_id = 0, 1, 1
    eos_ids = (1, 2)

    def __init__(self, path):
        """path: a tokenizer.bin: int32 longest piece, then per id float32 score, int32 length, bytes."""
        self.path = str(path)
        self._pieces, self._scores = _read_pieces(pathlib.Path(path))
        self.vocab_size = len(self._pieces)
        self._ids: dict[bytes, int] = {}
        for index, piece in enumerate(self._pieces):
            self._ids.setdefault(piece, index)
        self._bytes = [bytes([int(match[1], 16)]) if (match := re.fullmatch(rb"<0x([0-9A-F]{2})>", piece))
                       else piece for piece in self._pieces]
        # No piece has a space after its first byte, so merges never cross a space and words are merged separately
        # (and cached). The result equals that of run.c, whose loop is quadratic in the whole text.
        self._by_word = not any(b" " in piece[1:] for piece in self._pieces[3:])
        self._merge = functools.lru_cache(maxsize=1 << 16)(self._merge_uncached)

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of `text` as a separate text: run.c's `encode`, with a space before it."""
        ids = [self.bos_id] if bos else []
        if text:
            ids += self._encode(" " + text)
        return ids + [self.eos_id] if eos else ids

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt: no space is inserted before it."""
        ids = self._encode(text) if text else []
        return ids + [self.eos_id] if eos else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without pad, BOS and EOS; one space after BOS is dropped, as in run.c.

        Without BOS the first space stays, so that prompt + decode(completion ids) is the whole text. Bytes that are not
        UTF-8 become U+FFFD.
        """
        parts, after_bos = [], False
        for token in checked(ids, self.vocab_size):
            if token in (0, 1, 2):
                after_bos = token == 1 or (after_bos and token == 0)
                continue
            piece = self._bytes[token]
            parts.append(piece[1:] if after_bos and piece[:1] == b" " else piece)
            after_bos = False
        return b"".join(parts).decode("utf-8", errors="replace")

    def token_text(self, token: int) -> str:
        """The token in readable form; a byte that is not a full character is shown as <0xNN>."""
        (token,) = checked([token], self.vocab_size)
        if token < 3:
            return ("<pad>", "<s>", "</s>")[token]
        try:
            return self._bytes[token].decode("utf-8")
        except UnicodeDecodeError:
            return self._pieces[token].decode("utf-8", errors="replace")

    def _encode(self, text: str) -> list[int]:
        words = re.findall(r" ?[^ ]+| ", text) if self._by_word else [text]
        return [token for word in words for token in self._merge(word)]

    def _merge_uncached(self, text: str) -> tuple[int, ...]:
        ids: list[int] = []
        for character in text:
            raw = character.encode("utf-8", "replace")  # half of a surrogate pair: "?"
            ids += [self._ids[raw]] if raw in self._ids else [byte + 3 for byte in raw]
        while True:
            best, best_score = None, -1e10
            for place in range(len(ids) - 1):
                token = self._ids.get(self._pieces[ids[place]] + self._pieces[ids[place + 1]])
                if token is not None and self._scores[token] > best_score:
                    best, best_score = (place, token), self._scores[token]
            if best is None:
                return tuple(ids)
            place, token = best
            ids[place:place + 2] = [token]


def _read_pieces(path: pathlib.Path) -> tuple[list[bytes], list[float]]:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise readers.DataError(f"{path}: cannot be opened ({error.strerror}): give the path of a llama2.c "
                                "tokenizer.bin") from error
    pieces, scores, offset = [], [], 4
    while offset < len(raw):
        if offset + 8 > len(raw):
            raise readers.DataError(f"{path}: cut inside the header of piece {len(pieces)}: fetch the file again")
        score, length = struct.unpack_from("<fi", raw, offset)
        offset += 8
        if not 0 <= length <= len(raw) - offset:
            raise readers.DataError(f"{path}: piece {len(pieces)} claims {length} bytes, {len(raw) - offset} are "
                                    "left: the file is cut or is not a llama2.c tokenizer.bin")
        pieces.append(raw[offset:offset + length])
        scores.append(score)
        offset += length
    if len(pieces) < 259 or pieces[3] != b"<0x00>" or pieces[258] != b"<0xFF>":
        raise readers.DataError(f"{path}: ids 3..258 are not the 256 byte tokens: not a llama2.c tokenizer.bin")
    return pieces, scores
