"""A tokenizer of single characters. Plain Python, no jax."""

from collections.abc import Sequence

from rl_jax.tokenizers.base import checked

NOT_WRITTEN = "is not in the alphabet"  # of an error: a text that has other characters


class CharTokenizer:
    """One id per character: pad 0, bos 1, eos 2, then the characters of `alphabet` in order."""

    pad_id, bos_id, eos_id = 0, 1, 2
    eos_ids = (2,)

    def __init__(self, alphabet: str, *, remedy: str = ""):
        """alphabet: distinct characters. remedy: what the error of a text with other characters ends with."""
        if len(set(alphabet)) != len(alphabet) or not alphabet:
            raise ValueError(f"alphabet must be distinct characters, at least one; got {alphabet!r}")
        self.alphabet, self._remedy = alphabet, remedy
        self._ids = {character: index + 3 for index, character in enumerate(alphabet)}
        self.vocab_size = len(alphabet) + 3

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of `text`.

        Raises:
          ValueError: if a character is not in the alphabet; names the first one and its place.
        """
        ids = [self.bos_id] if bos else []
        for place, character in enumerate(text):
            if character not in self._ids:
                raise ValueError(
                    f"character {character!r} at place {place} of {text!r:.80} {NOT_WRITTEN} "
                    f"{self.alphabet!r}{self._remedy}"
                )
            ids.append(self._ids[character])
        return ids + [self.eos_id] if eos else ids

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt (here the same as `encode`)."""
        return self.encode(text, eos=eos)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; pad, bos and eos are dropped wherever they are."""
        return "".join(self.alphabet[i - 3] for i in checked(ids, self.vocab_size) if i >= 3)

    def token_text(self, token: int) -> str:
        """The token in readable form."""
        (token,) = checked([token], self.vocab_size)
        return ("<pad>", "<bos>", "<eos>")[token] if token < 3 else self.alphabet[token - 3]
