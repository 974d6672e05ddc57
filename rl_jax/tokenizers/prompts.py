"""Prompts as a chat model reads them: each is a user's message in the folder's template."""

from collections.abc import Sequence

from rl_jax.tokenizers.chat import ChatTemplate


class ChatPrompts:
    """The tokenizer of `template`, with `encode` of a prompt as a chat of one message, up to the assistant's turn.

    What follows a prompt is encoded and decoded as it is. template: ChatTemplate. system: the system message, if any.
    """

    def __init__(self, template: ChatTemplate, *, system: str = ""):
        self._template, self._tokenizer = template, template.tokenizer
        self._system = [{"role": "system", "content": system}] if system else []

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of the chat; the template writes its own beginning, so `bos` adds nothing. Raises ValueError for eos."""
        if eos:
            raise ValueError("a prompt that the assistant answers has no EOS behind it")
        messages = [*self._system, {"role": "user", "content": text}]
        return self._template.encode_chat(messages, add_generation_prompt=True).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, special tokens left out."""
        return self._tokenizer.decode(ids)

    def __getattr__(self, name: str):
        return getattr(self._tokenizer, name)
