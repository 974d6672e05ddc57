"""A tokenizer with one more token, the mask of a masked-diffusion language model. Plain Python, no jax."""

from collections.abc import Sequence
from typing import Any


class WithMask:
    """`tokenizer` with the id mask_id, its vocabulary's size, which no text encodes to and which decodes to nothing.

    Attributes:
      mask_id: int.
      vocab_size: int. One more than the tokenizer's.

    Args:
      tokenizer: any other.
    """

    def __init__(self, tokenizer: Any):
        self._tokenizer, self.mask_id = tokenizer, tokenizer.vocab_size
        self.vocab_size = tokenizer.vocab_size + 1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle ask an object that has no _tokenizer yet
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._tokenizer, name)

    def decode(self, ids: Sequence[int], **options) -> str:
        """Text of `ids` without masks."""
        return self._tokenizer.decode([i for i in ids if i != self.mask_id], **options)

    def token_text(self, token: int) -> str:
        """The token in readable form."""
        return "<mask>" if token == self.mask_id else self._tokenizer.token_text(token)
