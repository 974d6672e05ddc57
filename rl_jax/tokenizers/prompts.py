"""Prompts that are texts or chats: messages {"role", "content", ...}, up to the assistant's turn."""

from collections.abc import Mapping, Sequence
from typing import Any

from rl_jax.tokenizers.chat import ChatTemplate

Chat = Sequence[Mapping]


class ChatPrompts:
    """The tokenizer of `template`, with prompts encoded as a chat, up to the assistant's turn.

    Everything else is the tokenizer's own: text after a prompt is encoded and decoded without a template.

    Attributes:
      template: ChatTemplate.
      texts: whether a prompt that is a text is a chat of one user message.
      arguments: of the template.
      eos_id: what ends the assistant's turns in the template; the tokenizer's own if the template writes none.
    """

    def __init__(self, template: ChatTemplate, *, texts: bool = True, arguments: Mapping[str, Any] | None = None):
        """Keeps the template.

        Args:
          template: of the model's folder.
          texts: whether a prompt that is a text is a chat of one user message. False: it is encoded as it is.
          arguments: of the template, such as enable_thinking=False.
        """
        self.template, self.texts, self.arguments = template, texts, dict(arguments or {})
        end = template.turn_end(**self.arguments)
        self.eos_id = template.tokenizer.eos_id if end is None else end
        start = template.turn_start(**self.arguments)
        self._space = start if start.isspace() else ""

    def encode(self, text: str | Chat, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of a prompt; the template writes its own beginning, so `bos` adds nothing to a chat.

        Raises:
          ValueError: if eos is set for a chat.
        """
        if isinstance(text, str) and not self.texts:
            return self.template.tokenizer.encode(text, bos=bos, eos=eos)
        if eos:
            raise ValueError(
                "eos=True is not supported: the prompt of a chat ends with the assistant's turn, not with EOS"
            )
        return self.encode_messages([{"role": "user", "content": text}] if isinstance(text, str) else text)

    def encode_continuation(self, text: str, *, eos: bool = False) -> list[int]:
        """Ids of text that follows a prompt."""
        return self.template.tokenizer.encode_continuation(text) + [self.eos_id] * eos

    def before_response(self, prompt: Any) -> str:
        """The whitespace that the template writes between a prompt and the text of its response; "" if none.

        Other text, such as an empty <think> block, is the model's to write or not.
        """
        is_chat = self.texts if isinstance(prompt, str) else isinstance(prompt, Sequence)
        return self._space if is_chat else ""

    def encode_messages(self, messages: Chat) -> list[int]:
        """Ids of a chat of messages {"role", "content", ...}, up to the assistant's turn."""
        return self.template.start(messages, **self.arguments).ids

    def __getattr__(self, name: str):
        return getattr(self.template.tokenizer, name)


class PlainPrompts:
    """A tokenizer without a chat template, with chats encoded as plain text (`plain_text`).

    Attributes:
      tokenizer: of all other texts.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, text: str | Chat, *, bos: bool = False, eos: bool = False) -> list[int]:
        """Ids of a text, or of a chat as plain text."""
        return self.tokenizer.encode(text if isinstance(text, str) else plain_text(text), bos=bos, eos=eos)

    def encode_messages(self, messages: Chat) -> list[int]:
        """Ids of a chat as plain text, after a BOS."""
        return self.encode(messages, bos=True)

    def __getattr__(self, name: str):
        return getattr(self.tokenizer, name)


def of_texts(tokenizer: Any) -> Any:
    """The tokenizer that encodes texts: that of PlainPrompts, which only adds chats; any other one as it is."""
    return tokenizer.tokenizer if isinstance(tokenizer, PlainPrompts) else tokenizer


def plain_text(messages: Chat) -> str:
    """A chat as plain text, for models without a template: "User: 1+1?\\n\\nAssistant:"."""
    turns = [f"{message['role'].capitalize()}: {message.get('content') or ''}" for message in messages]
    return "\n\n".join([*turns, "Assistant:"])
