"""Chats as token ids: a folder's template, assistant masks, and turns that never re-tokenise what a model sampled."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_jax.data import readers
from rl_jax.tokenizers.folder import read_json
from rl_jax.tokenizers.template import ChatTemplateError, SandboxedTemplate

_PROBE = "\u2063probe\u2063"  # stands where the assistant's text goes, to find what the template writes behind it


class EncodedChat(NamedTuple):
    """ids: list of int, T of them. assistant_mask: list of bool, T: the tokens that the assistant wrote."""

    ids: list[int]
    assistant_mask: list[bool]


class Conversation(NamedTuple):
    """A chat that a model takes part in, up to where it speaks next.

    messages: what the template is given; the assistant's are its sampled tokens as text. ids, assistant_mask: as in
    EncodedChat; the mask is True on sampled tokens, those and no others. text: what the template makes of `messages`.
    tools, variables: as given to `start`. rewrites: why the ids differ from what the template would write now.
    """

    messages: tuple[Mapping, ...]
    ids: list[int]
    assistant_mask: list[bool]
    text: str
    tools: Sequence[Mapping] | None
    variables: Mapping
    rewrites: tuple[str, ...] = ()


class ChatTemplate:
    """A chat template with its tokenizer.

    source: the jinja text, or texts by name ("default", "tool_use"). tokenizer: of `load_tokenizer`; its special
    tokens are the template's variables (bos_token, ...). path: named in errors.
    """

    def __init__(self, source: str | Mapping[str, str], tokenizer, *, path: str = "chat template"):
        sources = {"default": source} if isinstance(source, str) else source
        self.path, self.tokenizer = path, tokenizer
        self._templates = {name: SandboxedTemplate(text, path=path) for name, text in sources.items()}

    @classmethod
    def load(cls, folder: str | pathlib.Path, tokenizer) -> "ChatTemplate":
        """The template of a folder: chat_template.jinja, else chat_template of tokenizer_config.json.

        Raises readers.DataError where there is neither; ChatTemplateError for one that jinja or the sandbox refuses.
        """
        folder = pathlib.Path(folder)
        path = folder / "chat_template.jinja"
        if path.exists():
            more = {
                file.stem: file.read_text("utf-8")
                for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))
            }
            return cls({"default": path.read_text("utf-8")} | more, tokenizer, path=str(path))
        path = folder / "tokenizer_config.json"
        source = (read_json(path) or {}).get("chat_template")
        if isinstance(source, list):
            source = {entry["name"]: entry["template"] for entry in source}
        if not source:
            raise readers.DataError(
                f"{folder}: no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json. A base model has none: encode its prompts as plain text"
            )
        return cls(source, tokenizer, path=str(path))

    def render(
        self,
        messages: Sequence[Mapping],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping] | None = None,
        **variables,
    ) -> str:
        """The text of `messages`, {"role", "content", ...} each. tools: JSON schemas. variables: the template's own."""
        return self._render(messages, add_generation_prompt, tools, variables)[0]

    def encode_chat(
        self,
        messages: Sequence[Mapping],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping] | None = None,
        **variables,
    ) -> EncodedChat:
        """The ids of `messages`, and which of them the assistant wrote.

        Where the template marks that ({% generation %}) its marks count; a token that lies in part inside one is the
        assistant's. Otherwise it is what follows the prompt for an assistant's message, up to and with the EOS that
        ends it. Raises ChatTemplateError where that cannot be told since the template rewrites the prompt.
        """
        text, spans = self._render(messages, add_generation_prompt, tools, variables)
        ids, offsets = self.tokenizer.encode_with_offsets(text)
        if self._template(tools).marks_assistant:
            return EncodedChat(ids, [any(_overlap(token, span) for span in spans) for token in offsets])
        mask = [False] * len(ids)
        for span, exact in self._answers(messages, text, tools, variables):
            inside = [place for place, token in enumerate(offsets) if _overlap(token, span)]
            ends = [place for place in inside if ids[place] in self.tokenizer.eos_ids]
            last = ends[-1 if exact else 0] if ends else inside[-1] if inside else -1
            for place in inside:
                mask[place] = place <= last
        return EncodedChat(ids, mask)

    def start(
        self, messages: Sequence[Mapping], *, tools: Sequence[Mapping] | None = None, **variables
    ) -> Conversation:
        """A conversation whose next token is the assistant's first."""
        text = self.render(messages, add_generation_prompt=True, tools=tools, **variables)
        ids = self.tokenizer.encode(text)
        return Conversation(tuple(messages), ids, [False] * len(ids), text, tools, variables)

    def append_turn(
        self,
        conversation: Conversation,
        sampled: Sequence[int],
        messages: Sequence[Mapping],
        *,
        on_rewrite: str = "refuse",
    ) -> Conversation:
        """The conversation after the model has sampled a turn and others (user, tool) have answered.

        The ids grow at their end only: `sampled` as it is, then the ids of what the template writes from there to the
        next generation prompt. A closing token that was sampled is not written again.

        sampled: ids, with the EOS unless the turn was cut off. messages: the answers. on_rewrite: what to do where the
        template would now write the turns so far differently than the model saw them (thinking that is stripped from
        earlier turns; empty thinking that only the last turn has; a date): "refuse" raises ChatTemplateError with
        both texts; "keep" goes on with the ids as they are and notes it in `rewrites`. Space around the assistant's
        text, which many templates strip, is no rewriting.
        """
        if on_rewrite not in ("refuse", "keep"):
            raise ValueError(f"on_rewrite={on_rewrite!r} is neither 'refuse' nor 'keep'")
        sampled = [int(token) for token in sampled]
        ended = bool(sampled) and sampled[-1] in self.tokenizer.eos_ids
        said = self.tokenizer.decode(sampled[:-1] if ended else sampled, keep_special=True)
        history = (*conversation.messages, {"role": "assistant", "content": said})
        turned = (*history, *messages)
        now = self._render(turned, True, conversation.tools, conversation.variables)[0]
        rest, reason, text = _behind(now, conversation.text, said), (), now
        if rest is None:
            reason = (self._difference(now, conversation.text + said),)
            if on_rewrite == "refuse":
                raise ChatTemplateError(reason[0])
            rest = self._rest_by_probe(conversation, messages)
            text = conversation.text + said + rest
        new = self._encode_behind(rest, sampled[-1] if ended else None)
        return conversation._replace(
            messages=turned,
            ids=[*conversation.ids, *sampled, *new],
            assistant_mask=[*conversation.assistant_mask, *[True] * len(sampled), *[False] * len(new)],
            text=text,
            rewrites=conversation.rewrites + reason,
        )

    def _template(self, tools) -> SandboxedTemplate:
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ChatTemplateError(f"{self.path}: has no template named {name!r}, only: {', '.join(self._templates)}")
        return self._templates[name]

    def _render(self, messages, add_generation_prompt, tools, variables):
        given = {**self.tokenizer.special_tokens, "tools": tools, "documents": None, **variables}
        return self._template(tools).render(messages, add_generation_prompt=add_generation_prompt, **given)

    def _answers(self, messages, text, tools, variables) -> list[tuple[tuple[int, int], bool]]:
        """Spans of characters that hold the assistant's messages, and whether they end where the message does."""
        spans = []
        for place, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            before = self._render(messages[:place], True, tools, variables)[0]
            upto = self._render(messages[: place + 1], False, tools, variables)[0]
            if not text.startswith(before):
                raise ChatTemplateError(
                    f"{self._difference(text, before)}: so which tokens of message {place} the assistant wrote cannot "
                    "be told; the template would have to say it with generation blocks"
                )
            exact = text.startswith(upto)
            spans.append(((len(before), len(upto) if exact else len(text)), exact))
        return spans

    def _rest_by_probe(self, conversation, messages) -> str:
        turned = (*conversation.messages, {"role": "assistant", "content": _PROBE}, *messages)
        text = self._render(turned, True, conversation.tools, conversation.variables)[0]
        if text.count(_PROBE) != 1:
            raise ChatTemplateError(f"{self.path}: writes an assistant's message {text.count(_PROBE)} times, not once")
        return text.partition(_PROBE)[2]

    def _encode_behind(self, rest: str, last: int | None) -> list[int]:
        """Ids of what follows the sampled tokens; `last` is the EOS among them, which `rest` may begin with."""
        # With the special token in front, the tokenizer sees the text behind it as it would in the whole chat.
        closed = rest.lstrip()
        if last is not None and closed.startswith(self.tokenizer.token_text(last)):
            ids = self.tokenizer.encode(closed)
            if ids[0] == last:
                return ids[1:]
        ids = self.tokenizer.encode(rest)
        return ids if ids and ids[0] in self.tokenizer.added_ids else self.tokenizer.encode_continuation(rest)

    def _difference(self, now: str, before: str) -> str:
        pairs = zip(now, before, strict=False)
        place = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(now), len(before)))
        shown = slice(max(place - 20, 0), place + 40)
        return (
            f"{self.path} rewrites what has been said: from character {place} on there was "
            f"{before[shown]!r}, now there is {now[shown]!r}"
        )


def _overlap(token: tuple[int, int], span: tuple[int, int]) -> bool:
    """Whether a token, which may be empty (a byte of a character), has a character inside a span."""
    return token[0] < span[1] and max(token[1], token[0] + 1) > span[0]


def _behind(now: str, before: str, said: str) -> str | None:
    """What stands in `now` behind `before` + `said`, space around `said` apart; None where they do not stand there."""
    if not now.startswith(before):
        return None
    rest = now[len(before) :]
    if rest.startswith(said):
        return rest[len(said) :]
    stripped = rest.lstrip()
    return stripped[len(said.strip()) :] if stripped.startswith(said.strip()) else None
