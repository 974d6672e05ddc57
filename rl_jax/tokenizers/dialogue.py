"""Dialogues as token ids that only grow: how an episode begins, and what follows a turn of the model.

    talk = dialogue_of(tokenizer).start("12*34=")              # a text, or messages {"role", "content"}
    talk.ids                                                   # the prompt
    talk, ids = talk.answer(sampled, [{"role": "tool", "content": "408"}])      # what the model reads next

What the model sampled is never encoded again. Special tokens that are spelled out in an answer stay text: a tool can
neither end a turn nor begin one. The layout is the tokenizer's: its chat template; "User: ...", as `plain_text` writes
chats, if its folder has none; and for tokenizers without a folder the contents, one after the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rl_jax.tokenizers.chat import MARK, ChatTemplate, Conversation, broken
from rl_jax.tokenizers.prompts import ChatPrompts, PlainPrompts

Messages = Sequence[Mapping[str, str]]
REWRITES = ("keep", "refuse")


class PlainTalk(NamedTuple):
    """A dialogue without a chat template.

    Attributes:
      tokenizer: any.
      ids: of the beginning.
      roles: whether messages are written with their roles.
    """

    tokenizer: Any
    ids: list[int]
    roles: bool

    def said(self, sampled: Sequence[int]) -> str:
        """A turn of the model as text."""
        return self.tokenizer.decode(sampled)

    def answer(self, sampled: Sequence[int], messages: Messages) -> tuple["PlainTalk", list[int]]:
        """The dialogue, and the ids of the answer, up to the model's next turn."""
        contents = [message.get("content") or "" for message in messages]
        if self.roles:
            turns = [
                f"{message['role'].capitalize()}: {text}" for message, text in zip(messages, contents, strict=True)
            ]
            contents = ["\n\n" + "\n\n".join([*turns, "Assistant:"])]
        pieces = broken("".join(contents), self.tokenizer).split(MARK)
        return self, [token for piece in pieces if piece for token in self.tokenizer.encode_continuation(piece)]


class ChatTalk(NamedTuple):
    """A dialogue in a chat template.

    Attributes:
      template: of the model's folder.
      conversation: so far.
      on_rewrite: as in ChatTemplate.append_turn.
      ids: of the beginning.
    """

    template: ChatTemplate
    conversation: Conversation
    on_rewrite: str
    ids: list[int]

    def said(self, sampled: Sequence[int]) -> str:
        """A turn of the model as text."""
        return self.template.tokenizer.decode(sampled)

    def answer(self, sampled: Sequence[int], messages: Messages) -> tuple["ChatTalk", list[int]]:
        """The dialogue, and the ids of all that the template writes from here to the model's next turn.

        Raises:
          ChatTemplateError: if the template rewrites earlier turns and on_rewrite is "refuse".
        """
        tokenizer = self.template.tokenizer
        safe = [{**message, "content": broken(message.get("content") or "", tokenizer)} for message in messages]
        before = self.conversation
        after = self.template.append_turn(before, sampled, safe, on_rewrite=self.on_rewrite)
        return self._replace(conversation=after), after.ids[len(before.ids) + len(sampled) :]


class Dialogues(NamedTuple):
    """How the episodes of a tokenizer begin.

    Attributes:
      tokenizer: of the run.
      tools: JSON schemas of the tools, for the chat template; None if there are none.
      on_rewrite: what happens if a chat template writes earlier turns anew: "keep" goes on with the ids as they are,
        "refuse" raises.
    """

    tokenizer: Any
    tools: Sequence[Mapping] | None = None
    on_rewrite: str = "keep"

    def start(self, opening: str | Messages) -> PlainTalk | ChatTalk:
        """A dialogue up to the model's first turn. A text is encoded as the prompt of a single-turn task is."""
        tokenizer = self.tokenizer
        if isinstance(tokenizer, ChatPrompts):
            if isinstance(opening, str) and not tokenizer.texts:
                return PlainTalk(tokenizer, tokenizer.encode(opening, bos=True), roles=True)
            messages = [{"role": "user", "content": opening}] if isinstance(opening, str) else opening
            begun = tokenizer.template.start(messages, tools=self.tools, **tokenizer.arguments)
            return ChatTalk(tokenizer.template, begun, self.on_rewrite, begun.ids)
        if isinstance(tokenizer, PlainPrompts):
            return PlainTalk(tokenizer, tokenizer.encode(opening, bos=True), roles=not isinstance(opening, str))
        if not isinstance(opening, str):
            opening = "".join(message.get("content") or "" for message in opening)
        return PlainTalk(tokenizer, tokenizer.encode(opening, bos=True), roles=False)


def dialogue_of(tokenizer: Any, tools: Sequence[Mapping] | None = None, *, on_rewrite: str = "keep") -> Dialogues:
    """The Dialogues of a tokenizer.

    Raises:
      ValueError: for another on_rewrite.
    """
    if on_rewrite not in REWRITES:
        raise ValueError(f"on_rewrite={on_rewrite!r} is none of {', '.join(REWRITES)}")
    return Dialogues(tokenizer, tools, on_rewrite)
