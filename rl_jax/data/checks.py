"""Checks of single values of a record from a file. Each raises Problem with the field; a reader adds file and line."""

import difflib
import math
from collections.abc import Mapping, Sequence

ROLES = ("system", "user", "assistant", "tool")
RECORDED = "recorded_turns"  # of a record's info, by our own tasks alone: what a model said and read, in turn


class Problem(ValueError):
    """An error in a record, with the field it is in; a reader adds the file and the line."""

    def __init__(self, text: str, field: str | None = None):
        super().__init__(text)
        self.text, self.field = text, field


def same_text(left: str, right: str) -> bool:
    """Whether two texts are equal up to whitespace."""
    return left.split() == right.split()


def check_text(value, field: str) -> str:
    """Returns `value` if it is a non-empty text that UTF-8 can encode.

    Raises:
      Problem: if it is not.
    """
    if not isinstance(value, str):
        raise Problem(f"expected text, found {kind_of(value)}", field)
    if not value.strip():
        raise Problem("empty text" if not value else "nothing but whitespace", field)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Problem(f"character {error.start} is half of a surrogate pair, not a character", field) from error
    return value


def utf8(text: str) -> str:
    """Text that UTF-8 has bytes for: half of a surrogate pair, as JSON that a model writes can spell, becomes "?"."""
    return text.encode("utf-8", "replace").decode("utf-8")


def check_chat(messages, field: str = "prompt") -> list[dict]:
    """Returns `messages` if they are a chat that an assistant's turn can follow.

    Raises:
      Problem: if they are not.
    """
    if not isinstance(messages, list) or not messages:
        raise Problem(f"expected a text or a list of messages, found {kind_of(messages)}", field)
    for place, message in enumerate(messages):
        where = f"{field}[{place}]"
        if not isinstance(message, dict):
            raise Problem(f"expected a message with role and content, found {kind_of(message)}", where)
        check_names(message, ("role", "content"), where)
        if message.get("role") not in ROLES:
            raise Problem(f"unknown role {message.get('role')!r}; the roles are {', '.join(ROLES)}", f"{where}.role")
        if message["role"] == "system" and place:
            raise Problem("a system message must be the first message", f"{where}.role")
        if "tool_calls" not in message:
            check_text(message.get("content"), f"{where}.content")
    if messages[-1]["role"] not in ("user", "tool"):
        raise Problem(
            f"the prompt must end before an assistant's turn, with a message of user or tool; it ends with "
            f"{messages[-1]['role']!r}",
            field,
        )
    return messages


def check_names(raw: Mapping, known: Sequence[str], where: str | None = None) -> None:
    """Checks for misspelt fields.

    Raises:
      Problem: if an unknown field resembles a known one that is missing.
    """
    absent = [name for name in known if name not in raw]
    for name in raw:
        near = [] if name in known else difflib.get_close_matches(name, absent, n=1, cutoff=0.8)
        if near:
            raise Problem(f"unknown field: did you mean {near[0]!r}?", f"{where}.{name}" if where else name)


def refuse_recorded(raw: Mapping) -> None:
    """Checks that a file has no column with the name of recorded episodes: it would replace what is learned.

    Raises:
      Problem: if it has one.
    """
    if RECORDED in raw:
        raise Problem("the name is kept for the episodes of the library's own tasks: rename the column", RECORDED)


def need(raw: Mapping, field: str):
    """Returns raw[field].

    Raises:
      Problem: if it is missing.
    """
    if field not in raw:
        raise Problem(f"missing (the record has {sorted(raw)})", field)
    return raw[field]


def typed(raw: Mapping, field: str, kind: type):
    """Returns raw[field], of type `kind`. A bool does not count as an int.

    Raises:
      Problem: if it is missing or has another type.
    """
    value = need(raw, field)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Problem(f"expected {kind.__name__}, found {kind_of(value)}", field)
    return value


def number(raw: Mapping, field: str, default: float | None = None) -> float:
    """Returns raw[field] as a finite float, or `default` if it is missing.

    Raises:
      Problem: if it is missing without a default, or not a finite number.
    """
    return default if field not in raw and default is not None else checked_number(need(raw, field), field)


def checked_number(value, field: str) -> float:
    """Returns `value` as a finite float.

    Raises:
      Problem: if it is not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Problem(f"expected a number, found {kind_of(value)}", field)
    try:
        result = float(value)
    except OverflowError:  # JSON has integers of any size
        result = math.inf
    if not math.isfinite(result):
        raise Problem(f"not finite: {result}", field)
    return result


def kind_of(value) -> str:
    """The name of a JSON value's type in error messages."""
    return "null" if value is None else f"an empty {type(value).__name__}" if value == [] else type(value).__name__


def shared(left: Sequence, right: Sequence) -> int:
    """Length of the common beginning of two sequences."""
    pairs = zip(left, right, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
