"""What every tokenizer offers, and the check of ids that they share.

The protocol: `vocab_size` (one more than the largest id), `pad_id`, `bos_id` (None where there is none: `bos=True`
then adds nothing), `eos_ids` (every id that ends a text), `eos_id` (the one the model itself writes at the end of a
text; the one to train on), `encode(text, bos=, eos=)`, `encode_continuation(text, eos=)` for text that follows a
prompt, `decode(ids)`, `token_text(id)`. Those that read a model's folder (hf, spm) add `special_tokens` (name ->
text, as chat templates know them), `added_ids` (tokens that are cut out of a text before it is split, special ones
among them), `encode_with_offsets(text)` and `decode(ids, keep_special=)`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

UNKNOWN = "\N{REPLACEMENT CHARACTER}"  # how an id without a token reads


class Roles(NamedTuple):
    """Which tokens begin, end and pad a text.

    bos_id: None where the model's texts begin with nothing. eos_ids: every id that ends a text, the tokenizer's own
    first. pad_id: what fills rows. texts: name -> text, "bos_token" -> "<s>", as chat templates know them.
    """

    bos_id: int | None
    eos_ids: tuple[int, ...]
    pad_id: int
    texts: Mapping[str, str]


def checked(ids: Sequence[int], vocab_size: int) -> list[int]:
    """`ids` as Python ints; ValueError names the first one that is outside the vocabulary, and its place."""
    ids = [int(token) for token in ids]
    for place, token in enumerate(ids):
        if not 0 <= token < vocab_size:
            raise ValueError(f"id {token} at place {place} is outside the vocabulary of {vocab_size}")
    return ids
