"""Tools from typed functions: their schemas, the calls in what a model said, and their results as messages.

    def add(a: int, b: int) -> int:
        "The sum of two numbers."
        return a + b

    tool = tool_of(add)
    answers = call_all({"add": tool}, '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>')

What a model does wrong (no JSON, another name, a wrong type) and what a tool raises about its arguments is an answer;
a ToolFailed is not: the environment has failed.
"""

import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rl_jax.data.checks import utf8
from rl_jax.rewards.sandbox.protocol import SandboxError

MAX_ANSWER = 4000  # characters of one answer
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


class ToolFailed(RuntimeError):
    """A tool itself failed, by no fault of the arguments: its server is gone, or does not answer."""


class Tool(NamedTuple):
    """A function that a model may call.

    Attributes:
      name: of the function.
      schema: {"type": "function", "function": {...}}, as chat templates take it.
      call: the function.
      types: name of an argument -> its Python type.
      required: names of the arguments without a default.
    """

    name: str
    schema: dict
    call: Callable
    types: dict[str, type]
    required: tuple[str, ...]


class Answer(NamedTuple):
    """What a call gave: the text, and whether the call was malformed."""

    name: str
    text: str
    malformed: bool


def tool_of(function: Callable, settings: Mapping[str, Any] = {}) -> Tool:
    """The Tool of a typed function with a docstring.

    Args:
      function: its keyword-only arguments are settings: the model neither sees nor sets them.
      settings: of these arguments.

    Raises:
      ValueError: if an argument has no type, or one that JSON has not, if there is no docstring, or if the function
        has no such setting, or one without a value.
    """
    name, said = function.__name__, inspect.getdoc(function)
    if not said:
        raise ValueError(f"tool {name!r} has no docstring: the model is told what it does by its first paragraph")
    hints, properties, plain = typing.get_type_hints(function), {}, {}
    parameters = inspect.signature(function).parameters.values()
    own = {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}
    missing = [setting for setting, needed in own.items() if needed and setting not in settings]
    if unknown := sorted(set(settings) - set(own)) or missing:
        raise ValueError(
            f"tool {name!r}: {', '.join(unknown)} " + ("needs a value" if missing and unknown is missing else
            f"is no setting of it; its keyword-only arguments are: {', '.join(own) or 'none'}")
        )  # fmt: skip
    parameters = [parameter for parameter in parameters if parameter.name not in own]
    for parameter in parameters:
        kind = _plain_type(hints.get(parameter.name))
        if kind is None:
            given = hints.get(parameter.name, "no type")
            known = ", ".join(kind.__name__ for kind in _TYPES)
            raise ValueError(f"tool {name!r}, argument {parameter.name!r}: {given} is not one of {known}")
        plain[parameter.name], properties[parameter.name] = kind, {"type": _TYPES[kind]}
        if found := re.search(rf"^\s*{parameter.name}: (.+)$", said, re.MULTILINE):
            properties[parameter.name]["description"] = found[1]
    required = tuple(p.name for p in parameters if p.default is p.empty)
    schema = {
        "name": name,
        "description": said.split("\n\n")[0].replace("\n", " "),
        "parameters": {"type": "object", "properties": properties, "required": list(required)},
    }
    call = functools.partial(function, **settings) if settings else function
    return Tool(name, {"type": "function", "function": schema}, call, plain, required)


def _plain_type(hint: Any) -> type | None:
    """The JSON type of an annotation: of list[int] list, of int | None and Optional[int] int; None if there is none."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    kinds = [typing.get_origin(kind) or kind for kind in kinds if kind is not types.NoneType]
    return kinds[0] if len(kinds) == 1 and kinds[0] in _TYPES else None


def has_call(said: str) -> bool:
    """Whether a message calls a tool, or tries to."""
    return "<tool_call>" in said


def call_all(tools: Mapping[str, Tool], said: str) -> list[Answer]:
    """The answers to the calls in a message, in their order, as texts that UTF-8 has bytes for."""
    answers = (_call(tools, match[1], bool(match[2])) for match in _CALL.finditer(said))
    return [answer._replace(text=utf8(answer.text)) for answer in answers]


def _call(tools: Mapping[str, Tool], text: str, closed: bool) -> Answer:
    try:
        if not closed:
            raise ValueError("</tool_call> is missing")
        call = json.loads(text)
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError('a call is {"name": ..., "arguments": {...}}')
        tool = tools.get(call["name"])
        if tool is None:
            raise ValueError(f"there is no tool {call['name']!r:.60}; there are {', '.join(sorted(tools))}")
        arguments = _checked(tool, call.get("arguments", {}))
    except (ValueError, RecursionError) as error:
        return Answer("", f"Error: {error}"[:MAX_ANSWER], True)
    try:
        result = tool.call(**arguments)
        text = result if isinstance(result, str) else json.dumps(result, default=str)
    except (SandboxError, ToolFailed):
        raise  # no fault of the model: the environment has failed
    except Exception as error:  # about the arguments that the model chose: it may read what is wrong with them
        return Answer(tool.name, f"Error: {type(error).__name__}: {error}"[:MAX_ANSWER], False)
    return Answer(tool.name, text[:MAX_ANSWER], False)


def _checked(tool: Tool, arguments: Any) -> dict[str, Any]:
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments of {tool.name} must be an object")
    unknown, missing = sorted(set(arguments) - set(tool.types)), [n for n in tool.required if n not in arguments]
    if unknown or missing:
        parts = [f"unknown: {', '.join(unknown)}"] * bool(unknown) + [f"missing: {', '.join(missing)}"] * bool(missing)
        raise ValueError(f"arguments of {tool.name}: {'; '.join(parts)}")
    for name, value in arguments.items():
        kind = tool.types[name]
        fits = isinstance(value, (int, float) if kind is float else kind) and isinstance(value, bool) == (kind is bool)
        if not fits and not (value is None and name not in tool.required):
            raise ValueError(f"{tool.name}: {name}={value!r:.60} is not of type {_TYPES[kind]}")
    return arguments
