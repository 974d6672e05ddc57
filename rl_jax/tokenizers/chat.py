"""Chats as token ids: a folder's template, and turns that never re-tokenise sampled tokens."""

import datetime
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rl_jax.data import readers
from rl_jax.data.plain_files import read_text
from rl_jax.tokenizers.folder import read_json
from rl_jax.tokenizers.template import ChatTemplateError, SandboxedTemplate

MAX_TEMPLATE = 4 << 20  # bytes of a template's file
_PROBE = "\u2063probe\u2063"  # placeholder of the assistant's text, to find what the template writes after it
MARK = "\u2064"  # in a text: the tokenizer must not join what stands on both sides of it (see `broken`)


class Conversation(NamedTuple):
    """A chat with a model, up to the model's next turn.

    Attributes:
      messages: input of the template; the assistant's are its sampled tokens as text.
      ids: list of int, T.
      text: the template's rendering of `messages`.
      tools: as given to `start`.
      variables: as given to `start`.
      rewrites: reasons why the ids differ from what the template would write now.
    """

    messages: tuple[Mapping, ...]
    ids: list[int]
    text: str
    tools: Sequence[Mapping] | None
    variables: Mapping
    rewrites: tuple[str, ...] = ()


class ChatTemplate:
    """A chat template with its tokenizer.

    Attributes:
      path: for error messages.
      tokenizer: of the same folder.
      when: datetime that strftime_now gives; None: the clock.
    """

    def __init__(self, source: str | Mapping[str, str], tokenizer, *, path: str = "chat template"):
        """Compiles the template.

        Args:
          source: the jinja text, or texts by name ("default", "tool_use").
          tokenizer: of `load_tokenizer`; its special tokens are the template's variables (bos_token, ...).
          path: for error messages.

        Raises:
          ChatTemplateError: if jinja or the sandbox refuses it, or it is no text.
        """
        sources = source if isinstance(source, Mapping) else {"default": source}
        self.path, self.tokenizer, self.when = path, tokenizer, None
        self._templates = {name: SandboxedTemplate(text, path=path) for name, text in sources.items()}

    @classmethod
    def load(cls, folder: str | pathlib.Path, tokenizer) -> "ChatTemplate":
        """The template of a folder: chat_template.jinja, else chat_template of tokenizer_config.json.

        Raises:
          readers.DataError: if there is neither.
          ChatTemplateError: if jinja or the sandbox refuses the template.
        """
        folder = pathlib.Path(folder)
        path = folder / "chat_template.jinja"
        if path.exists():
            files = sorted((folder / "additional_chat_templates").glob("*.jinja"))
            more = {file.stem: read_text(file, MAX_TEMPLATE) for file in files}
            return cls({"default": read_text(path, MAX_TEMPLATE)} | more, tokenizer, path=str(path))
        path = folder / "tokenizer_config.json"
        source = (read_json(path) or {}).get("chat_template")
        if isinstance(source, list):
            if not all(isinstance(entry, Mapping) and {"name", "template"} <= set(entry) for entry in source):
                raise ChatTemplateError(f"{path}: chat_template is a list of something else than name and template")
            source = {str(entry["name"]): entry["template"] for entry in source}
        if not source:
            raise readers.DataError(
                f"{folder}: no chat template: neither chat_template.jinja nor chat_template in "
                "tokenizer_config.json. A base model has none: encode its prompts as plain text"
            )
        return cls(source, tokenizer, path=str(path))

    @staticmethod
    def is_in(folder: str | pathlib.Path) -> bool:
        """Whether a folder has a chat template."""
        folder = pathlib.Path(folder)
        config = read_json(folder / "tokenizer_config.json") or {}
        return (folder / "chat_template.jinja").exists() or bool(config.get("chat_template"))

    def render(
        self,
        messages: Sequence[Mapping],
        *,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping] | None = None,
        **variables,
    ) -> str:
        """The text of `messages`, {"role", "content", ...} each. tools: JSON schemas. variables: the template's own."""
        return self._render(messages, add_generation_prompt, tools, variables)

    def fix_date(self, when: datetime.datetime | None) -> None:
        """Lets strftime_now give one date, so that a chat has the same ids on every day. when: None is the clock."""
        self.when = when
        for template in self._templates.values():
            template.when = when

    def start(
        self, messages: Sequence[Mapping], *, tools: Sequence[Mapping] | None = None, **variables
    ) -> Conversation:
        """A conversation whose next token is the assistant's first."""
        text = self.render(messages, add_generation_prompt=True, tools=tools, **variables)
        ids = self.tokenizer.encode(text)
        return Conversation(tuple(messages), ids, text, tools, variables)

    def turn_end(self, **variables) -> int | None:
        """The id of the EOS that the template writes behind an assistant's message; None if it writes none.

        Gemma's ends turns with another token than the tokenizer's own EOS. variables: the template's own.
        """
        messages = ({"role": "user", "content": "x"}, {"role": "assistant", "content": _PROBE})
        try:
            behind = self._render(messages, False, None, variables).rpartition(_PROBE)[2]
        except ChatTemplateError:  # a template that needs other messages than these
            return None
        return next((token for token in self.tokenizer.encode(behind) if token in self.tokenizer.eos_ids), None)

    def turn_start(self, **variables) -> str:
        """The text that the template writes between the generation prompt and an assistant's message; "" if none.

        A space in Mistral's; an empty <think> block in Qwen3's. variables: the template's own.
        """
        asked = ({"role": "user", "content": "x"},)
        try:
            before = self._render(asked, True, None, variables)
            whole = self._render((*asked, {"role": "assistant", "content": _PROBE}), False, None, variables)
        except ChatTemplateError:  # a template that needs other messages than these
            return ""
        start, found, _ = whole.removeprefix(before).partition(_PROBE)
        return start if found and whole.startswith(before) else ""

    def append_turn(
        self,
        conversation: Conversation,
        sampled: Sequence[int],
        messages: Sequence[Mapping],
        *,
        on_rewrite: str = "refuse",
    ) -> Conversation:
        """Extends a conversation by the model's sampled turn and the answers of others (user, tool).

        The ids only grow at the end: first `sampled`, unchanged, then the ids of what the template writes from there to
        the next generation prompt. A closing token that was sampled is not written again.

        Args:
          conversation: so far.
          sampled: ids, with the EOS unless the turn was cut off.
          messages: the answers.
          on_rewrite: what to do if the template would now write earlier turns differently than the model saw them
            (thinking that is stripped from earlier turns; empty thinking that only the last turn has; a date). "refuse"
            raises, "keep" continues with the ids unchanged and notes it in `rewrites`. Whitespace around the
            assistant's text, which many templates strip, does not count.

        Returns:
          The new Conversation.

        Raises:
          ValueError: for another on_rewrite.
          ChatTemplateError: if the template rewrites earlier turns and on_rewrite is "refuse"; the message has both
            texts.
        """
        if on_rewrite not in ("refuse", "keep"):
            raise ValueError(f"on_rewrite={on_rewrite!r} is neither 'refuse' nor 'keep'")
        sampled = [int(token) for token in sampled]
        ended = bool(sampled) and sampled[-1] in self.tokenizer.eos_ids
        said = self.tokenizer.decode(sampled[:-1] if ended else sampled, keep_special=True)
        history = (*conversation.messages, {"role": "assistant", "content": said})
        turned = (*history, *messages)
        now = self._render(turned, True, conversation.tools, conversation.variables)
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

    def _rest_by_probe(self, conversation, messages) -> str:
        turned = (*conversation.messages, {"role": "assistant", "content": _PROBE}, *messages)
        text = self._render(turned, True, conversation.tools, conversation.variables)
        if text.count(_PROBE) != 1:
            raise ChatTemplateError(f"{self.path}: writes an assistant's message {text.count(_PROBE)} times, not once")
        return text.partition(_PROBE)[2]

    def _encode_behind(self, rest: str, last: int | None) -> list[int]:
        """Ids of what follows the sampled tokens; `last` is the EOS among them, which `rest` may begin with."""
        rest, *broken_off = rest.split(MARK)
        tail = [token for piece in broken_off if piece for token in self.tokenizer.encode_continuation(piece)]
        return self._encode_rest(rest, last) + tail if rest else tail

    def _encode_rest(self, rest: str, last: int | None) -> list[int]:
        # After the special token, the tokenizer treats the text as it would in the whole chat.
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
            f"{self.path} rewrites earlier turns: from character {place} on it was "
            f"{before[shown]!r}, now it is {now[shown]!r}"
        )


def broken(text: str, tokenizer) -> str:
    """`text` with a MARK inside of every spelled-out token that the tokenizer would read as a special one.

    What is encoded part by part between the marks has the same characters and no special token.
    """
    names = [tokenizer.token_text(token) for token in sorted(getattr(tokenizer, "added_ids", ()))]
    text = text.replace(MARK, "")
    for name in sorted((name for name in names if len(name) > 1), key=len, reverse=True):
        text = text.replace(name, name[0] + MARK + name[1:])
    return text


def _behind(now: str, before: str, said: str) -> str | None:
    """The part of `now` after `before` + `said`, up to whitespace around `said`; None if they are not its beginning."""
    if not now.startswith(before):
        return None
    rest = now[len(before) :]
    if rest.startswith(said):
        return rest[len(said) :]
    stripped = rest.lstrip()
    return stripped[len(said.strip()) :] if stripped.startswith(said.strip()) else None
