"""A tokenizer of UTF-8 bytes: it takes every text. Plain Python, no jax."""

from collections.abc import Sequence

from rl_jax.tokenizers.base import checked


class ByteTokenizer:
    """One id per byte: pad 0, bos 1, eos 2, then the 256 bytes."""

    pad_id, bos_id, eos_id = 0, 1, 2
    eos_ids = (2,)
    vocab_size = 259

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of `text`. Half of a surrogate pair, which UTF-8 has no bytes for, becomes "?"."""
        ids = [byte + 3 for byte in text.encode("utf-8", "replace")]
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt (here the same as `encode`)."""
        return self.encode(text, eos=eos)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, without pad, bos and eos; bytes that are no UTF-8 become U+FFFD."""
        return bytes(i - 3 for i in checked(ids, self.vocab_size) if i >= 3).decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        """The token in readable form: a character, or the hexadecimal number of a byte that is none."""
        (token,) = checked([token], self.vocab_size)
        byte = token - 3
        return ("<pad>", "<bos>", "<eos>")[token] if token < 3 else chr(byte) if 32 <= byte < 127 else f"<0x{byte:02X}>"
