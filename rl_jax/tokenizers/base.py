"""The tokenizer protocol, and the check of ids that all tokenizers share.

    vocab_size                       one more than the largest id
    pad_id
    bos_id                           None if there is none
    eos_ids                          every id that ends a text
    eos_id                           the one the model itself writes at the end of a text; the one to train on
    encode(text, bos=, eos=)         bos: as a text begins for this model, with BOS if its own tokenizer adds one
    encode_continuation(text, eos=)  for text that follows a prompt
    decode(ids)
    token_text(id)

Tokenizers of a model's folder (hf, spm) add:

    special_tokens                   name -> text, as chat templates expect them
    added_ids                        tokens that are cut out of a text before it is split, including special ones
    encode_with_offsets(text)
    decode(ids, keep_special=)
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # the text of an id without a token


class Roles(NamedTuple):
    """The tokens that begin, end and pad a text.

    Attributes:
      bos_id: None if the files name no BOS.
      eos_ids: every id that ends a text, the tokenizer's own first.
      pad_id: fills rows.
      texts: name -> text, "bos_token" -> "<s>", as chat templates expect them.
      adds_bos: whether the model's own tokenizer puts BOS before a text. Many name one and do not (GPT-2, Pythia, OLMo,
        SmolLM2), and their models were trained without.
    """

    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int
    texts: Mapping[str, str]
    adds_bos: bool = True


def checked(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns `ids` as Python ints.

    Raises:
      ValueError: if an id is outside the vocabulary; names the first one and its place.
    """
    ids = [int(token) for token in ids]
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ValueError(f"id {token} at place {place} is outside the vocabulary of {vocab_size}")
    return ids


class FolderTokenizer:
    """Shared by the tokenizers of model folders.

    Subclasses provide `_whole` and `_after`, the tokenizers for a separate text and for text after a prompt, and
    `_encode(text, one of the two)` -> (ids, offsets).
    """

    def take_roles(self, roles: Roles) -> None:
        """Sets the tokens that begin, end and pad a text."""
        self.bos_id, self.eos_ids, self.pad_id = roles.bos_id, roles.eos_ids, roles.pad_id
        self.eos_id = roles.eos_ids[0]
        self.special_tokens = dict(roles.texts)
        self._first = [roles.bos_id] if roles.adds_bos and roles.bos_id is not None else []

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of `text` as a separate text; special tokens spelled out in it become one id each."""
        ids = self._encode(text, self._whole)[0]
        return self._first * bos + ids + [self.eos_id] * eos

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt: no space is inserted before it."""
        return self._encode(text, self._after)[0] + [self.eos_id] * eos

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`encode(text)`, and for each token its span of characters (begin, end)."""
        return self._encode(text, self._whole)

    def _to_decode(self, ids: Sequence[int]):
        """(ids as Python ints, the tokenizer that decodes their beginning: a BOS removes the space after it)."""
        ids = [int(token) for token in ids]
        if ids and min(ids) < 0:
            raise ValueError(f"id {min(ids)} at place {ids.index(min(ids))} is negative")
        first = next((token for token in ids if token != self.pad_id), None)
        return ids, self._whole if first is not None and first == self.bos_id else self._after
