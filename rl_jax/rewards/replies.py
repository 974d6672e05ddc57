"""What a reward function may return, and its form between processes. Stdlib only."""

import importlib
import json
import math
import numbers
import re
from collections.abc import Iterable

FLOAT32_MAX = 3.4028234663852886e38
MAX_NAMES = 64  # components of one function
MAX_NAME = 64  # characters between two slashes
MAX_REASON = 500  # characters of a message
MAX_REPLY = 2**18  # bytes of one item's reply
# Metrics of ours that a component would overwrite: reward/NAME and eval/NAME.
RESERVED = frozenset(
    "mean std timeouts errors optimized references source completion_length truncated pass@1".split()
)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")


def name_problem(name: object) -> str | None:
    """What is wrong with the name of a component or of a term; None if nothing is."""
    if not isinstance(name, str):
        return f"{name!r:.80} is no text"
    if name.partition("/")[0] in RESERVED:
        return f"{name!r:.80} is a metric of the program's own; use another name"
    for part in name.split("/"):
        if len(part) > MAX_NAME:
            return f"{part!r:.80}... has {len(part)} characters, {MAX_NAME} are allowed"
        if not _NAME.fullmatch(part):
            return f"{name!r:.80} must consist of letters, digits and _ . @ + -"
    return None


def as_name(text: str) -> str:
    """A free text as the name of a component: what a name may not have becomes "_"."""
    return re.sub(r"[^A-Za-z0-9_.@+-]", "_", text).lstrip(".@+-")[:MAX_NAME] or "_"


def checked(result, max_names: int = MAX_NAMES) -> dict[str, float]:
    """Returns named components as finite floats.

    Args:
      result: of a reward function.
      max_names: how many components it may have, next to "reward".

    Raises:
      TypeError: if `result` is neither a number nor a dict of named numbers with the key "reward".
      ValueError: if a number is not a finite float32, or there are too many names, or one is not allowed.
    """
    if isinstance(result, numbers.Real):
        result = {"reward": result}
    if not isinstance(result, dict) or "reward" not in result:
        raise TypeError(f"the reward function must return a number or {{'reward': number}}, got {result!r:.200}")
    if len(result) > max_names + 1:
        raise ValueError(f"the reward function returned {len(result) - 1} components, {max_names} are allowed")
    values = {}
    for name, value in result.items():
        if problem := name_problem(name):
            raise ValueError(f"component {problem}")
        if value is None or isinstance(value, (str, bytes)):
            raise TypeError(f"component {name!r} is not a named number: {value!r:.80}")
        values[str(name)] = number = float(value)
        if not math.isfinite(number) or abs(number) > FLOAT32_MAX:
            raise ValueError(f"component {name!r} is {number}, not a finite float32")
    return values


def resolve(name: str):
    """The object named "module:qualname"."""
    module, _, qualname = name.partition(":")
    target = importlib.import_module(module)
    for part in qualname.split("."):
        target = getattr(target, part)
    return target


def hook(function, name: str, kwargs: dict, default):
    """A reward function's attribute `name`, called with its fixed arguments if it is a function.

    Three are known. prepare(**kwargs) runs once per worker, before the time of an item counts. shares_process: whether
    one process scores many items, so that what the function keeps between calls stays; by default those of rl_jax,
    which run no code of a completion. max_names: how many components it may return.
    """
    value = getattr(function, name, default)
    return value(**kwargs) if callable(value) else value


def shares_process(function, kwargs: dict) -> bool:
    """Whether one process scores many items of this function; see `hook`."""
    return bool(hook(function, "shares_process", kwargs, (function.__module__ or "").startswith("rl_jax.")))


def ours(names: Iterable[str]) -> bool:
    """Whether functions are all of rl_jax: short names, or "rl_jax.module:function"."""
    return all(":" not in name or name.startswith("rl_jax.") for name in names)


def describe(error: BaseException) -> str:
    """The text "Type: message", truncated; also works for an exception whose __str__ raises."""
    try:
        return f"{type(error).__name__}: {error}"[:MAX_REASON]
    except BaseException:  # noqa: BLE001 - a broken __str__ must not take the worker down
        return type(error).__name__


def encode(nonce: str, values: dict | None, reason: str | None) -> bytes:
    """One line: the request's nonce and the outcome."""
    return f"{nonce} {json.dumps([values, reason])}\n".encode("ascii")


def decode(line: bytes, nonce: str, max_names: int) -> tuple[dict | None, str | None]:
    """The outcome in a line of `encode`, every part of it checked.

    Raises:
      ValueError: if it is anything else.
    """
    given, _, content = line.partition(b" ")
    if given != nonce.encode("ascii"):
        raise ValueError("it does not answer the request")
    try:
        return outcome(json.loads(content), max_names)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"it has not the form of a reply ({describe(error):.200})") from None


def outcome(found, max_names: int) -> tuple[dict | None, str | None]:
    """(values, None) or (None, reason) of a parsed reply.

    Raises:
      TypeError, ValueError: if it is anything else.
    """
    if not isinstance(found, list) or len(found) != 2:
        raise TypeError("not a pair")
    values, reason = found
    if values is None and isinstance(reason, str):
        return None, reason[:MAX_REASON]
    if reason is not None:
        raise TypeError("not values or a reason")
    return checked(values, max_names), None
