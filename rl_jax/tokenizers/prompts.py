"""Prompts for a chat model: each is a user message in the folder's template."""

from collections.abc import Mapping, Sequence

from rl_jax.tokenizers.chat import ChatTemplate


class ChatPrompts:
    """The tokenizer of `template`, with prompts encoded as a chat of one message, up to the assistant's turn.

    Everything else is the tokenizer's own: text after a prompt is encoded and decoded without a template.
    """

    def __init__(self, template: ChatTemplate):
        self._template = template

    def encode(self, text: str, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of the chat; the template writes its own beginning, so `bos` adds nothing.

        Raises:
          ValueError: if eos is set.
        """
        if eos:
            raise ValueError(
                "eos=True is not supported: the prompt of a chat ends with the assistant's turn, not with EOS"
            )
        return self._template.start([{"role": "user", "content": text}]).ids

    def encode_messages(self, messages: Sequence[Mapping]) -> list[int]:
        """Ids of a chat of messages {"role", "content", ...}, up to the assistant's turn."""
        return self._template.start(messages).ids

    def __getattr__(self, name: str):
        return getattr(self._template.tokenizer, name)
