"""A task's prompt, and typed functions that the model may call before it answers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rl_jax.core.binding import resolve
from rl_jax.envs.text.protocol import Step
from rl_jax.envs.text.tools import Tool, call_all, has_call, tool_of


def _tool(spec: str | Callable | Mapping) -> Tool:
    settings = dict(spec) if isinstance(spec, Mapping) else {"fn": spec}
    function = settings.pop("fn", None)
    if not callable(function) and not isinstance(function, str):
        raise ValueError(f"agent.env.tools: {spec!r} names no function: write \"module:function\", or {{'fn': ...}}")
    return tool_of(resolve(function) if isinstance(function, str) else function, settings)


class ToolUser:
    """A message with calls is answered by their results; one without is the answer, which the task's reward judges.

    numbers: calls, malformed.

    Attributes:
      tools: JSON schemas, for the chat template.

    Args:
      tools: functions, or their import paths "module:function", or {"fn": one of these, **settings}, its keyword-only
        arguments, which the model does not see. One that runs what a model writes belongs into the sandbox:
        {"fn": "rl_jax.rewards.sandbox.tool:python_tool", "cpu_s": 1.0}.
      price: of a call.
    """

    def __init__(self, tools: Sequence[str | Callable], *, price: float = 0.0):
        if not tools:
            raise ValueError("agent.env.tools is empty: name functions, as in ('my_tools:search',)")
        known = [_tool(tool) for tool in tools]
        self._tools, self._price = {tool.name: tool for tool in known}, price
        self.tools = [tool.schema for tool in known]

    def reset(self, record: Mapping[str, Any], seed: int):
        """The record's chat, or its text."""
        return record.get("messages") or record["prompt"]

    def step(self, said: str) -> Step:
        """The results of the calls, or the end."""
        if not has_call(said):
            return Step(done=True)
        answers = call_all(self._tools, said)
        messages = [{"role": "tool", "name": answer.name, "content": answer.text} for answer in answers]
        numbers = {"calls": float(len(answers)), "malformed": float(sum(answer.malformed for answer in answers))}
        return Step(messages, -self._price * len(answers), numbers=numbers)
